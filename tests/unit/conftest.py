"""What tests of stores share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.storage import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """An open database."""
    async with Database(tmp_path / "pillion.db") as opened:
        yield opened
