"""Artifacts in memory, for the tests of who writes tools."""

import hashlib
import secrets
import string
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pillion import _json, _refusals
from pillion._artifacts import ArtifactMeta, ArtifactShape, read_meta
from pillion._gen.pillion.v1 import artifacts_pb2 as messages
from pillion._gen.pillion.v1.context_pb2 import WantedArtifact
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply
from pillion._payloads import value_of

_ALPHABET = string.digits + string.ascii_letters
_PAGE = 50


class _Kept(NamedTuple):
    meta: messages.ArtifactMeta
    content: bytes


class Artifacts:
    """An artifact store for rehearsed calls: what a test puts in, tools find, and what tools put, a test finds."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._verbs: Mapping[str, Callable[[OutboundRequest], Reply]] = {
            "artifact_put": self._put,
            "artifact_head": self._head,
            "artifact_get": self._get,
            "artifact_delete": self._delete,
            "artifact_list": self._list,
        }

    def add(
        self, data: Any, *, kind: str, media_type: str = "application/octet-stream", label: str | None = None
    ) -> str:
        """Keeps bytes, a text, or any other value as JSON; answers the reference."""
        if isinstance(data, bytes):
            shape, content = ArtifactShape.BYTES, data
        elif isinstance(data, str):
            shape, content = ArtifactShape.TEXT, data.encode()
        else:
            shape, content = ArtifactShape.JSON, _json.encode(data)
        stated = messages.ArtifactInput(kind=kind, media_type=media_type, label=label)
        return self._keep(stated, shape, content).reference

    def __getitem__(self, reference: str) -> tuple[ArtifactMeta, Any]:
        """What is known of an artifact, and its payload.

        :raises KeyError: if there is none.
        """
        kept = self._kept[reference]
        meta = read_meta(kept.meta)
        return meta, value_of(meta.shape, kept.content)

    def __iter__(self) -> Any:
        """The references, oldest first."""
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    # --- for rehearsals

    def wanted(self, reference: Any, kind: str) -> WantedArtifact | None:
        """What a tool that wants this kind is handed for a reference; `None` if there is no such artifact."""
        kept = self._kept.get(reference) if isinstance(reference, str) else None
        return None if kept is None or kept.meta.kind != kind else self._found(kept)

    def answer(self, request: OutboundRequest) -> Reply | None:
        """The reply to a request that is about artifacts; `None` for any other.

        :raises ArtifactRefused: if it is refused.
        """
        verb = self._verbs.get(request.WhichOneof("request") or "")
        return None if verb is None else verb(request)

    def _put(self, request: OutboundRequest) -> Reply:
        asked = request.artifact_put
        if not asked.input.kind.strip() or not asked.input.media_type.strip():
            raise _refusals.ArtifactRefused(
                _refusals.ReplyCode.ARTIFACT_INVALID, "An artifact has a kind and a media type, neither of them blank."
            )
        if any(parent not in self._kept for parent in asked.input.parents):
            raise _refusals.ArtifactRefused(
                _refusals.ReplyCode.ARTIFACT_UNKNOWN_PARENT, "Not every parent is an artifact of this test."
            )
        reply = Reply()
        shape = ArtifactShape(asked.data.shape or ArtifactShape.BYTES)
        reply.artifact_stored.meta.CopyFrom(self._keep(asked.input, shape, asked.data.content))
        return reply

    def _head(self, request: OutboundRequest) -> Reply:
        return Reply(artifact_meta=self._at(request.artifact_head.reference).meta)

    def _get(self, request: OutboundRequest) -> Reply:
        reply = Reply()
        reply.artifact.artifact.CopyFrom(self._found(self._at(request.artifact_get.reference)))
        return reply

    def _delete(self, request: OutboundRequest) -> Reply:
        self._kept.pop(request.artifact_delete.reference, None)
        reply = Reply()
        reply.done.SetInParent()
        return reply

    def _list(self, request: OutboundRequest) -> Reply:
        newest = [kept.meta for kept in reversed(self._kept.values())]
        start = int(request.artifact_list.cursor or 0)
        reply = Reply()
        reply.artifact_page.artifacts.extend(newest[start : start + _PAGE])
        if start + _PAGE < len(newest):
            reply.artifact_page.cursor = str(start + _PAGE)
        reply.artifact_page.SetInParent()
        return reply

    def _keep(self, stated: messages.ArtifactInput, shape: ArtifactShape, content: bytes) -> messages.ArtifactMeta:
        meta = messages.ArtifactMeta(
            reference="art_" + "".join(secrets.choice(_ALPHABET) for _ in range(22)),
            kind=stated.kind,
            media_type=stated.media_type,
            size=len(content),
            created_unix_nano=time.time_ns(),
            parents=stated.parents,
        )
        meta.shape = shape.value  # type: ignore[assignment]  # the same numbers
        if stated.HasField("label"):
            meta.label = stated.label
        if stated.digest or stated.HasField("expected_digest"):
            meta.digest = f"sha-256:{hashlib.sha256(content).hexdigest()}"
        if stated.HasField("expires_in"):
            meta.expires_in.CopyFrom(stated.expires_in)
        self._kept[meta.reference] = _Kept(meta, content)
        return meta

    def _at(self, reference: str) -> _Kept:
        kept = self._kept.get(reference)
        if kept is None:
            raise _refusals.ArtifactMissing(_refusals.ReplyCode.ARTIFACT_NOT_FOUND, "There is no such artifact here.")
        return kept

    @staticmethod
    def _found(kept: _Kept) -> WantedArtifact:
        data = messages.ArtifactData(shape=kept.meta.shape, content=kept.content)
        return WantedArtifact(meta=kept.meta, inline=data)
