import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pillion
from pillion import errors
from tests.sdk.conftest import StartWorker
from tests.support import SidecarProcess


class Gate:
    """A tool that waits for the test."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[pillion.ToolContext] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.open = asyncio.Event()

    async def wait(self, ctx: pillion.ToolContext) -> str:
        self.began.put_nowait(ctx)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            assert ctx.cancel_reason is not None
            self.ended.put_nowait(ctx.cancel_reason.name)
            raise
        return "waited"

    def tools(self) -> list[Any]:
        return [
            pillion.tool(name="echo")(self.wait),
            pillion.tool(name="read", effects=pillion.READ)(self.wait),
        ]


async def test_calls_of_a_lost_stream_fail_and_say_whether_they_may_be_made_again(
    sidecar_process: SidecarProcess, start_worker: StartWorker
) -> None:
    gate = Gate()
    worker = await start_worker(*gate.tools(), target=sidecar_process.workers_at)
    async with pillion.connect(sidecar_process.callers_at) as caller:
        await caller.tools()
        unsafe = asyncio.ensure_future(caller.call("echo"))
        harmless = asyncio.ensure_future(caller.call("read"))
        await gate.began.get()
        await gate.began.get()
        instance = worker.instance_id
        await sidecar_process.kill()
        with pytest.raises(errors.StreamLost) as lost:
            await unsafe
        assert (lost.value.retryable, lost.value.side_effects) == (False, pillion.SideEffects.POSSIBLE)
        with pytest.raises(errors.StreamLost) as lost:
            await harmless
        assert (lost.value.retryable, lost.value.side_effects) == (True, pillion.SideEffects.NONE)
        assert [await gate.ended.get(), await gate.ended.get()] == ["DISCONNECT", "DISCONNECT"]
        gate.open.set()
        waiting = asyncio.ensure_future(caller.call("echo", timeout=20))
        await sidecar_process.start()
        assert await waiting == "waited"
        assert caller.connected
        assert caller.reconnects == 1
        assert worker.instance_id != instance, "another sidecar knows nothing of the instance"
        assert gate.began.qsize() == 1, "nothing was run again"


async def test_a_call_with_a_key_is_sent_again_if_its_caller_says_so(
    sidecar_process: SidecarProcess, start_worker: StartWorker
) -> None:
    gate = Gate()
    await start_worker(*gate.tools(), target=sidecar_process.workers_at)
    async with pillion.connect(sidecar_process.callers_at) as caller:
        again = asyncio.ensure_future(caller.call("read", idempotency_key="k1", resend=True))
        once = asyncio.ensure_future(caller.call("read", idempotency_key="k2"))
        await gate.began.get()
        await gate.began.get()
        await sidecar_process.kill()
        with pytest.raises(errors.StreamLost):
            await once
        gate.open.set()
        await sidecar_process.start()
        assert await again == "waited"


async def test_calls_wait_no_longer_than_the_patience(sidecar_process: SidecarProcess) -> None:
    async with pillion.connect(sidecar_process.callers_at, patience=0.3) as caller:
        await sidecar_process.kill()
        with suppress(errors.StreamLost, errors.Unreachable):  # It may be sent before the loss is seen.
            await caller.call("echo")
        with pytest.raises(errors.Unreachable) as away:
            await caller.call("echo")
        assert away.value.retryable
        assert away.value.side_effects is pillion.SideEffects.NONE
        with pytest.raises(errors.CallTimedOut):
            await caller.call("echo", timeout=0.1)


async def test_a_caller_may_come_before_the_sidecar(tmp_path: Path, start_worker: StartWorker) -> None:
    gate = Gate()
    gate.open.set()
    sidecar_process = SidecarProcess(tmp_path)

    async def call() -> Any:
        async with pillion.connect(sidecar_process.callers_at, connect_timeout=20) as caller:
            return await caller.call("echo")

    task = asyncio.ensure_future(call())
    starting = asyncio.ensure_future(start_worker(*gate.tools(), target=sidecar_process.workers_at))
    await sidecar_process.start()
    try:
        await starting
        assert await task == "waited"
    finally:
        await sidecar_process.aclose()


async def test_a_worker_comes_back_as_the_instance_it_was(
    sidecar_process: SidecarProcess, start_worker: StartWorker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Through a proxy that cuts the connection, since the sidecar itself goes on."""
    gate = Gate()
    cut: set[asyncio.StreamWriter] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(sidecar_process.workers_at.removeprefix("unix:"))
        cut.update((writer, far_writer))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65_536):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    path = tmp_path / "proxy.sock"
    server = await asyncio.start_unix_server(relay, path)
    request.addfinalizer(server.close)
    worker = await start_worker(*gate.tools(), target=f"unix:{path}")
    instance = worker.instance_id
    async with pillion.connect(sidecar_process.callers_at) as caller:
        running = asyncio.ensure_future(caller.call("echo"))
        context = await gate.began.get()
        for writer in cut:
            writer.transport.abort()
        with pytest.raises(errors.OutcomeUnknown):
            await running
        assert await gate.ended.get() == "DISCONNECT"
        assert context.cancelled
        gate.open.set()
        assert await caller.call("echo", timeout=20) == "waited"
        assert worker.instance_id == instance
