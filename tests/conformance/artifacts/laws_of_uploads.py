"""The laws of artifact stores: uploads, and what lasts."""

import asyncio
from dataclasses import replace

import pytest

from sidecar.artifacts import (
    ArtifactsFull,
    InvalidArtifact,
    UploadIncomplete,
    UploadNotFound,
)
from sidecar.scope import Owner, Scope
from tests.conformance.artifacts.laws import GIB, MIB, NOBODYS, TEXT, digest_of, law
from tests.conformance.artifacts.stage import NOTE, Actor

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
