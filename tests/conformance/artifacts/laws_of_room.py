"""The laws of artifact stores: what is refused, and what gives way."""

from dataclasses import replace

import pytest

from sidecar.artifacts import (
    ArtifactError,
    ArtifactInput,
    ArtifactsFull,
    ArtifactTooLarge,
    DigestMismatch,
    Eviction,
    EvictionReason,
    InvalidArtifact,
    UnknownParents,
)
from sidecar.scope import Owner, Scope
from tests.conformance.artifacts.laws import BYTES, CANARY, GIB, JSON, NOBODYS, TEXT, digest_of, law
from tests.conformance.artifacts.stage import NOTE, Actor

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
