"""Pillion: a sidecar that hosts tools written in any language."""

__all__ = ("__version__",)

__version__ = "0.1.0"
