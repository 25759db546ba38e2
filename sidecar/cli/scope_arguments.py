"""What `pillion end-session` and `pillion end-run` take."""

import argparse
from collections.abc import Callable


def add_scope(
    command: argparse.ArgumentParser, what: str, add_caller: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Adds the arguments that say which session, or which run, is to end."""
    command.set_defaults(action="end_scope", fact=f"{what}_id")
    add_caller(command)
    command.add_argument("id", help=f"the {what}'s id, as its caller names it")
    command.add_argument("--tenant", metavar="NAME", help=f"the tenant that the {what} is for")
    command.add_argument("--principal", metavar="NAME", help=f"whom the {what} is for")
    command.add_argument(
        "--caller", metavar="PRINCIPAL", help=f"whose {what} it is, where its calls name no principal (you)"
    )
