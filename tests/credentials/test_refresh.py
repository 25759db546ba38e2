"""Logins and what a bad provider, a full disk or a second person does to them: nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.credentials.logins import Login, LoginFiles
from sidecar.credentials.port import (
    AuthorizationRequired,
    CredentialFailed,
    CredentialRefused,
    Issued,
    ProviderDown,
    Request,
)
from sidecar.credentials.secret import Secret
from sidecar.scope import Principal
from tests.conformance.credentials.case import GRANT, value_of
from tests.conformance.credentials.harnesses import KEY, SERVICE
from tests.credentials.stage import HOUR, Stage
from tests.support.http_stand_in import Answered, Asked
from tests.support.oauth_stand_in import cut
from tests.support.people import ANN, BOB, Person


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    await stage.open()
    yield stage
    await stage.aclose()


def answering(body: Any, status: int = 200, **headers: str) -> Callable[[Asked], Answered]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda _: Answered(status, content, headers=tuple(headers.items()))


# --- what a provider may do


BAD = {
    "500": answering(b"<html>canary-vendor</html>", 500),
    "503 with an error": answering({"error": "invalid_grant"}, 503),
    "429": answering({}, 429),
    "an answer that is no JSON": answering(b"canary-vendor"),
    "JSON that is no object": answering([1]),
    "deep JSON": answering(b"[" * 100_000),
    "nothing": answering(b""),
    "no token": answering({"token_type": "Bearer"}),
    "an empty token": answering({"access_token": "", "token_type": "Bearer"}),
    "a token that is a number": answering({"access_token": 7, "token_type": "Bearer"}),
    "a token with a line break": answering({"access_token": "a\r\nx-evil: 1", "token_type": "Bearer"}),
    "a token of 100 KiB": answering({"access_token": "a" * 100_000, "token_type": "Bearer"}),
    "2 MiB": answering(b" " * 2 * 1024 * 1024),
    "another type of token": answering({"access_token": "canary", "token_type": "mac"}),
    "a redirect": answering(b"", 302, location="http://127.0.0.1:9/elsewhere"),
    "an unknown client": answering({"error": "invalid_client", "error_description": "canary-vendor"}, 401),
    "a refusal that is no JSON": answering(b"canary-vendor", 400),
    "an error of its own": answering({"error": "canary_vendor_error"}, 400),
    "success with an error": answering({"error": "canary_vendor_error", "access_token": "canary"}),
    "an error as an object": answering({"error": {"code": "invalid_grant"}}, 400),
    "temporarily unavailable": answering({"error": "temporarily_unavailable"}, 400),
    "a cut connection": cut,
}


@pytest.mark.parametrize("fault", BAD)
async def test_a_bad_answer_harms_no_login(stage: Stage, fault: str) -> None:
    before = await stage.stored()
    assert before is not None
    stage.clock.now += 2 * HOUR
    stage.source.fault = BAD[fault]
    failures = await asyncio.gather(stage.ask(ANN), stage.ask(BOB), return_exceptions=True)
    assert all(isinstance(failure, ProviderDown | CredentialRefused) for failure in failures), failures
    assert not any("canary" in str(failure) for failure in failures)
    after = await stage.stored()
    assert after is not None
    assert (after.access_token, after.refresh_token, after.tries) == (before.access_token, before.refresh_token, 0)
    stage.source.fault = None
    stage.clock.now += 1
    assert (await stage.token(ANN)).startswith("access-ann-")
    assert (await stage.token(BOB)).startswith("access-bob-")


async def test_a_provider_that_hangs_harms_no_login(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.open(timeout=0.2)
    stage.clock.now += 2 * HOUR
    stage.source.fault = lambda _: None
    hanging = asyncio.Event()

    async def hang(asked: Asked) -> Answered:
        await hanging.wait()
        raise AssertionError(asked)

    handler, stage.source._handler = stage.source._handler, hang
    with pytest.raises(ProviderDown, match="did not answer within"):
        await stage.ask()
    stage.source._handler = handler
    stage.clock.now += 1
    assert (await stage.token()).startswith("access-ann-")
    await stage.aclose()


async def test_nothing_that_listens_harms_no_login(stage: Stage) -> None:
    stage.clock.now += 2 * HOUR
    await stage.source.aclose()
    with pytest.raises(ProviderDown, match="could not be asked"):
        await stage.ask()
    await stage.source.open()
    stage.clock.now += 1
    assert (await stage.token()).startswith("access-ann-")


@pytest.mark.parametrize(
    ("expires_in", "known"),
    [
        ("1200", 1200.0),
        (1200.0, 1200.0),
        ("1200.5", 1200.5),
        (None, None),
        ("soon", None),
        ("", None),
        (0, None),
        (-5, None),
        ("nan", None),
        (True, None),
        ([1], None),
        ("1" * 400, 10 * 365 * 24 * 3600.0),
        (10**400, None),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_a_life_that_is_no_number_harms_no_login(stage: Stage, expires_in: Any, known: float | None) -> None:
    stage.source.expires_in = expires_in
    stage.clock.now += 2 * HOUR
    answer = await stage.ask()
    assert isinstance(answer, Issued)
    assert answer.expires_at == (None if known is None else stage.clock.now + known)
    asked = stage.source.asked.total()
    assert value_of(answer) == await stage.token()
    stage.restart()
    assert value_of(answer) == await stage.token()
    assert stage.source.asked.total() == asked


async def test_no_new_refresh_token_leaves_the_old_one(stage: Stage) -> None:
    stage.source.rotates = False
    before = await stage.stored()
    assert before is not None
    for _ in range(3):
        stage.clock.now += 2 * HOUR
        await stage.token()
        after = await stage.stored()
        assert after is not None
        assert after.refresh_token == before.refresh_token
        assert after.access_token != before.access_token


async def test_a_rotated_refresh_token_is_used_once(stage: Stage) -> None:
    seen = set()
    for _ in range(5):
        stage.clock.now += 2 * HOUR
        seen.add(await stage.token())
    used = [form["refresh_token"] for form in stage.source.forms if form["grant_type"] == "refresh_token"]
    assert len(seen) == len(used) == len(set(used)) == 5


@pytest.mark.parametrize("status", [200, 400, 401])
async def test_a_refresh_token_is_dead_by_other_words_too(stage: Stage, status: int) -> None:
    stage.clock.now += 2 * HOUR
    stage.source.fault = answering({"error": "bad_refresh_token"}, status)
    assert isinstance(await stage.ask(), AuthorizationRequired)
    assert await stage.stored() is None


async def test_a_revoked_login_is_gone_and_is_authorised_again(stage: Stage) -> None:
    stage.source.revoke("ann")
    stage.clock.now += 2 * HOUR
    answer = await stage.ask()
    assert isinstance(answer, AuthorizationRequired)
    assert await stage.stored() is None
    assert (await stage.token(BOB)).startswith("access-bob-")
    query = stage.source.authorize(answer.url.reveal(), "ann")
    await stage.door.complete(ANN.scope, ANN.principal, SERVICE, Secret(query))
    assert (await stage.token()).startswith("access-ann-")


async def test_without_a_refresh_token_a_person_authorises_again_at_the_end(stage: Stage) -> None:
    login = await stage.stored()
    assert login is not None
    await asyncio.to_thread(stage.store.put, Login(login.key, login.access_token, None, stage.clock.now + HOUR))
    stage.restart()
    assert await stage.token() == login.access_token.reveal()
    assert isinstance(await stage.ask(force_refresh=True), AuthorizationRequired)
    assert await stage.token() == login.access_token.reveal()
    stage.clock.now += 2 * HOUR
    assert isinstance(await stage.ask(), AuthorizationRequired)


# --- ahead of expiry, off the way


async def test_a_token_is_renewed_ahead_of_its_end_while_it_is_still_issued(stage: Stage) -> None:
    old = await stage.token()
    stage.clock.now += HOUR - 120
    stage.source.hanging = asyncio.Event()
    assert await stage.token() == old
    assert await asyncio.wait_for(_grant(stage, "refresh_token"), 5)
    for _ in range(10):
        assert await stage.token() == old
    stage.source.hanging.set()
    await stage.settled()
    new = await stage.token()
    assert new != old
    assert stage.source.asked["refresh_token"] == 1


async def _grant(stage: Stage, wanted: str) -> bool:
    while await stage.source.arrived.get() != wanted:
        pass
    return True


async def test_a_good_token_is_answered_without_waiting(stage: Stage) -> None:
    token = await stage.token()
    answering = stage.ask()
    with pytest.raises(StopIteration) as answered:
        answering.send(None)
    assert value_of(answered.value.value) == token
    need = stage.harness.need
    at_once = stage.door.at_once(ANN.scope, ANN.principal, need, grant=GRANT)
    assert at_once is not None
    assert value_of(at_once) == token


async def test_a_renewal_that_fails_is_tried_again_later_and_the_old_token_serves(stage: Stage) -> None:
    old = await stage.token()
    stage.clock.now += HOUR - 120
    stage.source.fault = BAD["500"]
    for _ in range(20):
        assert await stage.token() == old
        await stage.settled()
    assert stage.source.asked["refresh_token"] == 1, "a provider that failed is left alone for a while"
    stage.source.fault = None
    stage.clock.now += 5
    assert await stage.token() == old
    await stage.settled()
    assert await stage.token() != old


# --- disks, and a second authorisation


class Failing(LoginFiles):
    """A store whose disk is full from some write on."""

    good = 0

    def _write(self, login: Login) -> Login:
        if self.good <= 0:
            raise OSError(28, "No space left on device")
        self.good -= 1
        return super()._write(login)


async def test_a_refresh_that_cannot_be_stored_as_begun_is_not_begun(stage: Stage) -> None:
    stage.provider._store = Failing(stage.harness.directory / "logins", KEY)
    stage.clock.now += 2 * HOUR
    with pytest.raises(ProviderDown, match="No space left"):
        await stage.ask()
    assert stage.source.asked["refresh_token"] == 0


async def test_a_token_that_cannot_be_stored_is_not_seen_until_it_is(stage: Stage) -> None:
    store = Failing(stage.harness.directory / "logins", KEY)
    store.good = 1
    stage.provider._store = store
    stage.clock.now += 2 * HOUR
    for _ in range(3):
        with pytest.raises(ProviderDown, match="No space left"):
            await stage.ask()
        stage.clock.now += 1
    assert stage.source.asked["refresh_token"] == 1
    store.good = 1
    token = await stage.token()
    login = await stage.stored()
    assert login is not None
    assert login.access_token.reveal() == token
    assert login.tries == 0
    assert stage.source.asked["refresh_token"] == 1


async def test_who_authorises_during_a_refresh_keeps_the_new_login(stage: Stage) -> None:
    stage.clock.now += 2 * HOUR
    stage.source.hanging = asyncio.Event()
    refreshing = asyncio.create_task(stage.token())
    assert await asyncio.wait_for(_grant(stage, "refresh_token"), 5)
    begun = stage.provider.begin(Request(ANN.scope, ANN.principal, stage.harness.need), "http://127.0.0.1/callback")
    query = stage.source.authorize(begun.url.reveal(), "ann")
    hanging, stage.source.hanging = stage.source.hanging, None
    await stage.door.complete(ANN.scope, ANN.principal, SERVICE, Secret(query))
    login = await stage.stored()
    assert login is not None
    hanging.set()
    assert await refreshing == login.access_token.reveal()
    stage.restart()
    assert await stage.token() == login.access_token.reveal()


# --- completing an authorisation


async def _begin(stage: Stage, person: Person = ANN) -> str:
    """What a person whose login is gone comes back with."""
    login = await stage.stored(person)
    if login is not None:
        await asyncio.to_thread(stage.store.remove, login)
    stage.restart()
    answer = await stage.ask(person)
    assert isinstance(answer, AuthorizationRequired)
    return stage.source.authorize(answer.url.reveal(), person.name)


async def _refused(stage: Stage, query: str, person: Person = ANN, service: str = SERVICE) -> str:
    with pytest.raises(CredentialFailed) as refused:
        await stage.door.complete(person.scope, person.principal, service, Secret(query))
    assert not isinstance(refused.value, ProviderDown)
    return str(refused.value)


async def test_an_answer_is_taken_once_by_who_began_for_whom_it_was_begun(stage: Stage) -> None:
    query = await _begin(stage)
    other_principal = ANN._replace(principal=Principal("token:bob", authenticated=True))
    state = query.partition("state=")[2]
    refusals: Sequence[str] = [
        await _refused(stage, query, BOB),
        await _refused(stage, query, other_principal),
        await _refused(stage, query, ANN._replace(scope=BOB.scope)),
        await _refused(stage, f"code=code&state={state[:-2]}xx"),
        await _refused(stage, "code=code&state="),
        await _refused(stage, "code=code"),
        await _refused(stage, "code=code&state=%00%ff"),
    ]
    assert len(set(refusals)) == 1, "which of them it was is not told"
    await stage.door.complete(ANN.scope, ANN.principal, SERVICE, Secret("?" + query))
    assert (await stage.token()).startswith("access-ann-")
    assert await _refused(stage, query) == refusals[0]
    assert (await stage.token()).startswith("access-ann-")
    assert [event.what for event in stage.events][-2:] == ["authorized", "issued"] or stage.events[-1].what == "issued"


async def test_an_answer_that_comes_too_late_is_refused(stage: Stage) -> None:
    query = await _begin(stage)
    stage.clock.now += 901
    assert "too late" in await _refused(stage, query)


async def test_an_answer_outlives_a_restart(stage: Stage) -> None:
    query = await _begin(stage)
    stage.restart()
    await stage.door.complete(ANN.scope, ANN.principal, SERVICE, Secret(query))
    assert (await stage.token()).startswith("access-ann-")


async def test_a_person_who_declines_is_told_what_to_do(stage: Stage) -> None:
    state = (await _begin(stage)).partition("state=")[2]
    assert "was not authorised" in await _refused(stage, f"error=access_denied&error_description=canary&state={state}")


async def test_a_wrong_code_is_refused(stage: Stage) -> None:
    state = (await _begin(stage)).partition("state=")[2]
    assert "no longer good" in await _refused(stage, f"code=wrong&state={state}")


@pytest.mark.parametrize("query", ["", "?", "code=a&code=b&state=c", "&".join(f"a{n}=1" for n in range(100))])
async def test_what_is_no_query_is_refused(stage: Stage, query: str) -> None:
    assert "no query" in await _refused(stage, query)


async def test_a_service_that_nobody_authorises_is_refused(stage: Stage) -> None:
    assert "No credential is configured" in await _refused(stage, "code=a&state=b", service="other")


async def test_the_address_is_redacted_and_hides_its_verifier(stage: Stage) -> None:
    await _begin(stage)
    answer = await stage.ask()
    assert isinstance(answer, AuthorizationRequired)
    url = answer.url.reveal()
    assert stage.door.redactor.redact(f"went to {url}") == "went to [redacted]"
    assert url not in repr(answer)
    assert "verifier" not in url
