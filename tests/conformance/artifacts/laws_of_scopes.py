"""The laws of artifact stores: whose artifacts are, how long they last, and how they are listed."""

import asyncio
from dataclasses import replace

import pytest

from sidecar.artifacts import (
    ArtifactError,
    ArtifactNotFound,
)
from sidecar.scope import Owner, Scope
from tests.conformance.artifacts.laws import MALFORMED, NOBODYS, law
from tests.conformance.artifacts.stage import NOTE, SECOND, Actor

# --- whose it is


def confusable(actor: Actor) -> list[Scope]:
    """Scopes that a careless encoding takes for one another, or cannot take at all."""
    subject = actor.scope.subject
    texts = [
        "_",
        "%5F",
        "%5f",
        "a",
        "A",
        "a/b",
        "a%2Fb",
        "..",
        ".",
        "a.b",
        "a~b",
        "~a",
        "",
        "none",
        "tenant:",
        "NUL",
        "con",
    ]
    texts += ["'; DROP TABLE artifact; --", '"\\', "🚲", "é", "e\u0301", "a\nb", "a b", "x" * 200, "x" * 199 + "y"]
    scopes = [Scope(Owner(text, subject), "conversation:1") for text in texts]
    scopes += [Scope(Owner("acme", subject + text), "conversation:1") for text in texts if text]
    scopes += [actor.place(f"conversation:{text}") for text in texts]
    scopes += [actor.place(f"{kind}:1") for kind in ("session", "run", "execution")]
    scopes += [Scope(Owner(None, subject), "conversation:1")]
    return scopes


@law()
async def no_scope_is_taken_for_another(actor: Actor) -> None:
    scopes = confusable(actor)
    assert len(set(scopes)) == len(scopes)
    references = await asyncio.gather(
        *(actor.reference(str(number).encode(), scope=scope) for number, scope in enumerate(scopes))
    )
    for number, (scope, reference) in enumerate(zip(scopes, references, strict=True)):
        assert await actor.listed(scope) == [reference]
        assert await actor.read(reference, scope=scope) == str(number).encode()
        other = references[number - 1]
        await actor.absent(other, scope)
        await actor.store.delete(scope, other)
    assert [await actor.listed(scope) for scope in scopes] == [[reference] for reference in references]


@law()
async def missing_foreign_expired_deleted_and_malformed_are_one_answer(actor: Actor) -> None:
    elsewhere = await actor.reference(scope=actor.place("conversation:2"))
    expired = await actor.reference(stated=replace(NOTE, expires_in=5))
    deleted = await actor.reference()
    await actor.store.delete(actor.scope, deleted)
    await actor.advance(5)
    answers = set()
    for reference in (NOBODYS, elsewhere, expired, deleted, *MALFORMED):
        for ask in (actor.store.head(actor.scope, reference), actor.read(reference)):
            with pytest.raises(ArtifactError) as raised:
                await ask
            answers.add((type(raised.value), str(raised.value), raised.value.args, raised.value.__cause__))
    assert len(answers) == 1
    ((kind, text, *_),) = answers
    assert kind is ArtifactNotFound
    assert "art_" not in text


@law()
async def deleting_agrees_to_anything(actor: Actor) -> None:
    reference, stays = await actor.reference(), await actor.reference()
    for text in (reference, reference, NOBODYS, *MALFORMED):
        await actor.store.delete(actor.scope, text)
    await actor.absent(reference)
    assert await actor.listed() == [stays]


# --- time


@law()
async def an_artifact_lasts_as_long_as_said_and_no_longer(actor: Actor) -> None:
    reference = await actor.reference(stated=replace(NOTE, expires_in=5))
    await actor.advance(4.999)
    assert await actor.read(reference) == b"hello"
    await actor.advance(0.001)
    await actor.absent(reference)
    await actor.store.sweep()
    await actor.absent(reference)


@law()
async def the_stores_time_tightens_and_never_extends(actor: Actor) -> None:
    metas = [
        (await actor.put(stated=replace(NOTE, expires_in=each))).meta for each in (None, 1.5, 999.0, 5_000.0, 1e300)
    ]
    assert [(meta.expires_at - actor.now) / SECOND for meta in metas] == [1_000, 1.5, 999, 1_000, 1_000]


@law()
async def an_upload_expires_from_when_it_was_finished(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, replace(NOTE, expires_in=5), 1)
    await upload.append(b"x")
    await actor.advance(30)
    meta = (await actor.finish(upload)).meta
    assert (meta.created_at, meta.expires_at) == (actor.now, actor.now + 5 * SECOND)


# --- lists


@law()
async def a_list_is_newest_first_in_pages(actor: Actor) -> None:
    assert await actor.store.list(actor.scope) == ((), None)
    references = [await actor.reference() for _ in range(7)][::-1]
    assert await actor.listed() == references
    for limit in (1, 2, 3, 6, 7, 8):
        assert await actor.listed(limit=limit) == references
    first = await actor.store.list(actor.scope, None, 3)
    assert [meta.reference for meta in first.artifacts] == references[:3]
    assert first.cursor is not None
    assert (await actor.store.list(actor.scope, None, 7)).cursor is None
    assert len((await actor.store.list(actor.scope, None, 0)).artifacts) == 1
    assert len((await actor.store.list(actor.scope, None, -5)).artifacts) == 1


@law(uploads_per_subject=300)
async def a_page_is_bounded(actor: Actor) -> None:
    await asyncio.gather(*(actor.put(b"") for _ in range(201)))
    assert len((await actor.store.list(actor.scope)).artifacts) == 50
    page = await actor.store.list(actor.scope, None, 10_000)
    assert len(page.artifacts) == 200
    assert len((await actor.store.list(actor.scope, page.cursor, 10_000)).artifacts) == 1


@law()
async def what_comes_and_goes_between_pages_repeats_and_hides_nothing_else(actor: Actor) -> None:
    references = [await actor.reference() for _ in range(9)][::-1]
    page = await actor.store.list(actor.scope, None, 3)
    await actor.put()
    for gone in (references[1], references[2], references[3]):
        await actor.store.delete(actor.scope, gone)
    rest = await actor.store.list(actor.scope, page.cursor, 50)
    assert [meta.reference for meta in rest.artifacts] == references[4:]


@law()
async def a_cursor_of_nobodys_begins_anew(actor: Actor) -> None:
    references = [await actor.reference() for _ in range(3)][::-1]
    for cursor in ("", "nonsense", "-1", "é", "f" * 100, "' OR 1=1", "0x1"):
        assert [meta.reference for meta in (await actor.store.list(actor.scope, cursor)).artifacts] == references


@law()
async def an_expired_artifact_takes_no_place_on_a_page(actor: Actor) -> None:
    await actor.put(stated=replace(NOTE, expires_in=1))
    stays = await actor.reference()
    await actor.put(stated=replace(NOTE, expires_in=1))
    await actor.advance(1)
    page = await actor.store.list(actor.scope, None, 1)
    assert ([meta.reference for meta in page.artifacts], page.cursor) == ([stays], None)
