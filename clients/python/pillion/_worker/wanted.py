"""What a tool is handed in place of a reference: as the annotation of its parameter asks."""

import asyncio
import mimetypes
import shutil
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pillion import _failures, _json, _refusals
from pillion._artifacts import ArtifactMeta
from pillion._gen.pillion.v1 import context_pb2
from pillion._payloads import value_of
from pillion._verbs import OpenArtifact
from pillion._worker.artifacts import opened
from pillion._worker.port import Port

_NONE = type(None)
_TOLD = ("description", "title", "examples")


class NotAsWanted(Exception):
    """An artifact is not what its parameter takes. The text is a sentence that quotes nothing of it."""


class NotHandedOver(Exception):
    """An artifact that was there before the tool ran cannot be had any more. The text is a sentence."""


class WantedParameter:
    """One parameter that is an artifact.

    `bytes` takes its bytes, `str` its text, `Path` a file that is removed after the call, and `OpenArtifact` a stream.
    Without an annotation, or with `Any`, it comes in the shape that it was put in; every other type is read from JSON.
    """

    def __init__(self, name: str, hint: Any, adapted: Callable[[Any], "TypeAdapter[Any]"]) -> None:
        """`adapted` makes the adapter of a type that is read from JSON."""
        self.name = name
        annotation, self._told = _parted(hint)
        self._take: Callable[[OpenArtifact, Workspace], Any]
        if annotation is bytes:
            self._take = self._bytes
        elif annotation is str:
            self._take = self._text
        elif annotation is Path:
            self._take = self._path
        elif annotation is OpenArtifact:
            self._take = self._stream
        elif annotation is Any:
            self._take = self._as_put
        else:
            self._adapter = adapted(annotation)
            self._take = self._value

    @property
    def schema_hint(self) -> Any:
        """What callers send: the reference, with what the annotation says for people."""
        return Annotated[(str, *self._told)] if self._told else str

    async def take(self, artifact: OpenArtifact, workspace: "Workspace") -> Any:
        """The argument.

        :raises NotAsWanted: if the artifact is not of the parameter's type.
        """
        return await self._take(artifact, workspace)

    async def _bytes(self, artifact: OpenArtifact, _: "Workspace") -> bytes:
        return await artifact.read()

    async def _text(self, artifact: OpenArtifact, _: "Workspace") -> str:
        try:
            return (await artifact.read()).decode()
        except UnicodeDecodeError:
            raise self._unfit("it is no text in UTF-8") from None

    async def _path(self, artifact: OpenArtifact, workspace: "Workspace") -> Path:
        path = await workspace.path(self.name, artifact.meta)
        await artifact.save(path)
        return path

    async def _stream(self, artifact: OpenArtifact, _: "Workspace") -> OpenArtifact:
        return artifact

    async def _as_put(self, artifact: OpenArtifact, _: "Workspace") -> Any:
        try:
            return value_of(artifact.meta.shape, await artifact.read())
        except _json.JsonRefused as refused:
            raise self._unfit(str(refused)) from None

    async def _value(self, artifact: OpenArtifact, _: "Workspace") -> Any:
        try:
            return self._adapter.validate_python(_json.decode(await artifact.read()))
        except _json.JsonRefused as refused:
            raise self._unfit(str(refused)) from None
        except ValidationError:
            raise self._unfit("it does not fit the parameter's type") from None

    def _unfit(self, why: str) -> NotAsWanted:
        return NotAsWanted(f"The artifact for {self.name} is not what the tool takes: {why}.")


class Workspace:
    """What one call has been handed: streams that are to be closed, files that are to be removed."""

    def __init__(self) -> None:
        self._artifacts: list[OpenArtifact] = []
        self._directory: Path | None = None

    async def redeem(
        self,
        port: Port,
        wanted: Mapping[str, context_pb2.WantedArtifact],
        parameters: Mapping[str, WantedParameter],
    ) -> dict[str, Any]:
        """The arguments that are artifacts.

        :raises NotAsWanted: if one is not what the tool takes.
        :raises NotHandedOver: if one cannot be had any more.
        """
        taken: dict[str, Any] = {}
        for name, found in wanted.items():
            if name in parameters:
                artifact = opened(port, found)
                self._artifacts.append(artifact)
                try:
                    taken[name] = await parameters[name].take(artifact, self)
                except (_refusals.RequestRefused, _failures.ConnectionFailed) as error:
                    raise NotHandedOver(f"The artifact for {name} could not be read: {error}") from error
        return taken

    async def path(self, name: str, meta: ArtifactMeta) -> Path:
        """Where the file of an argument goes."""
        if self._directory is None:
            self._directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="pillion-"))
        # The first time it looks for files of the system.
        ending = await asyncio.to_thread(mimetypes.guess_extension, meta.media_type)
        return self._directory / (name + (ending or ""))

    async def close(self) -> None:
        """Closes and removes what the call has been handed."""
        for artifact in self._artifacts:
            await artifact.aclose()
        if self._directory is not None:
            await asyncio.to_thread(partial(shutil.rmtree, self._directory, ignore_errors=True))


def _parted(hint: Any) -> tuple[Any, tuple[FieldInfo, ...]]:
    """An annotation without what says that it may be absent, and what it tells people."""
    told: tuple[FieldInfo, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *beside = get_args(hint)
        told = tuple(_for_people(field) for field in beside if isinstance(field, FieldInfo))
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not _NONE]
        hint = kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007  # made of a tuple
    return hint, told


def _for_people(field: FieldInfo) -> FieldInfo:
    """The field without its bounds, which are for the value and not for the reference."""
    told: FieldInfo = Field(**{name: value for name in _TOLD if (value := getattr(field, name)) is not None})
    return told
