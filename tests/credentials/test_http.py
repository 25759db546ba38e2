"""Requests to providers: over TLS, by the certificates that are to be trusted, and never to another place."""

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sidecar.credentials.fields import Shape
from sidecar.credentials.http import Http
from sidecar.credentials.loopback import Loopback
from sidecar.credentials.port import CredentialRefused, Issued, Need, ProviderDown, Request
from sidecar.credentials.secret import Secret
from sidecar.credentials.vault import VaultProvider, VaultSecret
from tests.conformance.credentials.case import value_of
from tests.support.http_stand_in import Answered, Asked, HttpStandIn
from tests.support.people import ANN
from tests.support.vault_stand_in import TOKEN, VaultStandIn


class Authority(NamedTuple):
    """A certificate that vouches for itself, for 127.0.0.1."""

    file: Path
    context: ssl.SSLContext


def authority(directory: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    file = directory / f"{name}.pem"
    file.write_bytes(certificate.public_bytes(Encoding.PEM))
    both = directory / f"{name}-key.pem"
    both.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return Authority(file, context)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("theirs"), "theirs")


async def good(_: Asked) -> Answered:
    return Answered(200, b'{"a": 1}')


async def test_tls_by_the_authority_that_is_named(ours: Authority) -> None:
    async with HttpStandIn(good, ours.context) as server, Http(ca_file=ours.file) as http:
        reply = await http.get("The server", server.url, {})
        assert reply.json() == {"a": 1}


@pytest.mark.parametrize("named", [True, False], ids=["another authority", "those of the system"])
async def test_tls_by_an_authority_that_is_not_trusted(ours: Authority, theirs: Authority, *, named: bool) -> None:
    ca_file = theirs.file if named else None
    async with HttpStandIn(good, ours.context) as server, Http(ca_file=ca_file) as http:
        with pytest.raises(ProviderDown, match="could not be asked"):
            await http.post("The server", server.url, {"a": "secret"}, {})


async def test_authorities_that_cannot_be_read_are_no_trap(tmp_path: Path, ours: Authority) -> None:
    missing = tmp_path / "ca.pem"
    async with HttpStandIn(good, ours.context) as server, Http(ca_file=missing) as http:
        for _ in range(2):
            with pytest.raises(ProviderDown, match="could not be asked"):
                await http.get("The server", server.url, {})
            await http.aclose()
            with pytest.raises(ProviderDown, match="could not be asked"):
                await http.get("The server", server.url, {})
        missing.write_bytes(ours.file.read_bytes())
        assert (await http.get("The server", server.url, {})).is_success


async def test_a_redirect_is_not_followed() -> None:
    seen = []

    async def elsewhere(asked: Asked) -> Answered:
        seen.append(asked)
        return Answered(200)

    async with HttpStandIn(elsewhere) as other, Http() as http:

        async def redirect(_: Asked) -> Answered:
            return Answered(307, headers=(("location", other.url),))

        async with HttpStandIn(redirect) as server:
            with pytest.raises(CredentialRefused, match="redirect"):
                await http.post("The server", server.url, {"a": "secret"}, {})
    assert seen == []


async def test_an_answer_over_1_mib_is_not_read_to_its_end() -> None:
    async def much(_: Asked) -> Answered:
        return Answered(200, b'{"access_token": "' + b"a" * 64 * 1024 * 1024 + b'"}')

    async with HttpStandIn(much) as server, Http() as http:
        with pytest.raises(ProviderDown, match="over 1 MiB"):
            await http.get("The server", server.url, {})


async def test_many_share_one_client() -> None:
    async with HttpStandIn(good) as server, Http() as http:
        replies = await asyncio.gather(*(http.get("The server", server.url, {}) for _ in range(20)))
        assert all(reply.is_success for reply in replies)
        assert len(http._clients) == 1


# --- Vault, beyond the laws


def vault(source: VaultStandIn, http: Http, shape: Shape, token: str = TOKEN, **fields: str) -> VaultProvider:
    secret = VaultSecret(source.url + "/", "/team secrets/", "/a/b c/", "ns/1")
    return VaultProvider(shape, secret, http, lambda: Secret(token), fields=fields)


ASKED = Request(ANN.scope, ANN.principal, Need("service"))


async def test_a_path_is_escaped_and_the_namespace_is_shown() -> None:
    asked: list[Asked] = []
    async with VaultStandIn() as source, Http() as http:
        source.fault = asked.append
        source.write("team secrets/a/b c", {"token": "value", "other": "x"})
        answer = await vault(source, http, Shape("service", "bearer")).issue(ASKED)
    assert isinstance(answer, Issued)
    assert value_of(answer) == "value"
    assert asked[0].headers["x-vault-namespace"] == "ns/1"


async def test_fields_are_found_by_their_names() -> None:
    async with VaultStandIn() as source, Http() as http:
        source.write("team secrets/a/b c", {"user": "me", "pass": "secret"})
        shape = Shape("service", "basic")
        answer = await vault(source, http, shape, username="user", password="pass").issue(ASKED)
        assert isinstance(answer, Issued)
        assert value_of(answer) == "secret"
        with pytest.raises(CredentialRefused, match="lacks username and password"):
            await vault(source, http, shape).issue(ASKED)


async def test_a_wrong_token_is_refused() -> None:
    async with VaultStandIn() as source, Http() as http:
        with pytest.raises(CredentialRefused, match="give the sidecar a token that may read the secret"):
            await vault(source, http, Shape("service", "bearer"), "wrong").issue(ASKED)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": null}', b'{"data": {"data": []}}', b'{"data": {"token": "v1"}}']
)
async def test_what_is_no_secret_of_version_2_is_said_to_be_none(body: bytes) -> None:
    async with VaultStandIn() as source, Http() as http:
        source.fault = lambda _: Answered(200, body)
        with pytest.raises(ProviderDown, match="no secret of KV version 2"):
            await vault(source, http, Shape("service", "bearer")).issue(ASKED)


@pytest.mark.parametrize("when", ["", "soon", 7, None, "2027-01-15T09:00:00Z"])
async def test_a_deletion_that_is_no_time_is_not_known(when: object) -> None:
    async with VaultStandIn() as source, Http() as http:
        secret = {"data": {"token": "value"}, "metadata": {"deletion_time": when}}
        source.fault = lambda _: Answered(200, json.dumps({"data": secret}).encode())
        answer = await vault(source, http, Shape("service", "bearer")).issue(ASKED)
    assert isinstance(answer, Issued)
    assert answer.expires_at == (1_800_003_600.0 if when == "2027-01-15T09:00:00Z" else None)


# --- where a browser comes back to


async def _send(url: str, data: bytes) -> bytes:
    port = int(url.split(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


def _get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


async def test_only_the_answer_to_what_was_begun_is_taken() -> None:
    async with Loopback() as loopback:
        waiting = asyncio.create_task(loopback.callback("state-1"))
        await asyncio.sleep(0)
        for target in ("/", "/callback", "/callback?state=other&code=x", "/favicon.ico", "/callback/?state=state-1"):
            assert (await _send(loopback.url, _get(target))).startswith(b"HTTP/1.1 404 ")
        for garbage in (b"", b"\r\n", b"POST /callback?state=state-1 HTTP/1.1\r\n\r\n", b"x" * 20_000, b"\xff\xfe\r\n"):
            if garbage:
                assert b"200" not in (await _send(loopback.url, garbage + b"\r\n\r\n"))[:16]
        assert not waiting.done()
        page = await _send(loopback.url, _get("/callback?state=state-1&code=c%2Bd&iss="))
        assert page.startswith(b"HTTP/1.1 200 ")
        assert b"no-store" in page
        assert await waiting == {"state": "state-1", "code": "c+d", "iss": ""}


async def test_it_listens_on_this_machine_alone_and_then_no_more() -> None:
    async with Loopback() as loopback:
        url = loopback.url
        assert url.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="Connect"):
        await _send(url, _get("/"))
