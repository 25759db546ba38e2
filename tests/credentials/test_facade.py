"""The door to credentials: who gets in, what is remembered for whom, and what is told of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from sidecar.credentials.facade import CredentialEvent, Credentials
from sidecar.credentials.freshness import CredentialLimits
from sidecar.credentials.grant import CredentialGrant, held_of
from sidecar.credentials.port import (
    Answer,
    Bearer,
    CredentialDenied,
    CredentialFailed,
    CredentialRefused,
    CredentialUnconfigured,
    Issued,
    Mode,
    Need,
    ProviderDown,
    Request,
)
from sidecar.credentials.redactor import Redactor
from sidecar.credentials.secret import Secret
from tests.conformance.credentials.case import GRANT, value_of
from tests.support.people import ALIKE, ANN, BOB, Clock, Person

NEED = Need("service")
LIMITS = CredentialLimits(patience=0.2, most_remembered=20, most_at_once=8)


class Source:
    """A provider that says what it was asked, and does what it is told to."""

    modes = frozenset(Mode)
    takes_user_token = False

    def __init__(self, clock: Clock, *, keeps_for: float = 300.0) -> None:
        self.keeps_for = keeps_for
        self.life: float | None = 3_600.0
        self.clock = clock
        self.asked: list[Request] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def issue(self, request: Request) -> Answer:
        self.asked.append(request)
        number = len(self.asked)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        expires_at = None if self.life is None else self.clock() + self.life
        return Issued(Bearer(Secret(f"token-{number:04}")), expires_at)


class Stage:
    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.source = Source(self.clock)
        self.events: list[CredentialEvent] = []
        self.door = Credentials(
            {"service": self.source}, limits=LIMITS, clock=self.clock, report=self.events.append, **options
        )

    async def ask(self, person: Person = ANN, need: Need = NEED, **options: Any) -> str:
        options.setdefault("grant", GRANT)
        answer = await self.door.resolve(person.scope, person.principal, need, **options)
        assert isinstance(answer, Issued)
        return value_of(answer)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.door.aclose()


# --- grants


@pytest.mark.parametrize(
    ("words", "service", "mode", "permitted"),
    [
        ((), "service", Mode.MACHINE, False),
        ((), "service", Mode.USER, False),
        (("service",), "service", Mode.MACHINE, True),
        (("service",), "service", Mode.USER, False),
        (("service:machine",), "service", Mode.MACHINE, True),
        (("service:user",), "service", Mode.USER, True),
        (("service:user",), "service", Mode.MACHINE, False),
        (("service",), "service2", Mode.MACHINE, False),
        (("service",), "Service", Mode.MACHINE, False),
        (("*",), "anything", Mode.MACHINE, True),
        (("*",), "anything", Mode.USER, False),
        (("*:user",), "anything", Mode.USER, True),
        (("other", "service"), "service", Mode.MACHINE, True),
        (("*",), "", Mode.MACHINE, True),
    ],
)
def test_a_grant_permits_what_it_names(words: tuple[str, ...], service: str, mode: Mode, *, permitted: bool) -> None:
    grant = CredentialGrant.of("main", words)
    assert grant.permits(service, mode) is permitted
    assert grant.is_empty is not bool(words)


@pytest.mark.parametrize("word", ["", ":user", "a b", "service:", "service:root", "service:user:x", "-a", "a/b", "**"])
def test_what_is_no_grant_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="must"):
        held_of(word)


@pytest.mark.parametrize("word", ["service:"])
def test_a_grant_with_an_empty_mode_is_no_grant(word: str) -> None:
    with pytest.raises(ValueError, match="must end in :machine or :user"):
        held_of(word)


async def test_what_is_not_granted_is_denied_before_anything_is_asked(stage: Stage) -> None:
    grant = CredentialGrant.of("other", ("elsewhere",))
    for need in (Need("service"), Need("service", (), Mode.USER), Need("unknown")):
        with pytest.raises(CredentialDenied, match="may not be issued") as denied:
            await stage.ask(need=need, grant=grant)
        assert need.service not in str(denied.value).replace("this service", "")
        with pytest.raises(CredentialDenied):
            stage.door.at_once(ANN.scope, ANN.principal, need, grant=grant)
    assert stage.source.asked == []
    assert {(event.what, event.worker, event.detail) for event in stage.events} == {
        ("denied", "other", "CredentialDenied")
    }


async def test_a_remembered_credential_is_denied_as_well(stage: Stage) -> None:
    await stage.ask()
    with pytest.raises(CredentialDenied):
        await stage.ask(grant=CredentialGrant("other"))


async def test_what_is_not_configured_is_said_to_be_so(stage: Stage) -> None:
    with pytest.raises(CredentialUnconfigured, match=r"for other; add a \[\[credential\]\]"):
        await stage.ask(need=Need("other"))
    assert stage.events[-1].detail == "CredentialUnconfigured"


async def test_whether_anything_is_configured_is_known_beforehand(stage: Stage) -> None:
    assert stage.door.configured_for(GRANT)
    assert stage.door.configured_for(CredentialGrant.of("main", ("service:user",)))
    assert not stage.door.configured_for(CredentialGrant.of("main", ("other",)))
    assert not stage.door.configured_for(CredentialGrant("main"))
    assert not Credentials({}).configured_for(GRANT)


# --- what is told, and what is not


async def test_each_question_is_told_with_whom_it_was_for_and_no_secret(stage: Stage) -> None:
    token = await stage.ask()
    stage.source.error = CredentialRefused("It is refused.")
    with contextlib.suppress(CredentialFailed):
        await stage.ask(BOB, force_refresh=True)
    assert [(event.what, event.scope.subject, event.detail) for event in stage.events] == [
        ("issued", "named:ann", "bearer"),
        ("failed", "named:bob", "CredentialRefused"),
    ]
    assert token not in repr(stage.events)
    assert stage.events[0].principal == ANN.principal


async def test_what_is_issued_is_redacted_from_then_on(stage: Stage) -> None:
    token = await stage.ask()
    assert stage.door.redactor.redact(f"<{token}>") == "<[redacted]>"


async def test_what_could_not_be_redacted_is_not_issued() -> None:
    redactor = Redactor(most_values=1)
    stage = Stage(redactor=redactor)
    with redactor.hold([Secret("held-by-a-call")]), pytest.raises(ProviderDown, match="Too many secrets"):
        await stage.ask()
    await stage.ask()


async def test_a_defect_of_a_provider_is_no_word_to_a_tool(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.source.error = RuntimeError("inner workings")
    with pytest.raises(ProviderDown) as failed:
        await stage.ask()
    assert "inner" not in str(failed.value)
    assert "inner workings" in caplog.text


# --- what is remembered


async def test_nobody_is_given_what_is_remembered_for_another(stage: Stage) -> None:
    people = (ANN, BOB, *ALIKE)
    needs = (Need("service"), Need("service", ("a",)), Need("service", (), Mode.USER))
    limits = CredentialLimits(most_remembered=1_000, most_at_once=1_000)
    stage.door = Credentials({"service": stage.source}, limits=limits, clock=stage.clock)
    asked = [(person, need) for person in people for need in needs]
    tokens = await asyncio.gather(*(stage.ask(person, need) for person, need in asked))
    assert len(set(tokens)) == len(asked)
    again = await asyncio.gather(*(stage.ask(person, need) for person, need in reversed(asked)))
    assert again == tokens[::-1]


async def test_a_users_token_is_a_part_of_whom_it_is_for(stage: Stage) -> None:
    stage.source.takes_user_token = True
    first = await stage.ask(user_token=Secret("one"))
    assert await stage.ask(user_token=Secret("one")) == first
    assert await stage.ask(user_token=Secret("two")) != first
    assert await stage.ask() != first


async def test_what_is_remembered_is_bounded_and_the_least_used_goes(stage: Stage) -> None:
    first = await stage.ask(need=Need("service", ("0",)))
    for number in range(1, 100):
        await stage.ask(need=Need("service", (str(number),)))
        assert await stage.ask(need=Need("service", ("0",))) == first
    assert stage.door.statistics().remembered == LIMITS.most_remembered
    asked = len(stage.source.asked)
    await stage.ask(need=Need("service", ("1",)))
    assert len(stage.source.asked) == asked + 1


async def test_questions_under_way_are_bounded(stage: Stage) -> None:
    stage.source.gate = asyncio.Event()
    asking = [asyncio.create_task(stage.ask(need=Need("service", (str(number),)))) for number in range(8)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(ProviderDown, match="Too many"):
        await stage.ask(need=Need("service", ("more",)))
    joined = asyncio.create_task(stage.ask(need=Need("service", ("0",))))
    await asyncio.sleep(0)
    stage.source.gate.set()
    tokens = await asyncio.gather(*asking, joined)
    assert tokens[0] == tokens[-1]
    assert stage.door.statistics().under_way == 0


async def test_who_waits_waits_no_longer_than_its_patience_and_the_question_goes_on(stage: Stage) -> None:
    stage.source.gate = asyncio.Event()
    for _ in range(2):
        with pytest.raises(ProviderDown, match="did not answer within"):
            await stage.ask()
    stage.source.gate.set()
    assert await stage.ask() == "token-0001"


async def test_a_source_that_is_asked_each_time_is_waited_for_no_longer(stage: Stage) -> None:
    stage.source.keeps_for = 0.0
    stage.source.gate = asyncio.Event()
    with pytest.raises(ProviderDown, match="did not answer within"):
        await stage.ask()


async def test_a_provider_that_failed_is_left_alone_for_a_growing_while(stage: Stage) -> None:
    stage.source.error = ProviderDown("It is down.")
    asked_at = []
    for _ in range(4_000):
        before = len(stage.source.asked)
        with pytest.raises(ProviderDown):
            await stage.ask()
        if len(stage.source.asked) > before:
            asked_at.append(stage.clock.now)
        stage.clock.now += 0.1
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert 8 <= len(asked_at) <= 25
    assert pauses[0] <= 1.1
    assert 30 <= max(pauses) <= 61
    stage.source.error = None
    stage.clock.now += 61
    await stage.ask()


async def test_a_refusal_is_asked_again_at_once(stage: Stage) -> None:
    stage.source.error = CredentialRefused("It is refused.")
    for number in range(1, 4):
        with pytest.raises(CredentialRefused):
            await stage.ask()
        assert len(stage.source.asked) == number


@pytest.mark.parametrize("life", [1.0, 10.0, 100.0, 3_600.0, 1e6, None])
async def test_one_is_renewed_before_its_end_and_never_issued_after_it(stage: Stage, life: float | None) -> None:
    stage.source.life = life
    lasts = stage.source.keeps_for if life is None else life
    first = await stage.ask()
    begun = stage.clock.now
    assert len(stage.source.asked) == 1
    step = lasts / 200
    while len(stage.source.asked) == 1:
        stage.clock.now += step
        assert await stage.ask() in (first, "token-0002")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert lasts * 0.2 <= stage.clock.now - begun < lasts
    assert stage.source.asked[1].force_refresh
    assert await stage.ask() == "token-0002"


async def test_one_that_has_expired_when_it_comes_is_not_remembered(stage: Stage) -> None:
    stage.source.life = -1.0
    assert await stage.ask() != await stage.ask()
    assert stage.door.statistics().remembered == 0


async def test_renewals_of_what_was_issued_together_are_spread(stage: Stage) -> None:
    for number in range(10):
        await stage.ask(need=Need("service", (str(number),)))
    renew_at = {kept.renew_at for kept in stage.door._freshness._kept.values()}
    assert len(renew_at) == 10


async def test_a_forced_question_is_not_answered_by_one_that_is_not(stage: Stage) -> None:
    stage.source.gate = asyncio.Event()
    plain = asyncio.create_task(stage.ask())
    await asyncio.sleep(0)
    forced = [asyncio.create_task(stage.ask(force_refresh=True)) for _ in range(5)]
    await asyncio.sleep(0)
    stage.source.gate.set()
    first = await plain
    tokens = await asyncio.gather(*forced)
    assert set(tokens) == {"token-0002"}
    assert first == "token-0001"
    assert [request.force_refresh for request in stage.source.asked] == [False, True]
    assert await stage.ask() == "token-0002"


async def test_closing_waits_for_what_is_under_way(stage: Stage) -> None:
    stage.source.gate = asyncio.Event()
    asking = asyncio.create_task(stage.ask())
    await asyncio.sleep(0)
    closing = asyncio.create_task(stage.door.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    stage.source.gate.set()
    await closing
    assert await asking == "token-0001"


async def test_closing_ends_what_does_not_end(stage: Stage) -> None:
    stage.source.gate = asyncio.Event()
    asking = asyncio.create_task(stage.ask())
    await asyncio.sleep(0)
    await stage.door._freshness.aclose(0.01)
    with pytest.raises(ProviderDown, match="about to stop"):
        await asking
