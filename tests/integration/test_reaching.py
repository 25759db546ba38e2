"""Commands and the SDK find a sidecar in whatever way it listens, and no proxy comes between."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pillion
import pillion.sync
from pillion import errors
from tests.integration.listening import TOKENS, WRONG, Listening, Place
from tests.support import SidecarProcess, attach, on_unix, tool
from tests.support.documents import ROOT

BACKEND = TOKENS["backend"]
SECONDS = 40
SHOWN = ("PILLION_TOKEN_FILE", "PILLION_TLS_CA", "PILLION_TLS_CERTIFICATE", "PILLION_TLS_KEY", "PILLION_ADDRESS")


class Done(NamedTuple):
    code: int
    said: str
    told: str


async def pillion_does(*arguments: str, **environment: str) -> Done:
    """Runs a command to its end."""
    kept = {name: value for name, value in os.environ.items() if name not in SHOWN}
    done = await asyncio.to_thread(
        subprocess.run,
        (sys.executable, "-m", "sidecar", *arguments),
        env=kept | {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}"} | environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
async def by_token(place: Place) -> AsyncIterator[Listening]:
    host = Listening(place.by_token("[::1]:0", operators=["token:backend"]))
    await host.open()
    await attach(host, tool("echo"), tool("read"))
    yield host
    await host.aclose()


@pytest.fixture
async def by_certificate(place: Place) -> AsyncIterator[Listening]:
    host = Listening(place.by_certificate(operators=["mtls:ops.example"]))
    await host.open()
    await attach(host, tool("echo"), tool("read"))
    yield host
    await host.aclose()


@on_unix
async def test_commands_show_the_token_that_is_named(by_token: Listening, place: Place) -> None:
    backend, other = str(place.tokens["backend"]), str(place.tokens["other"])
    at = ("--address", by_token.target)
    for way in ((*at, "--token-file", backend), at):
        variables = {} if "--token-file" in way else {"PILLION_TOKEN_FILE": backend}
        listed = await pillion_does("tools", *way, **variables)
        assert (listed.code, listed.told) == (0, "")
        assert [line.split()[0] for line in listed.said.splitlines()] == ["echo", "read"]
        assert await pillion_does("calls", *way, **variables) == (0, "", "No calls are running.\n")
    denied = await pillion_does("calls", *at, "--token-file", other)
    assert denied.code == 1
    assert "listen.operators" in denied.told
    assert (await pillion_does("wait-ready", "main", *at)).code == 0


@on_unix
@pytest.mark.parametrize("command", [("tools",), ("call", "echo"), ("calls",), ("cancel", "exe_of_nobody")])
async def test_commands_say_what_to_show(by_token: Listening, place: Place, command: tuple[str, ...]) -> None:
    wrong = str(place.secret("wrong.token", WRONG))
    for shown in ((), ("--token-file", wrong)):
        done = await pillion_does(*command, "--address", by_token.target, *shown)
        assert (done.code, done.said) == (2, "")
        assert done.told.startswith(f"The sidecar at {by_token.target} does not take this caller: ")
        assert "Name the file of its token by --token-file" in done.told
        assert "Traceback" not in done.told
        assert WRONG not in done.told
    none = await pillion_does(*command, "--address", by_token.target, "--token-file", str(place.directory / "none"))
    assert none.code == 2
    assert "cannot be read" in none.told
    assert "Traceback" not in none.told


@on_unix
async def test_commands_show_certificates(by_certificate: Listening, place: Place) -> None:
    operator, stranger = place.authority.issue("ops.example"), place.authority.issue("backend.example")
    ca = str(place.authority.ca)
    at = ("--address", by_certificate.target)
    flags = ("--tls-ca", ca, "--tls-certificate", str(operator.certificate), "--tls-key", str(operator.key))
    variables = {
        "PILLION_TLS_CA": ca,
        "PILLION_TLS_CERTIFICATE": str(operator.certificate),
        "PILLION_TLS_KEY": str(operator.key),
    }
    for way, environment in ((flags, {}), ((), variables)):
        listed = await pillion_does("tools", *at, *way, **environment)
        assert (listed.code, listed.told) == (0, "")
        assert await pillion_does("calls", *at, *way, **environment) == (0, "", "No calls are running.\n")
    assert (await pillion_does("wait-ready", "main", *at, *flags)).code == 0
    denied = await pillion_does(
        "calls",
        *at,
        **variables | {"PILLION_TLS_CERTIFICATE": str(stranger.certificate), "PILLION_TLS_KEY": str(stranger.key)},
    )
    assert denied.code == 1
    assert "listen.operators" in denied.told
    for command in ("tools", "calls"):
        done = await pillion_does(command, *at, "--tls-ca", ca)
        assert done.code == 2
        assert "No sidecar answers at" in done.told
        assert "Traceback" not in done.told


@on_unix
async def test_commands_find_address_and_token_in_the_settings(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = SidecarProcess(place.directory, {})
    process.config.write_text(
        f'state_dir = "state"\n[listen]\ncallers = "127.0.0.1:{port}"\noperators = ["token:backend"]\n'
        '[listen.caller_tokens]\nbackend = "backend.token"\nother = "other.token"\n'
        '[[allow]]\nprincipal = "token:backend"\ntools = ["*"]\n'
    )
    process.callers_at = f"127.0.0.1:{port}"
    await process.start()
    config = ("--config", str(process.config))
    try:
        assert (await pillion_does("tools", *config)).told.startswith("There are no tools")
        assert await pillion_does("calls", *config) == (0, "", "No calls are running.\n")
        other = await pillion_does("calls", *config, "--token-file", str(place.tokens["other"]))
        assert other.code == 1
        checked = await pillion_does("check", *config)
        assert checked.code == 0
        assert checked.told == "warning: caller other may do nothing, as no [[allow]] is for token:other.\n"
        stopped = await pillion_does("shutdown", *config)
        assert stopped.code == 0
        assert await process.ended() == 0
        assert not any(token in line for line in process.said for token in TOKENS.values())
    finally:
        await process.aclose()


@on_unix
async def test_settings_with_tokens_of_an_issuer_are_checked(place: Place) -> None:
    config = place.directory / "pillion.toml"
    (place.directory / "jwks.json").write_text('{"keys": []}')
    (place.directory / "jwks.json").chmod(0o644)
    listen = (
        'state_dir = "state"\n[listen]\ncallers = "0.0.0.0:0"\n'
        '[listen.caller_jwt]\nissuer = "https://id.example"\naudience = "pillion"\n'
    )
    tls = '[listen.caller_tls]\ncertificate = "server.crt"\nkey = "server.key"\n'
    by_url = 'jwks_url = "https://id.example/jwks"\n'
    for text, code, told in (
        (
            listen + by_url + tls,
            0,
            "warning: callers with tokens may do nothing, as no [[allow]] is for jwt:https://id.example#SUB.\n",
        ),
        (listen + by_url + tls + '[[allow]]\nprincipal = "jwt:*"\ntools = ["*"]\n', 0, ""),
        (
            listen + by_url,
            2,
            (
                "0.0.0.0:0 is not on loopback, where tokens could be read on their way: give it certificates by "
                "[listen.caller_tls], or use 127.0.0.1 or a unix socket.\n"
            ),
        ),
        (
            listen + 'jwks_file = "jwks.json"\n' + tls,
            2,
            (
                f"listen.caller_jwt.jwks_file, {place.directory}/jwks.json, cannot be used: it has no public key of "
                "2,048 bits or more for ES256, EdDSA, PS256, RS256.\n"
            ),
        ),
    ):
        config.write_text(text)
        checked = await pillion_does("check", "--config", str(config))
        assert checked.code == code, checked
        assert checked.told == told or (code == 2 and checked.told.startswith(told)), checked


@on_unix
async def test_a_name_for_its_certificate_has_a_command_connect_by_tls(by_certificate: Listening) -> None:
    # By the authorities of the system, which this one is not of: nothing answers that would be believed.
    done = await pillion_does("tools", "--address", by_certificate.target, "--tls-server-name", "localhost")
    assert (done.code, "No sidecar answers at" in done.told) == (2, True)


# --- proxies


PROXIES = {
    name: "http://127.0.0.1:9"
    for lower in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    for name in (lower, lower.upper())
}


@on_unix
@pytest.mark.parametrize("variable", [*PROXIES, "all of them"])
async def test_no_proxy_comes_between(
    by_token: Listening, place: Place, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    proxies = PROXIES if variable == "all of them" else {variable: PROXIES[variable]}
    monkeypatch.delenv("no_proxy", raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    async with pillion.connect(by_token.target, token=BACKEND, connect_timeout=10) as caller:
        assert (await caller.info()).caller_principal == "token:backend"
    if variable == "all of them":

        def synchronously() -> Any:
            with pillion.sync.connect(by_token.target, token=BACKEND, connect_timeout=10) as caller:
                return caller.info().caller_principal

        assert await asyncio.to_thread(synchronously) == "token:backend"

        @pillion.tool
        async def slow() -> None:
            """Does nothing."""

        worker = pillion.Worker([slow], target=by_token.workers_at, worker="main", token="token-of-main")
        with pytest.raises(errors.WorkerRefused, match="None of the tools was taken"):
            await worker.run()
        shown = ("--address", by_token.target, "--token-file", str(place.tokens["backend"]))
        for command in ("tools", "calls", "wait-ready"):
            assert (await pillion_does(command, *shown, **proxies)).code == 0


# --- what the SDK refuses to begin with


PEM = "-----BEGIN CERTIFICATE-----\n"


@pytest.mark.parametrize("target", ["sidecar.example:7443", "192.0.2.1:7443", "dns:///sidecar.example:80", "[::]:80"])
async def test_a_token_does_not_go_over_a_network_in_the_clear(target: str) -> None:
    ways: tuple[dict[str, Any], ...] = ({"token": BACKEND}, {"token_file": "nowhere"})
    for shown in ways:
        with pytest.raises(errors.CannotConnect, match="in the clear: pass tls"):
            async with pillion.connect(target, **shown):
                pass
        with pytest.raises(errors.CannotConnect, match="in the clear"), pillion.sync.connect(target, **shown):
            pass
        with pytest.raises(errors.WorkerRefused, match="in the clear"):
            pillion.Worker([], target=target, worker="main", **shown)


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({"token": BACKEND, "token_file": "file"}, "pass one of them"),
        ({"token_file": "nowhere"}, "nowhere cannot be read: FileNotFoundError"),
        ({"token_file": "empty"}, "empty is empty"),
        ({"tls": pillion.Tls("nowhere")}, "nowhere cannot be read"),
        ({"tls": pillion.Tls("empty")}, "empty holds no certificate in PEM"),
        ({"tls": pillion.Tls(certificate="empty")}, "belong together"),
        ({"tls": pillion.Tls(None, "empty", "empty")}, "no certificate with its key"),
    ],
)
async def test_what_cannot_be_used_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(errors.CannotConnect, match=message):
        async with pillion.connect("127.0.0.1:1", **ways):
            pass
    with pytest.raises(errors.WorkerRefused, match=message):
        await pillion.Worker(
            [], target="127.0.0.1:1", worker="main", **(ways if "token_file" in ways else {"token": BACKEND} | ways)
        ).run()


async def test_certificates_are_not_for_a_unix_socket() -> None:
    with pytest.raises(errors.CannotConnect, match="is a unix socket"):
        async with pillion.connect("unix:/nowhere", tls=pillion.Tls()):
            pass


def test_a_connection_does_not_print_its_token() -> None:
    printed = [
        pillion.connect("unix:/x", token=BACKEND),
        pillion.Worker([], target="unix:/x", worker="w", token=BACKEND),
    ]
    assert BACKEND not in f"{printed} {[vars(each) for each in printed]}"
