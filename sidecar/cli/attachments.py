"""The artifacts of one call: files that it takes, and files that are made of what it returns."""

import asyncio
import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pillion
from pillion import errors
from sidecar.cli.arguments import BadArguments
from sidecar.cli.console import tell
from sidecar.cli.sizes import size_text

_REFERENCE = re.compile(r"art_[0-9A-Za-z]{22}")
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f/\\]")
_NAME_BYTES = 200


class FileRefused(Exception):
    """A file cannot be read or written. The text is a sentence."""


class Attachments:
    """The files of one call, which are artifacts of the scope that the call has."""

    def __init__(self, artifacts: pillion.HostArtifacts) -> None:
        self._artifacts = artifacts
        self._given: set[str] = set()

    async def put(self, pairs: Sequence[str], tool: str, wants: Mapping[str, str]) -> list[str]:
        """Puts the files of `NAME=@FILE` pairs; answers `NAME=REFERENCE` pairs.

        :raises BadArguments: if a pair is none, or the tool wants no artifact there.
        :raises FileRefused: if a file cannot be read.
        :raises RequestRefused: if one is not stored.
        """
        found = []
        for pair in pairs:
            name, _, path = pair.partition("=@")
            if not name or not path:
                raise BadArguments(f"{pair!r} names no file; write --artifact NAME=@FILE.")
            if name not in wants:
                there = f"it wants {', '.join(sorted(wants))}" if wants else "it wants none"
                raise BadArguments(f"{tool} wants no artifact {name}; {there}.")
            try:
                meta = await self._artifacts.put(Path(path), kind=wants[name])
            except OSError as error:
                raise FileRefused(f"{path} cannot be read: {error.strerror}.") from None
            self._given.add(meta.reference)
            found.append(f"{name}={meta.reference}")
        return found

    async def save(self, kept: pillion.HostArtifacts, result: pillion.Result, directory: Path) -> None:
        """Writes what a call returned as artifacts into a directory, and tells of each file. They are in `kept`.

        :raises FileRefused: if one cannot be written.
        :raises RequestRefused: if one cannot be had.
        """
        references = [result.placed.reference] if result.placed is not None else []
        if result.json is not None:
            references += dict.fromkeys(_references(result.value))
        for reference in references:
            if reference in self._given:
                continue
            try:
                await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
                async with kept.open(reference) as artifact:
                    path = await asyncio.to_thread(_free, directory, _name_of(artifact.meta))
                    await artifact.save(path)
            except errors.ArtifactMissing:
                # A text that only looks like a reference, or one of another scope.
                continue
            except OSError as error:
                raise FileRefused(f"{directory} cannot be written to: {error.strerror}.") from None
            tell(f"{path}: {artifact.meta.media_type}, {size_text(artifact.meta.size)}")


def _references(value: Any) -> Iterator[str]:
    """The references in a result, in order."""
    if isinstance(value, str):
        if _REFERENCE.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _references(each)


def _name_of(meta: pillion.ArtifactMeta) -> str:
    """A name for a file: its label, if that can be one, with an ending that fits its media type."""
    name = _NOT_IN_NAMES.sub("_", meta.label or "").strip(". ") or meta.reference
    name = name.encode()[:_NAME_BYTES].decode("utf-8", "ignore")
    return name if Path(name).suffix else name + (mimetypes.guess_extension(meta.media_type) or "")


def _free(directory: Path, name: str) -> Path:
    """A path in the directory that nothing has yet."""
    path = directory / name
    number = 1
    while path.exists():
        number += 1
        path = directory / f"{Path(name).stem} {number}{Path(name).suffix}"
    return path
