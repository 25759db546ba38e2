"""Gate 6: one request, one run. Calls with the same idempotency key join, replay or conflict."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls.outcome import NONE, POSSIBLE, PauseWanted, Refusal, failed, failure
from sidecar.calls.paused import digest_of_arguments
from sidecar.calls.stores import IdempotencyRecord, IdempotencyStore, StoreUnavailable
from sidecar.calls.tasks import Tasks
from sidecar.calls.tool import Tool
from sidecar.scope import Scope
from sidecar.telemetry import Counters

if TYPE_CHECKING:
    from sidecar.calls.call import Call
    from sidecar.calls.pauses import Pauses

_log = logging.getLogger(__name__)

_RETRY_AFTER = 1.0
Provide: TypeAlias = Callable[[], asyncio.Task[None] | None]


class Keyed(NamedTuple):
    """A request with an idempotency key. The key is bound to the scope's tenant and subject, and to the tool."""

    scope: Scope
    tool: Tool
    key: str
    digest: bytes
    """Of the arguments, byte for byte."""

    @property
    def address(self) -> tuple[str | None, str, str, str]:
        """What the key is looked up by."""
        return (*self.scope.owner, self.tool.name, self.key)


class Requests:
    """The keyed requests that run now, and the records of those that ran.

    A request is claimed in memory when it arrives, recorded just before its tool is invoked, and its outcome is
    recorded before it is sent. Each running one has a task; calls without a key have none.
    """

    def __init__(self, store: IdempotencyStore, counters: Counters) -> None:
        self.pauses: Pauses | None = None
        """Who keeps paused calls; `None`: nobody, and none pauses."""
        self._store = store
        self._counters = counters
        self._running: dict[tuple[str | None, str, str, str], tuple[Keyed, Call]] = {}
        self._tasks = Tasks(counters)

    def __len__(self) -> int:
        return len(self._running)

    async def settled(self) -> None:
        """Waits until everything that is being recorded is recorded."""
        await self._tasks.settled()

    def enter(self, call: "Call", tool: Tool, key: str, go_on: Provide) -> None:
        """Joins the running call of the same request, or finds out whether it ran before and, if not, runs it.

        `go_on` is called once the request is known to be new: the gates behind this one, up to but without the invoke.
        They are passed once the task that it answers is done, which ends with the call.

        :raises Refusal: if the key was used with other arguments.
        """
        if call.scope is None or call.invocation is None:
            return
        digest = digest_of_arguments(call.invocation.invoke.arguments)
        if (resumption := call.resumption) is not None and resumption.ticket_digest is not None:
            # The same request is the same answer to the same pause.
            digest = hashlib.sha256(digest + resumption.ticket_digest + resumption.answer).digest()
        request = Keyed(call.scope, tool, key, digest)
        running = self._running.get(request.address)
        if running is None:
            call.hold()
            self._running[request.address] = (request, call)
            self._tasks.begin(self._run(request, call, go_on))
            return
        original, original_call = running
        if original.digest != request.digest:
            raise _conflict()
        if original_call.done:
            raise Refusal(
                FailureKind.FAILURE_KIND_OVERLOADED,
                "The same request has just been given up; try again in a moment.",
                retryable=True,
                retry_after=_RETRY_AFTER,
            )
        self._counters.add("joined_calls")
        call.follow(original_call)

    async def _run(self, request: Keyed, call: "Call", go_on: Provide) -> None:
        try:
            record = await self._store.find(request.scope, request.tool.name, request.key)
            if record is not None and (answer := self._answer(record, request)) is not None:
                call.replay(answer)
                return
            if call.done:
                return
            if call.caller.detaches:
                call.tell_started()
            supplying = go_on()
            if supplying is not None:
                await asyncio.wait((supplying,))
                if supplying.cancelled():
                    return
                if isinstance(wanted := supplying.exception(), PauseWanted):
                    await self._begin(request, call)
                    await self._record(request, await call.pause_and_settle(wanted.frame))
                    return
                supplying.result()
            if self.pauses is not None:
                await self.pauses.claim(call)
            await self._begin(request, call)
            # The call may have been cancelled while its record was written.
            await self._record(request, await call.route_and_settle())
        except Refusal as refusal:
            call.settle(failed(refusal.failure))
        except StoreUnavailable:
            _log.exception("an idempotency record could not be read or written")
            call.settle(failed(_unavailable()))
        except Exception:
            _log.exception("a request with an idempotency key failed inside the sidecar")
            call.settle(failed(failure(FailureKind.FAILURE_KIND_INTERNAL, "The sidecar failed.", POSSIBLE)))
        finally:
            if self.pauses is not None:
                await self.pauses.conclude(call)
            call.deliver()
            del self._running[request.address]

    async def _begin(self, request: Keyed, call: "Call") -> None:
        await self._store.begin(request.scope, request.tool.name, request.key, request.digest, call.execution_id)

    async def _record(self, request: Keyed, outcome: Frame | None) -> None:
        """Records an outcome; `None` and one without effects free the key."""
        scope, tool, key = request.scope, request.tool.name, request.key
        try:
            if outcome is None or (
                outcome.outcome.WhichOneof("kind") == "failure" and outcome.outcome.failure.side_effects == NONE
            ):
                await self._store.free(scope, tool, key)
            else:
                ended = outcome.outcome if self.pauses is None else self.pauses.tickets.sealed(outcome.outcome)
                await self._store.finish(scope, tool, key, ended.SerializeToString())
        except StoreUnavailable:
            # The call has its outcome all the same. Its record says that it runs, so an unsafe tool is not run again.
            self._counters.add("unrecorded_outcomes")
            _log.exception("an outcome could not be recorded under its idempotency key")

    def _answer(self, record: IdempotencyRecord, request: Keyed) -> Frame | None:
        """What a request that ran before is answered; `None`: it may run again."""
        if record.digest != request.digest:
            raise _conflict()
        if record.outcome is not None:
            self._counters.add("replayed_calls")
            frame = Frame()
            frame.outcome.ParseFromString(record.outcome)
            if self.pauses is not None:
                self.pauses.tickets.unseal(frame.outcome)
            return frame
        if request.tool.effects != Effects.EFFECTS_UNSAFE:
            return None
        return failed(
            failure(
                FailureKind.FAILURE_KIND_OUTCOME_UNKNOWN,
                f"{request.tool.name} ran for this request, and the sidecar stopped before it ended; it may or may not "
                "have taken effect. Find out before you run it under another key.",
                POSSIBLE,
            )
        )


def _conflict() -> Refusal:
    return Refusal(
        FailureKind.FAILURE_KIND_IDEMPOTENCY_CONFLICT,
        "The idempotency key was used with other arguments; a new request needs a new key.",
    )


def _unavailable() -> Failure:
    return failure(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        "The record of idempotency keys cannot be reached, so the request was not run; try again later.",
        NONE,
        retryable=True,
        retry_after=_RETRY_AFTER,
    )
