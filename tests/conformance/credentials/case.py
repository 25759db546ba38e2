"""One case: a provider behind the door to credentials, and two people who ask at the same time."""

import asyncio
from typing import Any, Self

from sidecar.credentials.facade import Credentials
from sidecar.credentials.freshness import CredentialLimits
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.port import Answer, CredentialFailed, Issued, Need
from tests.conformance.credentials.harnesses import SERVICE, Harness
from tests.support.people import ANN, BOB, Clock, Person

GRANT = CredentialGrant.of("main", ("*", "*:user"))
LIMITS = CredentialLimits(patience=5.0)


class Case:
    """A new provider with a new source. Ann asks; Bob asks whenever she does, and gets what is his or nothing."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.clock: Clock = harness.clock
        self.need: Need = harness.need
        self.failures: list[str] = []
        """The texts of all failures, Bob's among them."""
        self.door = self._door()

    def _door(self) -> Credentials:
        return Credentials({SERVICE: self.harness.provider()}, limits=LIMITS, clock=self.clock)

    @classmethod
    async def begin(cls, harness: Harness) -> Self:
        """A case in which both have a credential."""
        for person in (ANN, BOB):
            await harness.supply(person)
        return cls(harness)

    async def reopen(self) -> None:
        """As after a restart of the sidecar."""
        await self.door.aclose()
        self.door = self._door()

    async def aclose(self) -> None:
        """Ends the provider. The harness ends its source."""
        await self.door.aclose()

    async def ask(self, person: Person, need: Need | None = None, **options: Any) -> Answer:
        """What one person is answered."""
        try:
            answer = await self.door.resolve(
                person.scope,
                person.principal,
                need or self.need,
                grant=GRANT,
                user_token=self.harness.user_token(person),
                **options,
            )
        except CredentialFailed as failed:
            self.failures.append(str(failed))
            raise
        if isinstance(answer, Issued):
            value = value_of(answer)
            assert self.harness.belongs(value, person), "that is another one's"
            assert self.harness.shared or not self.harness.belongs(value, ANN if person is BOB else BOB)
        return answer

    async def ann(self, need: Need | None = None, **options: Any) -> Answer:
        """What Ann is answered, while Bob asks for the same."""
        hers, his = await asyncio.gather(
            self.ask(ANN, need, **options), self.ask(BOB, need, **options), return_exceptions=True
        )
        if isinstance(his, BaseException) and not isinstance(his, CredentialFailed):
            raise his
        if isinstance(hers, BaseException):
            raise hers
        return hers

    async def value(self, **options: Any) -> str:
        """The token that Ann is issued."""
        answer = await self.ann(**options)
        assert isinstance(answer, Issued), f"it was not issued: {answer}"
        return value_of(answer)


def value_of(answer: Issued) -> str:
    """The token of a credential."""
    (secret,) = answer.credential.secrets()
    value = secret.reveal()
    assert isinstance(value, str)
    return value
