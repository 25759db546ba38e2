"""The artifact store, as a caller without asyncio has it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pillion import _verbs
from pillion._artifacts import ArtifactMeta, ArtifactShape
from pillion._caller.artifacts import HostArtifacts
from pillion._facts import Identity
from pillion._sync.portal import Portal, following, in_thread


class OpenArtifact:
    """An artifact that is being read: `for chunk in artifact`, or all of it by `artifact.read()`. Once."""

    def __init__(self, portal: Portal, artifact: _verbs.OpenArtifact) -> None:
        self.meta = artifact.meta
        """What is known of it."""
        self._portal = portal
        self._artifact = artifact
        self._chunks = aiter(artifact)

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._portal.wait(following(self._chunks))) is not None:
            yield chunk

    def read(self) -> bytes:
        """What was not read yet."""
        return self._portal.wait(self._artifact.read())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was not read yet to a file; raises as `pillion.OpenArtifact.save` does."""
        self._portal.wait(self._artifact.save(path))


class Artifacts:
    """A sidecar's artifacts, of one scope. Every method is that of `pillion.Artifacts`."""

    def __init__(self, portal: Portal, artifacts: HostArtifacts) -> None:
        self._portal = portal
        self._artifacts = artifacts

    def within(
        self,
        *,
        identity: Identity | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        execution_id: str | None = None,
    ) -> "Artifacts":
        """Those of calls with these facts; as `pillion.HostArtifacts.within`."""
        within = self._artifacts.within(
            identity=identity, session_id=session_id, run_id=run_id, execution_id=execution_id
        )
        return Artifacts(self._portal, within)

    def put(  # noqa: PLR0913  # as of the asynchronous one
        self,
        data: Any,
        *,
        kind: str,
        media_type: str | None = None,
        label: str | None = None,
        digest: bool = False,
        expires_in: float | None = None,
        parents: Sequence[str] = (),
        shape: ArtifactShape | None = None,
        size: int | None = None,
    ) -> ArtifactMeta:
        """Stores a payload; an iterator of bytes may be a plain one."""
        if size is not None and isinstance(data, Iterable) and not hasattr(data, "read"):
            data = in_thread(data)
        put = self._artifacts.put(
            data,
            kind=kind,
            media_type=media_type,
            label=label,
            digest=digest,
            expires_in=expires_in,
            parents=parents,
            shape=shape,
            size=size,
        )
        return self._portal.wait(put)

    def head(self, reference: str) -> ArtifactMeta | None:
        """What is known of an artifact; `None` if there is none."""
        return self._portal.wait(self._artifacts.head(reference))

    def get(self, reference: str) -> tuple[ArtifactMeta, Any] | None:
        """What is known of an artifact, and its payload; `None` if there is none."""
        return self._portal.wait(self._artifacts.get(reference))

    @contextmanager
    def open(self, reference: str, offset: int = 0) -> Iterator[OpenArtifact]:
        """Opens an artifact to be read piece by piece."""
        opening = self._artifacts.open(reference, offset)
        artifact = self._portal.wait(opening.__aenter__())
        try:
            yield OpenArtifact(self._portal, artifact)
        finally:
            self._portal.wait(opening.__aexit__(None, None, None))

    def save(self, reference: str, path: str | os.PathLike[str]) -> ArtifactMeta:
        """Writes an artifact to a file."""
        return self._portal.wait(self._artifacts.save(reference, path))

    def delete(self, reference: str) -> None:
        """Removes an artifact."""
        self._portal.wait(self._artifacts.delete(reference))

    def list(self) -> Iterator[ArtifactMeta]:
        """The artifacts, newest first."""
        listing = self._artifacts.list()
        while (meta := self._portal.wait(following(listing))) is not None:
            yield meta
