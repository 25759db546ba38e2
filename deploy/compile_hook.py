"""A hook of hatchling: compiles the modules that every frame of a call passes, so that a call costs a third less CPU.

It is off unless the environment says `HATCH_BUILD_HOOKS_ENABLE=1`, and needs a C compiler. The wheel that comes of it
holds each of these modules twice: compiled by mypyc, which is what Python loads, and as its source.
"""

import ast
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

_GROUP = "sidecar"


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled `modules` of its settings in pyproject.toml, which are paths of sources, to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles them, before the wheel is put together.

        :raises SystemExit: if one has coroutines, or does not type-check, or there is no C compiler.
        """
        del version
        self._built = TemporaryDirectory(prefix="pillion-compiled-")
        directory = Path(self._built.name)
        modules = self.config["modules"]
        for module in modules:
            refuse_coroutines(Path(self.root, module))
        os.chdir(self.root)
        extensions = mypycify(
            ["--ignore-missing-imports", *modules],
            opt_level="2",
            debug_level="0",
            group_name=_GROUP,
            target_dir=str(directory / "c"),
        )
        build = build_ext(Distribution({"name": _GROUP, "ext_modules": extensions}))
        build.build_lib, build.build_temp = str(directory / "lib"), str(directory / "objects")
        build.ensure_finalized()
        build.run()
        for library in (directory / "lib").rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(directory / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Throws away what was compiled, once it is in the wheel."""
        del version, build_data, artifact_path
        self._built.cleanup()


def refuse_coroutines(module: Path) -> None:
    """Ends the build if a module has any: mypyc's do not end as Python's do where they wait for what was cancelled.

    :raises SystemExit: which says where.
    """
    for part in ast.walk(ast.parse(module.read_text())):
        if isinstance(part, ast.AsyncFunctionDef):
            raise SystemExit(f"{module}:{part.lineno}: a compiled module has no coroutines, and {part.name} is one.")
