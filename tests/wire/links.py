"""One open stream between a server's frame stream and a peer that the test plays."""

import asyncio

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar.telemetry import Counters
from sidecar.wire.batch import parse
from sidecar.wire.limits import WireLimits
from sidecar.wire.stream import FrameStream
from sidecar.wire.streams import Streams
from sidecar.wire.transport import Transport
from tests.wire.frames import batch, outcome
from tests.wire.receivers import Recorder
from tests.wire.transports import PATIENCE, Carrier, Patient, Watched


class Link:
    """A stream that runs on the serving side, and its peer."""

    def __init__(
        self, carrier: Carrier, limits: WireLimits, ping_interval: float | None, receiver: Recorder, streams: Streams
    ) -> None:
        self.receiver = receiver
        self.counters = Counters()
        self.over = asyncio.Event()
        """Set once `run` has returned or was cancelled."""
        self.raised: BaseException | None = None
        """What `run` raised."""
        self._limits = limits
        self._ping_interval = ping_interval
        self._streams = streams
        self._running: asyncio.Future[tuple[FrameStream, Watched]] = asyncio.get_running_loop().create_future()
        self.peer = Patient(carrier.open(self._serve))

    async def start(self) -> None:
        """Waits until the stream runs."""
        self.stream, self.transport = await self._running
        self.outbox = self.stream.outbox

    async def send(self, *frames: Frame) -> None:
        """Sends frames from the peer in one message."""
        await self.peer.write(batch(*frames))

    async def message(self) -> list[Frame]:
        """The frames of the next message that the peer gets."""
        message = await self.peer.read()
        assert message is not None
        return list(parse(message))

    async def frames(self, count: int) -> list[Frame]:
        """The next frames that the peer gets: whole messages, until there are that many."""
        found: list[Frame] = []
        while len(found) < count:
            found += await self.message()
        return found

    async def rest(self) -> list[Frame]:
        """All frames that the peer still gets, until the stream is over in good order."""
        found: list[Frame] = []
        while (message := await self.peer.read()) is not None:
            found += parse(message)
        return found

    def answer(self, frame: Frame) -> None:
        """Answers a frame with an outcome of its call."""
        self.stream.lane(frame.call).send(outcome())

    async def ended(self) -> None:
        """Waits until `run` is over."""
        async with asyncio.timeout(PATIENCE):
            await self.over.wait()

    async def hold_writer(self) -> None:
        """Holds the writer back at one frame on call 0, so that everything sent from now on queues up."""
        self.transport.hold()
        self.stream.control(Frame())
        await self.transport.until_writing(len(self.transport.writes) + 1)

    async def release_writer(self) -> None:
        """Lets the writer go on, and takes the frame that it was held at."""
        self.transport.release()
        held = await self.message()
        assert [frame.WhichOneof("body") for frame in held] == [None]

    async def settled(self) -> None:
        """Waits until the peer's frames sent so far were handled."""
        nonce = 2**63
        frame = Frame()
        frame.ping.nonce = nonce
        await self.send(frame)
        answers = await self.frames(1)
        assert answers[-1].pong.nonce == nonce

    async def _serve(self, transport: Transport) -> None:
        watched = Watched(transport)
        stream = FrameStream(watched, self._limits, self.counters, ping_interval=self._ping_interval)
        try:
            with self._streams.keeping(stream):
                self._running.set_result((stream, watched))
                await stream.run(self.receiver)
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.over.set()


async def tasks_over() -> None:
    """Waits until no task of this loop belongs to a frame stream; fails if one stays."""
    left = [task for task in asyncio.all_tasks() if _qualified_name(task).startswith("FrameStream.")]
    if left:
        _, pending = await asyncio.wait(left, timeout=PATIENCE)
        assert not pending


def _qualified_name(task: "asyncio.Task[object]") -> str:
    return getattr(task.get_coro(), "__qualname__", "")
