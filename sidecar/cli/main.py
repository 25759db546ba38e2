"""The commands of `pillion`, and what they take. Each command's code is imported only when it is run."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from sidecar.cli.artifact_arguments import add_artifacts
from sidecar.cli.console import CannotSay, finish, tell
from sidecar.cli.credential_arguments import add_credentials
from sidecar.cli.follow_arguments import add_follow
from sidecar.cli.scope_arguments import add_scope

USAGE = 2
"""The exit code where the command or the settings cannot be used as they are."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell has it."""
UNWRITTEN = 74
"""The exit code where the result cannot be written, as on a full disk; `sysexits.h` has it for errors of files."""
BROKEN_PIPE = 141
"""The exit code where who reads the output went away, as a shell has it for SIGPIPE."""

_DEFAULT_FILE = Path("pillion.toml")
_MOST_SECONDS = 1e9
_ADDRESS = "PILLION_ADDRESS"
_SHOWN = {
    "--token-file": ("PILLION_TOKEN_FILE", "the file with the token that the listener asks for"),
    "--tls-ca": ("PILLION_TLS_CA", "the authorities that the sidecar's certificate may be of"),
    "--tls-certificate": ("PILLION_TLS_CERTIFICATE", "the certificate to show"),
    "--tls-key": ("PILLION_TLS_KEY", "the key of that certificate"),
}
_SERVER_NAME = "PILLION_TLS_SERVER_NAME"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, `serve` where only its settings are named; answers its exit code."""
    _hold_standard_descriptors()
    # Told before it loads: else gRPC writes lines of its own of each connection that came to nothing.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0].split("=")[0] == "--config":
        given.insert(0, "serve")
    try:
        try:
            options = _parser().parse_args(given)
            code: int = import_module(f"sidecar.cli.{options.module}").run(options)
        finally:
            finish()
    except ModuleNotFoundError as error:
        if error.name != "pillion":
            raise
        sys.stderr.write("This command speaks through Pillion's Python SDK; install it: pip install ./clients/python\n")
        return USAGE
    except BrokenPipeError:
        return BROKEN_PIPE
    except CannotSay as lost:
        tell(str(lost))
        return UNWRITTEN
    except UnicodeEncodeError:
        tell("An argument is not UTF-8, as every text of Pillion is; write it in UTF-8.")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _hold_standard_descriptors() -> None:
    """Opens nothing in place of what was closed before the start, so that no file or socket gets its number.

    Libraries write to standard error by its number, and what they say must not end up in a database.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # It gets the lowest number that is free.
            os.open(os.devnull, os.O_RDWR)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pillion",
        description="Run agents' tools in workers of any language, beside your service.",
        epilog="Every command has its own --help.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = _add(commands, "serve", "serve", "run a sidecar until it is told to stop")
    _add_settings(serve)
    serve.add_argument("--state-dir", type=Path, metavar="DIR", help="where what must last is kept")
    serve.add_argument("--callers", metavar="ADDRESS", help="where callers find it: unix:/path or 127.0.0.1:port")
    serve.add_argument("--workers", metavar="ADDRESS", help="where workers find it, likewise")

    check = _add(commands, "check", "check", "check the settings, and name every mistake at once")
    _add_settings(check)

    tools = _add(commands, "tools", "tools", "list the tools there are")
    _add_caller(tools)
    tools.add_argument("--json", action="store_true", help="print them whole, as JSON")
    tools.add_argument("tool", nargs="?", help="only this one, with its schemas")

    _add_call(commands)
    _add_resume(commands)
    follow = _add(commands, "follow", "follow", "follow a detached call, as `pillion call` shows it")
    add_follow(follow, _add_caller)

    calls = _add(commands, "operate", "calls", "list the calls that run now")
    calls.set_defaults(action="calls")
    _add_caller(calls)
    calls.add_argument("--json", action="store_true", help="print them as JSON, a line each")
    calls.add_argument("--watch", action="store_true", help="show what happens to calls, as it happens")
    calls.add_argument("--tool", metavar="NAME", help="only calls of this tool")

    cancel = _add(commands, "operate", "cancel", "cancel a running call")
    cancel.set_defaults(action="cancel")
    _add_caller(cancel)
    cancel.add_argument("execution", help="its execution id, as `pillion calls` shows it")

    for scope in ("session", "run"):
        what = f"end a {scope}: cancel its calls, and run what is kept for its end"
        add_scope(_add(commands, "operate", f"end-{scope}", what), scope, _add_caller)

    ready = _add(commands, "operate", "wait-ready", "wait until the sidecar serves, and the named workers are attached")
    ready.set_defaults(action="wait_ready")
    _add_caller(ready)
    ready.add_argument("worker", nargs="*", help="a worker that must be attached too")
    ready.add_argument("--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="how long to wait (30)")

    shutdown = _add(commands, "operate", "shutdown", "drain the sidecar and stop it")
    shutdown.set_defaults(action="shutdown")
    _add_caller(shutdown)
    shutdown.add_argument("--grace", type=_seconds, metavar="SECONDS", help="how long running calls have (30)")

    artifacts = _add(commands, "artifacts", "artifacts", "keep files, and get, list and remove what is kept")
    add_artifacts(artifacts, _add_caller, _seconds)

    credentials = _add(commands, "credentials", "credentials", "store credentials, and log in")
    add_credentials(credentials, _add_settings, _seconds)

    audit = _add(commands, "audit", "audit", "judge the audit log, or show its end")
    _add_settings(audit)
    audit.add_argument(
        "action", choices=("verify", "tail"), help="see whether it is whole, or print its newest entries"
    )
    audit.add_argument("--lines", type=_count, default=10, metavar="N", help="how many entries tail prints (10)")
    audit.add_argument("--follow", action="store_true", help="go on with those that come")

    _add(commands, "version", "version", "print the version")
    return parser


def _add_call(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    call = _add(commands, "call", "call", "call a tool; its result goes to stdout as JSON, its progress to stderr")
    _add_caller(call)
    call.add_argument("tool", help="the tool's name")
    call.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument, typed by the tool's schema"
    )
    call.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="NAME=@FILE",
        help="a file, for an argument that the tool wants as an artifact",
    )
    call.add_argument("--save", type=Path, metavar="DIR", help="where to write the artifacts that the result names")
    call.add_argument("--json", metavar="OBJECT", help="all arguments as one JSON object; - reads it from stdin")
    call.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="how long the call may take")
    call.add_argument("--idle-timeout", type=_seconds, metavar="SECONDS", help="how long it may go without progress")
    call.add_argument("--key", metavar="KEY", help="an idempotency key: the same request runs once")
    call.add_argument("--session", metavar="ID", help="the session the call belongs to")
    call.add_argument("--run", metavar="ID", help="the run the call belongs to")
    call.add_argument("--tenant", metavar="NAME", help="the tenant the call is for")
    call.add_argument("--principal", metavar="NAME", help="whom the call is for")
    call.add_argument("--quiet", action="store_true", help="show no progress")
    call.add_argument(
        "--detach", action="store_true", help="leave it running, and print the ticket that it can be followed with"
    )


def _add_resume(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    resume = _add(commands, "resume", "resume", "answer a call that paused, and see it to its end as `call` does")
    _add_caller(resume)
    resume.add_argument(
        "ticket",
        nargs="?",
        help="its ticket; without it stdin has it, alone or as `call` wrote it, where no other user can see it",
    )
    resume.add_argument(
        "--answer", metavar="JSON", help="the answer, such as true or '\"yes\"'; without it none is given"
    )
    resume.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="how long the call may take from now")
    resume.add_argument("--idle-timeout", type=_seconds, metavar="SECONDS", help="how long it may go without progress")
    resume.add_argument("--key", metavar="KEY", help="an idempotency key: the same answer is given once")
    resume.add_argument("--tenant", metavar="NAME", help="the tenant that the call is for")
    resume.add_argument("--principal", metavar="NAME", help="whom the call is for")
    resume.add_argument("--quiet", action="store_true", help="show no progress")


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", module: str, name: str, summary: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    command.set_defaults(module=module)
    return command


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=Path, metavar="FILE", help=f"the settings, as TOML ({_DEFAULT_FILE}, if it is there)"
    )


def _add_caller(command: argparse.ArgumentParser) -> None:
    _add_settings(command)
    command.add_argument(
        "--address", default=os.environ.get(_ADDRESS), help=f"the sidecar's address for callers (${_ADDRESS})"
    )
    for flag, (variable, what) in _SHOWN.items():
        command.add_argument(
            flag, type=Path, metavar="FILE", default=os.environ.get(variable) or None, help=f"{what} (${variable})"
        )
    command.add_argument(
        "--tls-server-name",
        metavar="NAME",
        default=os.environ.get(_SERVER_NAME),
        help=f"the name that the sidecar's certificate is for, where that is not its host (${_SERVER_NAME})",
    )


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of entries, such as 10")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def settings_file(options: argparse.Namespace) -> Path | None:
    """The file that the settings are read from; `None` where none is named and none is there."""
    if options.config is not None:
        return Path(options.config)
    return _DEFAULT_FILE if _DEFAULT_FILE.exists() else None
