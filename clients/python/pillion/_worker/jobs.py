"""The job queues, as a tool has them."""

from collections.abc import Mapping
from typing import NamedTuple

from pillion._facts import set_seconds
from pillion._gen.pillion.v1 import bus_pb2
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest
from pillion._worker.bus import BusLevel, set_level
from pillion._worker.port import Port


class Enqueued(NamedTuple):
    """A job that was added, or was there already."""

    job: str
    duplicate: bool


class Job:
    """A job that was claimed. Only the current claim settles it, once."""

    def __init__(self, port: Port, claimed: bus_pb2.JobClaimed) -> None:
        self._port = port
        self._claim = claimed.claim
        self.id = claimed.job
        self.payload = claimed.payload
        self.headers: Mapping[str, str] = dict(claimed.headers)
        self.attempt = claimed.attempt

    async def ack(self) -> None:
        """It is done."""
        await self._settle(bus_pb2.JobSettle(settlement=bus_pb2.Settlement.SETTLEMENT_ACK))

    async def nak(self, delay: float | None = None) -> None:
        """Again, after so many seconds."""
        settle = bus_pb2.JobSettle(settlement=bus_pb2.Settlement.SETTLEMENT_NAK)
        if delay is not None:
            set_seconds(settle.delay, delay)
        await self._settle(settle)

    async def term(self, reason: str | None = None) -> None:
        """Never again: it goes to the dead letters."""
        await self._settle(bus_pb2.JobSettle(settlement=bus_pb2.Settlement.SETTLEMENT_TERM, reason=reason))

    async def heartbeat(self, lease: float) -> None:
        """Keeps the claim for so many seconds from now."""
        heartbeat = bus_pb2.JobHeartbeat(claim=self._claim)
        set_seconds(heartbeat.lease, lease)
        await self._port.ask(OutboundRequest(job_heartbeat=heartbeat))

    async def _settle(self, settle: bus_pb2.JobSettle) -> None:
        settle.claim = self._claim
        await self._port.ask(OutboundRequest(job_settle=settle))


class Jobs:
    """Queues of jobs. Every method raises `BusError` if the bus says no, `RequestRefused` as any request."""

    def __init__(self, port: Port) -> None:
        self._port = port

    async def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        dedup_key: str | None = None,
        max_attempts: int | None = None,
        delay: float | None = None,
        level: BusLevel = BusLevel.TENANT,
    ) -> Enqueued:
        """Adds a job."""
        enqueue = bus_pb2.JobEnqueue(
            queue=queue, payload=payload, headers=headers or {}, dedup_key=dedup_key, max_attempts=max_attempts
        )
        set_level(enqueue, level)
        if delay is not None:
            set_seconds(enqueue.delay, delay)
        done = (await self._port.ask(OutboundRequest(job_enqueue=enqueue))).job_enqueued
        return Enqueued(done.job, done.duplicate)

    async def claim(
        self, queue: str, lease: float, *, wait: float | None = None, level: BusLevel = BusLevel.TENANT
    ) -> Job | None:
        """Claims a job for so many seconds, and waits for one if asked to; `None` if there is none."""
        claim = bus_pb2.JobClaim(queue=queue)
        set_level(claim, level)
        set_seconds(claim.lease, lease)
        if wait is not None:
            set_seconds(claim.wait, wait)
        claimed = (await self._port.ask(OutboundRequest(job_claim=claim))).job_claimed
        return Job(self._port, claimed) if claimed.HasField("claim") else None
