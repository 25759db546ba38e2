"""The key-value store, as a tool has it."""

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from pillion._facts import seconds_of, set_seconds
from pillion._gen.pillion.v1 import bus_pb2
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest
from pillion._worker.bus import BusLevel, Subscription, set_level
from pillion._worker.port import Port


class Expectation(enum.Enum):
    """What a write expects to find, where it is no revision."""

    ANYTHING = 1
    ABSENT = 2


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A value and its revision."""

    value: bytes
    revision: str
    """Opaque; to be compared for equality alone."""
    expires_in: float | None
    """Seconds until it expires, when it was read; `None` if it does not."""


@dataclass(frozen=True, slots=True)
class KvChange:
    """A change of a key: its new entry, or `None` where it was removed or expired."""

    key: str
    entry: KvEntry | None


class Lease:
    """A lease that is held. Its fencing token grows with every holder."""

    def __init__(self, port: Port, handle: str, fencing_token: int) -> None:
        self._port = port
        self._handle = handle
        self.fencing_token = fencing_token

    async def renew(self, ttl: float) -> None:
        """Holds it for so many seconds from now.

        :raises BusError: if it is not held any more.
        """
        renew = bus_pb2.LeaseRenew(lease=self._handle)
        set_seconds(renew.ttl, ttl)
        await self._port.ask(OutboundRequest(lease_renew=renew))

    async def release(self) -> None:
        """Gives it back."""
        await self._port.ask(OutboundRequest(lease_release=bus_pb2.LeaseRelease(lease=self._handle)))


class Kv:
    """Values by bucket and key. Every method raises `BusError` if the bus says no, `RequestRefused` as any request."""

    def __init__(self, port: Port) -> None:
        self._port = port

    async def get(self, bucket: str, key: str, *, level: BusLevel = BusLevel.TENANT) -> KvEntry | None:
        """The entry; `None` if there is none."""
        get = bus_pb2.KvGet(bucket=bucket, key=key)
        set_level(get, level)
        reply = await self._port.ask(OutboundRequest(kv_get=get))
        return _entry(reply.kv_got.entry) if reply.kv_got.HasField("entry") else None

    async def put(
        self,
        bucket: str,
        key: str,
        value: bytes,
        *,
        expect: str | Expectation = Expectation.ANYTHING,
        ttl: float | None = None,
        level: BusLevel = BusLevel.TENANT,
    ) -> str:
        """Writes a value where what is expected is there, and answers its revision.

        :raises BusConflict: if something else was there.
        """
        put = bus_pb2.KvPut(bucket=bucket, key=key, value=value)
        set_level(put, level)
        _expect(put, expect)
        if ttl is not None:
            set_seconds(put.ttl, ttl)
        return (await self._port.ask(OutboundRequest(kv_put=put))).kv_put.revision

    async def delete(
        self,
        bucket: str,
        key: str,
        *,
        expect: str | Literal[Expectation.ANYTHING] = Expectation.ANYTHING,
        level: BusLevel = BusLevel.TENANT,
    ) -> bool:
        """Removes a value, and answers whether there was one.

        :raises BusConflict: if another revision was there.
        """
        delete = bus_pb2.KvDelete(bucket=bucket, key=key)
        set_level(delete, level)
        _expect(delete, expect)
        return (await self._port.ask(OutboundRequest(kv_delete=delete))).kv_deleted.existed

    async def keys(
        self, bucket: str, *, prefix: str | None = None, level: BusLevel = BusLevel.TENANT
    ) -> AsyncIterator[str]:
        """The keys, in order. One that is there throughout is never skipped."""
        keys = bus_pb2.KvKeys(bucket=bucket, prefix=prefix)
        set_level(keys, level)
        while True:
            page = (await self._port.ask(OutboundRequest(kv_keys=keys))).kv_keys
            for key in page.keys:
                yield key
            if not page.HasField("cursor"):
                return
            keys.cursor = page.cursor

    def watch(
        self, bucket: str, *, prefix: str | None = None, level: BusLevel = BusLevel.TENANT
    ) -> Subscription[KvChange]:
        """The changes of a bucket's keys, within an `async with` block."""
        watch = bus_pb2.KvWatch(bucket=bucket, prefix=prefix)
        set_level(watch, level)
        return Subscription(self._port, OutboundRequest(kv_watch=watch), _change)

    async def lease(self, bucket: str, key: str, ttl: float, *, level: BusLevel = BusLevel.TENANT) -> Lease | None:
        """Takes a lease for so many seconds; `None` if somebody else holds it."""
        acquire = bus_pb2.LeaseAcquire(bucket=bucket, key=key)
        set_level(acquire, level)
        set_seconds(acquire.ttl, ttl)
        acquired = (await self._port.ask(OutboundRequest(lease_acquire=acquire))).lease
        return Lease(self._port, acquired.lease, acquired.fencing_token) if acquired.HasField("lease") else None


def _entry(entry: bus_pb2.KvEntry) -> KvEntry:
    expires = seconds_of(entry.expires_in) if entry.HasField("expires_in") else None
    return KvEntry(entry.value, entry.revision, expires)


def _change(delivery: bus_pb2.Delivery) -> KvChange | None:
    if not delivery.HasField("change"):
        return None
    change = delivery.change
    return KvChange(change.key, _entry(change.entry) if change.HasField("entry") else None)


def _expect(message: bus_pb2.KvPut | bus_pb2.KvDelete, expect: str | Expectation) -> None:
    if isinstance(expect, str):
        message.expectation.revision = expect
    elif expect is Expectation.ABSENT:
        message.expectation.absent = True
