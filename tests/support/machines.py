"""Machines that are short of something: a disk that is full or not to be written to, a user that nobody knows.

Each is a command that another one is started with, in namespaces of its own, so that nothing of it is left behind.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.process import SidecarProcess

STRANGER = 54_321
"""A user id without an entry in the list of users."""


def with_disk(state: Path, size: str, filled: int = 0) -> Sequence[str]:
    """A machine whose state directory is a disk of its own, with so many bytes in use."""
    state.mkdir(mode=0o700, exist_ok=True)
    fill = f'head -c {filled} /dev/zero > "{state}/fill"; ' if filled else ""
    return _script(f'mount -t tmpfs -o size={size},mode=0700 none "{state}"; {fill}exec "$@"')


def with_small_disk(state: Path, size: str, left: Path) -> Sequence[str]:
    """A machine whose state directory, with what is in it, is a disk of its own; what is on it in the end is `left`."""
    copied = f'mount -t tmpfs -o size={size},mode=0700 none "{left}"; cp -a "{state}/." "{left}"'
    moved = f'mount --move "{left}" "{state}"'
    left.mkdir(mode=0o700)
    return _script(f'{copied}; {moved}; "$@" || code=$?; cp -a "{state}/." "{left}"; exit "${{code:-0}}"')


def read_only(*, but: Path) -> Sequence[str]:
    """A machine that can be written to at this place alone, by a user whom nobody knows."""
    but.mkdir(mode=0o700, exist_ok=True)
    stranger = f"exec unshare --user --map-user={STRANGER} --"
    return _script(f'mount --bind "{but}" "{but}"; mount -o remount,ro,bind /; {stranger} "$@"')


def of_a_stranger() -> Sequence[str]:
    """A machine like this, used by a user whom nobody knows and to whom no right is given."""
    return ("unshare", "--user", f"--map-user={STRANGER}", "--")


def lacking() -> str:
    """Why such machines cannot be had here; nothing if they can."""
    if shutil.which("unshare") is None:
        return "there is no unshare on PATH"
    mount = 'd=$(mktemp -d); trap "rmdir $d" EXIT; mount -t tmpfs none "$d"; umount "$d"'
    for command in (_script(mount), (*of_a_stranger(), "true")):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return "this user may not make namespaces with disks of their own"
    return ""


def _script(text: str) -> Sequence[str]:
    return ("unshare", "--mount", "sh", "-ec", text, "sh")


async def refused(within: Sequence[str], tmp_path: Path, **environment: str | None) -> str:
    """What the program says where it does not start."""
    process = SidecarProcess(tmp_path, {}, within=within, environment=environment)
    with pytest.raises(AssertionError):
        await process.start()
    code = await process.ended()
    await process.aclose()
    said = "".join(process.said)
    assert code == 2, said
    assert "Traceback" not in said
    return said
