"""Listeners by TCP off loopback: both sides show certificates, and a caller is who its certificate names."""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

import pillion
import pillion.sync
from pillion import errors
from sidecar.config import ConfigRefused, Worker
from sidecar.serving import serve
from tests.integration.listening import EVERYWHERE, Listening, Place, local, until
from tests.support import attach, on_unix, tool
from tests.support.certificates import Authority, Shown
from tests.support.documents import ROOT
from tests.support.links import ATTACH, channel_to

SPIFFE = "spiffe://prod.example/ns/agents/backend"
NAMED: dict[str, tuple[tuple[str | x509.GeneralName, ...], str | None]] = {
    "a SPIFFE id": ((SPIFFE,), SPIFFE),
    "a SPIFFE id before a name": (("backend.example", SPIFFE), SPIFFE),
    "a name": (("backend.example",), "mtls:backend.example"),
    "a name in capitals": (("Backend.Example",), "mtls:backend.example"),
    "the first of several names": (("backend.example", "a.example"), "mtls:backend.example"),
    "a name beside what is none": (("192.0.2.1", "https://example.com/x", "backend.example"), "mtls:backend.example"),
    "a name after one of many": (("*.example", "backend.example"), "mtls:backend.example"),
    "nothing": ((), None),
    "an address": (("192.0.2.1",), None),
    "a name of many": (("*.example",), None),
    "an address of mail": ((x509.RFC822Name("backend@example.com"),), None),
    "another URI": (("https://example.com/backend",), None),
    "two SPIFFE ids": ((SPIFFE, "spiffe://prod.example/ns/agents/other"), None),
    "a SPIFFE id and another URI, and a name": ((SPIFFE, "https://example.com/x", "backend.example"), None),
    "a SPIFFE id of a whole domain": (("spiffe://prod.example", "backend.example"), None),
    "a SPIFFE id that climbs": (("spiffe://prod.example/ns/../admin",), None),
    "a SPIFFE id with a query": (("spiffe://prod.example/ns?admin",), None),
    "a SPIFFE id in capitals": (("SPIFFE://prod.example/ns/agents", "backend.example"), None),
}


@pytest.fixture
def address() -> str:
    return EVERYWHERE[0]


@pytest.fixture
async def serving(place: Place, address: str) -> AsyncIterator[Listening]:
    host = Listening(place.by_certificate(address))
    await host.open()
    yield host
    await host.aclose()


def tls_of(shown: Shown) -> pillion.Tls:
    """As the SDK takes it."""
    if shown.issued is None:
        return pillion.Tls(shown.ca)
    return pillion.Tls(shown.ca, shown.issued.certificate, shown.issued.key)


@on_unix
@pytest.mark.parametrize("case", NAMED)
async def test_a_caller_is_who_its_certificate_names(serving: Listening, place: Place, case: str) -> None:
    names, principal = NAMED[case]
    shown = place.shown(*names)
    if principal is not None:
        assert await serving.who_am_i(shown=shown) == principal
        return
    refused = await serving.refuses(shown=shown)
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    assert refused.details() == (
        "The certificate names nobody: it needs a SPIFFE id or a DNS name as its subject's alternative name."
    )
    assert serving.count("refused_callers") == 1


@on_unix
async def test_who_shows_no_certificate_that_is_believed_is_not_connected(serving: Listening, place: Place) -> None:
    strangers = Authority(place.directory, "strangers")
    for shown in (
        Shown(place.authority.ca, None),
        Shown(place.authority.ca, strangers.issue("backend.example")),
        None,
    ):
        refused = await serving.refuses(token="a-token-that-helps-nobody", shown=shown)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
    assert await serving.who_am_i(shown=place.shown("backend.example")) == "mtls:backend.example"


@on_unix
async def test_a_caller_believes_only_its_own_authority(serving: Listening, place: Place) -> None:
    strangers = Authority(place.directory, "strangers")
    shown = place.shown("backend.example")
    refused = await serving.refuses(shown=Shown(strangers.ca, shown.issued))
    assert refused.code() is grpc.StatusCode.UNAVAILABLE


@on_unix
@pytest.mark.parametrize("address", EVERYWHERE)
async def test_calls_by_bare_stubs_and_by_the_sdk(serving: Listening, place: Place) -> None:
    worker = await attach(serving, concurrency=8)
    shown = place.shown(SPIFFE)
    caller = await serving.caller(shown=shown)
    call = await caller.start()
    run = await worker.next_invoke()
    assert run.context.caller_principal == SPIFFE
    await worker.result(run.call, "by stubs")
    assert (await caller.outcome(call)).result.json == b'"by stubs"'

    async with pillion.connect(serving.target, tls=tls_of(shown)) as connected:
        calling = asyncio.create_task(connected.call("echo", {"n": 1}))
        await worker.result((await worker.next_invoke()).call, "by the SDK")
        assert await calling == "by the SDK"
        assert (await connected.info()).caller_principal == SPIFFE

    def synchronously() -> Any:
        with pillion.sync.connect(serving.target, tls=tls_of(shown)) as connected:
            return connected.info().caller_principal

    assert await asyncio.to_thread(synchronously) == SPIFFE
    with pytest.raises(errors.NotAuthenticated, match="names nobody"):
        async with pillion.connect(serving.target, tls=tls_of(place.shown())):
            pass
    port = serving.target.rpartition(":")[2]
    named = pillion.Tls(shown.ca, *shown.issued, server_name="localhost") if shown.issued else None
    async with pillion.connect(
        f"127.0.0.2:{port}" if "." in serving.target else serving.target, tls=named
    ) as connected:
        assert connected.connected


@on_unix
@pytest.mark.parametrize("address", EVERYWHERE)
async def test_workers_show_certificates_and_their_tokens(place: Place, address: str) -> None:
    host = Listening(place.settings({"workers": address, "worker_tls": place.tls}))
    await host.open()
    host.callers_at = host.sidecar.callers_at

    @pillion.tool
    async def echo(n: int) -> int:
        return n

    target = local(host.workers_at)
    token = place.directory / "main.token"
    for names, shown_token, refusal in (
        (("worker.example",), "a-wrong-token", "No worker of this name has this token"),
        ((), "token-of-main", "names nobody"),
    ):
        turned_away = pillion.Worker(
            [echo], target=target, worker="main", token=shown_token, tls=tls_of(place.shown(*names))
        )
        with pytest.raises(errors.WorkerRefused, match=refusal):
            await turned_away.run()
    worker = pillion.Worker(
        [echo], target=target, worker="main", token_file=token, tls=tls_of(place.shown("worker.example"))
    )
    serving = asyncio.create_task(worker.run())
    async with pillion.connect(host.callers_at) as caller:
        assert await caller.call("echo", {"n": 7}) == 7
    worker.leave()
    await serving
    async with channel_to(target) as opened:
        channel: Any = opened
        assert await channel.stream_stream(ATTACH)().code() is grpc.StatusCode.UNAVAILABLE
    await host.aclose()


@on_unix
async def test_a_worker_that_the_sidecar_starts_shows_its_certificate(place: Place) -> None:
    issued = place.authority.issue("worker.example")
    environment = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}",
        "PILLION_WORKER_TLS_CA": str(place.authority.ca),
        "PILLION_WORKER_TLS_CERTIFICATE": str(issued.certificate),
        "PILLION_WORKER_TLS_KEY": str(issued.key),
        "PILLION_WORKER_TLS_SERVER_NAME": "localhost",
    }
    command = (sys.executable, str(ROOT / "tests" / "support" / "counting_worker.py"))
    settings = place.settings({"workers": EVERYWHERE[0], "worker_tls": place.tls})
    worker = Worker(name="counter", command=command, environment=environment)
    host = Listening(settings.model_copy(update={"worker": (worker,)}))
    await host.open()
    async with pillion.connect(host.callers_at) as caller, aclosing(caller.watch_tools()) as watched:
        async with asyncio.timeout(20):
            async for tools in watched:
                if tools.by_name:
                    break
        assert await caller.call("count", {"to": 1}) == {"counted": 1, "label": ""}
    await host.aclose()


@on_unix
@pytest.mark.parametrize("by", ["token", "certificate"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
async def test_a_port_that_is_taken_is_refused_in_a_sentence(
    place: Place, by: str, family: socket.AddressFamily
) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as taken:
        address = f"{f'[{host}]' if ':' in host else host}:{taken.getsockname()[1]}"
        settings = place.by_token(address) if by == "token" else place.by_certificate(address)
        with pytest.raises(BaseException) as refused:  # noqa: PT011  # looked at below, in whatever group it comes
            await serve(lambda: settings)
    error = refused.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ConfigRefused)
    assert str(error) == f"{address} cannot be listened on; is it in use?"


@on_unix
async def test_workers_by_loopback_show_their_tokens(place: Place) -> None:
    host = Listening(place.settings({"workers": "[::1]:0"}))
    await host.open()
    stranger = await host.worker()
    await stranger.present(tool(), token="a-wrong-token")
    assert (await stranger.end()).code is grpc.StatusCode.UNAUTHENTICATED
    worker = await attach(host)
    async with pillion.connect(host.callers_at) as caller:
        calling = asyncio.create_task(caller.call("echo"))
        await worker.result((await worker.next_invoke()).call, "done")
        assert await calling == "done"
    await host.aclose()


def serial_of(target: str, shown: Shown) -> int:
    """The number of the certificate that is served."""
    assert shown.issued is not None
    context = ssl.create_default_context(cafile=str(shown.ca))
    context.load_cert_chain(*shown.issued)
    context.set_alpn_protocols(["h2"])
    host, _, port = target.rpartition(":")
    with (
        socket.create_connection((host, int(port))) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        der = secured.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der).serial_number


@on_unix
async def test_certificates_are_read_again_when_their_files_change(
    serving: Listening, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    shown = place.shown(SPIFFE)
    worker = await attach(serving)
    caller = await serving.caller(shown=shown)
    await caller.flush()
    first = await asyncio.to_thread(serial_of, serving.target, shown)

    # A certificate whose key is not there yet is not served.
    old_key = place.server.key.read_bytes()
    place.authority.issue("localhost", "127.0.0.1", stem="server")
    new_key = place.server.key.read_bytes()
    place.server.key.write_bytes(old_key)

    async def said_no() -> bool:
        await serving.refuses()
        return "that belong together" in caplog.text

    await until(said_no)
    assert await asyncio.to_thread(serial_of, serving.target, shown) == first
    place.server.key.write_bytes(new_key)

    async def is_new() -> bool:
        return await asyncio.to_thread(serial_of, serving.target, shown) != first

    await until(is_new)

    # Another authority of callers: its certificates are believed, and those of before are not.
    later = Authority(place.directory, "later")
    of_later = Shown(place.authority.ca, later.issue("later.example"))
    believed = place.authority.ca.read_bytes()
    kept = place.directory / "kept.pem"
    kept.write_bytes(believed)
    place.authority.ca.write_bytes(later.ca.read_bytes())
    of_later = Shown(kept, of_later.issued)
    await until(lambda: takes(serving, of_later))
    assert (await serving.refuses(shown=Shown(kept, shown.issued))).code() is grpc.StatusCode.UNAVAILABLE

    # What was open all the while still is.
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, "still open")
    assert (await caller.outcome(call)).result.json == b'"still open"'


async def takes(host: Listening, shown: Shown) -> bool:
    try:
        await host.who_am_i(shown=shown)
    except grpc.aio.AioRpcError:
        return False
    return True


@on_unix
async def test_the_sdk_shows_another_certificate_when_it_connects_again(place: Place) -> None:
    host = Listening(place.by_certificate("127.0.0.1:0"))
    await host.open()
    issued = place.authority.issue("first.example", stem="of-the-caller")
    tls = pillion.Tls(place.authority.ca, issued.certificate, issued.key)
    port = host.target.rpartition(":")[2]
    async with pillion.connect(host.target, tls=tls) as caller:
        assert (await caller.info()).caller_principal == "mtls:first.example"
        place.authority.issue("second.example", stem="of-the-caller")
        assert (await caller.info()).caller_principal == "mtls:first.example"
        await host.aclose()
        host = Listening(place.by_certificate(f"127.0.0.1:{port}"))
        await host.open()
        with pytest.raises(errors.UnknownTool):
            # It waits until the stream is there again.
            await caller.call("nothing", timeout=20)
        assert (await caller.info()).caller_principal == "mtls:second.example"
    await host.aclose()
