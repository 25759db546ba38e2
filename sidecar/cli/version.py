"""`pillion version`."""

import argparse

from sidecar import __version__
from sidecar.cli.console import say


def run(_options: argparse.Namespace) -> int:
    """Prints the version."""
    say(f"pillion {__version__}")
    return 0
