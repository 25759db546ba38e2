"""Whatever callers and workers do, and in whatever order: one outcome a call, and nothing left behind."""

import asyncio
import gc

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar.calls.call import Call
from tests.support import VirtualTimeLoop, quiet
from tests.support.exercise import ACTIONS, CALLERS, TOOLS, WORKERS, Exercise

CALLER = st.integers(0, CALLERS - 1)
WORKER = st.integers(0, WORKERS - 1)
PEER = st.integers(0, CALLERS + WORKERS - 1)
PICK = st.integers(0, 11)
# Reports and results come more often than what is odd.
ACTION = st.sampled_from((*["progress"] * 4, *["result"] * 3, *ACTIONS))


def step(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    """A step of an exercise, by its name and arguments."""
    return st.tuples(st.just(name), *arguments)


STARTS = step(
    "start",
    CALLER,
    st.sampled_from(TOOLS),
    st.sampled_from([None, "k", "k", "l"]),
    st.sampled_from([None, None, 0.0, 0.3, 2.5]),
    st.sampled_from([0, 0, 0, 0, 1_000, 7_000, 9_000]),
)
ACTS = st.lists(ACTION, min_size=1, max_size=6).flatmap(
    lambda actions: step("act", WORKER, PICK, *map(st.just, actions))
)
ATTACHES = step("attach", WORKER, st.integers(1, 2), st.integers(1, 4))
# What keeps calls going comes more often than what ends streams.
STEPS = st.one_of(
    STARTS,
    STARTS,
    STARTS,
    ACTS,
    ACTS,
    ACTS,
    ACTS,
    ATTACHES,
    ATTACHES,
    step("burst", CALLER, st.sampled_from(TOOLS), st.integers(1, 9)),
    step("cancel", PICK, st.sampled_from(CancelReason.values())),
    step("wait", st.sampled_from([1e-6, 1e-6, 0.0, 0.01, 0.4, 1.0, 3.0, 7.0])),
    step("caller_misbehaves", CALLER, st.integers(0, 4), PICK),
    step("half_close_caller", CALLER),
    step("cut_caller", CALLER),
    step("tear_down", WORKER),
    step("end_session", st.sampled_from(TOOLS)),
    step("come_back", WORKER, PICK),
    step("change_tools", WORKER, st.integers(1, 2)),
    step("leave", WORKER),
    step("half_close_worker", WORKER),
    step("cut_worker", WORKER),
    step("hang", WORKER),
    step("pause", PEER),
    step("resume", PEER),
)


@given(st.lists(STEPS, min_size=20, max_size=60))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
def check(steps: list[tuple[object, ...]]) -> None:
    async def run() -> None:
        exercise = Exercise()
        await exercise.attach(0, 1, 3)
        for number, (name, *arguments) in enumerate(steps):
            await getattr(exercise, str(name))(*arguments)
            if number % 3:
                await quiet()
        await exercise.finish()

    # Without debug, in which the loop notes a traceback for each of very many handles.
    with asyncio.Runner(loop_factory=VirtualTimeLoop, debug=False) as runner:
        runner.run(run())


def test_every_call_has_one_outcome_and_nothing_is_left() -> None:
    check()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Call)], "calls that are over are kept"
