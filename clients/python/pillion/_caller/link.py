"""The stream that a host's calls share, and those that come after it when it is lost or its token expires."""

import asyncio
import logging
from collections import deque

import grpc

from pillion import _failures
from pillion._caller.call import Call
from pillion._caller.questions import Questions
from pillion._caller.stream import CallStream
from pillion._facts import CancelReason, Effects, SideEffects
from pillion._wire.backoff import Backoff
from pillion._wire.channel import EXECUTE, Connection, StreamEnded, closed

_log = logging.getLogger("pillion")

_TICK = 0.1
_CLOSING = 2.0
_UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
_HOPELESS = frozenset((_UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED))
_SHARE = 0.2
_EARLY = (5.0, 60.0)
"""How long before its token expires a stream is renewed: a share of its time, and from this to that many seconds."""
_ASK_AGAIN = 5.0


class Link:
    """Sends calls on the newest stream. There is one task for each stream, and none for a call."""

    def __init__(self, connection: Connection, questions: Questions, *, patience: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.effects: dict[str, Effects] = {}
        """What is known of what tools do."""
        self.reconnects = 0
        """How many streams were lost."""
        self._connection = connection
        self._questions = questions
        self._patience = patience
        self._streams: dict[CallStream, asyncio.Task[StreamEnded]] = {}
        """All that are not over: the one that takes calls, and those that came before it and have some."""
        self._current: CallStream | None = None
        """The one that takes calls."""
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._waiting: deque[Call] = deque()
        self._keeper: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._ended: _failures.PillionError | None = None
        self._refusal = ""
        """Why the last stream did not come to be."""

    @property
    def instance_id(self) -> str | None:
        """The sidecar process at the other end; `None` while there is none."""
        return None if self._current is None else self._current.instance_id

    @property
    def in_flight(self) -> int:
        """How many calls were sent and did not end."""
        return sum(len(stream.calls) for stream in self._streams)

    # --- streams

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
                f"{self._refusal and f' The last try ended{self._refusal}'}"
            ) from None

    @property
    def can_answer(self) -> bool:
        """Whether tools can ask this caller anything."""
        return bool(self._questions.methods)

    async def close(self) -> None:
        """Ends the streams. What still runs is cancelled, and fails here as `StreamLost`."""
        if self._ended is None:
            self._ended = closed()
        try:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.gather(self._keeper, return_exceptions=True)
            if self._current is not None and not self._current.calls:
                self._current.retire()
                await asyncio.wait((self._streams[self._current],), timeout=_CLOSING)
        finally:
            # Whoever is cancelled here may be cancelled at each further await as well.
            running = tuple(self._streams.values())
            for task in running:
                task.cancel()
            self._fail_waiting(self._ended)
            if self._ticker is not None:
                self._ticker.cancel()
            if not self._opened.done():
                self._opened.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._questions.close()

    async def _keep(self) -> None:
        backoff = Backoff()
        try:
            while self._ended is None:
                ended = await self._one_stream(backoff)
                if ended is None:
                    continue
                if self._is_hopeless(ended):
                    self._give_up(ended)
                    return
                code = ended.code.name if ended.code else "ended"
                self._refusal = f": {code}: {ended.details}" if ended.details else ""
                _log.info("the stream to the sidecar was lost: %s", code)
                await asyncio.sleep(backoff.next())
        except Exception:  # noqa: BLE001  # nobody else would tell who waits
            _log.exception("the connection cannot go on")
            self._end_all(_failures.ConnectionFailed("The connection failed on this side; the log says why."))
            for task in self._streams.values():
                task.cancel()

    async def _one_stream(self, backoff: Backoff) -> StreamEnded | None:
        """Opens another stream in place of the one there is; answers how it ended, or nothing once it is to be renewed.

        What there was takes calls until the sidecar has answered, and then ends with those it has.
        """
        connection = self._connection
        await connection.prepare(anew=not self._streams)
        shown = connection.shown
        transport = connection.open(EXECUTE, wait_for_ready=not self._opened.done())
        stream = CallStream(transport, self._questions, on_room=self._serve, on_no_version=self._no_version)
        running = self._streams[stream] = self.loop.create_task(self._run(stream))
        await asyncio.wait((running, stream.opened), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            before, self._current = self._current, stream
            if before is not None:
                before.retire()
            backoff.reset()
            if not self._opened.done():
                self._opened.set_result(None)
            self._serve()
            if connection.renewable and await self._is_to_be_renewed(stream, running, shown):
                return None
            await asyncio.wait((running,))
        return running.result()

    async def _is_to_be_renewed(self, stream: CallStream, running: asyncio.Task[StreamEnded], shown: object) -> bool:
        """Whether there is something newer to show, waited for until shortly before the stream takes no more calls.

        False: it does not expire, or was lost before. While there is nothing newer it is looked for again.
        """
        expires_in = await stream.expires_in()
        if expires_in is None:
            return False
        expires_at = self.loop.time() + expires_in
        least, most = _EARLY
        # Half of its time at the most, where it has little.
        wait = expires_in - min(max(expires_in * _SHARE, least), most, expires_in / 2)
        while True:
            await asyncio.wait((running,), timeout=wait)
            if running.done():
                return False
            await self._connection.prepare()
            if self._connection.shown != shown:
                return True
            wait = min(max((expires_at - self.loop.time()) * _SHARE, _TICK), _ASK_AGAIN)

    async def _run(self, stream: CallStream) -> StreamEnded:
        try:
            return await stream.run()
        finally:
            del self._streams[stream]
            self._over(stream)

    def _over(self, stream: CallStream) -> None:
        """A stream is gone, and what ran on it is decided."""
        if stream is self._current:
            self._current = None
            self.reconnects += self._ended is None
        again: list[Call] = []
        for call in stream.calls.values():
            unsent = call.place > stream.handed_over
            is_wanted = call.outcome is None and (unsent or call.resend)
            # The word that it is to stop may have been lost as well.
            is_followed = call.ticket is not None and (call.outcome is None or call.cancelling is not None)
            if self._ended is None and (is_wanted or is_followed):
                if is_followed:
                    call.following()
                call.since = self.loop.time()
                again.append(call)
            else:
                call.end(self._loss(call, unsent=unsent))
        stream.calls.clear()
        self._waiting.extendleft(reversed(again))
        self._tick_soon()

    def _is_hopeless(self, ended: StreamEnded) -> bool:
        """Whether no other stream would come to be either."""
        if self._current is not None or ended.code not in _HOPELESS:
            return False
        # What is shown may be another thing the next time, and has been taken before.
        return not (ended.code is _UNAUTHENTICATED and self._connection.renewable and self._opened.done())

    def _give_up(self, ended: StreamEnded) -> None:
        code = ended.code.name if ended.code is not None else "OK"
        cls = _failures.ConnectionFailed if ended.code is grpc.StatusCode.UNIMPLEMENTED else _failures.NotAuthenticated
        self._end_all(cls(f"The sidecar turns this caller away: {code}: {ended.details}"))

    def _no_version(self, message: str) -> None:
        if self._ended is None:
            self._end_all(_failures.ConnectionFailed(f"No protocol is spoken by both: {message}"))

    def _end_all(self, error: _failures.ConnectionFailed) -> None:
        """There will be no other stream."""
        self._ended = error
        if not self._opened.done():
            self._opened.set_exception(error)
        self._fail_waiting(error)

    def _loss(self, call: Call, *, unsent: bool) -> _failures.StreamLost:
        harmless = unsent or self.effects.get(call.first.start.tool) is Effects.READ
        return _failures.StreamLost(
            "The connection to the sidecar was lost while the call ran.",
            retryable=harmless or self.effects.get(call.first.start.tool) is Effects.IDEMPOTENT,
            side_effects=SideEffects.NONE if harmless else SideEffects.POSSIBLE,
        )

    def raise_if_over(self) -> None:
        """Goes on, unless the connection was closed, or has failed for good.

        :raises PillionError: as whoever connected was told, or would be.
        """
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))

    # --- calls

    def begin_now(self, call: Call) -> bool:
        """Sends a call, if that can be done at once."""
        stream = self._current
        if stream is None or self._waiting or not stream.has_room:
            return False
        stream.send(call, 0.0)
        if call.deadline is not None and self._ticker is None:
            self._tick_soon()
        return True

    async def begin(self, call: Call) -> None:
        """Sends a call as soon as that can be done, in order."""
        self.raise_if_over()
        if self.begin_now(call):
            return
        call.waiter = self.loop.create_future()
        call.since = self.loop.time()
        self._waiting.append(call)
        self._tick_soon()
        try:
            await call.waiter
        except asyncio.CancelledError:
            # It may have been sent in the very moment.
            self.leave(call)
            raise
        finally:
            call.waiter = None

    def cancel(self, call: Call, reason: CancelReason) -> None:
        """Asks a call to stop. One that was not sent ends at once; one that is followed again is asked again then."""
        if call.outcome is not None:
            return
        if call.ticket is not None:
            call.cancelling = reason
        elif call in self._waiting:
            self._waiting.remove(call)
            self._end_waiting(call, _failures.CallCancelled("The call was cancelled before it was sent."))
            return
        if call.stream is not None:
            call.stream.cancel(call, reason)

    def leave(self, call: Call) -> None:
        """Nobody waits for a call any more: asks it to stop, and forgets it. Its slot is free with its outcome."""
        if call.outcome is not None:
            return
        if call.is_let_go and call in self._waiting:
            self._waiting.remove(call)
        elif not call.is_let_go:
            self.cancel(call, CancelReason.CALLER)
        call.resend = False
        call.end(_left_running() if call.is_let_go else _left())

    def _serve(self) -> None:
        """Sends what waits, as far as that can be done."""
        while self._waiting and self._current is not None and self._current.has_room:
            call = self._waiting.popleft()
            self._current.send(call, self.loop.time(), waited=True)
            if call.cancelling is not None:
                self._current.cancel(call, call.cancelling)
            self._tick_soon()
            if call.waiter is not None and not call.waiter.done():
                call.waiter.set_result(None)

    def _end_waiting(self, call: Call, error: _failures.CallFailed) -> None:
        if call.execution_id is not None and call.ticket is not None:
            # It is not the call that was not sent, but that it is to be followed again.
            error = _failures.StreamLost(
                f"The connection to the sidecar was lost, and the call goes on without it. {error.message}",
                side_effects=SideEffects.POSSIBLE,
            )
        call.end(error)
        if call.waiter is not None and not call.waiter.done():
            call.waiter.set_result(None)

    def _fail_waiting(self, error: _failures.PillionError) -> None:
        while self._waiting:
            call = self._waiting.popleft()
            self._end_waiting(call, _failures.Unreachable(str(error)))

    # --- time

    def _grace_over(self, call: Call, stream: CallStream) -> None:
        """A call's outcome did not come in time: it ends here."""
        stream.cancel(call, CancelReason.DEADLINE)
        stream.forget(call)
        call.end(
            _failures.CallTimedOut(
                "The sidecar did not say in time how the call ended.", side_effects=SideEffects.POSSIBLE
            )
        )

    def _tick_soon(self) -> None:
        if self._ticker is None and (self._waiting or self.in_flight) and not self.loop.is_closed():
            self._ticker = self.loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for stream in tuple(self._streams):
            late = [call for call in stream.calls.values() if call.deadline is not None and now > call.deadline]
            for call in late:
                self._grace_over(call, stream)
        for call in tuple(self._waiting) if self._waiting else ():
            if call.deadline is not None and now > call.deadline - call.grace:
                self._waiting.remove(call)
                self._end_waiting(call, _failures.CallTimedOut("The call's time passed before it could be sent."))
            elif call.deadline is None and self._current is None and now - call.since > self._patience:
                self._waiting.remove(call)
                self._end_waiting(
                    call,
                    _failures.Unreachable(
                        f"The connection to the sidecar did not come back within {self._patience:g} s{self._refusal}",
                        retryable=True,
                    ),
                )
        self._tick_soon()


def _left() -> _failures.CallFailed:
    return _failures.CallCancelled("The call was left.", side_effects=SideEffects.POSSIBLE)


def _left_running() -> _failures.CallFailed:
    return _failures.StreamLost(
        "This side left the call, which goes on; follow it by its ticket.", side_effects=SideEffects.POSSIBLE
    )
