"""Guarantee 7: no secret is in any log, span, metric, error or audit line, nor in what is kept."""

import asyncio
import base64
import contextlib
import json
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

import pillion
from pillion import errors
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import LogLevel
from sidecar.credentials.making import Maker
from sidecar.credentials.sealed_file import Entry
from sidecar.credentials.secret import Secret
from tests.support import MemoryHost, SidecarProcess, StartHost, attach, quiet, tool, tools_changed
from tests.support.collector import Sink
from tests.support.documents import ROOT
from tests.support.issuing import (
    KEY,
    KEYED,
    VARIABLES,
    authorization_code,
    client_credentials,
    get,
    section,
    settings_of,
    store_login,
    value_of,
)
from tests.support.oauth_stand_in import CLIENT_SECRET, OAuthStandIn

on_unix = pytest.mark.parametrize("transport", ["unix"])
LEAKING = ROOT / "tests" / "support" / "leaking_worker.py"
SERVICES = ("environment", "mounted", "sealed", "machine", "mail:user")
SHOWN = 8
"""Of a secret that is split, at most its first three characters are seen; so many are looked for."""


def made_up(what: str) -> str:
    """A secret that is nowhere by chance, with what encodings change."""
    return f'{secrets.token_hex(6)}-{what}/+ %"{secrets.token_urlsafe(24)}'


class Stage:
    """A sidecar in a process of its own with all that writes something down turned on, and a worker that leaks."""

    def __init__(self, directory: Path, source: OAuthStandIn, collector: Sink) -> None:
        self.state = directory / "state"
        self.stored = {what: made_up(what) for what in ("environment", "mounted", "sealed")}
        self.foreign_token = made_up("foreign")
        self.told: list[str] = []
        """What callers were told of failures."""
        self._directory = directory
        self._source = source
        self.collector = collector
        text = (
            KEYED
            + section("environment", "environment", variable="SERVICE_TOKEN")
            + section("mounted", "mounted", directory=str(directory / "mounted"), kind="basic")
            + section("sealed", "encrypted_file")
            + client_credentials("machine", source.url)
            + authorization_code("mail", source.url)
        )
        self._supply(text)
        environment = {**VARIABLES, "SERVICE_TOKEN": self.stored["environment"]}
        self.process = SidecarProcess(directory, {}, environment=environment)
        workers = (
            f'[[worker]]\nname = "leaking"\ncommand = {json.dumps([sys.executable, str(LEAKING)])}\n'
            f'tools = ["leak"]\ncredentials = {json.dumps(SERVICES)}\n'
            f'[[worker]]\nname = "foreign"\ntoken_file = "{directory}/foreign.token"\n'
            'tools = ["foreign"]\ncredentials = ["environment"]\n'
        )
        reports = (
            '[audit]\narguments = true\nresults = true\n[metrics]\nlisten = "127.0.0.1:0"\n'
            f'[tracing]\nendpoint = "http://127.0.0.1:{collector.port}"\nratio = 1.0\n'
        )
        self.process.write(workers + text + reports)

    def _supply(self, text: str) -> None:
        directory = self._directory
        self.state.mkdir(mode=0o700)
        (directory / "foreign.token").write_text(self.foreign_token)
        (directory / "mounted").mkdir()
        (directory / "mounted" / "username").write_text("ann")
        (directory / "mounted" / "password").write_text(self.stored["mounted"])
        sealed = {"token": Secret(self.stored["sealed"].encode())}
        Maker(settings_of(text), self.state, VARIABLES).sealed_file().put(
            Entry("sealed", None, "bearer", sealed, None, None)
        )
        self._source.live["refresh-of-ann-0000"] = "ann"
        store_login(self.state, "mail", "access-of-ann-0000", "refresh-of-ann-0000", expires_at=1.0)

    def secrets(self) -> Iterator[str]:
        """All that is to be seen nowhere."""
        yield from (*self.stored.values(), self.foreign_token, CLIENT_SECRET, KEY, "access-of-ann-0000")
        yield from (*self._source.live, *self._source.dead, *self._source.issued)

    def found_in(self, text: str) -> list[str]:
        """Which forms of secrets are in a text."""
        forms: set[str] = set()
        for secret in self.secrets():
            forms |= {
                secret,
                secret[:SHOWN],
                secret[-SHOWN:],
                base64.b64encode(secret.encode()).decode(),
                quote(secret, safe=""),
                json.dumps(secret)[1:-1],
            }
        return sorted(form for form in forms if form in text)

    async def leak(self, host: pillion.Host, way: str, **options: str) -> None:
        """Has the worker leak, and waits until all that it printed was read."""
        said = options.pop("said", "")
        try:
            await host.call("leak", {"way": way, "said": said}, timeout=30, **options)  # type: ignore[arg-type]  # texts alone
        except errors.ToolFailed as failed:
            self.told.append(str(failed))
        await self.process.says(f"LEAK end {way}", 2)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with OAuthStandIn() as source, contextlib.AsyncExitStack() as stack:
        collector = Sink()
        await collector.open()
        stack.push_async_callback(collector.aclose)
        stage = await asyncio.to_thread(Stage, tmp_path, source, collector)
        stack.push_async_callback(stage.process.aclose)
        yield stage


async def metrics_of(process: SidecarProcess) -> str:
    (address,) = [json.loads(line)["message"] for line in process.said if "metrics at" in line]
    async with httpx2.AsyncClient(trust_env=False) as http:
        return (await http.get(address.removeprefix("metrics at "))).text


def kept_in(directory: Path) -> str:
    """The content of all files."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return "\n".join(path.read_bytes().decode("latin-1") for path in files)


@on_unix
async def test_guarantee_07_no_secret_is_in_anything_that_is_told_or_kept(stage: Stage) -> None:
    process = stage.process
    await process.start()
    foreign = await process.worker()
    welcome = await foreign.hello(tool("foreign"), worker="foreign", token=stage.foreign_token)
    intruder = await process.worker()
    await intruder.present(worker="foreign", token=f"x{stage.foreign_token}")
    await intruder.end()
    caller = await process.caller()
    await caller.start("foreign")
    run = await foreign.next_invoke()
    pulled = value_of((await foreign.ask(run.call, get("environment"))).credential.issued)
    await foreign.fail(run.call, message=f"Not with {pulled}.")
    stage.told.append((await caller.outcome(1)).failure.message)
    await foreign.send(tools_changed(tool("foreign"), tool(pulled), tool(f"{'x' * 40}{pulled}")))
    assert len((await foreign.next_of("welcome")).welcome.refused) == 2
    async with pillion.connect(process.callers_at) as host:
        await stage.leak(host, "print")
        await stage.leak(host, "log")
        await stage.leak(host, "pull")
        await stage.leak(host, "ask")
        await stage.leak(host, "raise")
        await stage.leak(host, "tool-error")
        await stage.leak(host, "progress")
        await stage.leak(host, "result")
        # An agent that learned one says it again; and an outcome that is recorded under a key.
        learned = stage.stored["environment"]
        await stage.leak(host, "said", said=learned, tool_call_id=f"call-{learned}", parent_anchor=learned)
        await stage.leak(host, "tool-error", idempotency_key="k")
        info = await host.info()
    spans = await stage.collector.of("pillion", 11)
    metrics = await metrics_of(process)
    await process.aclose()

    log = "".join(process.said)
    audit = "".join(path.read_text() for path in (stage.state / "audit").iterdir())
    places = {
        "the log": log,
        "spans": repr(spans),
        "metrics": metrics,
        "what the sidecar says of itself": repr(info),
        "errors": "\n".join(stage.told),
        "the audit log": audit,
        "files": kept_in(stage.state),
    }
    for place, text in places.items():
        assert not stage.found_in(text), f"in {place}"
        assert welcome.reattach_secret not in text, place

    # It was all tried, and something stands where each secret stood.
    for label in ("stdout itself", "stderr in two writes", "stdout over two lines", "frame base64", "frame field"):
        assert f"LEAK {label}" in log, label
    assert log.count("[redacted]") > 100
    assert [text.count("[redacted]") for text in stage.told] == [1, 0, 5, 5]
    entries = [json.loads(line.partition(" ")[2]) for line in audit.splitlines()]
    (said,) = [entry for entry in entries if entry.get("tool_call") == "call-[redacted]"]
    assert said["parent_anchor"] == {"asserted": "[redacted]"}
    assert json.loads(said["arguments"])["said"] == json.loads(said["result"]) == "[redacted]"
    assert any(entry.get("result", "").count("[redacted]") == 5 for entry in entries)


async def test_guarantee_07_a_secret_over_two_log_frames_is_found_though_another_call_logs_between(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    secret = made_up("split")
    text = section("service", "static", insecure=True, values={"token": secret})
    host = await start_host(credentials=text, granted={"main": ("service",)})
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    for _ in range(2):
        await caller.start()
    one, other = [(await worker.next_invoke()).call for _ in range(2)]
    assert (await worker.ask(one, get("service"))).credential.HasField("issued")

    def line(call: int, message: str) -> Frame:
        frame = Frame(call=call)
        frame.log.level, frame.log.message = LogLevel.LOG_LEVEL_INFO, message
        return frame

    with caplog.at_level(logging.INFO, "pillion.worker"):
        await worker.send(line(one, f"it is {secret[:20]}"))
        await worker.send(line(other, "nothing to see"))
        await worker.send(line(one, f"{secret[20:]}, they say"))
        await quiet()
    # What the loop says of a busy machine is no worker's.
    said = [record.getMessage() for record in caplog.records if record.name == "pillion.worker"]
    assert said == ["it is [redacted]", "nothing to see", "[redacted], they say"]


async def test_guarantee_07_who_looks_on_at_calls_sees_no_secret(start_host: StartHost) -> None:
    secret = made_up("watched")
    text = section("service", "static", insecure=True, values={"token": secret})
    host = await start_host(credentials=text, granted={"main": ("service",)})
    assert isinstance(host, MemoryHost)
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    run = (await worker.next_invoke()).call
    assert (await worker.ask(run, get("service"))).credential.HasField("issued")
    with host.pipeline.watched(None) as watcher:
        await watcher.take()
        await worker.progress(run, {"message": f"with {secret}"})
        assert (await watcher.take()).call.line == "with [redacted]"
        await caller.start(tool_call_id=secret)
        assert (await watcher.take()).call.tool_call_id == "[redacted]"
