"""Logins: what people's authorisations came to, kept over restarts.

Each is a sealed file of its own, and not a row of the database: the command line puts logins in and takes them out
beside a running sidecar, whose database admits no second process; a token is renewed about once an hour, so that there
is no commit to share; and not even who has logged in where can be read without the key, from names nor contents.
"""

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sidecar.credentials import files
from sidecar.credentials.port import Mode, Need
from sidecar.credentials.sealing import Key, Sealer, SealRefused
from sidecar.credentials.secret import Secret
from sidecar.scope import Owner

_PURPOSE = "logins"
_SUFFIX = ".login"


class LoginKey(NamedTuple):
    """Whose login it is, and for what. Logins of two keys share no token."""

    owner: Owner
    need: Need

    def encoded(self) -> bytes:
        """As bytes, different ones for different keys."""
        owner, need = self
        return json.dumps([*owner, need.service, sorted(set(need.scopes)), need.mode]).encode()


@dataclass(frozen=True, slots=True)
class Login:
    """A login as it is stored."""

    key: LoginKey
    access_token: Secret[str]
    refresh_token: Secret[str] | None
    expires_at: float | None
    """When the access token stops working, in seconds of the wall clock; `None` is not known."""
    tries: int = 0
    """How often a refresh was begun of which nothing is known to have come."""
    revision: str = ""
    """Of this state of it; each has its own."""


class LoginStore(Protocol):
    """Keeps logins. Its methods may block. What they changed is synced on return.

    Each raises `SealRefused` if what is stored cannot be opened, and `OSError` if it cannot be read or written; then
    what was stored is there.
    """

    def load(self, key: LoginKey) -> Login | None:
        """The login of a key."""
        ...

    def put(self, login: Login) -> Login:
        """Stores a login in place of whatever the key has, and answers it as it is stored."""
        ...

    def change(self, login: Login, to: Login) -> Login | None:
        """Stores another state of a login, if its state is this one still. `None`: it is not; nothing is changed."""
        ...

    def remove(self, login: Login) -> bool:
        """Removes a login, if its state is this one still."""
        ...


class LoginFiles:
    """Keeps logins in a directory, for any number of threads and processes."""

    def __init__(self, directory: Path, key: Key) -> None:
        self._directory = directory
        self._sealer = Sealer(key, _PURPOSE)

    def load(self, key: LoginKey) -> Login | None:
        """The login of a key."""
        return self._read(self._path(key))

    def put(self, login: Login) -> Login:
        """Stores a login in place of whatever the key has."""
        with self._alone():
            return self._write(login)

    def change(self, login: Login, to: Login) -> Login | None:
        """Stores another state of a login, if its state is this one still."""
        with self._alone():
            return self._write(to) if self._is_current(login) else None

    def remove(self, login: Login) -> bool:
        """Removes a login, if its state is this one still."""
        with self._alone():
            return self._is_current(login) and files.remove(self._path(login.key))

    def all(self) -> list[Login]:
        """All logins that this key opens. Others are left out."""
        found = []
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                login = self._read(path)
            except SealRefused:
                continue
            if login is not None:
                found.append(login)
        return found

    def _is_current(self, login: Login) -> bool:
        stored = self._read(self._path(login.key))
        return stored is not None and stored.revision == login.revision

    def _path(self, key: LoginKey) -> Path:
        return self._directory / (self._sealer.name(key.encoded()) + _SUFFIX)

    def _read(self, path: Path) -> Login | None:
        try:
            sealed = path.read_bytes()
        except FileNotFoundError:
            return None
        # Bound to its name, so that one subject's file cannot be put in the place of another's.
        content = self._sealer.open(sealed, f"The login {path}", about=path.name.encode())
        try:
            return _login_of(json.loads(content))
        except (ValueError, KeyError, TypeError):
            raise SealRefused(f"The login {path} holds what this Pillion does not know: run a newer one.") from None

    def _write(self, login: Login) -> Login:
        stored = replace(login, revision=secrets.token_hex(8))
        path = self._path(login.key)
        files.replace(path, self._sealer.seal(_content_of(stored), about=path.name.encode()))
        return stored

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(self._directory / "lock"):
            yield


def _content_of(login: Login) -> bytes:
    owner, need = login.key
    return json.dumps(
        {
            "owner": list(owner),
            "service": need.service,
            "scopes": list(need.scopes),
            "mode": need.mode,
            "access_token": login.access_token.reveal(),
            "refresh_token": None if login.refresh_token is None else login.refresh_token.reveal(),
            "expires_at": login.expires_at,
            "tries": login.tries,
            "revision": login.revision,
        }
    ).encode()


def _login_of(value: Any) -> Login:
    refresh = value["refresh_token"]
    return Login(
        LoginKey(Owner(*value["owner"]), Need(value["service"], tuple(value["scopes"]), Mode(value["mode"]))),
        Secret(value["access_token"]),
        None if refresh is None else Secret(refresh),
        value["expires_at"],
        value["tries"],
        value["revision"],
    )
