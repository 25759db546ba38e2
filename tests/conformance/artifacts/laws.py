"""The laws of artifact stores. Each is a coroutine that two actors go through at once, in scopes of their own."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from sidecar.artifacts import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactInput,
    ArtifactLimits,
    ArtifactMeta,
    ArtifactNotFound,
    ArtifactsFull,
    ArtifactShape,
    ArtifactTooLarge,
    DigestMismatch,
    Eviction,
    EvictionReason,
    InvalidArtifact,
    Origin,
    UnknownParents,
    UploadIncomplete,
    UploadNotFound,
)
from sidecar.scope import Owner, Scope
from tests.conformance.artifacts.stage import LIMITS, NOTE, SECOND, Actor

MIB = 1024 * 1024
GIB = 1024 * MIB
BYTES, TEXT, JSON = ArtifactShape.BYTES, ArtifactShape.TEXT, ArtifactShape.JSON
MALFORMED = (
    "",
    "art_",
    "art_" + "a" * 21,
    "art_" + "a" * 23,
    "art_" + "-" * 22,
    "ART_" + "a" * 22,
    " ",
    "../x",
    "é" * 300,
)
NOBODYS = "art_" + "0" * 22
CANARY = "canary-of-ann-and-bob"


@dataclass(frozen=True)
class Law:
    """What every store keeps, under these limits."""

    body: Callable[[Actor], Awaitable[None]]
    limits: ArtifactLimits

    @property
    def name(self) -> str:
        return self.body.__name__


LAWS: dict[str, Law] = {}


def law(**limits: float) -> Callable[[Callable[[Actor], Awaitable[None]]], Callable[[Actor], Awaitable[None]]]:
    """Makes a coroutine a law, under limits that differ from the usual."""

    def make(body: Callable[[Actor], Awaitable[None]]) -> Callable[[Actor], Awaitable[None]]:
        LAWS[body.__name__] = Law(body, replace(LIMITS, **limits))  # type: ignore[arg-type]  # names are checked as it is made
        return body

    return make


def digest_of(payload: bytes) -> str:
    return f"sha-256:{hashlib.sha256(payload).hexdigest()}"


# --- what a put answers, and what is got back


@law()
async def a_put_answers_all_that_is_known(actor: Actor) -> None:
    first = await actor.reference()
    stated = ArtifactInput("chart", "image/png", label="the chart", digest=True, expires_in=10, parents=(first,))
    origin = Origin("call-1", "run-1")
    stored = await actor.put(b"\x89PNG", stated, origin=origin)
    assert stored.evicted == ()
    meta = stored.meta
    assert meta == ArtifactMeta(
        meta.reference,
        "chart",
        "image/png",
        4,
        BYTES,
        actor.now,
        actor.now + 10 * SECOND,
        "the chart",
        digest_of(b"\x89PNG"),
        origin,
        (first,),
    )
    assert await actor.store.head(actor.scope, meta.reference) == meta
    async with actor.store.get(actor.scope, meta.reference) as artifact:
        assert artifact.meta == meta
    assert (await actor.store.list(actor.scope)).artifacts[0] == meta


@law()
async def what_was_not_stated_is_absent(actor: Actor) -> None:
    meta = (await actor.put()).meta
    assert (meta.label, meta.digest, meta.origin, meta.parents) == (None, None, None, ())
    empty = (await actor.put(stated=replace(NOTE, label=""), origin=Origin("call-1"))).meta
    assert (empty.label, empty.origin) == ("", Origin("call-1", None))
    assert await actor.store.head(actor.scope, empty.reference) == empty


@law()
async def a_payload_keeps_its_shape(actor: Actor) -> None:
    payloads = [
        (b"7", TEXT),
        (b"7", JSON),
        (b"7", BYTES),
        (b'"7"', JSON),
        (b'{"a": [1.0, null, "\\u00e9"]}', JSON),
        ("é 🚲".encode(), TEXT),
        (bytes(range(256)), BYTES),
        (b"", TEXT),
        (b"", BYTES),
    ]
    references = [await actor.reference(payload, shape=shape) for payload, shape in payloads]
    for reference, (payload, shape) in zip(references, payloads, strict=True):
        meta = await actor.store.head(actor.scope, reference)
        assert (meta.shape, meta.size) == (shape, len(payload))
        assert await actor.read(reference) == payload


@law()
async def text_and_json_are_what_they_say(actor: Actor) -> None:
    refused = [
        (b"\xff", TEXT),
        (b"\xc3", TEXT),
        (b'"\xff"', JSON),
        (b"", JSON),
        (b"{", JSON),
        (b"NaN", JSON),
        (b"1 2", JSON),
    ]
    for payload, shape in refused:
        with pytest.raises(InvalidArtifact):
            await actor.put(payload, shape=shape)
    assert await actor.listed() == []
    # A character may come in two chunks.
    text = "🚲".encode()
    upload = await actor.store.begin(actor.scope, NOTE, len(text), TEXT)
    await upload.append(text[:2])
    await upload.append(text[2:])
    assert await actor.read((await actor.finish(upload)).meta.reference) == text
    # A large one is not parsed, since it is never in memory as a whole; it has to be UTF-8 all the same.
    await actor.put(b"[" * (MIB + 1), shape=JSON)
    with pytest.raises(InvalidArtifact):
        await actor.put(b"[" * MIB + b"\xff", shape=JSON)


@law()
async def references_are_random_and_of_one_form(actor: Actor) -> None:
    references = [await actor.reference() for _ in range(40)]
    assert len(set(references)) == len(references)
    for reference in references:
        assert re.fullmatch("art_[0-9A-Za-z]{22}", reference)
    assert len(set("".join(references))) > 50, "they use the whole alphabet"


@law()
async def the_digest_is_there_where_it_was_asked_for(actor: Actor) -> None:
    large = b"x" * (3 * MIB + 1)
    for payload in (b"", b"hello", large):
        meta = (await actor.put(payload, replace(NOTE, digest=True))).meta
        assert meta.digest == digest_of(payload)
        assert await actor.read(meta.reference) == payload
        expected = replace(NOTE, expected_digest=digest_of(payload))
        assert (await actor.put(payload, expected)).meta.digest == digest_of(payload)


@law()
async def another_digest_than_the_stated_one_is_refused(actor: Actor) -> None:
    with pytest.raises(DigestMismatch):
        await actor.put(b"hello", replace(NOTE, expected_digest=digest_of(b"hullo")))
    assert await actor.listed() == []


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


# --- what is refused


@law()
async def what_is_stated_is_checked_in_order_and_nothing_is_stored(actor: Actor) -> None:
    wrong = ArtifactInput(" ", "", "x" * 1_025, False, "md5:1", -1.0, (NOBODYS,))
    for names, repaired in (
        ("kind", {"kind": "note"}),
        ("media_type", {"media_type": "text/plain"}),
        ("expires_in", {"expires_in": 1.0}),
        ("digest", {"expected_digest": digest_of(b"other")}),
        ("label", {"label": "x" * 1_024}),
        ("parent", {"parents": ()}),
    ):
        with pytest.raises(InvalidArtifact, match=f"(?i){names}"):
            await actor.put(b"x" * 100, wrong)
        wrong = replace(wrong, **repaired)
    with pytest.raises(DigestMismatch):
        await actor.put(b"x" * 100, wrong)
    for bad in (
        replace(NOTE, kind=""),
        replace(NOTE, kind="\t\n"),
        replace(NOTE, kind="é" * 129),
        replace(NOTE, media_type="x" * 257),
        *(replace(NOTE, expires_in=each) for each in (0.0, float("nan"), float("inf"))),
        *(replace(NOTE, expected_digest=each) for each in ("", "sha-256:" + "A" * 64, "sha-256:" + "a" * 63)),
        replace(NOTE, parents=(NOBODYS,) * 65),
    ):
        with pytest.raises(InvalidArtifact):
            await actor.put(b"hello", bad)
    assert await actor.listed() == []


@law()
async def parents_are_proven_in_the_scope(actor: Actor) -> None:
    here, elsewhere = await actor.reference(), await actor.reference(scope=actor.place("conversation:2"))
    expired = await actor.reference(stated=replace(NOTE, expires_in=1))
    await actor.advance(1)
    before = await actor.listed()
    with pytest.raises(UnknownParents) as raised:
        await actor.put(stated=replace(NOTE, parents=(elsewhere, here, NOBODYS, "nonsense", expired)))
    assert raised.value.unresolved == (elsewhere, NOBODYS, "number 4, which is no reference", expired)
    assert await actor.listed() == before
    meta = (await actor.put(stated=replace(NOTE, parents=(here, here)))).meta
    await actor.store.delete(actor.scope, here)
    assert (await actor.store.head(actor.scope, meta.reference)).parents == (here, here), "lineage outlives its parents"


@law(max_bytes=100, bytes_per_scope=50)
async def what_never_fits_is_refused_before_anything_gives_way(actor: Actor) -> None:
    stays = await actor.reference(b"x" * 50)
    for size in (51, 100, 101, 4 * GIB, 2**64 - 1):
        with pytest.raises(ArtifactTooLarge):
            await actor.store.begin(actor.scope, NOTE, size)
    with pytest.raises(ArtifactTooLarge):
        await actor.put(b"x" * 51)
    assert await actor.listed() == [stays]


@law(count_per_scope=1)
async def a_refused_put_pushes_nothing_out(actor: Actor) -> None:
    stays = await actor.reference()
    for payload, stated, shape in (
        (b"x", replace(NOTE, kind=""), BYTES),
        (b"x", replace(NOTE, parents=(NOBODYS,)), BYTES),
        (b"x", replace(NOTE, expected_digest=digest_of(b"y")), BYTES),
        (b"\xff", NOTE, TEXT),
    ):
        with pytest.raises(InvalidArtifact):
            await actor.put(payload, stated, shape)
    assert await actor.listed() == [stays]


@law(bytes_per_subject=100)
async def refusals_tell_nothing(actor: Actor) -> None:
    secret = Scope(Owner(f"{CANARY}-{actor.name}", f"named:{CANARY}-{actor.name}"), f"session:{CANARY}")
    stated = ArtifactInput(CANARY, CANARY, label=CANARY)
    await actor.put(b"x" * 90, scope=secret)
    attempts = [
        actor.store.head(secret, CANARY),
        actor.store.put(secret, replace(stated, parents=(CANARY,)), b""),
        actor.store.put(secret, replace(stated, expected_digest=CANARY), b""),
        actor.store.put(secret, replace(stated, expected_digest=digest_of(b"")), CANARY.encode()[:10]),
        actor.store.put(secret, stated, b"\xff" + CANARY.encode()[:9], TEXT),
        actor.store.put(secret, stated, CANARY.encode()[:10], JSON),
        actor.store.put(secret, stated, CANARY.encode()),
        actor.store.put(secret, stated, b"x" * 1_000),
        actor.store.resume(secret, CANARY),
    ]
    for attempt in attempts:
        with pytest.raises(ArtifactError) as raised:
            await attempt
        told = f"{raised.value} {raised.value!r} {vars(raised.value)}"
        assert CANARY not in told
        assert CANARY[:9] not in told


# --- what gives way


@law(count_per_scope=3)
async def the_one_that_was_longest_not_looked_at_gives_way(actor: Actor) -> None:
    references = []
    for _ in range(3):
        references.append(await actor.reference())
        await actor.advance(1)
    await actor.store.head(actor.scope, references[0])
    await actor.advance(1)
    await actor.read(references[1])
    await actor.advance(1)
    await actor.listed()
    stored = await actor.put(b"four")
    assert stored.evicted == (Eviction(references[2], EvictionReason.COUNT, "note", 5),)
    assert await actor.listed() == [stored.meta.reference, references[1], references[0]]
    await actor.advance(1)
    assert [each.reference for each in (await actor.put()).evicted] == [references[0]]


@law(bytes_per_scope=100)
async def as_much_gives_way_as_has_to(actor: Actor) -> None:
    references = []
    for _ in range(4):
        references.append(await actor.reference(b"x" * 25))
        await actor.advance(1)
    assert (await actor.put(b"")).evicted == ()
    await actor.advance(1)
    stored = await actor.put(b"y" * 50)
    assert stored.evicted == tuple(Eviction(each, EvictionReason.BYTES, "note", 25) for each in references[:2])
    await actor.advance(1)
    everything = await actor.put(b"z" * 100)
    assert len(everything.evicted) == 4
    assert await actor.listed() == [everything.meta.reference]


@law(count_per_scope=2, bytes_per_scope=100)
async def the_expired_go_first_then_for_the_number_then_for_the_bytes(actor: Actor) -> None:
    first = await actor.reference(b"x" * 60)
    await actor.advance(1)
    brief = await actor.reference(b"x" * 10, stated=replace(NOTE, expires_in=1))
    await actor.advance(1)
    stored = await actor.put(b"y" * 50)
    assert stored.evicted == (
        Eviction(brief, EvictionReason.EXPIRED, "note", 10),
        Eviction(first, EvictionReason.BYTES, "note", 60),
    )
    await actor.put(b"y" * 10)
    await actor.advance(1)
    stored = await actor.put(b"z" * 95)
    assert [each.reason for each in stored.evicted] == [EvictionReason.COUNT, EvictionReason.BYTES]


@law(count_per_scope=1, bytes_per_scope=10)
async def nothing_of_another_scope_gives_way(actor: Actor) -> None:
    others = [actor.place("conversation:2"), actor.place("session:1"), Scope(Owner(None, actor.scope.subject), "run:1")]
    stay = [await actor.reference(b"x" * 10, scope=scope) for scope in others]
    for _ in range(3):
        await actor.put(b"x" * 10)
    assert [await actor.listed(scope) for scope in others] == [[reference] for reference in stay]


@law(bytes_per_subject=100)
async def a_subject_has_its_share_over_all_its_scopes(actor: Actor) -> None:
    one = await actor.reference(b"x" * 60)
    two = await actor.reference(b"x" * 40, scope=actor.place("conversation:2"), stated=replace(NOTE, expires_in=5))
    for scope in (actor.scope, actor.place("conversation:2"), actor.place("run:3")):
        with pytest.raises(ArtifactsFull):
            await actor.put(b"x", scope=scope)
    assert await actor.listed() == [one]
    assert await actor.listed(actor.place("conversation:2")) == [two]
    await actor.put(b"x" * 100, scope=Scope(Owner(None, actor.scope.subject), "run:1"))
    await actor.put(b"", scope=actor.place("run:3"))
    await actor.advance(5)
    await actor.put(b"x" * 40)
    await actor.store.delete(actor.scope, one)
    await actor.put(b"x" * 60)


@law(bytes_per_subject=100, bytes_per_scope=100)
async def room_that_a_scope_makes_counts_for_the_subject(actor: Actor) -> None:
    before = await actor.reference(b"x" * 100)
    assert [each.reference for each in (await actor.put(b"y" * 100)).evicted] == [before]


@law(bytes_per_tenant=100)
async def a_tenant_has_its_share_over_all_its_subjects(actor: Actor) -> None:
    tenant = f"tenant-of-{actor.name}"
    scopes = [Scope(Owner(tenant, f"named:{name}"), "run:1") for name in ("one", "two", "three")]
    await actor.put(b"x" * 60, scope=scopes[0])
    kept = await actor.reference(b"x" * 40, scope=scopes[1])
    for scope in scopes:
        with pytest.raises(ArtifactsFull):
            await actor.put(b"x", scope=scope)
    await actor.store.delete(scopes[1], kept)
    await actor.put(b"x" * 40, scope=scopes[2])


# --- reading


@law()
async def any_part_can_be_read(actor: Actor) -> None:
    payload = bytes(range(256)) * 4_096 * 3
    reference = await actor.reference(payload)
    size = len(payload)
    for offset, length in (
        (0, None),
        (1, None),
        (size - 1, None),
        (size, None),
        (5, 10),
        (0, 0),
        (9, 2 * MIB),
        (0, 2**63),
    ):
        end = None if length is None else offset + length
        assert await actor.read(reference, offset, length) == payload[offset:end]
    async with actor.store.get(actor.scope, reference) as artifact:
        sizes = [len(chunk) async for chunk in artifact.chunks()]
    assert sum(sizes) == size
    assert max(sizes) <= 256 * 1024
    for offset in (size + 1, 2**63, -1):
        with pytest.raises(InvalidArtifact):
            await actor.read(reference, offset)


@law()
async def what_is_being_read_can_be_read_to_its_end(actor: Actor) -> None:
    payload = b"x" * (3 * MIB)
    reference = await actor.reference(payload)
    async with actor.store.get(actor.scope, reference) as artifact:
        chunks = artifact.chunks()
        got = len(await anext(chunks))
        await actor.store.delete(actor.scope, reference)
        await actor.absent(reference)
        async for chunk in chunks:
            got += len(chunk)
    assert got == len(payload)


@law()
async def a_damaged_payload_is_told_and_not_handed_out_whole(actor: Actor) -> None:
    payload = b"x" * (2 * MIB)
    reference = await actor.reference(payload, stated=replace(NOTE, digest=True))
    await actor.stage.backend.damage(reference)
    got = 0

    async def read() -> None:
        nonlocal got
        async with actor.store.get(actor.scope, reference) as artifact:
            async for chunk in artifact.chunks():
                got += len(chunk)

    with pytest.raises(ArtifactCorrupt):
        await read()
    assert got < len(payload)
    assert (await actor.store.head(actor.scope, reference)).digest == digest_of(payload)
    # What has no digest, or is read in part, cannot be told from what was put.
    assert len(await actor.read(reference, 1)) == len(payload) - 1


@law()
async def a_lost_payload_is_damage_and_not_absence(actor: Actor) -> None:
    reference = await actor.reference()
    await actor.stage.backend.lose(reference)
    with pytest.raises(ArtifactCorrupt):
        await actor.read(reference)
    assert (await actor.store.head(actor.scope, reference)).size == 5
    await actor.store.delete(actor.scope, reference)
    await actor.absent(reference)


# --- uploads


@law()
async def an_upload_is_seen_when_it_is_finished_and_not_before(actor: Actor) -> None:
    payload = b"0123456789" * MIB
    upload = await actor.store.begin(actor.scope, replace(NOTE, digest=True), len(payload))
    for offset in range(0, len(payload), MIB):
        assert upload.received == offset
        await upload.append(payload[offset : offset + MIB])
        assert await actor.listed() == []
    stored = await actor.finish(upload)
    assert (stored.meta.size, stored.meta.digest) == (len(payload), digest_of(payload))
    assert await actor.read(stored.meta.reference) == payload


@law()
async def an_upload_has_the_bytes_that_were_declared(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, NOTE, 3)
    await upload.append(b"ab")
    with pytest.raises(UploadIncomplete):
        await upload.finish()
    assert upload.received == 2
    with pytest.raises(InvalidArtifact):
        await upload.append(b"cd")
    with pytest.raises(UploadNotFound):
        await upload.append(b"c")
    with pytest.raises(UploadNotFound):
        await upload.finish()
    with pytest.raises(UploadNotFound):
        await actor.store.resume(actor.scope, upload.id)
    assert await actor.listed() == []


@law()
async def a_chunk_is_bounded(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, NOTE, 2 * MIB)
    with pytest.raises(InvalidArtifact):
        await upload.append(b"x" * (MIB + 1))


@law(bytes_per_subject=5 * GIB)
async def a_large_upload_of_one_byte_takes_one_byte_and_its_room_for_a_while(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, NOTE, 4 * GIB)
    await upload.append(b"x")
    with pytest.raises(UploadIncomplete):
        await upload.finish()
    with pytest.raises(ArtifactsFull):
        await actor.store.begin(actor.place("run:2"), NOTE, 2 * GIB)
    await actor.advance(60)
    await actor.store.sweep()
    with pytest.raises(UploadNotFound):
        await actor.store.resume(actor.scope, upload.id)
    with pytest.raises(UploadNotFound):
        await upload.append(b"y")
    await (await actor.store.begin(actor.place("run:2"), NOTE, 4 * GIB)).abandon()


@law()
async def an_upload_is_continued_where_it_was_left(actor: Actor) -> None:
    text = "grüße".encode()
    upload = await actor.store.begin(actor.scope, replace(NOTE, digest=True), len(text), TEXT)
    await upload.append(text[:3])
    await actor.advance(59)
    again = await actor.store.resume(actor.scope, upload.id)
    assert (again.id, again.size, again.received) == (upload.id, len(text), 3)
    with pytest.raises(UploadNotFound):
        await upload.append(text[3:])
    with pytest.raises(UploadNotFound):
        await upload.finish()
    await upload.abandon()
    await actor.advance(59)
    await again.append(text[3:])
    stored = await actor.finish(again)
    assert stored.meta.digest == digest_of(text)
    assert await actor.read(stored.meta.reference) == text


@law()
async def an_upload_is_its_scopes(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, NOTE, 1)
    answers = set()
    elsewhere = (actor.place("conversation:2"), Scope(Owner("acme", "named:eve"), actor.scope.place))
    attempts = [(scope, upload.id) for scope in elsewhere]
    attempts += [(actor.scope, text) for text in ("", "upl_", "upl_" + "0" * 32, NOBODYS, "é")]
    for scope, text in attempts:
        with pytest.raises(UploadNotFound) as raised:
            await actor.store.resume(scope, text)
        answers.add((str(raised.value), raised.value.args))
    assert len(answers) == 1
    await upload.append(b"x")
    await actor.finish(upload)


@law()
async def an_answer_that_got_lost_can_be_had_again(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, NOTE, 1)
    await upload.append(b"x")
    stored = await actor.finish(upload)
    assert await upload.finish() == stored
    again = await actor.store.resume(actor.scope, upload.id)
    assert again.received == again.size
    assert await again.finish() == stored
    await again.abandon()
    assert await actor.listed() == [stored.meta.reference]
    await actor.advance(60)
    with pytest.raises(UploadNotFound):
        await actor.store.resume(actor.scope, upload.id)


@law()
async def who_stops_waiting_leaves_an_upload_as_it_says(actor: Actor) -> None:
    payload = bytes(range(256)) * 8_192
    upload = await actor.store.begin(actor.scope, replace(NOTE, digest=True), len(payload))
    turns = 0
    while upload.received < len(payload):
        chunk = payload[upload.received : upload.received + 256 * 1024]
        appending = asyncio.ensure_future(upload.append(chunk))
        for _ in range(turns % 4):
            await asyncio.sleep(0)
        appending.cancel()
        await asyncio.wait({appending})
        upload = await actor.store.resume(actor.scope, upload.id)
        turns += 1
        assert turns < 1_000
    finishing = asyncio.ensure_future(upload.finish())
    await asyncio.sleep(0)
    finishing.cancel()
    await asyncio.wait({finishing})
    stored = await actor.finish(await actor.store.resume(actor.scope, upload.id))
    assert await actor.listed() == [stored.meta.reference]
    assert await actor.read(stored.meta.reference) == payload


@law(uploads_per_subject=3)
async def so_many_uploads_are_open_and_no_more(actor: Actor) -> None:
    uploads = [await actor.store.begin(actor.place(f"run:{number}"), NOTE, 1) for number in range(3)]
    with pytest.raises(ArtifactsFull):
        await actor.store.begin(actor.scope, NOTE, 1)
    await uploads[0].abandon()
    upload = await actor.store.begin(actor.scope, NOTE, 1)
    await upload.append(b"x")
    await actor.finish(upload)
    await actor.put()


@law(bytes_per_subject=100)
async def uploads_that_run_at_once_do_not_take_more_than_there_is(actor: Actor) -> None:
    async def attempt(number: int) -> bool:
        try:
            await actor.put(b"x" * 30, scope=actor.place(f"run:{number}"))
        except ArtifactsFull:
            return False
        return True

    outcomes = await asyncio.gather(*(attempt(number) for number in range(8)))
    assert 1 <= sum(outcomes) <= 3
    assert [len(await actor.listed(actor.place(f"run:{number}"))) for number in range(8)] == outcomes


@law()
async def many_put_at_once(actor: Actor) -> None:
    payloads = [f"{actor.name} {number}".encode() * 100 for number in range(30)]
    references = await asyncio.gather(*(actor.reference(payload) for payload in payloads))
    assert sorted(await actor.listed()) == sorted(references)
    assert await asyncio.gather(*(actor.read(reference) for reference in references)) == payloads


# --- what lasts


@law()
async def what_was_put_outlives_the_store(actor: Actor) -> None:
    payload = b"y" * (2 * MIB)
    metas = [(await actor.put(payload, replace(NOTE, digest=True))).meta, (await actor.put()).meta]
    gone = await actor.reference()
    await actor.store.delete(actor.scope, gone)
    await actor.reopen()
    assert list((await actor.store.list(actor.scope)).artifacts) == metas[::-1]
    assert await actor.read(metas[0].reference) == payload


@law()
async def an_upload_does_not_outlive_the_store(actor: Actor) -> None:
    upload = await actor.store.begin(actor.scope, NOTE, 2)
    await upload.append(b"x")
    await actor.reopen()
    with pytest.raises(UploadNotFound):
        await actor.store.resume(actor.scope, upload.id)
    assert await actor.listed() == []


@law(count_per_scope=2)
async def who_was_looked_at_outlives_the_store(actor: Actor) -> None:
    first = await actor.reference()
    await actor.advance(1)
    second = await actor.reference()
    await actor.advance(1)
    await actor.store.head(actor.scope, first)
    await actor.reopen()
    await actor.advance(1)
    assert [each.reference for each in (await actor.put()).evicted] == [second]
