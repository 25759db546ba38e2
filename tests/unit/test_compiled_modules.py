"""The modules that a wheel holds compiled keep to what a compiled module may be."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.compile_hook import refuse_coroutines

ROOT = Path(__file__).parents[2]


def modules() -> list[Path]:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    return [Path(path) for path in hook["custom"]["modules"]]


def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def classes(module: ast.Module) -> Iterator[ast.ClassDef]:
    return (part for part in ast.walk(module) if isinstance(part, ast.ClassDef))


@pytest.mark.parametrize("path", modules(), ids=str)
def test_a_compiled_module_has_no_coroutines(path: Path) -> None:
    refuse_coroutines(ROOT / path)


def test_a_module_with_a_coroutine_is_refused_with_its_place(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("class Some:\n    async def wait(self) -> None: ...\n")
    with pytest.raises(SystemExit, match=r"module\.py:2: a compiled module has no coroutines, and wait is one\."):
        refuse_coroutines(module)


def test_a_compiled_class_has_no_subclass_that_is_not_compiled() -> None:
    compiled = set(modules())
    natives = {part.name for path in compiled for part in classes(parsed(path))}
    sources = {path.relative_to(ROOT) for path in (ROOT / "sidecar").rglob("*.py") if "_gen" not in path.parts}
    derived = {
        part.name
        for path in sources - compiled
        for part in classes(parsed(path))
        for base in part.bases
        if isinstance(base, ast.Name) and base.id in natives
    }
    assert derived == set()
    assert {"Call", "Lane", "Instance"} <= natives
