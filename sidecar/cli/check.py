"""`pillion check`."""

import argparse
import os
import shutil
from pathlib import Path

from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE, settings_file
from sidecar.config import ConfigRefused, Settings, Worker, read
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.making import Maker, unknown_grants
from sidecar.launches import environment_of, grant_of, launch_of
from sidecar.listening import callers_listener, workers_listener
from sidecar.reporting import lacking


def run(options: argparse.Namespace) -> int:
    """Names every mistake in the settings; answers 0 where there is none."""
    file = settings_file(options)
    try:
        settings = read(file, os.environ)
    except ConfigRefused as refused:
        tell(str(refused))
        return USAGE
    mistakes = _mistakes(settings)
    for mistake in mistakes:
        tell(mistake)
    for warning in _warnings(settings):
        tell(f"warning: {warning}")
    if not mistakes:
        say(f"{file or 'the defaults'}: good; {len(settings.worker)} workers, callers at {settings.callers}")
    return USAGE if mistakes else 0


def _mistakes(settings: Settings) -> list[str]:
    """What is wrong with settings that can be read: addresses, packages, files, commands and users."""
    found: list[str] = []
    for listener_of in (callers_listener, workers_listener):
        try:
            listener_of(settings)
        except ConfigRefused as refused:
            found.append(str(refused))
    found += lacking(settings)
    found += _of_credentials(settings)
    for worker in settings.worker:
        try:
            grant_of(worker, settings)
            if worker.command is not None:
                launch_of(worker, settings)
        except ConfigRefused as refused:
            found.append(str(refused))
        if worker.command is not None and not _is_there(worker.command[0], worker):
            found.append(f"The command of worker {worker.name}, {worker.command[0]}, is not there or cannot be run.")
    return list(dict.fromkeys(found))


def _is_there(program: str, worker: Worker) -> bool:
    """Whether what would be run is there: from the worker's directory, and by the worker's own PATH."""
    if "/" in program:
        return shutil.which((worker.directory or Path()) / program) is not None
    return shutil.which(program, path=os.pathsep.join(os.get_exec_path(environment_of(worker)))) is not None


def _of_credentials(settings: Settings) -> list[str]:
    """What is wrong with credentials, and with whom they are granted to."""
    grants = [CredentialGrant.of(worker.name, worker.credentials) for worker in settings.worker]
    return [*Maker(settings, settings.state_dir, os.environ).mistakes(), *unknown_grants(settings, grants)]


def _warnings(settings: Settings) -> list[str]:
    warnings = [
        f"worker {worker.name} runs as the sidecar's own user and can read its state; name another with user."
        for worker in settings.worker
        if worker.command is not None and worker.user is None
    ]
    warnings += Maker(settings, settings.state_dir, os.environ).warnings()
    ruled = {rule.principal for rule in settings.allow}
    if "*" not in ruled and "token:*" not in ruled:
        warnings += [
            f"caller {name} may do nothing, as no [[allow]] is for token:{name}."
            for name in settings.listen.caller_tokens
            if f"token:{name}" not in ruled
        ]
    if settings.listen.caller_jwt is not None:
        if "*" not in ruled and not any(principal.startswith("jwt:") for principal in ruled):
            issuer = settings.listen.caller_jwt.issuer
            warnings.append(f"callers with tokens may do nothing, as no [[allow]] is for jwt:{issuer}#SUB.")
    elif settings.listen.caller_tls is not None and not ruled:
        warnings.append("callers by TCP may do nothing, as there is no [[allow]].")
    if settings.metrics is not None and settings.metrics.public:
        warnings.append(f"metrics.public serves the metrics to whoever reaches {settings.metrics.listen}.")
    if settings.listen.insecure:
        warnings.append("listen.insecure serves TCP on loopback to every user of this machine; it is for tests alone.")
    return warnings
