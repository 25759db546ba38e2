"""Artifacts of any size, by the SDK."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pillion
from bench.control import Answer

_CHUNK = bytes(range(256)) * 1024


class Bulk:
    """Puts and gets artifacts of one sidecar, without keeping their bytes."""

    def __init__(self, host: pillion.Host) -> None:
        self._artifacts = host.artifacts.within(session_id="bench")

    async def upload(self, *, size: int) -> Answer:
        """Puts an artifact of so many bytes."""
        began = time.perf_counter()
        meta = await self._artifacts.put(_bytes(size), kind="bench", size=size)
        return {"seconds": time.perf_counter() - began, "reference": meta.reference}

    async def download(self, *, reference: str, size: int) -> Answer:
        """Reads an artifact of so many bytes."""
        began, taken = time.perf_counter(), 0
        async with self._artifacts.open(reference) as artifact:
            async for chunk in artifact:
                taken += len(chunk)
        if taken != size:
            raise ValueError(f"{taken} bytes came")
        return {"seconds": time.perf_counter() - began}


async def _bytes(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(_CHUNK)):
        yield _CHUNK
