"""Blocks of content that a tool may return beside a value, as MCP has them."""

from pillion._content import Audio, Content, Hints, Image, Resource, ResourceLink, Text

__all__ = ("Audio", "Content", "Hints", "Image", "Resource", "ResourceLink", "Text")
