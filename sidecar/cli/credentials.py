"""`pillion credentials`."""

import argparse
import asyncio
import getpass
import json
import os
import sys
import time
import webbrowser
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE, settings_file
from sidecar.config import ConfigRefused, Layer, Settings, read
from sidecar.credentials.fields import SECRET_FIELD, Shape
from sidecar.credentials.grant import SERVICE
from sidecar.credentials.making import CredentialsRefused, Maker
from sidecar.credentials.port import CredentialFailed, Kind, Mode, Need, Request
from sidecar.credentials.secret import Secret
from sidecar.credentials.settings import AuthorizationCodeSection, CredentialSection, EncryptedFileSection
from sidecar.scope import Owner, Principal, Scope, local_principal, scope_of

if TYPE_CHECKING:
    from sidecar.credentials.logins import Login
    from sidecar.credentials.sealed_file import Entry

_MOST_BYTES = 1024 * 1024
_NAMES, _WHOSE, _KINDS = 24, 24, 14
_NAMED = "named:"


class Refused(Exception):
    """It cannot be done. The text is a sentence that says what would work."""


def run(options: argparse.Namespace) -> int:
    """Does what is asked; answers the exit code: 1 where there was nothing to do it to."""
    if find_spec("cryptography") is None:
        tell("Credentials are kept sealed, which needs a package: pip install 'pillion-sidecar[credentials]'.")
        return USAGE
    from sidecar.credentials.sealing import SealRefused

    try:
        settings = _settings(options)
        return _ACTIONS[options.action](options, settings, Maker(settings, settings.state_dir, os.environ))
    except (ConfigRefused, CredentialsRefused, CredentialFailed, SealRefused, Refused) as refused:
        tell(str(refused))
    except OSError as error:
        tell(f"{error.filename or 'The state directory'} cannot be used: {error.strerror}.")
    return USAGE


def _settings(options: argparse.Namespace) -> Settings:
    flags = None
    if options.state_dir is not None:
        flags = Layer.of({("state_dir",): ("--state-dir", str(options.state_dir.absolute()))})
    return read(settings_file(options), os.environ, flags)


def _set(options: argparse.Namespace, settings: Settings, maker: Maker) -> int:
    from sidecar.credentials.sealed_file import Entry

    service, kind = _service(options), options.kind
    if options.username is not None and kind != "basic":
        raise Refused("Only kind basic has a username; leave it out, or say --kind basic.")
    if options.header is not None and kind != "api_key":
        raise Refused("Only kind api_key has a header; leave it out, or say --kind api_key.")
    if options.username is None and kind == "basic":
        raise Refused("Kind basic has a username; say which by --username.")
    file = maker.sealed_file()
    file.entries()  # Before the secret is asked for: a wrong key is told at once.
    fields = _fields(service, kind, options.username)
    # As it will be issued: what could not be is not stored.
    Shape(service, kind, options.header).credential(fields)
    expires_at = None if options.expires_in is None else time.time() + options.expires_in
    secrets = {name: Secret(value) for name, value in fields.items()}
    file.put(Entry(service, _owner(options), kind, secrets, options.header, expires_at))
    say(f"stored {service}, {kind}, in {file.path}")
    if not isinstance(_section(settings, service), EncryptedFileSection):
        tell(f'It is not issued yet: add a [[credential]] with service = "{service}" and provider = "encrypted_file".')
    return 0


def _list(options: argparse.Namespace, settings: Settings, maker: Maker) -> int:
    rows = [*map(_row_of_entry, maker.sealed_file().entries()), *map(_row_of_login, maker.logins().all())]
    rows.sort(key=lambda row: (str(row["service"]), str(row["tenant"] or ""), str(row["principal"] or "")))
    for row in rows:
        if options.json:
            say(json.dumps(row, ensure_ascii=False))
        else:
            whose = "the worker's own" if row["mode"] == "machine" else _whose(row)
            expires = "expiry not known" if row["expires_at"] is None else f"expires {row['expires_at']}"
            say(f"{row['service']:<{_NAMES}} {whose:<{_WHOSE}} {row['kind']:<{_KINDS}} {expires}")
    if not rows:
        tell(f"Nothing is stored in {settings.state_dir}; store a credential with: pillion credentials set SERVICE")
    return 0


def _remove(options: argparse.Namespace, settings: Settings, maker: Maker) -> int:  # noqa: ARG001  # as all actions
    service, owner, logins = _service(options), _owner(options), maker.logins()
    removed = int(maker.sealed_file().remove(service, owner))
    for login in logins.all():
        if (login.key.need.service, login.key.owner) == (service, owner):
            removed += logins.remove(login)
    if not removed:
        tell(f"There is nothing stored for {service} and that subject; pillion credentials list shows what there is.")
        return 1
    say(f"removed {service}")
    return 0


def _login(options: argparse.Namespace, settings: Settings, maker: Maker) -> int:
    section = _section(settings, _service(options))
    if not isinstance(section, AuthorizationCodeSection):
        raise Refused(
            f"{options.service} is not authorised by people; log in to a service whose [[credential]] has provider = "
            '"authorization_code".'
        )
    expires_at = asyncio.run(_authorised(options, section, maker))
    say(f"logged in to {section.service}" + ("" if expires_at is None else f"; the token expires {_time(expires_at)}"))
    return 0


async def _authorised(options: argparse.Namespace, section: AuthorizationCodeSection, maker: Maker) -> float | None:
    from sidecar.credentials.loopback import Loopback

    provider = maker.authorization_code(section)
    principal, scope = _subject(options)
    request = Request(scope, principal, Need(section.service, tuple(sorted(set(options.scope))), Mode.USER))
    try:
        async with Loopback(options.port) as loopback, asyncio.timeout(options.wait):
            url = provider.begin(request, loopback.url).url.reveal()
            # To the person alone: who has the address may authorise for this subject.
            tell(f"Authorise {section.service} at this address:\n{url}")
            if not options.no_browser:
                await asyncio.to_thread(webbrowser.open, url)
            callback = await loopback.callback(parse_qs(urlsplit(url).query)["state"][0])
        await provider.complete(scope, principal, callback)
    except TimeoutError:
        raise Refused(f"Nobody authorised {section.service} within {options.wait:g} s; try again.") from None
    finally:
        await maker.http().aclose()
    answer = await provider.issue(request)
    return getattr(answer, "expires_at", None)


def _fields(service: str, kind: Kind, username: str | None) -> dict[str, bytes]:
    """The secret, read from where nobody else sees it: no argument of a process is private."""
    if sys.stdin.isatty():
        text = getpass.getpass(f"Secret for {service}: ").encode()
    else:
        text = sys.stdin.buffer.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise Refused("The secret on stdin is over 1 MiB; give a shorter one.")
        text = text.removesuffix(b"\n").removesuffix(b"\r")
    if kind in SECRET_FIELD:
        fields = {SECRET_FIELD[kind]: text}
        return fields if username is None else {"username": username.encode(), **fields}
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise Refused(f'Kind {kind} is given as a JSON object of texts, such as {{"name": "value"}}.')
    return {name: value.encode() for name, value in values.items()}


def _service(options: argparse.Namespace) -> str:
    service: str = options.service
    if not SERVICE.fullmatch(service):
        raise Refused("A service is named by 1 to 128 letters, digits, dots, hyphens and underscores.")
    return service


def _section(settings: Settings, service: str) -> CredentialSection | None:
    return next((section for section in settings.credential if section.service == service), None)


def _subject(options: argparse.Namespace) -> tuple[Principal, Scope]:
    """Whom it is for, as a call of this user would say it."""
    principal = local_principal(os.getuid())
    identity = None
    if options.tenant is not None or options.principal is not None:
        identity = Identity(tenant=options.tenant, principal=options.principal)
    return principal, scope_of(principal, identity, None, None, "command")


def _owner(options: argparse.Namespace) -> Owner | None:
    """The subject, where it is one's own; `None` is the worker's."""
    if options.tenant is None and options.principal is None and options.mode == "machine":
        return None
    return _subject(options)[1].owner


def _row_of_entry(entry: "Entry") -> dict[str, object]:
    return _row(entry.service, entry.owner, entry.kind, entry.expires_at)


def _row_of_login(login: "Login") -> dict[str, object]:
    return _row(login.key.need.service, login.key.owner, "login", login.expires_at)


def _row(service: str, owner: Owner | None, kind: str, expires_at: float | None) -> dict[str, object]:
    return {
        "service": service,
        "mode": "machine" if owner is None else "user",
        "tenant": None if owner is None else owner.tenant,
        "principal": None if owner is None else owner.subject.removeprefix(_NAMED),
        "kind": kind,
        "expires_at": None if expires_at is None else _time(expires_at),
    }


def _whose(row: Mapping[str, object]) -> str:
    tenant = "" if row["tenant"] is None else f"{row['tenant']}/"
    return f"{tenant}{row['principal']}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_ACTIONS = {"set": _set, "list": _list, "remove": _remove, "login": _login}
