"""One stream of a caller, and the calls on it."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from pillion import _failures
from pillion._caller.call import Call
from pillion._caller.questions import Questions
from pillion._facts import CancelReason, SideEffects, set_seconds
from pillion._gen.pillion.v1.call_pb2 import CallerHello, StreamErrorReason
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._wire.channel import StreamEnded, Transport
from pillion._wire.outbox import Limits
from pillion._wire.stream import FrameStream

_log = logging.getLogger("pillion")

_NO_VERSION = StreamErrorReason.STREAM_ERROR_REASON_VERSION


class CallStream:
    """Sends calls and hands on what comes. It takes calls from the sidecar's hello on, until it is retired."""

    def __init__(
        self,
        transport: Transport,
        questions: Questions,
        *,
        on_room: Callable[[], None],
        on_no_version: Callable[[str], None],
    ) -> None:
        """`on_room` is called when it may take a further call, `on_no_version` where no protocol is spoken by both."""
        self.calls: dict[int, Call] = {}
        """Those that were sent and did not end."""
        self.instance_id: str | None = None
        """The sidecar process at the other end; `None` until it said hello."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it did."""
        self.is_retired = False
        """Whether it takes no more calls, and ends with the last of those it has."""
        self._transport = transport
        self._questions = questions
        self._on_room = on_room
        self._on_no_version = on_no_version
        self._limits = Limits()
        self._last_id = 0
        handlers: Mapping[str | None, Callable[[Frame], None]] = {
            "started": self._started,
            "progress": self._progress,
            "teardown_registered": self._registered,
            "outcome": self._outcome,
            "caller_request": self._asked,
            "consent": questions.consent,
            "superseded": self._superseded,
            "host_hello": self._hello,
            "stream_error": self._error,
            "ping": self._ping,
        }
        self._stream = FrameStream(transport, handlers)
        self._stream.on_room = on_room

    async def run(self) -> StreamEnded:
        """Says hello, reads and writes until the stream is over, and answers why it is."""
        self._stream.send(Frame(caller_hello=CallerHello(can_answer=self._questions.methods)))
        try:
            return await self._stream.run()
        finally:
            self._questions.withdraw(self._stream)

    async def expires_in(self) -> float | None:
        """In how many seconds from its opening it takes no calls any more; `None`: it always does. Once it is open."""
        return await self._transport.expires_in()

    def retire(self) -> None:
        """Takes no more calls, and ends the stream once there is none."""
        self.is_retired = True
        self._end_if_over()

    @property
    def has_room(self) -> bool:
        """Whether a call may be sent now."""
        return self.instance_id is not None and len(self.calls) < self._limits.in_flight and not self._stream.crowded

    @property
    def handed_over(self) -> int:
        """How many frames, of those counted by `Call.place`, may have got to the sidecar."""
        return self._stream.outbox.handed_over

    def send(self, call: Call, now: float, *, waited: bool = False) -> None:
        """Sends a call. One that has waited has less time left."""
        self._last_id = call.id = self._last_id + 1
        frame = call.first
        frame.call = call.id
        if waited and call.deadline is not None and frame.HasField("start"):  # its time went on
            frame.start.timeout.Clear()
            set_seconds(frame.start.timeout, max(0.001, call.deadline - call.grace - now))
        data = frame.SerializeToString()
        if len(data) > self._limits.frame_bytes:
            call.end(
                _failures.InvalidArguments(
                    f"The call has {len(data):,} bytes, and a frame has at most {self._limits.frame_bytes:,}; "
                    "hand large data over as an artifact."
                )
            )
            return
        self.calls[call.id] = call
        call.stream = self
        call.place = self._stream.outbox.control(data)

    def cancel(self, call: Call, reason: CancelReason) -> None:
        """Asks a call of this stream to stop."""
        if call.id in self.calls:
            frame = Frame(call=call.id)
            frame.cancel.reason = reason.value  # type: ignore[assignment]  # the same numbers
            self._stream.send(frame)

    def forget(self, call: Call) -> None:
        """Waits for a call of this stream no longer."""
        if self.calls.pop(call.id, None) is not None:
            self._questions.withdraw(self._stream, call.id)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.is_retired and not self.calls:
            self._stream.finish()

    # --- frames

    def _started(self, frame: Frame) -> None:
        call = self.calls.get(frame.call)
        if call is not None:
            call.started(frame)

    def _progress(self, frame: Frame) -> None:
        call = self.calls.get(frame.call)
        if call is not None:
            call.reported(frame)

    def _registered(self, frame: Frame) -> None:
        call = self.calls.get(frame.call)
        if call is not None:
            call.registered(frame)

    def _outcome(self, frame: Frame) -> None:
        call = self.calls.pop(frame.call, None)
        if call is not None:
            self._questions.withdraw(self._stream, call.id)
            call.decided(frame)
            self._end_if_over()
            self._on_room()

    def _superseded(self, frame: Frame) -> None:
        call = self.calls.pop(frame.call, None)
        if call is not None:
            self._questions.withdraw(self._stream, call.id)
            call.end(
                _failures.Superseded(
                    "Another follower took the call over; it goes on, and its ticket is good as before.",
                    side_effects=SideEffects.POSSIBLE,
                )
            )
            self._end_if_over()
            self._on_room()

    def _asked(self, frame: Frame) -> None:
        self._questions.ask(frame, self._stream)

    def _hello(self, frame: Frame) -> None:
        hello = frame.host_hello
        limits = hello.limits
        self._limits = Limits(limits.max_frame_bytes, limits.max_inline_bytes, limits.max_in_flight or 1)
        self._stream.outbox.limits = self._limits
        self.instance_id = hello.instance_id
        if not self.opened.done():
            self.opened.set_result(None)

    def _error(self, frame: Frame) -> None:
        error = frame.stream_error
        _log.warning("the sidecar complains of this stream: %s", error.message)
        if error.reason == _NO_VERSION:
            self._on_no_version(error.message)

    def _ping(self, frame: Frame) -> None:
        answer = Frame()
        answer.pong.nonce = frame.ping.nonce
        self._stream.send(answer)
