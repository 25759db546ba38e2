"""Which credentials a worker may be issued."""

import re
from collections.abc import Iterable
from typing import Self

from sidecar.credentials.port import Mode

SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a service is named."""
_ANY = "*"
_MODES = {mode.name.lower(): mode for mode in Mode}


class CredentialGrant:
    """The services and modes that a worker's token holds. Never changed; none, unless said."""

    __slots__ = ("_held", "worker")

    def __init__(self, worker: str, held: Iterable[tuple[str, Mode]] = ()) -> None:
        self.worker = worker
        """The worker set's configured name."""
        self._held = frozenset(held)

    def __repr__(self) -> str:
        return f"CredentialGrant({self.worker!r})"

    @classmethod
    def of(cls, worker: str, words: Iterable[str]) -> Self:
        """The grant that settings write as `service`, or `service:user` for the subject's own. `*` is every service.

        :raises ValueError: if a word is none of these. The text says what would do.
        """
        return cls(worker, map(held_of, words))

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing."""
        return not self._held

    @property
    def services(self) -> frozenset[str]:
        """The services that are named in it."""
        return frozenset(service for service, _ in self._held) - {_ANY}

    def permits(self, service: str, mode: Mode) -> bool:
        """Whether a credential of this service may be issued, in this mode."""
        return (service, mode) in self._held or (_ANY, mode) in self._held


def held_of(word: str) -> tuple[str, Mode]:
    """One service and mode as settings write them.

    :raises ValueError: if it is none.
    """
    service, colon, mode = word.partition(":")
    if service != _ANY and not SERVICE.fullmatch(service):
        raise ValueError("must be names of services, such as github or github:user")
    if colon and mode not in _MODES:
        raise ValueError(f"must end in {' or '.join(f':{name}' for name in _MODES)}, or in no mode, which is machine")
    return service, _MODES.get(mode, Mode.MACHINE)
