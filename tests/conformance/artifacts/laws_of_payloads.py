"""The laws of artifact stores: what is put and got back."""

import re
from dataclasses import replace

import pytest

from sidecar.artifacts import (
    ArtifactCorrupt,
    ArtifactInput,
    ArtifactMeta,
    DigestMismatch,
    InvalidArtifact,
    Origin,
)
from tests.conformance.artifacts.laws import BYTES, JSON, MIB, TEXT, digest_of, law
from tests.conformance.artifacts.stage import NOTE, SECOND, Actor

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
