"""One call, in its caller's hands."""

import asyncio
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pillion import _failures, _json
from pillion._caller.outcome import Outcome, Paused, Progress, RegisteredTeardown, Result, read_outcome, value_of
from pillion._facts import CancelReason, Identity, Secret, TeardownScope, Trace, set_seconds
from pillion._gen.pillion.v1.frame_pb2 import Frame

if TYPE_CHECKING:
    from pillion._caller.link import Link
    from pillion._caller.stream import CallStream

PROGRESS_KEPT = 32
"""How many reports of a call are kept for who iterates; older ones give way."""
TEARDOWNS_KEPT = 32
"""How many registrations of a call are kept; older ones give way."""


def start_of(  # noqa: C901, PLR0913  # the facts of a call are many, and each has its name and is set if it is there
    tool: str,
    arguments: Any,
    *,
    timeout: float | None = None,
    idle_timeout: float | None = None,
    human_timeout: float | None = None,
    identity: Identity | None = None,
    run_id: str | None = None,
    session_id: str | None = None,
    tool_call_id: str | None = None,
    idempotency_key: str | None = None,
    iteration: int = 0,
    parent_anchor: str | None = None,
    trace: Trace | None = None,
    detachable: bool = False,
) -> Frame:
    """The first frame of a call, but for its number.

    :raises JsonRefused: if the arguments have no JSON text of the same meaning.
    """
    frame = Frame()
    start = frame.start
    start.tool = tool
    if iteration:
        start.iteration = iteration
    if arguments is not None:
        start.arguments = _json.encode_arguments(arguments)
    if timeout is not None:
        set_seconds(start.timeout, timeout)
    if run_id is not None:
        start.run_id = run_id
    if session_id is not None:
        start.session_id = session_id
    if tool_call_id is not None:
        start.tool_call_id = tool_call_id
    if idempotency_key is not None:
        start.idempotency_key = idempotency_key
    if idle_timeout is not None:
        set_seconds(start.idle_timeout, idle_timeout)
    if human_timeout is not None:
        set_seconds(start.human_timeout, human_timeout)
    if parent_anchor is not None:
        start.parent_anchor = parent_anchor
    if identity is not None:
        start.identity.SetInParent()
        _set_named(start.identity, identity, ("tenant", "principal", "conversation_id"))
    if detachable:
        start.detachable = True
    if trace is not None:
        _set_named(start.trace, trace, ("traceparent", "tracestate", "baggage"))
    return frame


def resume_of(ticket: str | Secret | Paused | _failures.CallPaused, answer: Any, **facts: Any) -> Frame:
    """The first frame of a call that resumes another, but for its number. `facts` are as of `start_of`.

    :raises JsonRefused: if the answer has no JSON text of the same meaning.
    :raises ValueError: if what is to be resumed has no ticket.
    """
    if isinstance(ticket, _failures.CallPaused):
        ticket = ticket.paused
    held = ticket.ticket if isinstance(ticket, Paused) else ticket
    if held is None:
        raise ValueError("This pause has no ticket: the call that it came up in has.")
    frame = start_of("", None, **facts)
    resume = frame.start.resume
    resume.ticket = held.reveal() if isinstance(held, Secret) else held
    if answer is not None:
        resume.answer = answer if isinstance(answer, bytes) else _json.encode(answer)
    return frame


def follow_of(ticket: str, from_sequence: int) -> Frame:
    """The first frame of a part in a detached call, but for its number."""
    frame = Frame()
    frame.follow.ticket = ticket
    if from_sequence:
        frame.follow.from_sequence = from_sequence
    return frame


def _set_named(message: Any, facts: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(facts, name)
        if value is not None:
            setattr(message, name, value)


class Call:
    """A call: its progress, its result, and the way to cancel it.

    It begins with its `async with` block, and leaving the block before its end cancels it::

        async with host.start("render", {"scene": 7}) as call:
            async for progress in call:
                print(progress.payload)
            image = await call.result()

    One that is detachable goes on when its connection is lost, and is followed again once there is another. With
    `detach` it is let go of: whoever has its ticket may follow it by `Host.follow`, also from another process.

    For use by tasks of one event loop. One task at a time may iterate; any number may wait for the result.
    """

    __slots__ = (
        "_begun",
        "_end",
        "_is_started",
        "_link",
        "_lost",
        "_reader",
        "_reports",
        "cancelling",
        "deadline",
        "execution_id",
        "first",
        "generation",
        "grace",
        "id",
        "is_let_go",
        "joined",
        "outcome",
        "place",
        "resend",
        "sequence",
        "since",
        "stream",
        "teardowns",
        "ticket",
        "tool_call_id",
        "waiter",
    )

    def __init__(
        self, link: "Link", first: Frame, timeout: float | None, *, grace: float, resend: bool, iterated: bool
    ) -> None:
        self.first = first
        """Its first frame. For the link."""
        self.grace = grace
        """How long after its timeout an outcome is waited for. For the link."""
        self.deadline = None if timeout is None else link.loop.time() + timeout + grace
        """When this side gives up, on the loop's clock. For the link."""
        self.resend = resend
        """Whether to send it again when its stream is lost. For the link."""
        self.ticket: str | None = None
        """The handle to follow it with, where it is detachable; `None` until its first frame came. Secret."""
        self.sequence = 0
        """The number of the newest report that came; the next one that is wanted is behind it."""
        self.is_let_go = False
        """Whether it goes on when this side leaves it. For the link."""
        self.cancelling: CancelReason | None = None
        """Why it is to stop, where it has to be told again when it is followed again. For the link."""
        self.stream: CallStream | None = None
        """The stream that it was sent on. For the link."""
        self.place = 0
        """Which frame of its stream its start is. For the link."""
        self.since = 0.0
        """When it began to wait to be sent. For the link."""
        self.waiter: asyncio.Future[None] | None = None
        """Set while the call waits to be sent. For the link."""
        self.id = 0
        """Its number on the stream; 0 until it was sent."""
        self.execution_id: str | None = None
        """The sidecar's id of the execution; `None` until the call's first frame came."""
        self.tool_call_id: str | None = None
        """The caller's id of the call, or the one that was minted for it; `None` as above."""
        self.generation: int | None = None
        """The catalogue's generation that the call is pinned to; `None` as above."""
        self.joined = False
        """Whether the call joined or replays an earlier one with the same idempotency key."""
        self.teardowns: tuple[RegisteredTeardown, ...] = ()
        """What its tool has registered for the ends of scopes, the newest 32 of it."""
        self.outcome: Outcome | None = None
        """How it ended, as it came; `None` while it did not."""
        self._link = link
        self._begun = False
        self._end: asyncio.Future[None] = link.loop.create_future()
        self._is_started: asyncio.Future[None] | None = None
        self._reports: deque[Progress] | None = deque() if iterated else None
        self._reader: asyncio.Future[None] | None = None
        self._lost = 0

    async def __aenter__(self) -> Self:
        """Sends the call, and waits with that while the stream is away or has as many calls as it may.

        A call that cannot be sent in time has ended then, as `Unreachable` or `CallTimedOut`: `result` raises it.

        :raises Closed: if the connection was closed, or the call was started before.
        """
        if self._begun:
            raise _failures.Closed("A call is started once.")
        self._begun = True
        await self._link.begin(self)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Cancels the call if it still runs and was not detached, and waits for nothing."""
        self._link.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progress:
        """The next report. Stops when the call ended, however it did: `result` says how."""
        reports = self._reports
        if reports is None or not self._begun:
            raise _failures.Closed("A call reports within its `async with` block.")
        while not reports:
            if self.outcome is not None:
                raise StopAsyncIteration
            if self._reader is not None:
                raise _failures.Closed("Another task iterates over this call.")
            self._reader = self._link.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return reports.popleft()

    async def result(self) -> Any:
        """The value that the tool returned, or the `ArtifactMeta` of where a large one was placed.

        :raises CallFailed: if the call did not return; each kind has its class.
        :raises ErrorResult: if the tool says that its result is an error.
        :raises CallPaused: if the tool waits for an answer from outside.
        :raises JsonRefused: if what came is not JSON.
        """
        return value_of(await self.ended())

    async def ended(self) -> Outcome:
        """How the call ended, as it came: a `Result`, a `Paused` or a `CallFailed`, which is not raised."""
        if self.outcome is None:
            if not self._begun:
                raise _failures.Closed("A call ends within its `async with` block.")
            await asyncio.shield(self._end)
        assert self.outcome is not None  # noqa: S101  # the future is set together with it
        return self.outcome

    async def raw(self) -> Result:
        """The result as it came, with its blocks and also if the tool says that it is an error.

        :raises CallFailed: if the call did not return.
        :raises CallPaused: if the tool waits for an answer.
        """
        outcome = await self.ended()
        if isinstance(outcome, Result):
            return outcome
        value_of(outcome)
        raise AssertionError("unreachable")

    async def cancel(self, reason: CancelReason = CancelReason.CALLER) -> None:
        """Asks the call to stop, and waits for nothing: it ends with its outcome, most likely `CallCancelled`.

        CALLER, PARENT, DEADLINE and DISCONNECT are a caller's reasons; the sidecar reads others as CALLER.
        """
        self._link.cancel(self, reason)

    async def detach(self) -> str:
        """Lets go of a detachable call: it goes on when its block is left. Answers its ticket, once that is there.

        Whoever has the ticket, and connects as this caller does, may follow the call. A ticket is a secret.

        :raises CallFailed: if the call ended without one, as a refused call does.
        :raises ValueError: if the call is not detachable.
        """
        start = self.first
        if self.ticket is None and not (start.HasField("start") and start.start.detachable):
            raise ValueError("Only a call that was started with detachable=True can be detached.")
        if not self._begun:
            raise _failures.Closed("A call is detached within its `async with` block.")
        if self.ticket is None and self.outcome is None:
            self._is_started = self._is_started or self._link.loop.create_future()
            await asyncio.shield(self._is_started)
        if self.ticket is None:
            value_of(await self.ended())
            raise _failures.Unsupported("The sidecar gave the call no ticket.")
        self.is_let_go = True
        return self.ticket

    async def run(self) -> Outcome:
        """Begins the call and waits for its end; cancelling the task cancels the call. For the host."""
        self._begun = True
        link = self._link
        try:
            if not link.begin_now(self):
                await link.begin(self)
            await self._end
        except asyncio.CancelledError:
            link.leave(self)
            raise
        assert self.outcome is not None  # noqa: S101  # as above
        return self.outcome

    # --- for the link

    def started(self, frame: Frame) -> None:
        """The call's first frame came."""
        started = frame.started
        self.execution_id = started.execution_id
        self.tool_call_id = started.tool_call_id
        self.generation = started.generation
        self.joined = started.joined
        if started.HasField("ticket"):
            self.ticket = started.ticket
        self._wake_detaching()

    def following(self) -> Frame:
        """The first frame of what goes on where the lost stream ended. For the link."""
        assert self.ticket is not None  # noqa: S101  # the link looks first
        self.first = follow_of(self.ticket, self.sequence + 1 if self.sequence else 0)
        return self.first

    def reported(self, frame: Frame) -> None:
        """A report came."""
        self.sequence = frame.sequence
        reports = self._reports
        if reports is None:
            return
        lost = frame.coalesced + self._lost
        self._lost = 0
        reports.append(Progress(frame.progress.payload, lost, frame.sequence, frame.time_unix_nano))
        if len(reports) > PROGRESS_KEPT:
            dropped = reports.popleft()
            reports[0].coalesced += dropped.coalesced + 1
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def registered(self, frame: Frame) -> None:
        """The call's tool registered something for the end of a scope."""
        told = frame.teardown_registered
        if 1 <= told.scope <= len(TeardownScope):
            label = told.label if told.HasField("label") else None
            made = RegisteredTeardown(TeardownScope(told.scope), told.key_digest, label, told.reused)
            self.teardowns = (*self.teardowns, made)[-TEARDOWNS_KEPT:]

    def decided(self, frame: Frame) -> None:
        """The call's last frame came."""
        self.end(read_outcome(frame.outcome))

    def end(self, outcome: Outcome) -> None:
        """The call ended. The first end counts."""
        if self.outcome is not None:
            return
        if isinstance(outcome, _failures.CallFailed):
            outcome.execution_id, outcome.tool_call_id = self.execution_id, self.tool_call_id
        self.outcome = outcome
        if not self._end.done():
            self._end.set_result(None)
        self._wake_detaching()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_detaching(self) -> None:
        if self._is_started is not None and not self._is_started.done():
            self._is_started.set_result(None)
