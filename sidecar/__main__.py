"""`python -m sidecar --config FILE`: runs a sidecar until it is told to stop."""

import argparse
import logging
import sys
from pathlib import Path

import anyio

from sidecar.app import serve
from sidecar.config import ConfigRefused, load
from sidecar.storage import StoreRefused

_USAGE = 2


def main() -> int:
    """Runs the program; answers its exit code: 2 where the settings cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m sidecar", description="Run a Pillion sidecar.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the settings, as TOML")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A peer that leaves while it is written to is ordinary, and decided elsewhere.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
    refusals: list[str] = []
    try:
        anyio.run(serve, load(arguments.config), backend_options={"use_uvloop": True})
    except* (ConfigRefused, StoreRefused) as group:
        refusals.extend(map(str, group.exceptions))
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    return _USAGE if refusals else 0


if __name__ == "__main__":
    sys.exit(main())
