"""The audit log of a running sidecar: what is in it, what is not, and the commands that judge and show it."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import pillion
from sidecar._gen.pillion.v1.admin_pb2 import CancelCallRequest, ShutdownRequest
from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar._gen.pillion.v1.tool_pb2 import CredentialMode, CredentialNeed
from tests.integration.teardowns import kept, ran
from tests.support import SidecarProcess, WorkerPeer, attach, end_scope, on_unix, seconds, tool
from tests.support.documents import ROOT
from tests.support.issuing import KEYED, VARIABLES, authorization_code, get, section
from tests.support.machines import lacking, with_disk

pytestmark = on_unix

CANARY = "canary-3f9a1c"
UNAVAILABLE = FailureKind.FAILURE_KIND_UNAVAILABLE
FULL = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    started = SidecarProcess(tmp_path)
    yield started
    await started.aclose()


async def command(process: SidecarProcess, *arguments: str) -> tuple[int, str, str]:
    """Runs `pillion audit`; answers its exit code and what it said."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "sidecar", "audit", "--config", str(process.config), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


async def entries(process: SidecarProcess) -> list[dict[str, Any]]:
    code, output, errors = await command(process, "tail", "--lines", "1000")
    assert code == 0, errors
    return [json.loads(line) for line in output.splitlines()]


async def calls(process: SidecarProcess) -> list[dict[str, Any]]:
    return [entry for entry in await entries(process) if entry["event"] == "call"]


async def test_what_becomes_of_cleanups_and_scopes_is_recorded(process: SidecarProcess) -> None:
    await process.start()
    worker, caller = await attach(process), await process.caller()
    ann = Identity(tenant=CANARY, principal=CANARY)
    ids = [await kept(worker, caller, CANARY, name=name, identity=ann) for name in "ab"]
    ending = asyncio.ensure_future(end_scope(process, EndScopeRequest(session_id=CANARY, identity=ann)))
    await worker.torn_down((await worker.next_teardown()).registration_id, error=CANARY)
    await worker.torn_down((await worker.next_teardown()).registration_id)
    await ending
    call = await caller.start()
    run = (await worker.next_invoke()).call
    of_call = await worker.registered(run, TeardownScope.TEARDOWN_SCOPE_CALL)
    await worker.result(run)
    await ran(worker, of_call.registration_id)
    await caller.outcome(call)
    recorded = await entries(process)
    told = [
        tuple(entry.get(name) for name in ("what", "scope", "reason", "how", "registration"))
        for entry in recorded
        if entry["event"] == "teardown"
    ]
    assert sorted(told[:2]) == [
        ("failed", "session", "session-end", "error", ids[1]),
        ("fired", "session", "session-end", None, ids[0]),
    ]
    assert told[2:] == [("fired", "call", "call-end", None, of_call.registration_id)]
    (ended,) = [entry for entry in recorded if entry["event"] == "scope_ended"]
    assert (ended["scope"], ended["fired"], ended["failed"], ended["cancelled"]) == ("session", 2, 1, 0)
    first = next(entry for entry in recorded if entry["event"] == "call")
    torn = next(entry for entry in recorded if entry["event"] == "teardown")
    assert ended["caller"] == first["caller"]
    for entry in (ended, torn):
        assert (entry["subject"], entry["tenant"]) == (first["subject"], first["tenant"])
    assert CANARY not in json.dumps(recorded)


async def test_a_call_is_recorded_with_who_what_and_how_it_ended(process: SidecarProcess) -> None:
    await process.start()
    worker, caller = await attach(process), await process.caller()
    call = await caller.start(
        "echo",
        {"secret": CANARY},
        tool_call_id="tc-1",
        identity=Identity(tenant=CANARY, principal=CANARY),
        parent_anchor="anchor-9",
    )
    run = await worker.next_invoke()
    await worker.result(run.call, {"secret": CANARY})
    started = await caller.started(call)
    await caller.outcome(call)
    failing = await caller.start("echo", {"secret": CANARY})
    run = await worker.next_invoke()
    await worker.fail(run.call, message=CANARY)
    await caller.outcome(failing)
    assert (await caller.call("nothing")).failure.kind == FailureKind.FAILURE_KIND_UNKNOWN_TOOL

    result, failure, unknown = await calls(process)
    assert (result["execution"], result["tool_call"]) == (started.execution_id, "tc-1")
    assert (result["tool"], result["worker"], result["outcome"]) == ("echo", "main", "RESULT")
    assert result["instance"].startswith("ins_")
    assert result["parent_anchor"] == {"asserted": "anchor-9"}
    assert (failure["outcome"], failure["side_effects"]) == ("TOOL_FAILED", "POSSIBLE")
    assert (unknown["outcome"], unknown["attempts"], "worker" in unknown) == ("UNKNOWN_TOOL", 0, False)
    # The same person reads the same, and another otherwise.
    assert result["caller"] == failure["caller"]
    assert "tenant" in result
    assert "tenant" not in failure
    assert result["subject"] != failure["subject"]
    everything = "".join(path.read_text() for path in (process.config.parent / "state" / "audit").iterdir())
    assert CANARY not in everything
    assert "local:" not in everything


async def test_arguments_and_results_are_there_only_if_asked_for(process: SidecarProcess) -> None:
    with process.config.open("a") as config:
        config.write("\n[audit]\narguments = true\nresults = true\n")
    await process.start()
    worker, caller = await attach(process), await process.caller()
    call = await caller.start("echo", b'{"text": "x"}')
    run = await worker.next_invoke()
    await worker.result(run.call, {"y": 1})
    await caller.outcome(call)
    (entry,) = await calls(process)
    assert (entry["arguments"], json.loads(entry["result"])) == ('{"text": "x"}', {"y": 1})


async def test_there_is_no_log_where_none_is_wanted(process: SidecarProcess) -> None:
    with process.config.open("a") as config:
        config.write("\n[audit]\nenabled = false\n")
    await process.start()
    await attach(process)
    caller = await process.caller()
    await caller.call("nothing")
    assert not (process.config.parent / "state" / "audit").exists()
    code, _, errors = await command(process, "verify")
    assert (code, "There is no audit log in" in errors) == (2, True)


async def test_the_commands_tell_a_whole_log_from_one_that_was_changed(process: SidecarProcess) -> None:
    await process.start()
    await attach(process)
    caller = await process.caller()
    for _ in range(3):
        await caller.call("nothing")
    await process.aclose()
    code, output, errors = await command(process, "verify")
    assert (code, errors) == (0, "")
    assert output.endswith("whole; entries 1 to 5\n")
    (segment,) = (process.config.parent / "state" / "audit").iterdir()
    segment.write_text(segment.read_text().replace('"tool":"nothing"', '"tool":"another"', 1))
    code, _, errors = await command(process, "verify")
    assert code == 1
    assert errors == "line 2 of audit-000000000001.log, which says that it is entry 2, was changed.\n"


async def test_a_log_that_was_cut_is_not_gone_on_with(process: SidecarProcess) -> None:
    await process.start()
    await process.aclose()
    (segment,) = (process.config.parent / "state" / "audit").iterdir()
    segment.write_text("")
    with pytest.raises(AssertionError, match=r"its head says that there were 2.*keep it as evidence"):
        await process.start()


async def test_a_key_that_others_can_read_is_refused(process: SidecarProcess, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    key.chmod(0o644)
    with process.config.open("a") as config:
        config.write('\n[audit]\nkey_file = "key"\n')
    with pytest.raises(AssertionError, match=r"The audit key.*chmod 600"):
        await process.start()
    key.write_text("short")
    key.chmod(0o600)
    with pytest.raises(AssertionError, match="has 5 bytes, and needs 32"):
        await process.start()


@FULL
@pytest.mark.parametrize("required", [False, True])
async def test_a_full_disk_stops_calls_only_where_each_has_to_be_recorded(tmp_path: Path, *, required: bool) -> None:
    disk = tmp_path / "disk"
    process = SidecarProcess(tmp_path, within=with_disk(disk, "256k"))
    with process.config.open("a") as config:
        config.write(f'\n[audit]\ndirectory = "disk"\nrequired = {str(required).lower()}\n')
    try:
        await process.start()
        worker, caller = await attach(process), await process.caller()
        answering = asyncio.ensure_future(answer_all(worker))
        refused = None
        for number in range(1_200):
            outcome = await caller.call("echo", tool_call_id=f"{number:0250}")
            if outcome.HasField("failure"):
                refused = outcome.failure
                break
        await process.says("the audit log cannot be written")
        assert (refused is not None) is required
        if refused is not None:
            assert (refused.kind, refused.retryable) == (UNAVAILABLE, True)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    finally:
        await process.aclose()


async def answer_all(worker: WorkerPeer) -> None:
    """Answers every call with a result."""
    while True:
        await worker.result((await worker.next_invoke()).call, {})


async def test_a_call_whose_caller_has_left_is_recorded_though_nobody_is_told(process: SidecarProcess) -> None:
    await process.start()
    worker, caller = await attach(process), await process.caller()
    await caller.start("echo", tool_call_id="tc-left")
    run = await worker.next_invoke()
    caller.cut()
    await worker.cancelled(run.call)
    await worker.fail(run.call, FailureKind.FAILURE_KIND_CANCELLED)
    async with asyncio.timeout(20):
        while not (found := await calls(process)):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.1)
    await process.kill()
    assert [(entry["tool_call"], entry["outcome"]) for entry in found] == [("tc-left", "CANCELLED")]


async def test_a_shutdown_is_the_last_entry(process: SidecarProcess) -> None:
    await process.start()
    process.send(signal.SIGTERM)
    assert await process.ended() == 0
    assert [entry["event"] for entry in await entries(process)] == ["started", "stopped"]


# --- what is recorded beside calls


async def events(process: SidecarProcess, *names: str) -> list[dict[str, Any]]:
    return [entry for entry in await entries(process) if entry["event"] in names]


async def test_credentials_are_recorded_with_who_asked_and_what_came_of_it(tmp_path: Path) -> None:
    process = SidecarProcess(tmp_path, environment=VARIABLES)
    granted = 'name = "main"\ncredentials = ["github", "mail:user", "unset"]'
    text = process.config.read_text().replace('name = "main"', granted)
    secret = section("github", "static", insecure=True, values={"token": CANARY})
    secret += section("unset", "environment", variable="NOT_SET")
    process.config.write_text(text + KEYED + secret + authorization_code("mail", "https://id.example.com"))
    try:
        await process.start()
        needing = tool("echo", needs=[CredentialNeed(service="github")])
        worker, caller = await attach(process, needing), await process.caller()
        ann = Identity(tenant=CANARY, principal=CANARY)
        call = await caller.start("echo", identity=ann)
        run = await worker.next_invoke()
        await worker.ask(run.call, get("hidden"))
        await worker.ask(run.call, get("unset", 2))
        await worker.ask(run.call, get("mail", 3, mode=CredentialMode.CREDENTIAL_MODE_USER))
        for number in range(4, 34):
            await worker.ask(run.call, get("github", number))
        async with pillion.connect(process.callers_at) as host:
            with pytest.raises(pillion.errors.CredentialUnavailable):
                await host.complete_consent("mail", "code=x&state=y", pillion.Identity(CANARY, CANARY))
        await worker.result(run.call)
        await caller.outcome(call)
        found = await events(process, "credential")
        (ended,) = await calls(process)
    finally:
        await process.aclose()
    assert [(entry["what"], entry["service"], entry["mode"], entry.get("detail")) for entry in found] == [
        ("issued", "github", "machine", "bearer"),
        ("denied", "hidden", "machine", "CredentialDenied"),
        ("failed", "unset", "machine", "CredentialRefused"),
        ("authorization_required", "mail", "user", None),
        *[("issued", "github", "machine", "bearer")] * 15,
        ("failed", "mail", "user", "CredentialRefused"),
    ]
    *found, completed = found
    assert [entry.get("more_untold", False) for entry in found] == [*[False] * (len(found) - 1), True]
    assert {name: completed[name] for name in ("caller", "tenant", "subject")} == {
        name: ended[name] for name in ("caller", "tenant", "subject")
    }
    for entry in found:
        assert {name: entry[name] for name in ("caller", "tenant", "subject", "worker", "execution")} == {
            name: ended[name] for name in ("caller", "tenant", "subject", "worker", "execution")
        }
    assert CANARY not in "".join(path.read_text() for path in (tmp_path / "state" / "audit").iterdir())


async def test_who_is_not_let_in_and_what_is_not_admitted_is_recorded(process: SidecarProcess) -> None:
    await process.start()
    for number in range(35):
        intruder = await process.worker()
        await intruder.present(tool("echo"), worker=f"main{number}", token="wrong")
        await intruder.end()
    worker = await process.worker()
    await worker.hello(tool("echo"), tool("hidden"), tool("no name"))
    await process.aclose()
    refused = await events(process, "worker_refused")
    assert len(refused) == 30, "whoever may connect does not fill the log"
    assert refused[0]["worker"] == "main0"
    assert refused[0]["reason"] == "No worker of this name has this token."
    (tools,) = await events(process, "tools_refused")
    assert (tools["worker"], tools["count"]) == ("main", 2)
    assert [each["name"] for each in tools["tools"]] == ["hidden", "no name"]
    assert "grant" in tools["tools"][0]["reason"]


async def test_what_operators_did_is_recorded(process: SidecarProcess) -> None:
    await process.start()
    worker, caller = await attach(process), await process.caller()
    call = await caller.start()
    run = await worker.next_invoke()
    execution = run.context.execution_id
    async with grpc.aio.insecure_channel(process.callers_at) as channel:
        cancel: Any = channel.unary_unary("/pillion.v1.AdminService/CancelCall", CancelCallRequest.SerializeToString)
        for each in (execution, "exe_of_nobody"):
            await cancel(CancelCallRequest(execution_id=each))
        await worker.cancelled(run.call)
        await worker.fail(run.call, FailureKind.FAILURE_KIND_CANCELLED)
        await caller.outcome(call)
        with process.config.open("a") as config:
            config.write('\n[[worker]]\nname = "third"\ntoken_file = "main.token"\n')
        await process.says("reloaded")
        shut_down: Any = channel.unary_unary("/pillion.v1.AdminService/Shutdown", ShutdownRequest.SerializeToString)
        await shut_down(ShutdownRequest(grace=seconds(1)))
    assert await process.ended() == 0
    (ended,) = await calls(process)
    cancelled, reloaded, shutdown = await events(process, "call_cancelled", "reloaded", "shutdown")
    assert (cancelled["execution"], cancelled["caller"]) == (execution, ended["caller"])
    assert (reloaded["workers"], reloaded["changed"]) == (3, ["third"])
    assert (shutdown["grace_seconds"], shutdown["caller"]) == (1.0, ended["caller"])
    assert "local:" not in json.dumps([cancelled, reloaded, shutdown])
