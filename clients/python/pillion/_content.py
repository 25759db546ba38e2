"""What a tool returns beside or instead of a JSON value: blocks of content for a model or a person, as MCP has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pillion._gen.pillion.v1.outcome_pb2 import ContentAnnotations, ContentBlock


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints on a block. What is `None` or empty is not stated."""

    audience: tuple[str, ...] = ()
    priority: float | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Text."""

    text: str
    hints: Hints | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image."""

    data: bytes
    media_type: str
    hints: Hints | None = None


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound."""

    data: bytes
    media_type: str
    hints: Hints | None = None


@dataclass(frozen=True, slots=True)
class ResourceLink:
    """A link to a resource."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    size: int | None = None
    hints: Hints | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A whole resource: its text, or its bytes."""

    uri: str
    payload: str | bytes
    media_type: str | None = None
    hints: Hints | None = None


Content = Text | Image | Audio | ResourceLink | Resource
"""A block of content."""


def read_content(blocks: Iterable[ContentBlock]) -> tuple[Content, ...]:
    """The blocks of a message. A kind that is not known is left out."""
    return tuple(made for block in blocks if (made := _read(block)) is not None)


def write_content(content: Sequence[Content]) -> list[ContentBlock]:
    """The blocks as messages."""
    return [_written(block) for block in content]


def _read(block: ContentBlock) -> Content | None:
    hints = _hints(block.annotations) if block.HasField("annotations") else None
    kind = block.WhichOneof("block")
    if kind == "text":
        return Text(block.text, hints)
    if kind == "image":
        return Image(block.image.data, block.image.media_type, hints)
    if kind == "audio":
        return Audio(block.audio.data, block.audio.media_type, hints)
    if kind == "resource_link":
        link = block.resource_link
        return ResourceLink(
            link.uri,
            link.name,
            _optional(link, "title"),
            _optional(link, "description"),
            _optional(link, "media_type"),
            _optional(link, "size"),
            hints,
        )
    if kind == "resource":
        resource = block.resource
        payload = resource.text if resource.WhichOneof("payload") == "text" else resource.blob
        return Resource(resource.uri, payload, _optional(resource, "media_type"), hints)
    return None


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _hints(annotations: ContentAnnotations) -> Hints:
    return Hints(
        tuple(annotations.audience), _optional(annotations, "priority"), _optional(annotations, "last_modified")
    )


def _written(content: Content) -> ContentBlock:
    block = ContentBlock()
    if isinstance(content, Text):
        block.text = content.text
    elif isinstance(content, Image | Audio):
        media = block.image if isinstance(content, Image) else block.audio
        media.data = content.data
        media.media_type = content.media_type
    elif isinstance(content, ResourceLink):
        link = block.resource_link
        link.uri, link.name = content.uri, content.name
        for field in ("title", "description", "media_type", "size"):
            value = getattr(content, field)
            if value is not None:
                setattr(link, field, value)
    else:
        block.resource.uri = content.uri
        if isinstance(content.payload, str):
            block.resource.text = content.payload
        else:
            block.resource.blob = content.payload
        if content.media_type is not None:
            block.resource.media_type = content.media_type
    if content.hints is not None:
        block.annotations.SetInParent()
        block.annotations.audience.extend(content.hints.audience)
        for field in ("priority", "last_modified"):
            value = getattr(content.hints, field)
            if value is not None:
                setattr(block.annotations, field, value)
    return block
