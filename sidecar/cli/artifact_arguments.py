"""What `pillion artifacts` takes."""

import argparse
from collections.abc import Callable
from pathlib import Path

_Adds = Callable[[argparse.ArgumentParser], None]

_FACTS = {
    "--session": ("session_id", "the session they belong to"),
    "--run": ("run_id", "the run they belong to"),
    "--execution": ("execution_id", "the execution they are of, where its call named none of the others"),
    "--conversation": ("conversation_id", "the conversation they belong to"),
    "--tenant": ("tenant", "the tenant they are for"),
    "--principal": ("principal", "whom they are for"),
}


def add_artifacts(command: argparse.ArgumentParser, add_caller: _Adds, seconds: Callable[[str], float]) -> None:
    """Adds the commands below it."""
    actions = command.add_subparsers(required=True, metavar="ACTION")

    put = _add(actions, "put", "keep a file; its reference goes to stdout", add_caller)
    put.add_argument("file", help="the file; - for standard input")
    put.add_argument("--kind", default="file", metavar="WORD", help="what it is to who uses it (file)")
    put.add_argument("--media-type", metavar="TYPE", help="its media type (by the name of the file)")
    put.add_argument("--label", metavar="TEXT", help="a name for people (that of the file)")
    put.add_argument("--shape", choices=("bytes", "text", "json"), default="bytes", help="how it is got back (bytes)")
    put.add_argument("--expires", type=seconds, metavar="SECONDS", help="how long it is kept (as the settings say)")

    get = _add(actions, "get", "write an artifact to stdout, or to a file", add_caller)
    get.add_argument("reference", help="its reference")
    get.add_argument("--out", type=Path, metavar="FILE", help="the file to write, which must not be there")

    listing = _add(actions, "list", "list artifacts, the newest first", add_caller)
    listing.add_argument("--json", action="store_true", help="print them as JSON, a line each")

    remove = _add(actions, "remove", "remove artifacts", add_caller)
    remove.add_argument("reference", nargs="+", help="a reference")


def _add(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str, add_caller: _Adds
) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    action.set_defaults(action=name)
    add_caller(action)
    for flag, (fact, what) in _FACTS.items():
        action.add_argument(flag, dest=fact, metavar="NAME" if fact in ("tenant", "principal") else "ID", help=what)
    return action
