"""A provider that is a stand-in, with the logins of two people, behind the door to credentials."""

import asyncio
from pathlib import Path
from typing import Any

from sidecar.credentials.facade import CredentialEvent, Credentials
from sidecar.credentials.freshness import CredentialLimits
from sidecar.credentials.http import Http
from sidecar.credentials.logins import Login, LoginFiles, LoginKey
from sidecar.credentials.port import AuthorizationRequired, Issued
from tests.conformance.credentials.case import GRANT, value_of
from tests.conformance.credentials.harnesses import KEY, SERVICE, AuthorizationCode
from tests.support.people import ANN, BOB, Clock, Person

HOUR = 3_600


class Stage:
    """Ann's and Bob's logins at one provider, behind the door to credentials."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.harness = AuthorizationCode(directory, self.clock)
        self.store = LoginFiles(directory / "logins", KEY)
        self.events: list[CredentialEvent] = []

    async def open(self, *, timeout: float = 5.0) -> None:
        await self.harness.open()
        self.harness.http = Http(timeout=timeout)
        self.source = self.harness.source
        for person in (ANN, BOB):
            await self.harness.supply(person)
        self.restart()

    def restart(self) -> None:
        """A new process, as far as providers know."""
        self.provider = self.harness.provider()
        limits = CredentialLimits(patience=10.0, first_pause=0.001, longest_pause=0.001)
        self.door = Credentials({SERVICE: self.provider}, limits=limits, clock=self.clock, report=self.events.append)

    async def aclose(self) -> None:
        await self.door.aclose()
        await self.harness.aclose()

    async def ask(self, person: Person = ANN, **options: Any) -> Issued | AuthorizationRequired:
        return await self.door.resolve(person.scope, person.principal, self.harness.need, grant=GRANT, **options)

    async def token(self, person: Person = ANN, **options: Any) -> str:
        answer = await self.ask(person, **options)
        assert isinstance(answer, Issued), "a person has to authorise"
        return value_of(answer)

    async def settled(self) -> None:
        """Waits until no provider is asked any more."""
        for flight in tuple(self.door._freshness._flights.values()):
            await asyncio.wait({flight.task}, timeout=5)

    async def stored(self, person: Person = ANN) -> Login | None:
        key = LoginKey(person.scope.owner, self.harness.need)
        return await asyncio.to_thread(self.store.load, key)
