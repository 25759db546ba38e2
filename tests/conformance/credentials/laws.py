"""What every provider of credentials owes, whatever its source."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sidecar.credentials.port import (
    AuthorizationRequired,
    CredentialFailed,
    CredentialRefused,
    CredentialUnconfigured,
    Issued,
    Mode,
    ProviderDown,
)
from sidecar.scope import Principal
from tests.conformance.credentials.case import Case, value_of
from tests.support.people import ALIKE, ANN, BOB

Law = Callable[[Case], Awaitable[None]]
LAWS: dict[str, Law] = {}
"""By the sentence that says it."""


def law(sentence: str) -> Callable[[Law], Law]:
    """Names a law."""

    def named(body: Law) -> Law:
        LAWS[sentence] = body
        return body

    return named


async def _failure(asking: Awaitable[Any]) -> CredentialFailed:
    with pytest.raises(CredentialFailed) as failed:
        await asking
    return failed.value


@law("what the source holds is issued, to each their own")
async def _issued(case: Case) -> None:
    await case.value()
    await case.value()


@law("a new credential is issued where it is forced")
async def _forced(case: Case) -> None:
    before = await case.value()
    for person in (ANN, BOB):
        await case.harness.supply(person)
    after = await case.value(force_refresh=True)
    assert after != before
    assert await case.value() == after or not case.harness.belongs(before, ANN)


@law("a good credential is remembered")
async def _remembered(case: Case) -> None:
    await case.value()
    asked = case.harness.asked()
    values = {await case.value() for _ in range(5)}
    assert len(values) == 1
    assert case.harness.asked() == asked


@law("many at once make one question")
async def _one_question(case: Case) -> None:
    await case.value()
    case.clock.now += 100_000
    asked = case.harness.asked()
    answers = await asyncio.gather(*(case.ask(ANN) for _ in range(50)))
    assert len({value_of(answer) for answer in answers if isinstance(answer, Issued)}) == 1
    assert case.harness.asked() == asked + 1
    assert all(isinstance(answer, Issued) for answer in answers)


@law("who leaves ends nobody else's question")
async def _leaving(case: Case) -> None:
    asking = [asyncio.create_task(case.ask(ANN)) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(answer, Issued) for answer in answers[1:])


@law("nothing remembered is shared")
async def _not_shared(case: Case) -> None:
    asked = case.harness.asked()
    await case.ask(ANN)
    hers = case.harness.asked() - asked
    await case.ask(BOB)
    his = case.harness.asked() - asked - hers
    assert hers == his, "what was remembered for Ann was issued to Bob"
    elsewhere = ANN._replace(scope=ANN.scope._replace(place="session:2"))
    await case.ask(elsewhere)
    assert case.harness.asked() == asked + hers + his, "another conversation is no other person"


@law("whoever looks like another is not")
async def _confusable(case: Case) -> None:
    seen: dict[str, str] = {}
    for person in ALIKE:
        if not case.harness.shared:
            answer_or_failure = await asyncio.gather(case.ask(person), return_exceptions=True)
            assert not isinstance(answer_or_failure[0], Issued) or case.harness.user_token(person) is not None
        await case.harness.supply(person)
    for person in ALIKE:
        answer = await case.ask(person)
        assert isinstance(answer, Issued)
        value = value_of(answer)
        assert case.harness.shared or value not in seen, f"{person.name} got that of {seen[value]}"
        seen[value] = person.name
    await case.value()


@law("who makes the call does not matter for whom it is")
async def _principal(case: Case) -> None:
    other = ANN._replace(principal=Principal("token:somebody", authenticated=True))
    answer = await case.ask(other)
    assert isinstance(answer, Issued)
    assert case.harness.belongs(value_of(answer), ANN)


@law("expiry is told in seconds of the wall clock")
async def _expiry(case: Case) -> None:
    answer = await case.ann()
    assert isinstance(answer, Issued)
    assert answer.expires_at is not None
    assert 0 < answer.expires_at - case.clock() <= 3_700


@law("an expired credential is not issued")
async def _expired(case: Case) -> None:
    before = await case.value()
    case.clock.now += 3_601
    try:
        answer = await case.ann()
    except CredentialFailed:
        return
    assert isinstance(answer, Issued)
    assert value_of(answer) != before
    assert answer.expires_at is None or answer.expires_at > case.clock()


@law("what is taken away is refused")
async def _taken_away(case: Case) -> None:
    await case.value()
    await case.harness.take_away(ANN)
    case.clock.now += 4_000
    (answer,) = await asyncio.gather(case.ask(ANN, force_refresh=True), return_exceptions=True)
    if isinstance(answer, AuthorizationRequired):
        assert answer.service == case.need.service
    else:
        assert isinstance(answer, CredentialRefused)
        assert not answer.retryable


@law("a source that fails says that it may pass")
async def _down(case: Case) -> None:
    await case.value()
    await case.harness.fail()
    failed = await _failure(case.ann(force_refresh=True))
    assert isinstance(failed, ProviderDown)
    assert failed.retryable


@law("a source that fails for a while does no harm")
async def _mended(case: Case) -> None:
    await case.value()
    await case.harness.fail()
    await _failure(case.ann(force_refresh=True))
    await case.harness.mend()
    case.clock.now += 100
    await case.value(force_refresh=True)
    await case.value()


@law("no failure quotes a secret or a vendor")
async def _silent(case: Case) -> None:
    await case.value()
    for break_it, mend in ((case.harness.fail, case.harness.mend), (lambda: case.harness.take_away(ANN), None)):
        try:
            await break_it()
        except NotImplementedError:
            continue
        case.clock.now += 100
        await asyncio.gather(case.ann(force_refresh=True), return_exceptions=True)
        if mend is not None:
            await mend()
    for text in case.failures:
        assert "canary" not in text
        assert "access-" not in text
        assert "refresh-" not in text
        assert re.fullmatch(r"[A-Z][^\n]{20,300}", text), text


@law("no answer shows its secret")
async def _hidden(case: Case) -> None:
    answer = await case.ann()
    assert isinstance(answer, Issued)
    value = value_of(answer)
    assert value not in f"{answer!r} {answer}"
    assert value not in case.door.redactor.redact(f"the token {value} was used")


@law("a mode that it has not is refused before it is asked")
async def _mode(case: Case) -> None:
    (mode,) = set(Mode) - {case.need.mode}
    if mode in case.harness.provider().modes:
        # It has both, and keeps them apart.
        failed = await _failure(case.ann(case.need._replace(mode=mode)))
        assert isinstance(failed, CredentialRefused)
    else:
        failed = await _failure(case.ann(case.need._replace(mode=mode)))
        assert isinstance(failed, CredentialUnconfigured)


@law("the order of scopes does not matter")
async def _scopes(case: Case) -> None:
    need = case.need._replace(scopes=("read", "write"))
    case.harness.need = need
    for person in (ANN, BOB):
        await case.harness.supply(person)
    first = await case.ann(need)
    again = await case.ann(need._replace(scopes=("write", "read", "write")))
    assert isinstance(first, Issued)
    assert isinstance(again, Issued)
    assert value_of(first) == value_of(again)


@law("a restart loses nothing that was there")
async def _restart(case: Case) -> None:
    await case.value()
    await case.reopen()
    await case.value()


@law("it is closed as often as one likes")
async def _closed(case: Case) -> None:
    await case.value()
    await case.door.aclose()
    await case.door.aclose()


@law("its facts never change")
async def _facts(case: Case) -> None:
    provider = case.harness.provider()
    before = (provider.modes, provider.keeps_for, provider.takes_user_token)
    await case.value()
    await asyncio.gather(case.ann(force_refresh=True), return_exceptions=True)
    assert before == (provider.modes, provider.keeps_for, provider.takes_user_token)
    assert case.need.mode in provider.modes
    assert provider.keeps_for >= 0
