"""What carries the messages of one stream."""

from typing import Protocol


class StreamLost(Exception):
    """The peer vanished, or the stream can no longer be used."""


class Transport(Protocol):
    """One bidirectional stream of messages. One reader and one writer at a time."""

    async def read(self) -> bytes | None:
        """The peer's next message; `None` once it has half-closed.

        :raises StreamLost: if the stream is gone.
        """
        ...

    async def write(self, message: bytes) -> None:
        """Hands a message to the peer; returns when it was taken, which waits for a slow reader.

        :raises StreamLost: if the stream is gone.
        """
        ...
