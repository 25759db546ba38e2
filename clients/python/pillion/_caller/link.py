"""The stream that a host's calls share, and those that come after it when it is lost."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import grpc

from pillion import _failures
from pillion._caller.call import Call
from pillion._caller.questions import Questions
from pillion._facts import CancelReason, Effects, SideEffects, set_seconds
from pillion._gen.pillion.v1.call_pb2 import CallerHello, StreamErrorReason
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._wire.backoff import Backoff
from pillion._wire.channel import EXECUTE, Connection, StreamEnded
from pillion._wire.outbox import Limits
from pillion._wire.stream import FrameStream

_log = logging.getLogger("pillion")

_TICK = 0.1
_CLOSING = 2.0
_HOPELESS = frozenset(
    (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
)
_NO_VERSION = StreamErrorReason.STREAM_ERROR_REASON_VERSION


class Link:
    """Sends calls and hands on what comes. There is one task for the stream, and none for a call."""

    def __init__(self, connection: Connection, questions: Questions, *, patience: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: dict[int, Call] = {}
        """Those that were sent and did not end."""
        self.effects: dict[str, Effects] = {}
        """What is known of what tools do."""
        self.reconnects = 0
        """How many streams were lost."""
        self.instance_id: str | None = None
        """The sidecar process at the other end; `None` while there is none."""
        self._connection = connection
        self._questions = questions
        self._patience = patience
        self._stream: FrameStream | None = None
        self._limits = Limits()
        self._open = False
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._waiting: deque[Call] = deque()
        self._last_id = 0
        self._keeper: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._ended: _failures.PillionError | None = None
        self._handlers: Mapping[str | None, Callable[[Frame], None]] = {
            "started": self._started,
            "progress": self._progress,
            "outcome": self._outcome,
            "caller_request": self._asked,
            "consent": self._consent,
            "superseded": self._superseded,
            "host_hello": self._hello,
            "stream_error": self._error,
            "ping": self._ping,
        }

    # --- the stream

    async def open(self, timeout: float | None) -> None:
        """Returns once the sidecar has answered.

        :raises ConnectionFailed: if it refuses, or did not answer in time.
        """
        self._keeper = self.loop.create_task(self._keep(), name="pillion-link")
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._opened)
        except TimeoutError:
            raise _failures.ConnectionFailed(
                f"The sidecar did not answer within {timeout:g} s: is it running, and is this its callers' listener?"
            ) from None

    @property
    def can_answer(self) -> bool:
        """Whether tools can ask this caller anything."""
        return bool(self._questions.methods)

    async def close(self) -> None:
        """Ends the stream. What still runs is cancelled, and fails here as `StreamLost`."""
        if self._ended is None:
            self._ended = _failures.Closed("The connection was closed.")
        if self._open and self._stream is not None and not self.calls:
            self._stream.finish()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await asyncio.shield(self._keeper or self._opened)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._fail_waiting(self._ended)
        await self._questions.close()
        if self._ticker is not None:
            self._ticker.cancel()
        if not self._opened.done():
            self._opened.cancel()

    async def _keep(self) -> None:
        backoff = Backoff()
        try:
            while not self._is_over():
                ended = await self._one_stream(wait_for_ready=not self._opened.done())
                if self._is_over():
                    return
                if ended.code in _HOPELESS:
                    self._give_up(ended)
                    return
                if self._open:
                    backoff.reset()
                self._lost()
                _log.info("the stream to the sidecar was lost: %s", ended.code.name if ended.code else "ended")
                await asyncio.sleep(backoff.next())
        except Exception:  # noqa: BLE001  # nobody else would tell who waits
            _log.exception("the connection cannot go on")
            self._end_all(_failures.ConnectionFailed("The connection failed on this side; the log says why."))
        finally:
            self._lost()

    def _is_over(self) -> bool:
        return self._ended is not None

    async def _one_stream(self, *, wait_for_ready: bool) -> StreamEnded:
        await self._connection.prepare(anew=True)
        stream = FrameStream(self._connection.open(EXECUTE, wait_for_ready=wait_for_ready), self._handlers)
        stream.on_room = self._serve
        self._stream = stream
        self._last_id = 0
        stream.send(Frame(caller_hello=CallerHello(can_answer=self._questions.methods)))
        return await stream.run()

    def _give_up(self, ended: StreamEnded) -> None:
        code = ended.code.name if ended.code is not None else "OK"
        cls = _failures.ConnectionFailed if ended.code is grpc.StatusCode.UNIMPLEMENTED else _failures.NotAuthenticated
        self._end_all(cls(f"The sidecar turns this caller away: {code}: {ended.details}"))

    def _end_all(self, error: _failures.ConnectionFailed) -> None:
        """There will be no other stream."""
        self._ended = error
        if not self._opened.done():
            self._opened.set_exception(error)
        self._fail_waiting(error)

    def _lost(self) -> None:
        """The stream is gone, and what ran on it is decided."""
        stream, self._stream = self._stream, None
        if self._open:
            self.reconnects += 1
        self._open = False
        self.instance_id = None
        self._questions.withdraw()
        calls, self.calls = self.calls, {}
        handed_over = stream.outbox.handed_over if stream is not None else 0
        again: list[Call] = []
        for call in calls.values():
            unsent = call.place > handed_over
            if self._ended is None and call.outcome is None and (unsent or call.resend):
                call.since = self.loop.time()
                again.append(call)
            else:
                call.end(self._loss(call, unsent=unsent))
        self._waiting.extendleft(reversed(again))
        self._tick_soon()

    def _loss(self, call: Call, *, unsent: bool) -> _failures.StreamLost:
        harmless = unsent or self.effects.get(call.first.start.tool) is Effects.READ
        return _failures.StreamLost(
            "The connection to the sidecar was lost while the call ran.",
            retryable=harmless or self.effects.get(call.first.start.tool) is Effects.IDEMPOTENT,
            side_effects=SideEffects.NONE if harmless else SideEffects.POSSIBLE,
        )

    # --- calls

    def begin_now(self, call: Call) -> bool:
        """Sends a call, if that can be done at once."""
        stream = self._stream
        if self._open and stream is not None and not self._waiting and len(self.calls) < self._limits.in_flight:
            if stream.crowded:
                return False
            self._send(call, stream)
            return True
        return False

    async def begin(self, call: Call) -> None:
        """Sends a call as soon as that can be done, in order."""
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))
        if self.begin_now(call):
            return
        call.waiter = self.loop.create_future()
        call.since = self.loop.time()
        self._waiting.append(call)
        self._tick_soon()
        try:
            await call.waiter
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(call)
            raise
        finally:
            call.waiter = None

    def _send(self, call: Call, stream: FrameStream, *, waited: bool = False) -> None:
        self._last_id = call.id = self._last_id + 1
        frame = call.first
        frame.call = call.id
        if waited and call.deadline is not None:  # its time went on
            frame.start.timeout.Clear()
            set_seconds(frame.start.timeout, max(0.001, call.deadline - call.grace - self.loop.time()))
        self.calls[call.id] = call
        data = frame.SerializeToString()
        if len(data) > self._limits.frame_bytes:
            del self.calls[call.id]
            call.end(
                _failures.InvalidArguments(
                    f"The call has {len(data):,} bytes, and a frame has at most {self._limits.frame_bytes:,}; "
                    "hand large data over as an artifact."
                )
            )
            return
        call.place = stream.outbox.control(data)
        if call.deadline is not None and self._ticker is None:
            self._tick_soon()

    def cancel(self, call: Call, reason: CancelReason) -> None:
        """Asks a call to stop. One that was not sent ends at once."""
        if call.outcome is not None:
            return
        if call in self._waiting:
            self._waiting.remove(call)
            self._end_waiting(call, _failures.CallCancelled("The call was cancelled before it was sent."))
        elif call.id in self.calls and self._stream is not None:
            frame = Frame(call=call.id)
            frame.cancel.reason = reason.value  # type: ignore[assignment]  # the same numbers
            self._stream.send(frame)

    def leave(self, call: Call) -> None:
        """Nobody waits for a call any more: asks it to stop, and forgets it. Its slot is free with its outcome."""
        if call.outcome is None:
            self.cancel(call, CancelReason.CALLER)
            call.resend = False
            call.end(_failures.CallCancelled("The call was left.", side_effects=SideEffects.POSSIBLE))

    def _serve(self) -> None:
        """Sends what waits, as far as that can be done."""
        stream = self._stream
        while self._waiting and self._open and stream is not None and not stream.crowded:
            if len(self.calls) >= self._limits.in_flight:
                return
            call = self._waiting.popleft()
            self._send(call, stream, waited=True)
            if call.waiter is not None and not call.waiter.done():
                call.waiter.set_result(None)

    def _end_waiting(self, call: Call, error: _failures.CallFailed) -> None:
        call.end(error)
        if call.waiter is not None and not call.waiter.done():
            call.waiter.set_result(None)

    def _fail_waiting(self, error: _failures.PillionError) -> None:
        while self._waiting:
            call = self._waiting.popleft()
            self._end_waiting(call, _failures.Unreachable(str(error)))

    # --- time

    def _grace_over(self, call: Call) -> None:
        """A call's outcome did not come in time: it ends here."""
        self.cancel(call, CancelReason.DEADLINE)
        self.calls.pop(call.id, None)
        call.end(
            _failures.CallTimedOut(
                "The sidecar did not say in time how the call ended.", side_effects=SideEffects.POSSIBLE
            )
        )

    def _tick_soon(self) -> None:
        if self._ticker is None and (self._waiting or self.calls) and not self.loop.is_closed():
            self._ticker = self.loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for call in [call for call in self.calls.values() if call.deadline is not None and now > call.deadline]:
            self._grace_over(call)
        for call in tuple(self._waiting) if self._waiting else ():
            if call.deadline is not None and now > call.deadline - call.grace:
                self._waiting.remove(call)
                self._end_waiting(call, _failures.CallTimedOut("The call's time passed before it could be sent."))
            elif call.deadline is None and not self._open and now - call.since > self._patience:
                self._waiting.remove(call)
                self._end_waiting(
                    call,
                    _failures.Unreachable(
                        f"The connection to the sidecar did not come back within {self._patience:g} s.", retryable=True
                    ),
                )
        self._tick_soon()

    # --- frames

    def _started(self, frame: Frame) -> None:
        call = self.calls.get(frame.call)
        if call is not None:
            call.started(frame)

    def _progress(self, frame: Frame) -> None:
        call = self.calls.get(frame.call)
        if call is not None:
            call.reported(frame)

    def _outcome(self, frame: Frame) -> None:
        call = self.calls.pop(frame.call, None)
        if call is not None:
            call.decided(frame)
            if self._waiting:
                self._serve()

    def _superseded(self, frame: Frame) -> None:
        call = self.calls.pop(frame.call, None)
        if call is not None:
            call.end(_failures.CallCancelled("Another follower took the call over."))

    def _asked(self, frame: Frame) -> None:
        if self._stream is not None:
            self._questions.ask(frame, self._stream)

    def _consent(self, frame: Frame) -> None:
        self._questions.consent(frame)

    def _hello(self, frame: Frame) -> None:
        hello = frame.host_hello
        limits = hello.limits
        self._limits = Limits(limits.max_frame_bytes, limits.max_inline_bytes, limits.max_in_flight or 1)
        if self._stream is not None:
            self._stream.outbox.limits = self._limits
        self.instance_id = hello.instance_id
        self._open = True
        if not self._opened.done():
            self._opened.set_result(None)
        self._serve()

    def _error(self, frame: Frame) -> None:
        error = frame.stream_error
        _log.warning("the sidecar complains of this stream: %s", error.message)
        if error.reason == _NO_VERSION and self._ended is None:
            self._end_all(_failures.ConnectionFailed(f"No protocol is spoken by both: {error.message}"))

    def _ping(self, frame: Frame) -> None:
        answer = Frame()
        answer.pong.nonce = frame.ping.nonce
        if self._stream is not None:
            self._stream.send(answer)
