"""Configured workers, as the rooms for workers take them."""

import os
import pwd
from pathlib import Path

from sidecar.config import ConfigRefused, Settings, Worker
from sidecar.listening import is_by_tcp, workers_group
from sidecar.private_files import private_bytes
from sidecar.workers.grant import Grant
from sidecar.workers.processes import Command
from sidecar.workers.supervisor import Launch


def grant_of(worker: Worker, settings: Settings) -> Grant:
    """What a worker may do. One that the sidecar starts gets a token with each start.

    :raises ConfigRefused: if its token file cannot be read or holds none, or if the token is all that keeps others from
        attaching by TCP and they could read it.
    """
    grant = Grant(worker.name, worker.tools)
    if worker.token_file is not None:
        if is_by_tcp(settings.workers) and not settings.listen.insecure:
            private_bytes(worker.token_file, f"The token file of worker {worker.name}")
        for token in _tokens_in(worker.name, worker.token_file):
            grant.accept(token)
    return grant


def launch_of(worker: Worker, settings: Settings) -> Launch:
    """How a worker with a command is started.

    :raises ConfigRefused: if its user or directory is not there, or it cannot be run as that user or attach as such.
    """
    user = group = groups = None
    if worker.user is not None:
        try:
            entry = pwd.getpwnam(worker.user)
        except KeyError:
            raise ConfigRefused(
                f"There is no user {worker.user} for worker {worker.name}; name one there is."
            ) from None
        if os.getuid() not in (0, entry.pw_uid):
            raise ConfigRefused(f"Worker {worker.name} can be run as {worker.user} only by a sidecar that is root.")
        if os.getuid() == 0:
            user, group = entry.pw_uid, entry.pw_gid
            # Its own and no others: root's would give it rights that the user has not.
            groups = tuple(os.getgrouplist(worker.user, group))
        if entry.pw_uid != os.getuid():
            _check_attaches(worker, settings, groups or ())
    if worker.directory is not None and not worker.directory.is_dir():
        raise ConfigRefused(f"The directory of worker {worker.name}, {worker.directory}, is not there; make it.")
    return Launch(
        worker.name,
        Command(
            worker.command or (),
            str(worker.directory) if worker.directory is not None else None,
            environment_of(worker),
            user,
            group,
            groups,
        ),
        worker.instances,
    )


def environment_of(worker: Worker) -> dict[str, str]:
    """The variables that the settings give a worker."""
    inherited = {name: os.environ[name] for name in worker.inherit if name in os.environ}
    return {**inherited, **worker.environment}


def _check_attaches(worker: Worker, settings: Settings, groups: tuple[int, ...]) -> None:
    """Sees to it that a worker of another user can connect to the workers' listener."""
    if not is_by_tcp(settings.workers) and workers_group(settings) not in groups:
        raise ConfigRefused(
            f"Worker {worker.name} runs as {worker.user}, who may not connect to the workers' socket; name a group of "
            "that user as listen.worker_socket_group."
        )


def _tokens_in(name: str, path: Path) -> list[str]:
    """The tokens in a file, a line each: the newest, and those that it takes the place of."""
    try:
        tokens = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        raise ConfigRefused(
            f"The token file of worker {name}, {path}, cannot be read; put a random text in it."
        ) from None
    tokens = [token for line in tokens if (token := line.strip())]
    if not tokens:
        raise ConfigRefused(f"The token file of worker {name} is empty; put a random text in it.")
    return tokens
