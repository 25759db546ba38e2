"""Two people, and those whom they could be confused with."""

from typing import NamedTuple

from sidecar.scope import Owner, Principal, Scope


class Person(NamedTuple):
    """Whom calls are for, and who makes them."""

    name: str
    scope: Scope
    principal: Principal


def person(name: str, owner: Owner, place: str = "session:1") -> Person:
    """A person whose calls come by a principal of the same name."""
    return Person(name, Scope(owner, place), Principal(f"token:{name}", authenticated=True))


ANN = person("ann", Owner("acme", "named:ann"))
BOB = person("bob", Owner("acme", "named:bob"))
ALIKE = tuple(
    person(f"alike{number}", owner)
    for number, owner in enumerate(
        (
            Owner(None, "named:ann"),
            Owner("none", "named:ann"),
            Owner("", "named:ann"),
            Owner("ACME", "named:ann"),
            Owner("acme", "named:Ann"),
            Owner("acme", "caller:ann"),
            Owner("acme/named:ann", ""),
            Owner('acme","named:ann', "x"),
            Owner("_", "named:ann"),
            Owner("%5F", "named:ann"),
            Owner("acme", "named:ann%"),
            Owner("../acme", "named:ann"),
            Owner("\U0001f511", "named:" + "a" * 200),
        )
    )
)
"""None of them is Ann, nor any other of them."""


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now
