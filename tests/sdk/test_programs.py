"""The examples and `run_worker`, as programs of their own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pillion
from pillion import errors
from pillion._worker import run
from tests.support import SidecarProcess, token_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "clients" / "python" / "examples" / "sdk"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "clients" / "python"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[SidecarProcess]:
    made = SidecarProcess(tmp_path, {"words": frozenset(("common_words", "countdown"))})
    await made.start()
    yield made
    await made.aclose()


async def program(*command: str, **options: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-X",
        "dev",
        "-W",
        "error",
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{"env": ENVIRONMENT, **options},
    )


async def tools_of(host: pillion.Host, wanted: set[str]) -> None:
    """Returns once these tools are there."""
    async for tools in host.watch_tools():
        if set(tools.by_name) == wanted:
            return


async def test_the_examples_work_together(process: SidecarProcess, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the cat and the dog and the end")
    token_file = str(tmp_path / "words.token")
    worker = await program(
        str(EXAMPLES / "worker.py"), "--target", process.workers_at, "--name", "words", "--token-file", token_file
    )
    try:
        arguments = json.dumps({"path": str(tmp_path / "text"), "most": 2})
        caller = await program(
            str(EXAMPLES / "caller.py"), process.callers_at, "common_words", arguments, "--timeout", "20"
        )
        # The worker may come after the caller: the call waits for it.
        out, err = await caller.communicate()
        assert caller.returncode == 0, err.decode()
        assert json.loads(out) == [{"word": "the", "times": 3}, {"word": "and", "times": 2}]
        assert b"0 of 8 words" in err
        wrong = await program(str(EXAMPLES / "caller.py"), process.callers_at, "countdown", '{"start": 0}')
        out, err = await wrong.communicate()
        assert (wrong.returncode, out) == (1, b"")
        assert b"/start" in err
    finally:
        worker.send_signal(signal.SIGTERM)
        _, err = await worker.communicate()
    assert worker.returncode == 0, err.decode()


async def test_a_worker_finds_its_settings_in_the_environment(process: SidecarProcess) -> None:
    reader, writer = os.pipe()
    os.write(writer, token_of("words").encode() + b"\n")
    os.close(writer)
    environment = ENVIRONMENT | {
        "PILLION_WORKER_TARGET": process.workers_at,
        "PILLION_WORKER_NAME": "words",
        "PILLION_WORKER_TOKEN_FD": str(reader),
    }
    worker = await program(str(EXAMPLES / "worker.py"), env=environment, pass_fds=(reader,))
    os.close(reader)
    async with pillion.connect(process.callers_at) as host:
        await tools_of(host, {"common_words", "countdown"})
        # SIGTERM lets what runs finish; nothing new comes meanwhile.
        async with host.start("countdown", {"start": 2, "pause": 0.3}) as call:
            first = await anext(call)
            assert first.payload == {"message": "2…"}
            worker.send_signal(signal.SIGTERM)
            assert await call.result() == "lift-off"
        _, err = await worker.communicate()
        assert worker.returncode == 0, err.decode()


async def test_a_second_signal_asks_tools_to_stop(process: SidecarProcess, tmp_path: Path) -> None:
    token_file = str(tmp_path / "words.token")
    worker = await program(
        str(EXAMPLES / "worker.py"), "--target", process.workers_at, "--name", "words", "--token-file", token_file
    )
    async with pillion.connect(process.callers_at) as host:
        async with host.start("countdown", {"start": 60, "pause": 10}, timeout=60) as call:
            await anext(call)
            worker.send_signal(signal.SIGTERM)
            await tools_of_nobody(host)
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(errors.CallCancelled):
                await call.result()
        await worker.communicate()
        assert worker.returncode == 0


async def test_a_tool_that_heeds_no_cancel_keeps_no_process(process: SidecarProcess, tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import asyncio, sys, pillion\n"
        "async def countdown(ctx: pillion.ToolContext) -> None:\n"
        "    while True:\n"
        "        ctx.progress('on and on')\n"
        "        try:\n"
        "            await asyncio.sleep(600)\n"
        "        except asyncio.CancelledError:\n"
        "            pass\n"
        "target, token_file = sys.argv[1:]\n"
        "pillion.run_worker([countdown], target=target, worker='words', token_file=token_file)\n"
    )
    worker = await program(str(script), process.workers_at, str(tmp_path / "words.token"))
    try:
        async with pillion.connect(process.callers_at) as host, host.start("countdown", timeout=60) as call:
            await anext(call)
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGINT)
            async with asyncio.timeout(20):
                _, err = await worker.communicate()
    finally:
        if worker.returncode is None:
            worker.kill()
    assert worker.returncode == 0
    assert b"countdown ignores that it is cancelled, and is left behind" in err


async def tools_of_nobody(host: pillion.Host) -> None:
    """Returns once the worker has said goodbye: the sidecar then counts a call that waits for it."""
    async with host.start("countdown", timeout=20) as waiting:
        while not (await host.info()).counters.get("waits"):  # Each look is a round trip.
            continue
        await waiting.cancel()


async def test_what_keeps_a_worker_from_running_is_a_sentence(tmp_path: Path) -> None:
    worker = await program(str(EXAMPLES / "worker.py"))
    _, err = await worker.communicate()
    assert worker.returncode == 1
    assert err.decode() == "The worker's target is not known: pass target=, or set PILLION_WORKER_TARGET.\n"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no token"),
        ({run.TOKEN_FD: "999"}, "cannot be read"),
        ({run.TOKEN_FD: "x"}, "cannot be read"),
        ({run.TOKEN_FILE: "nowhere"}, "cannot be read"),
    ],
    ids=["none", "closed descriptor", "no descriptor", "no file"],
)
def test_a_token_that_cannot_be_had_is_told(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    monkeypatch.delenv(run.TOKEN_FD, raising=False)
    monkeypatch.delenv(run.TOKEN_FILE, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=message):
        pillion.run_worker([], target="unix:x", worker="w")


def test_the_package_needs_no_sidecar() -> None:
    code = "import sys, pillion, pillion.sync, pillion.testing; sys.exit('sidecar' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, cwd="/", check=True)
