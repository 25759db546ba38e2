"""The directories and sockets of a sidecar: open to those who are meant, and held against a second sidecar."""

import contextlib
import grp
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sidecar.config import ConfigRefused
from sidecar.doors.address import Address
from sidecar.locks import FileLock, InUse

_ROOT = 0
_CLOSED = 0o700
_PASSED_BY_GROUP = 0o710
_GROUP_AND_OTHERS = 0o077
_WRITTEN_BY_OTHERS = 0o022


@contextlib.contextmanager
def private_places(state: Path, *addresses: Address) -> Iterator[None]:
    """Makes the directories, and holds them and the sockets while the block lasts.

    A directory that is made here is this user's alone, or may be passed through by the group of the sockets in it.

    :raises ConfigRefused: if they cannot be had, or others could look into them or put a socket in place of one.
    """
    state = state.absolute()
    sockets = {address.socket: address.group for address in addresses if address.socket is not None}
    if len(sockets) < sum(address.socket is not None for address in addresses):
        raise ConfigRefused("Callers and workers need a socket each; name two paths.")
    groups = {directory: _group_in(directory, sockets) for directory in (state, *(path.parent for path in sockets))}
    locks = [state / "lock", *(path.with_name(path.name + ".lock") for path in sockets)]
    with contextlib.ExitStack() as held:
        for directory, group in groups.items():
            _make(directory, group)
        _check_state(state, groups[state])
        for directory, group in groups.items():
            if directory != state:
                _check_directory(directory)
            if group is not None:
                _check_way(directory, group)
        for place in locks:
            try:
                held.callback(FileLock(place).release)
            except InUse:
                raise ConfigRefused(f"Another sidecar is running at {place.parent}; stop it or use another.") from None
            except OSError as error:
                raise ConfigRefused(f"{place} cannot be made: {error.strerror}; may this user write there?") from None
        for path in sockets:
            _remove_left_socket(path)
        yield


def _group_in(directory: Path, sockets: dict[Path, int | None]) -> int | None:
    """The group that has to get at the sockets in a directory; `None`: none has."""
    groups = {group for path, group in sockets.items() if path.parent == directory and group is not None}
    if len(groups) > 1:
        raise ConfigRefused(
            f"Two groups cannot both pass through {directory}; name sockets in two directories, by listen.callers and "
            "listen.workers."
        )
    return next(iter(groups), None)


def _make(directory: Path, group: int | None) -> None:
    try:
        try:
            directory.mkdir(mode=_CLOSED, parents=True)
        except FileExistsError:
            if not directory.is_dir():
                raise
            return
        if group is not None:
            _open_to(directory, group)
    except OSError as error:
        raise ConfigRefused(f"{directory} cannot be made: {error.strerror}; may this user write there?") from None


def _open_to(directory: Path, group: int) -> None:
    os.chown(directory, -1, group)
    directory.chmod(_PASSED_BY_GROUP)


def _check_state(directory: Path, group: int | None) -> None:
    """Sees to it that nobody else may look into the state directory; the group of its sockets may pass through."""
    state = directory.stat()
    if state.st_uid != os.getuid():
        raise ConfigRefused(f"{directory} belongs to another user; name a state_dir of this one's.")
    mode = stat.S_IMODE(state.st_mode) & 0o777
    if not mode & _GROUP_AND_OTHERS:
        if group is not None:
            # All files in it are this user's alone, so this lets the group get at the sockets and no more.
            _open_to(directory, group)
    elif mode != _PASSED_BY_GROUP or state.st_gid != group:
        raise ConfigRefused(f"{directory} is open to other users; close it with: chmod 700 {directory}")


def _check_directory(directory: Path) -> None:
    """Sees to it that nobody else could put a socket in place of one that is there."""
    state = directory.stat()
    if state.st_uid not in (_ROOT, os.getuid()):
        raise ConfigRefused(
            f"{directory} belongs to another user, who could replace a socket there; name another path."
        )
    if state.st_mode & _WRITTEN_BY_OTHERS and not state.st_mode & stat.S_ISVTX:
        raise ConfigRefused(
            f"Others may write to {directory}, and so replace a socket there; name one in a directory of its own, such "
            f"as unix:{directory}/pillion/callers.sock, which is made for it."
        )


def _check_way(directory: Path, group: int) -> None:
    """Sees to it that a group gets to a directory: that it may pass through it and all above."""
    for step in (directory, *directory.parents):
        state = step.stat()
        if not state.st_mode & (stat.S_IXGRP if state.st_gid == group else stat.S_IXOTH):
            name = _name_of(group)
            raise ConfigRefused(
                f"The group {name} cannot get to a socket in {directory}, since {step} is closed to it; name another "
                f"path, or open it with: chgrp {name} {step} && chmod g+x {step}"
            )


def _name_of(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def _remove_left_socket(path: Path) -> None:
    """Removes the socket of a sidecar that is gone, which it is since its lock was free. Nothing else is removed."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigRefused(f"{path} is there and is not a socket; name another path to listen at.")
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigRefused(f"{path} cannot be replaced: {error.strerror}; name another path to listen at.") from None
