"""Transfers of the SDK that are cut off: an upload goes on where it stopped, and a tool's ends with its call."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import pillion
from pillion import errors
from tests.faults.proxy import Proxy
from tests.support import SidecarProcess, SocketHost, on_unix

pytestmark = on_unix

MIB = 1024 * 1024
PAYLOAD = bytes(range(256)) * 4 * 16 * 1024


class Disturbed(io.BytesIO):
    """A file that does something once, after 6 MiB were read of it, and counts what is read."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        super().__init__(PAYLOAD)
        self.taken = 0
        self._disturb: Callable[[], None] | None = disturb

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.taken += len(chunk)
        if self.taken > 6 * MIB and self._disturb is not None:
            disturb, self._disturb = self._disturb, None
            disturb()
        return chunk


class Line:
    """A caller whose connection can be cut, and comes back."""

    def __init__(self, proxy: Proxy, caller: pillion.Host) -> None:
        self.artifacts = caller.artifacts
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()

    def cut(self) -> None:
        """Cuts it now."""
        self._proxy.cut()
        self._proxy.was_cut.clear()

    def cut_from_thread(self) -> None:
        """Cuts it soon."""
        self._loop.call_soon_threadsafe(self.cut)


@pytest.fixture
async def line(host: SocketHost) -> AsyncIterator[Line]:
    async with Proxy(host.callers_at) as proxy, pillion.connect(proxy.address) as caller:
        yield Line(proxy, caller)


async def test_an_upload_whose_connection_is_cut_goes_on(line: Line) -> None:
    file = Disturbed(line.cut_from_thread)
    meta = await line.artifacts.put(file, kind="k", digest=True)
    found = await line.artifacts.get(meta.reference)
    assert found is not None
    assert found[1] == PAYLOAD
    assert len(PAYLOAD) <= file.taken < len(PAYLOAD) + 6 * MIB, "it did not begin anew"
    assert [each.reference async for each in line.artifacts.list()] == [meta.reference]


async def test_a_stream_that_cannot_be_rewound_says_so(line: Line) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(PAYLOAD), MIB):
            if start == 6 * MIB:
                line.cut()
            yield PAYLOAD[start : start + MIB]

    with pytest.raises(errors.ConnectionFailed, match="cannot be read again"):
        await line.artifacts.put(chunks(), kind="k", size=len(PAYLOAD))
    assert not [meta async for meta in line.artifacts.list()]


async def test_a_download_whose_connection_is_cut_is_told(line: Line) -> None:
    meta = await line.artifacts.put(PAYLOAD, kind="k")
    taken = bytearray()

    async def read() -> None:
        async with line.artifacts.open(meta.reference) as opened:
            async for chunk in opened:
                taken.extend(chunk)
                line.cut()

    with pytest.raises(errors.ConnectionFailed):
        await read()
    async with line.artifacts.open(meta.reference, len(taken)) as opened:
        assert taken + await opened.read() == PAYLOAD


async def test_a_killed_sidecar_is_sent_everything_again(sidecar_process: SidecarProcess, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()

    async def replace() -> None:
        await sidecar_process.kill()
        await sidecar_process.start()

    async with pillion.connect(sidecar_process.callers_at) as caller:
        before = await caller.artifacts.put(b"before", kind="k")

        def disturb() -> None:
            asyncio.run_coroutine_threadsafe(replace(), loop).result()

        meta = await caller.artifacts.put(Disturbed(disturb), kind="k", digest=True)
        found = await caller.artifacts.get(meta.reference)
        assert found is not None
        assert found[1] == PAYLOAD
        assert [each.reference async for each in caller.artifacts.list()] == [meta.reference, before.reference]
    parts = await asyncio.to_thread(lambda: list(tmp_path.rglob("parts/*")))
    assert not parts, "what the killed one had begun is swept"
