"""Where a door listens."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

UNIX = "unix:"
_CLOSED = 0o600


@dataclass(frozen=True, slots=True)
class Address:
    """An address that was found safe to listen on."""

    text: str
    """As gRPC takes it."""
    socket: Path | None
    """The path of a unix socket; `None` for TCP."""
    mode: int = _CLOSED
    """The mode of that socket."""
    group: int | None = None
    """The group that the socket is given to; `None`: it stays with this process's own, which may not use it."""


def is_loopback(host: str) -> bool:
    """Whether a host without its port is this machine to itself, and to nobody else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def reachable(text: str) -> str:
    """Where somebody on this machine connects to a listener: for all addresses at once, by loopback."""
    host, _, port = text.rpartition(":")
    return {"0.0.0.0": f"127.0.0.1:{port}", "[::]": f"[::1]:{port}"}.get(host, text)  # noqa: S104  # compared with
