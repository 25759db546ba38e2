"""`pillion serve`."""

import argparse
import os
import sys
from functools import partial

# The core of gRPC is told before it loads. It looks for forks at every operation unless there are none without exec,
# and a server hands each message from thread to thread unless the thread that waits for events reads its sockets.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

import anyio

from sidecar.cli.console import tell
from sidecar.cli.main import USAGE, settings_file
from sidecar.config import ConfigRefused, Layer, read
from sidecar.memory import keep_memory_warm
from sidecar.serving import serve
from sidecar.storage import StoreRefused
from sidecar.telemetry.logs import flush, set_up


def run(options: argparse.Namespace) -> int:
    """Runs a sidecar until it is told to stop; answers the exit code: 2 where the settings cannot be used."""
    keep_memory_warm()
    file = settings_file(options)
    source = partial(read, file, os.environ, _flags(options))
    refusals: list[str] = []
    try:
        log = source().log
        set_up(sys.stderr, log.format, log.level)
        anyio.run(serve, source, file, backend_options={"use_uvloop": True})
    except* (ConfigRefused, StoreRefused) as group:
        refusals.extend(map(str, group.exceptions))
    flush()
    for refusal in refusals:
        tell(refusal)
    return USAGE if refusals else 0


def _flags(options: argparse.Namespace) -> Layer:
    given = {
        ("state_dir",): ("--state-dir", options.state_dir and str(options.state_dir.absolute())),
        ("listen", "callers"): ("--callers", options.callers),
        ("listen", "workers"): ("--workers", options.workers),
    }
    return Layer.of({place: (flag, value) for place, (flag, value) in given.items() if value is not None})
