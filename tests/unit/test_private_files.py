"""Which files with secrets are read, by whose they are and who else may read them."""

import os
from pathlib import Path

import pytest

from sidecar.config import ConfigRefused
from sidecar.private_files import private_bytes

SOMEBODY = 54_321


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of root's")
@pytest.mark.parametrize(
    ("user", "owner", "mode", "is_read"),
    [
        (0, 0, 0o600, True),
        (0, 0, 0o400, True),
        (0, 0, 0o640, False),
        (0, SOMEBODY, 0o600, False),
        # As a cluster hands a secret to a container: it is root's, and readable by a group of the user.
        (SOMEBODY, 0, 0o440, True),
        (SOMEBODY, 0, 0o640, True),
        (SOMEBODY, 0, 0o660, False),
        (SOMEBODY, 0, 0o444, False),
        (SOMEBODY, SOMEBODY, 0o600, True),
        (SOMEBODY, SOMEBODY, 0o640, False),
        (SOMEBODY, SOMEBODY + 1, 0o640, False),
    ],
)
def test_who_may_read_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, owner: int, mode: int, is_read: bool
) -> None:
    file = tmp_path / "secret"
    file.write_text("secret")
    file.chmod(mode)
    os.chown(file, owner, -1)
    monkeypatch.setattr(os, "getuid", lambda: user)
    if is_read:
        assert private_bytes(file, "The secret") == b"secret"
        return
    with pytest.raises(ConfigRefused, match=f"chmod 600 {file}"):
        private_bytes(file, "The secret")


@pytest.mark.parametrize("what", ["directory", "device"])
def test_what_is_no_file_is_not_read(tmp_path: Path, what: str) -> None:
    path = tmp_path if what == "directory" else Path("/dev/null")
    with pytest.raises(ConfigRefused, match="Is a directory" if what == "directory" else "is no file"):
        private_bytes(path, "The secret")
