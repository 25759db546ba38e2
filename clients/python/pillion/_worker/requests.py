"""The requests of one running call: what was asked, what was answered, and what was subscribed to."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from pillion import _refusals
from pillion._gen.pillion.v1.bus_pb2 import Delivery
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply
from pillion._gen.pillion.v1.worker_pb2 import RegisterTeardown

_log = logging.getLogger("pillion.worker")

MOST_OPEN = 1_024
_DELIVERIES_KEPT = 1_024


class Deliveries:
    """What came for one subscription and was not taken yet. The sidecar counts what it has sent against a credit."""

    def __init__(self) -> None:
        self._kept: deque[Delivery] = deque()
        self._lost = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, delivery: Delivery) -> None:
        """Keeps one. When too many wait, the oldest gives way and is counted."""
        self._kept.append(delivery)
        if len(self._kept) > _DELIVERIES_KEPT:
            self._kept.popleft()
            self._lost += 1
        self._wake()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._wake()

    async def take(self) -> Delivery | None:
        """The next; `None` at the end."""
        while not self._kept and not self._lost:
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._lost:
            lost, self._lost = self._lost, 0
            return Delivery(lagged=lost)
        return self._kept.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Requests:
    """The open requests of one call. For the event loop's thread alone."""

    __slots__ = ("_closed", "_last", "_listeners", "_open", "_send", "_subscriptions")

    def __init__(self, send: Callable[[Frame], bool]) -> None:
        """`send` queues a frame of the call, and answers whether it is of a size that can be sent."""
        self._send = send
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self._listeners: dict[int, Callable[[bytes], None]] = {}
        self._subscriptions: dict[str, Deliveries] = {}
        self._last = 0
        self._closed = False

    async def ask(
        self,
        request: OutboundRequest | RegisterTeardown,
        timeout: float | None,
        reported: Callable[[bytes], None] | None = None,
        sent: Callable[[int], None] | None = None,
    ) -> Reply:
        """The answer to a request. `reported` is told what a call reports that was asked for, `sent` the number of it.

        :raises RequestRefused: if there is none, or it is an error.
        """
        code = _refusals.ReplyCode
        if self._closed:
            raise _refusals.RequestCancelled(code.CANCELLED, "The call has ended: a tool asks while it runs.")
        if len(self._open) >= MOST_OPEN:
            raise _refusals.RequestOverloaded(code.OVERLOADED, f"{MOST_OPEN:,} requests of this call are open.")
        self._last = request.request_id = self._last + 1
        frame = Frame()
        if isinstance(request, OutboundRequest):
            frame.outbound_request.CopyFrom(request)
        else:
            frame.register_teardown.CopyFrom(request)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        number = request.request_id
        self._open[number] = answer
        if reported is not None:
            self._listeners[number] = reported
        try:
            if not self._send(frame):
                raise _refusals.RequestInvalid(code.INVALID, "The request is over the largest frame.")
            if sent is not None:
                sent(number)
            async with asyncio.timeout(timeout):
                reply = await answer
        except TimeoutError:
            raise _refusals.RequestTimedOut(code.CANCELLED, f"No answer came within {timeout:g} s.") from None
        finally:
            self._open.pop(number, None)
            self._listeners.pop(number, None)
        if reply.WhichOneof("answer") is None or reply.HasField("error"):
            raise _refusals.refused(reply.error)
        return reply

    def replied(self, reply: Reply) -> None:
        """An answer came. One to no open request is dropped."""
        if reply.HasField("subscribed"):
            # Deliveries may be in the same message, before who asked has seen the answer.
            self._subscriptions[reply.subscribed.subscription] = Deliveries()
        answer = self._open.get(reply.request_id)
        if answer is not None and not answer.done():
            kept = Reply()
            kept.CopyFrom(reply)
            answer.set_result(kept)

    def reported(self, request_id: int, payload: bytes) -> None:
        """A call that was asked for reports. What the listener raises is logged, and disturbs nothing."""
        listener = self._listeners.get(request_id)
        if listener is not None:
            try:
                listener(payload)
            except Exception:  # noqa: BLE001  # whatever it is, other calls are read on
                _log.exception("what listens to the progress of a call failed")

    def delivered(self, delivery: Delivery) -> None:
        """Something came for a subscription. For one that is not open it is dropped."""
        deliveries = self._subscriptions.get(delivery.subscription)
        if deliveries is not None:
            kept = Delivery()
            kept.CopyFrom(delivery)
            deliveries.put(kept)

    def deliveries(self, subscription: str) -> Deliveries:
        """What came for a subscription that was opened."""
        return self._subscriptions.setdefault(subscription, Deliveries())

    def forget(self, subscription: str) -> None:
        """A subscription is over."""
        self._subscriptions.pop(subscription, None)

    def close(self, message: str) -> None:
        """The call is over: what is open fails, and subscriptions end."""
        self._closed = True
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(_refusals.RequestCancelled(_refusals.ReplyCode.CANCELLED, message))
        for deliveries in self._subscriptions.values():
            deliveries.end()
