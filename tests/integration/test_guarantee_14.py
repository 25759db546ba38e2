"""Guarantee 14: settings with which somebody could call who should not refuse to start, and say what would do."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import psutil
import pytest
from jwt.algorithms import ECAlgorithm as Algorithm

from sidecar.config import ConfigRefused, Settings
from sidecar.serving import serve
from tests.integration.listening import Listening
from tests.integration.listening import Place as Listeners
from tests.support import on_unix
from tests.support.certificates import Authority, Shown
from tests.support.documents import ROOT
from tests.support.issuers import Issuer, private_key

PATIENCE = 20.0
TOO_LONG = "unix:/" + "x" * 108
TOKEN = "a-token-of-the-backend-0123456789"
EVERYWHERE = "0.0.0.0:0"
LOOPBACK = "127.0.0.1:0"


class Place:
    """A directory with settings that would be safe, for a case to spoil."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.token = self.secret("backend.token", TOKEN)
        self.authority = Authority(directory)
        self.server = self.authority.issue("localhost", "127.0.0.1", stem="server")
        self.tls = {
            "certificate": self.server.certificate,
            "key": self.server.key,
            "client_ca": self.authority.ca,
        }

    def secret(self, name: str, text: str, mode: int = 0o600) -> Path:
        """A file with a secret."""
        path = self.directory / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def settings(self, listen: Mapping[str, object], **others: object) -> Settings:
        return Settings.model_validate({"state_dir": self.state, "listen": listen} | others)

    def with_token(self, token: Path, **listen: object) -> Settings:
        return self.settings({"callers": LOOPBACK, "caller_tokens": {"backend": token}} | listen)

    def jwt(self, **rest: object) -> dict[str, object]:
        """A section that says whose tokens are taken."""
        issuer = Issuer()
        issuer.add("one")
        keys = self.directory / "jwks.json"
        keys.write_bytes(issuer.document)
        keys.chmod(0o644)
        return {"issuer": issuer.name, "audience": issuer.audience, "jwks_file": keys} | rest

    def with_jwt(self, callers: str = LOOPBACK, **rest: object) -> Settings:
        return self.settings({"callers": callers, "caller_jwt": self.jwt(**rest)})

    def with_keys(self, text: str, mode: int = 0o644) -> Settings:
        path = self.secret("other.json", text, mode)
        return self.with_jwt(jwks_file=path)

    def with_tls(self, **files: Path) -> Settings:
        return self.settings({"callers": EVERYWHERE, "caller_tls": self.tls | files})


Make = Callable[[Place], Settings]


def listening(**listen: object) -> Make:
    """Settings with these addresses."""
    return lambda place: place.settings(listen)


def open_state(place: Place) -> Settings:
    place.state.mkdir()
    place.state.chmod(0o755)
    return place.settings({})


def state_for_a_group_that_has_no_socket(place: Place) -> Settings:
    place.state.mkdir()
    place.state.chmod(0o710)
    return place.settings({})


def file_in_the_way(place: Place) -> Settings:
    (place.directory / "callers.sock").write_text("mine")
    return place.settings({"callers": f"unix:{place.directory}/callers.sock"})


def socket_where_others_write(place: Place) -> Settings:
    shared = place.directory / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    return place.settings({"callers": f"unix:{shared}/callers.sock"})


def way_that_is_closed_to_the_group(place: Place) -> Settings:
    (place.directory / "closed").mkdir(0o700)
    socket = place.directory / "closed" / "inside" / "callers.sock"
    return place.settings({"callers": f"unix:{socket}", "socket_group": "65534"})


def two_groups_in_one_directory(place: Place) -> Settings:
    return place.settings({"socket_group": "65534", "worker_socket_group": "65533"})


def worker_token(mode: int) -> Make:
    def make(place: Place) -> Settings:
        token = place.secret("worker.token", TOKEN, mode)
        return place.settings({"workers": LOOPBACK}, worker=[{"name": "main", "token_file": token}])

    return make


def token(text: str, mode: int = 0o600) -> Make:
    return lambda place: place.with_token(place.secret("other.token", text, mode))


def same_token_twice(place: Place) -> Settings:
    same = place.secret("same.token", f"another-token-of-theirs\n{TOKEN}")
    return place.settings({"callers": LOOPBACK, "caller_tokens": {"backend": place.token, "other": same}})


def readable_key(place: Place) -> Settings:
    place.server.key.chmod(0o640)
    return place.with_tls()


def without_authority(place: Place, **rest: object) -> Settings:
    """With a certificate of the listener alone."""
    tls = {name: file for name, file in place.tls.items() if name != "client_ca"}
    return place.settings({"callers": EVERYWHERE, "caller_tls": tls} | rest)


def private_key_of_an_issuer(place: Place) -> Settings:
    """With which whoever reads the file could make tokens."""
    key = Algorithm.to_jwk(private_key("ES256"), as_dict=True)
    return place.with_keys(json.dumps({"keys": [{**key, "kid": "one", "key_ops": ["verify"]}]}))


def keys_that_others_write(place: Place) -> Settings:
    jwt = place.jwt()
    (place.directory / "jwks.json").chmod(0o666)
    return place.settings({"callers": LOOPBACK, "caller_jwt": jwt})


UNSAFE: dict[str, tuple[Make, str]] = {
    "callers by TCP": (listening(callers=LOOPBACK), "name the token file of each caller in [listen.caller_tokens]"),
    "callers by TCP on IPv6": (listening(callers="[::1]:0"), "or use a unix socket, or set listen.insecure for a test"),
    "callers from everywhere": (listening(callers=EVERYWHERE), "give it certificates by [listen.caller_tls], or use"),
    "insecurely from everywhere": (listening(callers=EVERYWHERE, insecure=True), "or use 127.0.0.1 or a unix socket"),
    "insecurely from everywhere on IPv6": (listening(callers="[::]:0", insecure=True), "[listen.caller_tls]"),
    "callers by an address": (listening(callers="192.0.2.1:80", insecure=True), "[listen.caller_tls]"),
    "callers by a name": (listening(callers="example.com:80", insecure=True), "[listen.caller_tls]"),
    "callers by a name like loopback": (
        listening(callers="localhost.example.com:80", insecure=True),
        "not on loopback",
    ),
    "callers from everywhere by tokens": (
        lambda place: place.with_token(place.token, callers=EVERYWHERE),
        "give it certificates by [listen.caller_tls]",
    ),
    "callers in two ways": (lambda place: place.with_token(place.token, caller_tls=place.tls), "keep one"),
    "tokens, and insecure": (lambda place: place.with_token(place.token, insecure=True), "keep one"),
    "tokens for a unix socket": (
        lambda place: place.settings({"caller_tokens": {"backend": place.token}}),
        "listen.caller_tokens is for TCP",
    ),
    "certificates for a unix socket": (
        lambda place: place.settings({"caller_tls": place.tls}),
        "caller_tls is for TCP",
    ),
    "operators for a unix socket": (listening(operators=["token:backend"]), "listen.operators is for TCP"),
    "workers' certificates for a unix socket": (
        lambda place: place.settings({"worker_tls": place.tls}),
        "listen.worker_tls is for TCP",
    ),
    "workers from everywhere": (listening(workers=EVERYWHERE), "give it certificates by [listen.worker_tls]"),
    "insecurely workers from everywhere": (listening(workers=EVERYWHERE, insecure=True), "[listen.worker_tls]"),
    "a worker's token that others read": (worker_token(0o644), "close it with: chmod 600"),
    "a bare port": (listening(callers=":8080", insecure=True), "write unix:/path/to/socket or 127.0.0.1:port"),
    "an IPv6 address without brackets": (listening(callers="::1:8080", insecure=True), "or [::1]:port"),
    "a port that there is not": (listening(callers="127.0.0.1:70000", insecure=True), "the last is 65535"),
    "a path over the system's limit": (listening(callers=TOO_LONG), "107 bytes"),
    "a state directory that others see": (open_state, "chmod 700"),
    "a state directory open to a group": (state_for_a_group_that_has_no_socket, "chmod 700"),
    "a file in place of a socket": (file_in_the_way, "name another path to listen at"),
    "a socket that others could replace": (socket_where_others_write, "in a directory of its own, such as unix:"),
    "a group that is not there": (listening(socket_group="no-such-group"), "name one there is, or its number"),
    "a group that cannot get there": (way_that_is_closed_to_the_group, "is closed to it"),
    "two groups in one directory": (two_groups_in_one_directory, "name sockets in two directories"),
    "a token that others read": (token(TOKEN, 0o604), "close it with: chmod 600"),
    "a token that a group reads": (token(TOKEN, 0o640), "close it with: chmod 600"),
    "a token that others write": (token(TOKEN, 0o602), "close it with: chmod 600"),
    "no token": (lambda place: place.with_token(place.directory / "none.token"), "cannot be read: No such file"),
    "an empty token": (token("  \n"), "is empty; put a random one in it"),
    "a short token": (token("secret"), "has a token under 16 characters"),
    "a token of no ASCII": (token("ein-Schlüssel-für-alles"), "is no text of ASCII"),
    "a token of two callers": (same_token_twice, "give each one of its own"),
    "a key that a group reads": (readable_key, "close it with: chmod 600"),
    "no key": (lambda place: place.with_tls(key=place.directory / "none"), "The key of listen.caller_tls"),
    "a key of another certificate": (
        lambda place: place.with_tls(key=place.authority.issue("other").key),
        "name two that belong together",
    ),
    "a key that is none": (lambda place: place.with_tls(key=place.token), "holds no private key in PEM"),
    "a key with a password": (
        lambda place: place.with_tls(**place.authority.issue("other", password=b"secret")._asdict()),
        "is encrypted",
    ),
    "no certificate": (
        lambda place: place.with_tls(certificate=place.directory / "none"),
        "listen.caller_tls.certificate",
    ),
    "a certificate that is none": (lambda place: place.with_tls(certificate=place.token), "no certificate in PEM"),
    "no authority": (lambda place: place.with_tls(client_ca=place.directory / "none"), "listen.caller_tls.client_ca"),
    "an authority that is none": (lambda place: place.with_tls(client_ca=place.token), "no certificate in PEM"),
    "tokens of an issuer in the clear": (
        lambda place: place.with_jwt(EVERYWHERE),
        "is not on loopback, where tokens could be read on their way: give it certificates by [listen.caller_tls]",
    ),
    "tokens of an issuer in the clear at an address": (lambda place: place.with_jwt("192.0.2.1:80"), "on their way"),
    "tokens of an issuer in the clear on IPv6": (lambda place: place.with_jwt("[::]:0"), "[listen.caller_tls]"),
    "tokens of an issuer in the clear, insecurely": (
        lambda place: place.settings({"callers": EVERYWHERE, "caller_jwt": place.jwt(), "insecure": True}),
        "[listen.caller_tls]",
    ),
    "tokens of an issuer for a unix socket": (
        lambda place: place.settings({"caller_jwt": place.jwt()}),
        "listen.caller_jwt is for TCP",
    ),
    "tokens of an issuer, and tokens": (
        lambda place: place.with_token(place.token, caller_jwt=place.jwt()),
        "there are caller_tokens and caller_jwt; keep one",
    ),
    "tokens of an issuer, and insecure": (
        lambda place: place.settings({"callers": LOOPBACK, "caller_jwt": place.jwt(), "insecure": True}),
        "there are caller_jwt and insecure; keep one",
    ),
    "a certificate of the listener alone": (
        without_authority,
        "name the authorities of their certificates as listen.caller_tls.client_ca, or the issuer of their tokens",
    ),
    "a certificate of the listener alone, and insecure": (
        lambda place: without_authority(place, insecure=True),
        "keep one",
    ),
    "no keys of an issuer": (lambda place: place.with_jwt(jwks_file=place.directory / "none"), "cannot be read"),
    "keys of an issuer that others write": (keys_that_others_write, "close it with: chmod go-w"),
    "keys of an issuer that a group writes": (lambda place: place.with_keys("{}", 0o664), "chmod go-w"),
    "keys of an issuer that are none": (
        lambda place: place.with_keys("my diary"),
        "cannot be used: it is no JSON Web Key Set, as of RFC 7517.",
    ),
    "no key of an issuer that can be used": (
        lambda place: place.with_keys('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'),
        "cannot be used: it has no public key of 2,048 bits or more for ES256, EdDSA, PS256, RS256.",
    ),
    "a private key of an issuer": (private_key_of_an_issuer, "it has no public key of 2,048 bits or more"),
    "no authority of an issuer": (
        lambda place: place.with_jwt(jwks_file=None, jwks_url="https://id.example/jwks", ca_file=place.state / "none"),
        "The file of listen.caller_jwt.ca_file",
    ),
    "an authority of an issuer that is none": (
        lambda place: place.with_jwt(jwks_file=None, jwks_url="https://id.example/jwks", ca_file=place.token),
        "holds no certificate in PEM",
    ),
}


def listening_at(directory: Path) -> list[object]:
    """Where this process listens by TCP, and the sockets that are in the directory."""
    ports = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return [*ports, *(path for path in directory.rglob("*") if path.is_socket())]


@on_unix
@pytest.mark.parametrize("case", UNSAFE)
async def test_guarantee_14_unsafe_listeners_are_refused_with_the_fix(tmp_path: Path, case: str) -> None:
    make, fix = UNSAFE[case]
    settings = make(Place(tmp_path))
    with pytest.raises(BaseException) as refused:  # noqa: PT011  # looked at below, in whatever group it comes
        async with asyncio.timeout(PATIENCE):
            await serve(lambda: settings)
    error = refused.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ConfigRefused)
    assert fix in str(error)
    assert TOKEN not in str(error)
    assert not listening_at(tmp_path)


@on_unix
@pytest.mark.parametrize("command", ["serve", "check"])
async def test_guarantee_14_the_program_ends_and_says_so(tmp_path: Path, command: str) -> None:
    config = tmp_path / "pillion.toml"
    config.write_text('state_dir = "state"\n[listen]\ncallers = "0.0.0.0:0"\ninsecure = true\n')
    process = await create_subprocess_exec(
        sys.executable,
        *("-m", "sidecar", command, "--config", str(config)),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            said, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 2
    assert not said
    assert told.startswith(b"0.0.0.0:0 is not on loopback, where anyone could connect: give it certificates by ")


def directory_in(directory: Path) -> Path:
    """Another directory."""
    new = directory / "other"
    new.mkdir()
    return new


@on_unix
async def test_guarantee_14_who_shows_nothing_is_not_served(tmp_path: Path) -> None:
    place = Listeners(tmp_path)
    for settings, shown, code in (
        (place.by_token(), None, grpc.StatusCode.UNAUTHENTICATED),
        (place.by_jwt(jwt=Place(directory_in(tmp_path)).jwt()), None, grpc.StatusCode.UNAUTHENTICATED),
        # It is the connection that does not come to be.
        (place.by_certificate(), Shown(place.authority.ca, None), grpc.StatusCode.UNAVAILABLE),
    ):
        host = Listening(settings)
        await host.open()
        try:
            for token in (None, "token-of-nobody-0123456789"):
                assert (await host.refuses(token, shown)).code() is code
        finally:
            await host.aclose()
