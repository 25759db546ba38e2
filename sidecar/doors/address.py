"""Where a door listens."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Address:
    """An address that was found safe to listen on."""

    text: str
    """As gRPC takes it."""
    socket: Path | None
    """The path of a unix socket; `None` for TCP."""
