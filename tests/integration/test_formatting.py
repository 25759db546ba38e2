"""`make fmt` formats the code of every language."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.support.programs import ROOT

SPOILT = {
    "proto/pillion/v1/frame.proto": ("message Frame {", "message   Frame {"),
    "clients/python/examples/bare/caller.py": ("import sys\n", "import   sys\n"),
    "clients/go/examples/bare/caller/main.go": ("\tdefer connection", "defer   connection"),
    "clients/rust/examples/bare/main.rs": ("    let arguments", "let   arguments"),
    "clients/typescript/examples/bare/caller.ts": ("    channel.close();", "channel.close()"),
}
"""By file: what is right in it, and what is put in its place."""


@pytest.mark.usefixtures("examples")
async def test_make_fmt_formats_what_was_written_in_every_language(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path)
    for name in ("proto", "clients"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("node_modules", "dist", "target", "__pycache__")
        )
    installed = (".venv", ".tools", "clients/typescript/node_modules")
    for name in installed:
        (tmp_path / name).symlink_to(ROOT / name)
    for name, (right, wrong) in SPOILT.items():
        text = (ROOT / name).read_text()
        assert text.count(right) == 1, name
        (tmp_path / name).write_text(text.replace(right, wrong))

    # Nothing of what is installed is to be made anew for a copy.
    old = ("-o", ".venv/.stamp", "-o", "clients/typescript/node_modules/.stamp")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    make = await asyncio.create_subprocess_exec("make", *old, "fmt", cwd=tmp_path, env=environment)
    assert await make.wait() == 0

    for name in SPOILT:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), name
