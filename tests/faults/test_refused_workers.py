"""Workers that cannot present themselves, and tools that are not admitted: told why, and nobody else notices."""

import contextlib

import grpc
import pytest

from sidecar._gen.pillion.v1.call_pb2 import ProtocolVersion, StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import Reattach
from tests.faults.conftest import Inside
from tests.faults.running import running
from tests.support import (
    READ,
    UNSAFE,
    CallerPeer,
    Host,
    StartHost,
    WorkerLimits,
    WorkerPeer,
    attach,
    on_sockets,
    on_unix,
    seconds,
    tool,
    tools_changed,
)
from tests.support.worker import progress, result

OUTCOME_UNKNOWN = FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN
WRONG = StreamErrorReason.STREAM_ERROR_REASON_PROTOCOL

UNAUTHENTICATED, PRECONDITION = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION

SLOW = "^(a+)+$"
"""Takes a backtracking engine as long as one likes; one of linear time does not mind."""
BAD_SCHEMAS = {
    "no JSON": b"{",
    "a text": '"object"',
    "a key twice": b'{"type": "object", "type": "object"}',
    "no schema": {"type": "objekt"},
    "of other than objects": {"type": "array"},
    "elsewhere": {"properties": {"a": {"$ref": "https://example.com/schema.json"}}},
    "a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "nowhere": {"properties": {"a": {"$ref": "#/$defs/none"}}},
    "itself": {"$ref": "#"},
    "itself in a round": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "another dialect": {"$schema": "http://json-schema.org/draft-07/schema#"},
    "a regular expression that looks back": {"properties": {"a": {"pattern": r"(a*)\1b"}}},
    "a regular expression that looks ahead": {"properties": {"a": {"pattern": "(?=a)b"}}},
    "a regular expression without an end": {"properties": {"a": {"pattern": "("}}},
    "a regular expression that is too large": {"properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}},
    "nested too deep": b'{"properties": {"a": ' + b'{"not":' * 200 + b"{}" + b"}" * 202,
    "too long": {"description": "x" * 300_000},
}


async def stays_well(host: Host, worker: WorkerPeer, caller: CallerPeer, name: str = "other") -> None:
    """Calls of another worker's tool go through."""
    await (await running(caller, worker, name)).ends_well()


@on_sockets
async def test_a_stranger_is_turned_away(host: Host, inside: Inside) -> None:
    other, caller = await attach(host, tool("other"), worker="other"), await host.caller()
    for worker, token in (
        ("main", "wrong"),
        ("main", ""),
        ("main", "token-of-other"),
        ("other", "token-of-main"),
        ("nobody", "token-of-main"),
        ("", ""),
        ("main\n", "token-of-main"),
    ):
        stranger = await host.worker()
        await stranger.present(tool(), worker=worker, token=token)
        assert await stranger.end() == (UNAUTHENTICATED, "No worker of this name has this token.")
        assert not stranger.order
    assert inside.counts["refused_workers"] == 7
    await stays_well(host, other, caller)


@on_sockets
@pytest.mark.parametrize("concurrency", [0, 65_537, 2**32 - 1])
async def test_a_concurrency_that_cannot_be_had_is_refused(host: Host, concurrency: int) -> None:
    worker = await host.worker()
    await worker.present(tool(), concurrency=concurrency)
    assert await worker.end() == (PRECONDITION, "A worker's concurrency is 1 to 65,536.")


@on_sockets
async def test_a_worker_of_another_version_is_refused(host: Host) -> None:
    worker = await host.worker()
    await worker.present(tool(), minimum=ProtocolVersion(major=2), maximum=ProtocolVersion(major=3))
    assert (await worker.end()).code is PRECONDITION


@on_sockets
async def test_a_worker_that_does_not_begin_with_its_hello_is_refused(host: Host) -> None:
    first: list[Frame] = [progress(1), result(1, 1), tools_changed(tool())]
    for body in ("log", "outbound_request", "register_teardown", "teardown_done", "start", "invoke", "output"):
        frame = Frame(call=1)
        getattr(frame, body).SetInParent()
        first.append(frame)
    for frame in first:
        worker = await host.worker()
        await worker.send(frame)
        end = await worker.end()
        assert end == (PRECONDITION, "The first frame of a worker is its WorkerHello."), frame


@on_sockets
async def test_a_worker_that_says_nothing_is_let_go(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(hello_within=0.2))
    worker = await host.worker()
    await worker.flush()
    assert await worker.end() == (PRECONDITION, "No WorkerHello came within 0.2 s.")
    hasty = await host.worker()
    await hasty.half_close()
    assert (await hasty.end()).code is grpc.StatusCode.OK


@on_sockets
async def test_a_second_hello_is_told_and_changes_nothing(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await running(caller, worker)
    for name, token in (("main", None), ("other", None), ("main", "wrong")):
        await worker.present(tool("read"), worker=name, token=token, concurrency=1)
        assert (await worker.next_of("stream_error")).stream_error.reason == WRONG
    await call.ends_well()
    await stays_well(host, worker, caller, "echo")


# --- tools


def bad_tools() -> dict[str, ToolDescriptor]:
    """Tools that are refused, by what is wrong with them. All are `send`, which the worker may bring."""
    bad = {f"a schema: {case}": tool("send", input_schema=schema) for case, schema in BAD_SCHEMAS.items()}
    bad["an output schema"] = tool("send", output_schema={"$ref": "#"})
    bad["no time"] = tool("send", default_timeout=0)
    bad["less than no time"] = tool("send", max_timeout=-1)
    bad["no calls at once"] = tool("send", concurrency=0)
    bad["a long description"] = tool("send")
    bad["a long description"].description = "x" * 20_000
    bad["a long title"] = tool("send", title="x" * 300)
    return bad


@on_unix
async def test_a_bad_tool_is_refused_by_name_and_the_others_stay(host: Host, inside: Inside) -> None:
    caller = await host.caller()
    bad = bad_tools()
    for case, descriptor in bad.items():
        worker = await host.worker()
        good = tool("read", input_schema={"properties": {"a": {"pattern": SLOW}}})
        welcome = await worker.hello(tool("echo"), descriptor, good)
        assert [refused.name for refused in welcome.refused] == ["send"], case
        assert welcome.refused[0].reason.rstrip("…"), case
        assert "Traceback" not in welcome.refused[0].reason, case
        await stays_well(host, worker, caller, "echo")
        call = await running(caller, worker, "read")
        await call.ends_well()
        # The regular expression that others would take forever for.
        slow = await caller.call("read", {"a": "a" * 10_000 + "b"})
        assert slow.failure.kind == FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
        await worker.goodbye()
        await worker.end()
    assert inside.counts["refused_tools"] == len(bad)


@on_sockets
async def test_names_that_a_worker_may_not_bring_are_refused(host: Host) -> None:
    other, caller = await attach(host, tool("other"), worker="other"), await host.caller()
    worker = await host.worker()
    names = ["other", "nobody", "", "with space", "x" * 65, "é"]
    welcome = await worker.hello(tool("echo"), *map(tool, names), tool("echo", effects=READ))
    assert [refused.name for refused in welcome.refused] == [*[name[:64] for name in names], "echo"]
    assert all(refused.reason for refused in welcome.refused)
    await stays_well(host, worker, caller, "echo")
    await stays_well(host, other, caller)


@on_sockets
async def test_a_name_that_another_set_has_is_refused(start_host: StartHost) -> None:
    host = await start_host(sets={"main": frozenset(("echo", "put")), "second": frozenset(("echo", "send"))})
    first, caller = await attach(host, tool("echo"), tool("put")), await host.caller()
    second = await host.worker()
    welcome = await second.hello(tool("send"), tool("echo"), worker="second")
    assert [(refused.name, "main" in refused.reason) for refused in welcome.refused] == [("echo", True)]
    await stays_well(host, first, caller, "echo")
    await stays_well(host, second, caller, "send")
    assert not [each for each in second.invoked if each.invoke.tool == "echo"]


@on_unix
async def test_too_many_tools_are_refused(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(most_tools=2))
    worker = await host.worker()
    await worker.present(tool("echo"), tool("read"), tool("put"))
    assert (await worker.end()).code is PRECONDITION


# --- coming back


@on_sockets
async def test_another_secret_is_refused_and_the_instance_goes_on(host: Host) -> None:
    worker, caller = await host.worker(), await host.caller()
    welcome = await worker.hello(tool())
    call = await running(caller, worker)
    for secret in ("", "wrong", welcome.reattach_secret[:-1], welcome.reattach_secret + "x"):
        thief = await host.worker()
        await thief.present(tool(), reattach=Reattach(instance_id=welcome.instance_id, secret=secret))
        assert await thief.end() == (UNAUTHENTICATED, "The instance to re-attach has another secret.")
        assert welcome.reattach_secret not in str(thief.order)
    await call.ends_well()
    # The secret of an instance is of no use to another set.
    other = await host.worker()
    again = Reattach(instance_id=welcome.instance_id, secret=welcome.reattach_secret)
    theirs = await other.hello(tool("other"), worker="other", reattach=again)
    assert theirs.instance_id != welcome.instance_id
    await stays_well(host, worker, caller, "echo")


@on_sockets
async def test_an_instance_that_comes_back_ends_its_old_stream(host: Host, inside: Inside) -> None:
    worker, caller = await host.worker(), await host.caller()
    welcome = await worker.hello(tool("echo", effects=UNSAFE), tool("read", effects=READ))
    unsafe, read = await running(caller, worker), await running(caller, worker, "read")
    back = await host.worker()
    again = Reattach(instance_id=welcome.instance_id, secret=welcome.reattach_secret, registrations=["first", "second"])
    welcome_back = await back.hello(tool("echo", effects=UNSAFE), tool("read", effects=READ), reattach=again)
    assert welcome_back.instance_id == welcome.instance_id
    assert [(await back.next_of("release")).release.registration_id for _ in range(2)] == ["first", "second"]
    assert (await caller.outcome(unsafe.call)).failure.kind == OUTCOME_UNKNOWN
    await back.result((await back.next_invoke()).call, "again")
    assert (await caller.outcome(read.call)).result.json == b'"again"'
    assert (await worker.end()).code is grpc.StatusCode.OK
    await inside.streams_are(2)
    await stays_well(host, back, caller, "echo")


@on_unix
async def test_an_instance_that_comes_back_too_late_is_a_new_one(start_host: StartHost) -> None:
    host = await start_host(workers=WorkerLimits(reattach_window=0.1))
    worker = await host.worker()
    welcome = await worker.hello(tool())
    assert welcome.reattach_window == seconds(0.1)
    worker.cut()
    late: WorkerPeer | None = None
    again = Reattach(instance_id=welcome.instance_id, secret="wrong")
    while late is None:
        # Within the window the secret is looked at; past it there is nothing that it could be for.
        comer = await host.worker()
        await comer.present(tool(), reattach=again)
        with contextlib.suppress(AssertionError):
            assert (await comer.next_of("welcome")).welcome.instance_id != welcome.instance_id
            late = comer
