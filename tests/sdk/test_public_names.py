import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import pillion
from pillion import errors


def modules(package: ModuleType) -> Iterator[ModuleType]:
    yield package
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not any(part.startswith("_") for part in found.name.split(".")[1:]):
            yield importlib.import_module(found.name)


PUBLIC = list(modules(pillion))


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_a_public_module_says_what_is_public(module: ModuleType) -> None:
    names = module.__all__
    assert isinstance(names, tuple)
    assert list(names) == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(module, name)
    others = {name for name, value in vars(module).items() if isinstance(value, ModuleType)} - set(names)
    assert {name for name in vars(module) if not name.startswith("_")} - others == set(names)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_everything_public_says_what_it_is(module: ModuleType) -> None:
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, type):
            assert value.__doc__, name


def test_the_tree_of_errors_is_drawn_whole() -> None:
    drawn = set((errors.__doc__ or "").replace(",", " ").replace("`", " ").split())
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert name in drawn, name


def test_every_error_of_the_package_is_public() -> None:
    def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
        for subclass in cls.__subclasses__():
            yield subclass
            yield from subclasses(subclass)

    for cls in subclasses(errors.PillionError):
        if cls.__module__.startswith("pillion.") and cls is not pillion.PeerError:
            assert getattr(errors, cls.__name__) is cls
