"""The arguments of `pillion credentials`."""

import argparse
from collections.abc import Callable
from pathlib import Path

_KINDS = ("bearer", "api_key", "basic", "headers", "custom")


def add_credentials(
    command: argparse.ArgumentParser,
    add_settings: Callable[[argparse.ArgumentParser], None],
    seconds: Callable[[str], float],
) -> None:
    """Adds the actions, each with its arguments."""
    actions = command.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + "."
        )
        action.set_defaults(action=name)
        add_settings(action)
        action.add_argument("--state-dir", type=Path, metavar="DIR", help="where the sidecar keeps what must last")
        return action

    put = add("set", "store a credential in the encrypted file; its secret is read from stdin or asked for")
    put.add_argument("service", help="the service, as tools ask for it")
    put.add_argument(
        "--kind", choices=_KINDS, default="bearer", help="what it is (bearer); headers and custom are JSON"
    )
    put.add_argument("--username", metavar="NAME", help="the user name, of kind basic")
    put.add_argument("--header", metavar="NAME", help="the header that carries it, of kind api_key (x-api-key)")
    put.add_argument("--expires-in", type=seconds, metavar="SECONDS", help="how long it works")
    _add_subject(put, mode="machine")

    shown = add("list", "list the stored credentials and logins: names, kinds and expiry, and no secret")
    shown.add_argument("--json", action="store_true", help="print them as JSON, a line each")

    removed = add("remove", "remove a stored credential and the logins to its service")
    removed.add_argument("service", help="the service")
    _add_subject(removed, mode="machine")

    login = add("login", "authorise a service in the browser, and store the login")
    login.add_argument("service", help="the service, one with the provider authorization_code")
    login.add_argument("--scope", action="append", default=[], metavar="SCOPE", help="a scope, as the tool names it")
    login.add_argument("--port", type=int, default=0, metavar="PORT", help="where the browser comes back to (any)")
    login.add_argument("--no-browser", action="store_true", help="show the address, and open no browser")
    login.add_argument("--wait", type=seconds, default=300.0, metavar="SECONDS", help="how long to wait (300)")
    _add_subject(login, mode="user")


def _add_subject(action: argparse.ArgumentParser, *, mode: str) -> None:
    action.set_defaults(mode=mode)
    if mode == "machine":
        action.add_argument("--mode", choices=("machine", "user"), help="whose: the worker's own, or the subject's")
    action.add_argument("--tenant", metavar="NAME", help="the subject's tenant, as callers name it")
    action.add_argument(
        "--principal", metavar="NAME", help="the subject, as callers name it (you, where callers name none)"
    )
