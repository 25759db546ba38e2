"""What `pillion follow` takes."""

import argparse
from collections.abc import Callable

_MOST = 2**63


def add_follow(command: argparse.ArgumentParser, add_caller: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds the command's options; `add_caller` adds those that each command of a caller takes."""
    add_caller(command)
    command.add_argument(
        "ticket",
        nargs="?",
        default="-",
        help="its ticket, or the line that `pillion call --detach` printed; - reads it from stdin, unseen (-)",
    )
    command.add_argument(
        "--from-sequence", type=_number, default=0, metavar="N", help="the first frame to show (all that is kept)"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < _MOST:
        raise argparse.ArgumentTypeError(f"{text} is no number of a frame")
    return number
