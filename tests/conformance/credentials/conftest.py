"""What the laws of credential providers run on."""

import pytest


@pytest.fixture
def transport() -> str:
    """Real time: providers are asked over sockets, and files are read in threads."""
    return "unix"
