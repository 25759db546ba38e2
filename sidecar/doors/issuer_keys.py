"""The public keys at an issuer's address."""

import asyncio
import logging
import random
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import anyio

from sidecar.credentials.http import Http
from sidecar.credentials.port import CredentialFailed
from sidecar.doors.jwks import NO_KEYS, Keys, KeySource, KeysRefused, keys_in
from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)

LEAST_SECONDS = 10.0
"""How long after an issuer was asked for its keys it is not asked because of an unknown one."""
_MOST_WAITING = 256
_BACKOFF = (1.0, 60.0)
_JITTER = 0.1
_ACCEPT = {"accept": "application/jwk-set+json, application/json"}
_WHOM = "The issuer of tokens"


class IssuerKeys:
    """Keys at an issuer's address. What is known stays known while the issuer cannot be asked.

    It is asked by `run` alone, one request at a time: at first, each `refresh` seconds, and when somebody looks for a
    key that is not known, for that at most every `LEAST_SECONDS`.
    """

    def __init__(
        self, url: str, algorithms: Collection[str], *, ca_file: Path | None = None, refresh: float = 300.0
    ) -> None:
        self.keys = NO_KEYS
        self._url = url
        self._algorithms = frozenset(algorithms)
        self._ca_file = ca_file
        self._refresh = refresh
        self._wanted = asyncio.Event()
        self._waiting: set[asyncio.Future[bool]] = set()
        self._asked_at: float | None = None
        """When it was asked last, on the loop's clock."""
        self._is_asking = False

    @property
    def identity(self) -> tuple[str, frozenset[str]]:
        """Which keys it has."""
        return self._url, self._algorithms

    def follow(self, other: KeySource) -> None:
        """Takes over the keys of one of the same address and algorithms."""
        if isinstance(other, IssuerKeys) and other.identity == self.identity:
            self.keys = other.keys

    async def look_again(self) -> bool:
        """Returns once the issuer was asked; false if it was a moment ago, does not answer, or too many wait."""
        loop = asyncio.get_running_loop()
        is_recent = self._asked_at is not None and loop.time() < self._asked_at + LEAST_SECONDS
        if (is_recent and not self._is_asking) or len(self._waiting) >= _MOST_WAITING:
            return False
        answered: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(answered)
        self._wanted.set()
        try:
            return await answered
        finally:
            self._waiting.discard(answered)

    async def run(self, counters: Counters) -> None:
        """Asks the issuer for its keys, again and again."""
        http = Http(ca_file=self._ca_file)
        try:
            await self._keep_asking(http, counters)
        finally:
            self._is_asking = False
            self._tell(is_answered=False)
            # A scope that is cancelled lets nothing more be awaited in it.
            with anyio.CancelScope(shield=True):
                await http.aclose()

    async def _keep_asking(self, http: Http, counters: Counters) -> NoReturn:
        loop = asyncio.get_running_loop()
        first, longest = _BACKOFF
        pause = first
        while True:
            self._asked_at = loop.time()
            self._is_asking = True
            is_answered = await self._ask(http, counters)
            self._is_asking = False
            self._tell(is_answered=is_answered)
            self._wanted.clear()
            pause = first if is_answered else min(2 * pause, longest)
            wait = self._refresh if is_answered else pause
            with suppress(TimeoutError):
                async with asyncio.timeout(wait * random.uniform(1 - _JITTER, 1)):  # noqa: S311  # not a secret
                    await self._wanted.wait()

    async def _ask(self, http: Http, counters: Counters) -> bool:
        try:
            keys = await self._fetched(http)
        except (CredentialFailed, KeysRefused) as error:
            counters.add("issuer_key_failures")
            _log.warning("the keys of the issuer of tokens cannot be had, and those before stay: %s", error)
            return False
        except Exception:
            counters.add("internal_errors")
            _log.exception("the keys of the issuer of tokens could not be asked for, and those before stay")
            return False
        counters.add("issuer_key_refreshes")
        if keys != self.keys:
            # Only then: who has checked a token by those before need not check it again.
            self.keys = keys
            _log.info("the issuer of tokens has other keys than before, %d that can be used", len(keys))
        return True

    async def _fetched(self, http: Http) -> Keys:
        reply = await http.get(_WHOM, self._url, _ACCEPT)
        if not reply.is_success:
            raise KeysRefused(f"it answered with status {reply.status}")
        return await asyncio.to_thread(keys_in, reply.body, self._algorithms)

    def _tell(self, *, is_answered: bool) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(is_answered)
