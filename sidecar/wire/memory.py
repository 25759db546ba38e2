"""A transport inside one process, for tests of everything above it."""

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sidecar.wire.transport import StreamLost


class MemoryTransport:
    """One end of a stream in memory. A write returns when the other end reads."""

    def __init__(
        self, sends: MemoryObjectSendStream[bytes], receives: MemoryObjectReceiveStream[bytes], cut: anyio.Event
    ) -> None:
        self._sends = sends
        self._receives = receives
        self._cut = cut

    async def read(self) -> bytes | None:
        """The peer's next message; `None` once it has half-closed.

        :raises StreamLost: if the stream was cut.
        """
        try:
            return await self._receives.receive()
        except anyio.EndOfStream:
            if self._cut.is_set():
                raise StreamLost from None
            return None
        except anyio.ClosedResourceError:
            raise StreamLost from None

    async def write(self, message: bytes) -> None:
        """Hands a message over, once the other end reads.

        :raises StreamLost: if the stream was cut, or the other end closed.
        """
        try:
            await self._sends.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise StreamLost from None

    def half_close(self) -> None:
        """Ends what this end writes; it may still read."""
        self._sends.close()

    def cut(self) -> None:
        """Loses the stream for both ends, without a word."""
        self._cut.set()
        self._sends.close()
        self._receives.close()


def memory_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """The two ends of one stream."""
    there, here = anyio.create_memory_object_stream[bytes](0), anyio.create_memory_object_stream[bytes](0)
    cut = anyio.Event()
    return MemoryTransport(there[0], here[1], cut), MemoryTransport(here[0], there[1], cut)
