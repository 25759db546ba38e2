"""`pillion artifacts`."""

import argparse
import asyncio
import json
import mimetypes
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sidecar._gen.pillion.v1.artifacts_pb2 import (
    ArtifactInput,
    ArtifactMeta,
    ArtifactShape,
    DeleteRequest,
    DownloadRequest,
    ListRequest,
    ScopeFacts,
    UploadHeader,
    UploadRequest,
)
from sidecar._gen.pillion.v1.artifacts_pb2_grpc import ArtifactServiceStub
from sidecar.calls.context import set_seconds
from sidecar.cli.channel import Action, Way, with_channel
from sidecar.cli.console import say, tell
from sidecar.cli.main import USAGE
from sidecar.cli.reach import Unreachable
from sidecar.cli.sizes import size_text
from sidecar.config import ConfigRefused

_ANSWER_SECONDS = 10.0
_CHUNK_BYTES = 256 * 1024
_STDIN = "-"
_FACTS = ("tenant", "principal", "conversation_id", "session_id", "run_id", "execution_id")


class _FileRefused(Exception):
    """A file cannot be read or written. The text is a sentence."""


def run(options: argparse.Namespace) -> int:
    """Does what was asked of the artifacts; answers the exit code."""
    actions: dict[str, Action] = {"put": _put, "get": _get, "list": _list, "remove": _remove}
    try:
        return asyncio.run(with_channel(options, actions[options.action]))
    except (ConfigRefused, Unreachable, _FileRefused) as error:
        tell(str(error))
        return USAGE


def _facts(options: argparse.Namespace) -> ScopeFacts:
    return ScopeFacts(**{fact: value for fact in _FACTS if (value := getattr(options, fact)) is not None})


async def _put(options: argparse.Namespace, way: Way) -> int:
    with _opened(options.file) as file:
        header = UploadHeader(scope=_facts(options), input=_input(options), size=_size_of(file))
        header.shape = ArtifactShape.Value(f"ARTIFACT_SHAPE_{options.shape.upper()}")
        answer = await ArtifactServiceStub(way.channel).Upload(_parts(header, file), metadata=way.metadata)
    for evicted in answer.evicted:
        tell(f"It took the place of {evicted.reference}, {size_text(evicted.size)}.")
    say(answer.meta.reference)
    return 0


def _input(options: argparse.Namespace) -> ArtifactInput:
    name = None if options.file == _STDIN else Path(options.file).name
    guessed = mimetypes.guess_type(name)[0] if name is not None else None
    stated = ArtifactInput(
        kind=options.kind, media_type=options.media_type or guessed or "application/octet-stream", digest=True
    )
    label = options.label if options.label is not None else name
    if label is not None:
        stated.label = label
    if options.expires is not None:
        set_seconds(stated.expires_in, options.expires)
    return stated


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """A file to be read, whose size is known: what comes by standard input is kept in a temporary one first."""
    try:
        if name != _STDIN:
            with Path(name).open("rb") as file:
                yield file
            return
        with tempfile.TemporaryFile() as copy:
            while chunk := sys.stdin.buffer.read(_CHUNK_BYTES):
                copy.write(chunk)
            copy.seek(0)
            yield copy
    except OSError as error:
        raise _FileRefused(f"{name} cannot be read: {error.strerror}.") from None


def _size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


async def _parts(header: UploadHeader, file: BinaryIO) -> AsyncIterator[UploadRequest]:
    yield UploadRequest(header=header)
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield UploadRequest(chunk=chunk)


async def _get(options: argparse.Namespace, way: Way) -> int:
    request = DownloadRequest(scope=_facts(options), reference=options.reference)
    parts = ArtifactServiceStub(way.channel).Download(request, metadata=way.metadata)
    # Asked for before anything is written: what is not there leaves no empty file.
    await anext(aiter(parts))
    with _written(options.out) as file:
        async for part in parts:
            await asyncio.to_thread(file.write, part.chunk)
    return 0


@contextmanager
def _written(path: Path | None) -> Iterator[BinaryIO]:
    """Where an artifact goes. A file is there whole or not at all."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = path.with_name(path.name + ".part")
    try:
        if path.exists():
            raise _FileRefused(f"{path} is there already; name another file, or remove it.")
        with part.open("wb") as file:
            yield file
        part.rename(path)
    except OSError as error:
        raise _FileRefused(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        part.unlink(missing_ok=True)


async def _list(options: argparse.Namespace, way: Way) -> int:
    stub = ArtifactServiceStub(way.channel)
    request = ListRequest(scope=_facts(options))
    found = False
    while True:
        answer = await stub.List(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
        for meta in answer.artifacts:
            found = True
            say(_as_json(meta) if options.json else _as_line(meta))
        if not answer.HasField("cursor"):
            break
        request.cursor = answer.cursor
    if not found:
        tell("There are no artifacts here; --session, --run and --conversation say where else to look.")
    return 0


def _as_line(meta: ArtifactMeta) -> str:
    return f"{meta.reference}  {meta.kind}  {meta.media_type}  {size_text(meta.size)}  {meta.label or '-'}"


def _as_json(meta: ArtifactMeta) -> str:
    return json.dumps(
        {
            "reference": meta.reference,
            "kind": meta.kind,
            "media_type": meta.media_type,
            "size": meta.size,
            "shape": ArtifactShape.Name(meta.shape).removeprefix("ARTIFACT_SHAPE_").lower(),
            "label": meta.label if meta.HasField("label") else None,
            "digest": meta.digest if meta.HasField("digest") else None,
            "created_unix_nano": meta.created_unix_nano,
            "expires_in_seconds": meta.expires_in.seconds if meta.HasField("expires_in") else None,
        }
    )


async def _remove(options: argparse.Namespace, way: Way) -> int:
    stub = ArtifactServiceStub(way.channel)
    for reference in options.reference:
        request = DeleteRequest(scope=_facts(options), reference=reference)
        await stub.Delete(request, timeout=_ANSWER_SECONDS, metadata=way.metadata)
    tell("They are not there any more." if len(options.reference) > 1 else "It is not there any more.")
    return 0
