"""What the parts of the bus share: levels, settlement, subscriptions."""

import enum
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pillion import _refusals
from pillion._facts import set_seconds
from pillion._gen.pillion.v1 import bus_pb2
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest
from pillion._worker.port import Port

Event = TypeVar("Event")


class BusLevel(enum.IntEnum):
    """How widely something is shared. A level whose fact the call lacks is refused."""

    TENANT = 1
    SUBJECT = 2
    SESSION = 3


class Lagged:
    """The reader was too slow, and this many were lost."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __repr__(self) -> str:
        return f"<Lagged {self.count}>"


class Message:
    """A published message. Each is settled at most once; one without a handle needs none."""

    __slots__ = ("_handle", "_port", "attempt", "headers", "payload", "subject")

    def __init__(self, port: Port, handle: str | None, message: bus_pb2.DeliveredMessage) -> None:
        self._port = port
        self._handle = handle
        self.subject = message.subject
        self.payload = message.payload
        self.headers: Mapping[str, str] = dict(message.headers)
        self.attempt = message.attempt

    async def ack(self) -> None:
        """It is done with."""
        await self._settle(bus_pb2.Settlement.SETTLEMENT_ACK, None)

    async def nak(self, delay: float | None = None) -> None:
        """Again, after so many seconds."""
        await self._settle(bus_pb2.Settlement.SETTLEMENT_NAK, delay)

    async def term(self) -> None:
        """Never again."""
        await self._settle(bus_pb2.Settlement.SETTLEMENT_TERM, None)

    async def _settle(self, settlement: "bus_pb2.Settlement.ValueType", delay: float | None) -> None:
        if self._handle is None:
            return
        settled = bus_pb2.SettleDelivery(delivery=self._handle, settlement=settlement)
        if delay is not None:
            set_seconds(settled.delay, delay)
        await self._port.ask(OutboundRequest(settle_delivery=settled))


class Subscription(Generic[Event]):
    """What comes until its `async with` block or the call ends. Iterating gives events, and `Lagged` for lost ones."""

    def __init__(self, port: Port, request: OutboundRequest, read: Callable[[bus_pb2.Delivery], Event | None]) -> None:
        self._port = port
        self._request = request
        self._read = read
        self._handle: str | None = None
        self.durable: bool | None = None
        """Whether what is kept for it survives a crash; `None` before the block is entered."""
        self.at_least_once: bool | None = None
        """Whether a message may come twice and is never lost, rather than the reverse; `None` as above."""

    async def __aenter__(self) -> Self:
        """Subscribes.

        :raises RequestRefused: if it is refused.
        """
        subscribed = (await self._port.ask(self._request)).subscribed
        self._handle = subscribed.subscription
        self.durable = subscribed.guarantees.durable
        self.at_least_once = (
            subscribed.guarantees.delivery == bus_pb2.DeliveryGuarantee.DELIVERY_GUARANTEE_AT_LEAST_ONCE
        )
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._handle is None:
            return
        self._port.forget(self._handle)
        if error is None or isinstance(error, Exception):
            try:
                await self._port.ask(OutboundRequest(unsubscribe=bus_pb2.Unsubscribe(subscription=self._handle)))
            except _refusals.RequestCancelled:
                return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Lagged:
        if self._handle is None:
            raise StopAsyncIteration
        while True:
            delivery = await self._port.deliveries(self._handle).take()
            if delivery is None:
                raise StopAsyncIteration
            if delivery.WhichOneof("event") == "lagged":
                return Lagged(delivery.lagged)
            event = self._read(delivery)
            if event is not None:
                return event


def set_level(message: Any, level: BusLevel) -> None:
    """Sets the level of a request."""
    message.level = level.value


class PubSub:
    """Publish and subscribe."""

    def __init__(self, port: Port) -> None:
        self._port = port

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        level: BusLevel = BusLevel.TENANT,
    ) -> None:
        """Publishes a message.

        :raises BusError: if the bus says no.
        :raises RequestRefused: as for every request.
        """
        published = bus_pb2.Publish(subject=subject, payload=payload, headers=headers or {})
        set_level(published, level)
        await self._port.ask(OutboundRequest(publish=published))

    def subscribe(
        self,
        pattern: str,
        *,
        durable: str | None = None,
        credit: int | None = None,
        level: BusLevel = BusLevel.TENANT,
    ) -> Subscription[Message]:
        """The messages of subjects: `*` is one token, `>` one or more at the end.

        A durable name goes on where it stopped. They come within the `async with` block of what is returned.
        """
        subscribe = bus_pb2.Subscribe(pattern=pattern, durable=durable, credit=credit)
        set_level(subscribe, level)

        def read(delivery: bus_pb2.Delivery) -> Message | None:
            handle = delivery.delivery if delivery.HasField("delivery") else None
            return Message(self._port, handle, delivery.message) if delivery.HasField("message") else None

        return Subscription(self._port, OutboundRequest(subscribe=subscribe), read)
