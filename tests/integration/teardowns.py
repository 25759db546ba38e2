"""What tests of teardown share: cleanups that are registered, and run."""

from typing import Any

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyError
from sidecar._gen.pillion.v1.worker_pb2 import RegisterTeardown
from tests.support import CallerPeer, WorkerPeer

CALL = TeardownScope.TEARDOWN_SCOPE_CALL
RUN = TeardownScope.TEARDOWN_SCOPE_RUN
SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
SHUTDOWN = TeardownScope.TEARDOWN_SCOPE_SHUTDOWN


async def kept(
    worker: WorkerPeer,
    caller: CallerPeer,
    session: str = "s",
    *,
    scope: "TeardownScope.ValueType" = SESSION,
    name: str | None = None,
    tool: str = "echo",
    **start: Any,
) -> str:
    """The id of a cleanup that a call has registered which has ended."""
    call = await caller.start(tool, session_id=session, **start)
    run = (await worker.next_invoke()).call
    accepted = await worker.registered(run, scope, name=name)
    await worker.result(run)
    assert (await caller.outcome(call)).HasField("result")
    return accepted.registration_id


async def ran(worker: WorkerPeer, *expected: str) -> None:
    """Runs these cleanups in this order, each at once, and knows why."""
    for registration in expected:
        assert (await worker.next_teardown()).registration_id == registration
        await worker.torn_down(registration)


async def refusal(worker: WorkerPeer, run: int, registration: RegisterTeardown) -> ReplyError:
    """Why a registration is refused."""
    reply = await worker.register(run, registration)
    assert reply.HasField("error"), reply
    assert reply.request_id == registration.request_id
    return reply.error
