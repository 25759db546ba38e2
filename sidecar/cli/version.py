"""`pillion version`."""

import argparse
from importlib.util import find_spec

from sidecar import __version__
from sidecar.cli.console import say

_HOT = "sidecar.calls.call"


def run(_options: argparse.Namespace) -> int:
    """Prints the version, and whether the modules that every call passes are compiled."""
    spec = find_spec(_HOT)
    is_compiled = spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
    say(f"pillion {__version__}{' (compiled)' if is_compiled else ''}")
    return 0
