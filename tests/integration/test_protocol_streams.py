"""The tables of docs/protocol.md that say what a stream is told and how it ends, driven row by row."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.worker_pb2 import Reattach
from tests.integration.causes.stage import MIB, misdirected
from tests.support import CallerPeer, MemoryHost, StartHost, WorkerPeer, text, tool
from tests.support.documents import table

PROTOCOL = "docs/protocol.md"


async def _complaint(peer: CallerPeer) -> str:
    error = (await peer.next_of("stream_error")).stream_error
    assert error.message
    return StreamErrorReason.Name(error.reason).removeprefix("STREAM_ERROR_REASON_")


_TROUBLE: dict[str, Callable[[CallerPeer], Awaitable[None]]] = {
    "CALL_ID_NOT_INCREASING": lambda caller: caller.send(
        Frame(call=2, start=caller.starting("missing").start), Frame(call=2, start=caller.starting("missing").start)
    ),
    "CALL_ID_ZERO": lambda caller: caller.send(Frame(start=caller.starting("missing").start)),
    "MESSAGE_TOO_LARGE": lambda caller: caller.send_bytes(bytes(17 * MIB)),
    "MALFORMED_MESSAGE": lambda caller: caller.send_bytes(b"\xff"),
    "PROTOCOL": lambda caller: caller.send(misdirected(0)),
    "VERSION": lambda caller: caller.send(_hello_of_the_future()),
}


def _hello_of_the_future() -> Frame:
    frame = Frame()
    frame.caller_hello.minimum.major = frame.caller_hello.maximum.major = 7
    return frame


@pytest.mark.parametrize("row", table(PROTOCOL, "What a stream is told"), ids=lambda row: row["Reason"])
async def test_a_stream_is_told_as_its_row_says(row: dict[str, str], start_host: StartHost) -> None:
    host = await start_host()
    caller = await host.caller()
    await _TROUBLE[row["Reason"]](caller)
    assert await _complaint(caller) == row["Reason"]
    if row["The stream"].startswith("goes on"):
        await caller.flush()
    else:
        code = row["The stream"].removeprefix("ends with ")
        assert (await caller.end()).code.name == code


async def _turned_away(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    await worker.present(tool(), token="wrong")
    return worker


async def _wrong_secret(host: MemoryHost) -> WorkerPeer:
    first, second = await host.worker(), await host.worker()
    welcome = await first.hello(tool())
    await second.present(tool(), reattach=Reattach(instance_id=welcome.instance_id, secret="wrong"))
    return second


async def _silent(host: MemoryHost) -> WorkerPeer:
    return await host.worker()


async def _too_eager(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    await worker.present(tool(), concurrency=0)
    return worker


async def _unreadable(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    await worker.hello(tool())
    await worker.send_bytes(b"\xff")
    await worker.send_bytes(b"\xff")
    return worker


async def _hanging(host: MemoryHost) -> WorkerPeer:
    worker = await host.worker()
    worker.pongs = False
    await worker.hello(tool())
    return worker


async def _stalled(host: MemoryHost) -> CallerPeer:
    caller = await host.caller()
    await caller.start("missing")
    caller.pause()
    await caller.start("missing")
    await caller.start("missing")
    await asyncio.sleep(70)
    caller.resume()
    return caller


async def _one_too_many(host: MemoryHost) -> CallerPeer:
    host.streams._most_lingering = 0
    return await host.caller()


@pytest.mark.parametrize(
    ("ending", "trouble"),
    [
        ("UNAUTHENTICATED", _turned_away),
        ("UNAUTHENTICATED", _wrong_secret),
        ("PROTOCOL", _silent),
        ("PROTOCOL", _too_eager),
        ("QUARANTINED", _unreadable),
        ("QUARANTINED", _hanging),
        ("STALLED", _stalled),
        ("FULL", _one_too_many),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
async def test_a_stream_ends_as_its_row_says(
    ending: str, trouble: Callable[[MemoryHost], Awaitable[CallerPeer | WorkerPeer]], memory_host: MemoryHost
) -> None:
    rows = {row["Ending"]: row["Status"] for row in table(PROTOCOL, "Endings")}
    peer = await trouble(memory_host)
    end = await peer.end()
    assert end.code.name == rows[ending]
    assert end.message
    assert text(end.message)
