"""`python -m sidecar --config FILE`: runs a sidecar until it is told to stop."""

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path

# gRPC looks for forks at every operation unless it is told before it loads that there are none without exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import anyio

from sidecar.config import ConfigRefused, read
from sidecar.memory import keep_memory_warm
from sidecar.serving import serve
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
    keep_memory_warm()
    refusals: list[str] = []
    try:
        source = partial(read, arguments.config, os.environ)
        anyio.run(serve, source, arguments.config, backend_options={"use_uvloop": True})
    except* (ConfigRefused, StoreRefused) as group:
        refusals.extend(map(str, group.exceptions))
    for refusal in refusals:
        sys.stderr.write(f"{refusal}\n")
    return _USAGE if refusals else 0


if __name__ == "__main__":
    sys.exit(main())
