"""Random traffic through an outbox, against what must hold of it: order, counts, bytes, and nothing lossless lost."""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.wire.batch import parse
from sidecar.wire.limits import WireLimits
from sidecar.wire.outbox import Lane, Outbox
from tests.wire.frames import outcome, ping, progress

LIMITS = WireLimits(
    max_frame_bytes=900,
    envelope_bytes=100,
    max_inline_bytes=600,
    message_bytes=1_024,
    message_frames=8,
    turn_bytes=256,
    progress_kept=4,
    undelivered_soft=2_048,
    undelivered_hard=6_144,
    control_kept=5,
)
LARGEST_FRAME = LIMITS.max_frame_bytes + LIMITS.envelope_bytes
COUNT_BYTES = 6
"""What a count of lost progress can add to a frame."""

LANES = st.integers(1, 5)
SIZES = st.one_of(st.integers(0, 120), st.integers(0, 1_100))
HOP_COUNTS = st.one_of(st.just(0), st.integers(0, 40), st.just(2**20))


@dataclass
class SentFrame:
    """One frame that a lane stamped."""

    lossless: bool
    hop_count: int
    """What was lost on the hop before."""


@dataclass
class ModelLane:
    """What is known of a lane from outside."""

    lane: Lane
    sent: dict[int, SentFrame] = field(default_factory=dict)
    """By sequence number."""
    received: list[Frame] = field(default_factory=list)


class OutboxTraffic(RuleBasedStateMachine):
    """Sends, reports, drains, delivers and abandons in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0
        self.outbox = Outbox(LIMITS, self._wake)
        self.lanes = {call: ModelLane(Lane(self.outbox, call)) for call in range(1, 6)}
        self.nonces: list[int] = []
        self.nonces_received: list[int] = []
        self.written = 0
        self.abandoned = self.calls_abandoned = False
        self.reported = 0

    def _wake(self) -> None:
        self.wakes += 1

    # --- what may happen

    @rule(call=LANES, size=SIZES)
    def send(self, call: int, size: int) -> None:
        own = self.lanes[call]
        frame = outcome("x" * size)
        expected, before, wakes = self._expected_wakes(), self.outbox.undelivered_bytes, self.wakes
        sequence = own.lane.sequence
        if own.lane.send(frame):
            assert own.lane.sequence == sequence + 1
            assert self.outbox.undelivered_bytes - before == (0 if self.calls_abandoned else frame.ByteSize())
            assert self.wakes - wakes == (0 if self.calls_abandoned else expected)
            own.sent[own.lane.sequence] = SentFrame(lossless=True, hop_count=0)
        else:
            assert frame.ByteSize() > LARGEST_FRAME
            assert own.lane.sequence == sequence
            assert self.outbox.undelivered_bytes == before
            assert self.wakes == wakes

    @rule(call=LANES, size=SIZES, hop_count=HOP_COUNTS)
    def report(self, call: int, size: int, hop_count: int) -> None:
        own = self.lanes[call]
        frame = progress(b"x" * size, coalesced=hop_count)
        before, coalesced, overfull = self.outbox.undelivered_bytes, self.outbox.coalesced, self.outbox.overfull
        own.lane.report(frame)
        own.sent[own.lane.sequence] = SentFrame(lossless=False, hop_count=hop_count)
        self.reported += 1
        grown = self.outbox.undelivered_bytes - before
        if overfull or size > LIMITS.max_inline_bytes:
            assert grown == 0
            assert self.outbox.coalesced == coalesced + 1
        elif self.calls_abandoned:
            assert grown == 0
        elif self.outbox.coalesced == coalesced:
            assert grown == frame.ByteSize()
        else:
            assert grown < frame.ByteSize() + COUNT_BYTES

    @rule(droppable=st.booleans())
    def control(self, droppable: bool) -> None:
        expected, wakes, dropped = self._expected_wakes(), self.wakes, self.outbox.control_dropped
        before = self.outbox.undelivered_bytes
        nonce = 1_000 + len(self.nonces)
        frame = ping(nonce)
        self.outbox.control(frame, droppable=droppable)
        if self.outbox.control_dropped > dropped:
            assert droppable
            assert len(self.nonces) - len(self.nonces_received) >= LIMITS.control_kept
            assert self.outbox.undelivered_bytes == before
        elif not self.abandoned:
            self.nonces.append(nonce)
            assert self.outbox.undelivered_bytes - before == frame.ByteSize()
            assert self.wakes - wakes == expected

    @rule()
    def drain(self) -> None:
        before, empty = self.outbox.undelivered_bytes, self.outbox.empty
        message = self.outbox.drain()
        assert (message is None) == empty
        if message is None:
            return
        frames = parse(message)
        size = sum(frame.ByteSize() for frame in frames)
        assert 1 <= len(frames) <= LIMITS.message_frames
        assert size <= LIMITS.message_bytes + LIMITS.control_kept * 30 or len(frames) == 1
        # The bytes stay undelivered; counts of what was lost may have been added.
        assert 0 <= self.outbox.undelivered_bytes - before <= COUNT_BYTES * (len(frames) + 5)
        self.written += size
        for frame in frames:
            self._receive(frame)
        assert all(own.lane.handed_over == len(own.received) for own in self.lanes.values())

    @rule()
    def deliver(self) -> None:
        before = self.outbox.undelivered_bytes
        self.outbox.delivered()
        assert self.outbox.undelivered_bytes == before - self.written
        self.written = 0

    @precondition(lambda self: not self.abandoned and self.reported > 30)
    @rule()
    def abandon(self) -> None:
        self.outbox.abandon()
        self.abandoned = self.calls_abandoned = True

    @precondition(lambda self: not self.calls_abandoned and self.reported > 20)
    @rule()
    def abandon_calls(self) -> None:
        self.outbox.abandon_calls()
        self.calls_abandoned = True

    # --- what must hold

    def _expected_wakes(self) -> int:
        return int(self.outbox.empty and not self.abandoned)

    def _receive(self, frame: Frame) -> None:
        assert frame.ByteSize() <= LARGEST_FRAME + COUNT_BYTES
        assert frame.time_unix_nano
        if frame.call == 0:
            self.nonces_received.append(frame.ping.nonce)
            return
        own = self.lanes[frame.call]
        newest = own.received[-1].sequence if own.received else 0
        assert frame.sequence > newest
        missing = [own.sent[sequence] for sequence in range(newest + 1, frame.sequence)]
        assert not any(sent.lossless for sent in missing)
        this = own.sent[frame.sequence]
        assert this.lossless == frame.HasField("outcome")
        assert frame.coalesced == this.hop_count + sum(1 + sent.hop_count for sent in missing)
        own.received.append(frame)

    @invariant()
    def nothing_is_negative_or_forgotten(self) -> None:
        undelivered = self.outbox.undelivered_bytes
        assert undelivered >= self.written
        assert self.outbox.congested == (undelivered > LIMITS.undelivered_soft)
        assert self.outbox.overfull == (undelivered > LIMITS.undelivered_hard)
        assert self.nonces_received == self.nonces[: len(self.nonces_received)]
        if self.calls_abandoned:
            assert self.outbox.statistics().lanes_waiting == 0
        if self.abandoned:
            assert undelivered == self.written
            assert self.outbox.empty
        if self.outbox.empty:
            assert undelivered == self.written
            assert self.outbox.statistics().lanes_waiting == 0

    @invariant()
    def few_reports_wait(self) -> None:
        if not self.calls_abandoned:
            received = sum(frame.HasField("progress") for own in self.lanes.values() for frame in own.received)
            waiting = self.reported - self.outbox.coalesced - received
            # One more a lane: the frame that a message had no room for is as good as written.
            assert 0 <= waiting <= len(self.lanes) * (LIMITS.progress_kept + 1)

    def teardown(self) -> None:
        while not self.outbox.empty:
            self.drain()
        self.outbox.delivered()
        assert self.outbox.undelivered_bytes == 0
        assert self.outbox.drain() is None
        if self.abandoned:
            return
        assert self.nonces_received == self.nonces
        if self.calls_abandoned:
            return
        kinds: defaultdict[bool, int] = defaultdict(int)
        for own in self.lanes.values():
            lossless = [sequence for sequence, sent in own.sent.items() if sent.lossless]
            assert [frame.sequence for frame in own.received if frame.HasField("outcome")] == lossless
            for frame in own.received:
                kinds[frame.HasField("outcome")] += 1
        assert kinds[False] + self.outbox.coalesced == self.reported
        statistics = self.outbox.statistics()
        assert statistics.frames == kinds[False] + kinds[True] + len(self.nonces)


TestOutboxTraffic = OutboxTraffic.TestCase
TestOutboxTraffic.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
