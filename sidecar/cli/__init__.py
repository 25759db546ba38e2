"""The program `pillion`."""

from sidecar.cli.main import main

__all__ = ("main",)
