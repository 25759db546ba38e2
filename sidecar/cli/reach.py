"""How commands reach the sidecar."""

import argparse
import os

from sidecar.cli.main import settings_file
from sidecar.config import ConfigRefused, read


class Unreachable(Exception):
    """No sidecar answers at an address."""

    def __init__(self, address: str) -> None:
        super().__init__(f"No sidecar answers at {address}; start one with `pillion serve`, or name its --address.")


def address_of(options: argparse.Namespace) -> str:
    """The callers' address: the flag's or the variable's, else that of the settings.

    :raises ConfigRefused: if it takes the settings to know, and they cannot be used.
    """
    if options.address is not None:
        return str(options.address)
    try:
        return read(settings_file(options), os.environ).callers
    except ConfigRefused as refused:
        raise ConfigRefused(f"{refused}\nOr name the sidecar's --address.") from None
