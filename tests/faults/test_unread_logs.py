"""A log that nobody reads costs lines of log, and nothing else."""

import re
import signal

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import Log, LogLevel
from tests.support import SidecarProcess, WorkerPeer, attach, on_unix

_LINE = "of the worker " + "x" * 8_000


async def says_much(worker: WorkerPeer, lines: int) -> None:
    """Returns once the sidecar has handled as many lines of the worker's."""
    for _ in range(lines):
        await worker.send(Frame(log=Log(level=LogLevel.LOG_LEVEL_WARNING, message=_LINE)))
    await worker.flush()


@on_unix
async def test_calls_go_on_while_nobody_reads_the_log_and_it_says_what_was_lost(
    sidecar_process: SidecarProcess,
) -> None:
    worker, caller = await attach(sidecar_process), await sidecar_process.caller()
    sidecar_process.ignore()
    await says_much(worker, 900)
    call = await caller.start()
    await worker.result((await worker.next_invoke()).call, "as ever")
    assert (await caller.outcome(call)).result.json == b'"as ever"'
    sidecar_process.listen()
    await sidecar_process.says("log lines were lost")
    [lost] = re.findall(r"(\d+) log lines were lost", "".join(sidecar_process.said))
    read = sum("of the worker" in line for line in sidecar_process.said)
    assert read + int(lost) == 900
    assert 400 < read < 700, "4 MiB wait, and what the pipe and this test's own reader hold"
    await says_much(worker, 1)
    await sidecar_process.says("of the worker", read + 1)


@on_unix
async def test_the_sidecar_stops_though_nobody_reads_its_log(sidecar_process: SidecarProcess) -> None:
    worker = await attach(sidecar_process)
    sidecar_process.ignore()
    await says_much(worker, 100)
    sidecar_process.send(signal.SIGTERM)
    assert await sidecar_process.ended() == 0


@on_unix
async def test_all_that_was_logged_is_written_before_the_end(sidecar_process: SidecarProcess) -> None:
    worker = await attach(sidecar_process)
    await says_much(worker, 100)
    sidecar_process.send(signal.SIGTERM)
    assert await sidecar_process.ended() == 0
    await sidecar_process.aclose()
    assert sum("of the worker" in line for line in sidecar_process.said) == 100
    assert "stopping" in "".join(sidecar_process.said)
