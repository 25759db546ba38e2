"""How commands reach the sidecar."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from sidecar.cli.main import settings_file
from sidecar.config import ConfigRefused, read
from sidecar.doors.address import UNIX, reachable


class Unreachable(Exception):
    """No sidecar answers at an address, or none that takes this caller."""

    def __init__(self, address: str, *, refusal: str | None = None) -> None:
        super().__init__(
            f"No sidecar answers at {address}; start one with `pillion serve`, or name its --address."
            if refusal is None
            else f"The sidecar at {address} does not take this caller: {refusal} Name the file of its token by "
            "--token-file, or its certificate by --tls-certificate and --tls-key."
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the sidecar is, and what it is shown."""

    target: str
    token_file: Path | None
    ca: Path | None
    certificate: Path | None
    key: Path | None
    server_name: str | None

    @property
    def is_encrypted(self) -> bool:
        """Whether it is reached by TLS: by the system's authorities where none are named."""
        return bool(self.ca or self.certificate or self.key or self.server_name)


def reach_of(options: argparse.Namespace) -> Reach:
    """What flags and variables name, else what the settings do.

    Where the settings name tokens of callers and no flag does, the first of them is shown.

    :raises ConfigRefused: if it takes the settings to know, and they cannot be used.
    """
    target, token_file = options.address, options.token_file
    if target is None:
        try:
            settings = read(settings_file(options), os.environ)
        except ConfigRefused as refused:
            raise ConfigRefused(f"{refused}\nOr name the sidecar's --address.") from None
        target = settings.callers if settings.callers.startswith(UNIX) else reachable(settings.callers)
        token_file = token_file or next(iter(settings.listen.caller_tokens.values()), None)
    return Reach(
        str(target), token_file, options.tls_ca, options.tls_certificate, options.tls_key, options.tls_server_name
    )
