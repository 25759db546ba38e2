"""A value that nobody sees by accident."""

import hmac
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

T = TypeVar("T", str, bytes)


class Secret(Generic[T]):
    """Holds a text or bytes that only `reveal` hands out.

    It prints and formats as that it is withheld, wherever it is: in a log line, a traceback, a dataclass around it. It
    refuses to be pickled, copied, hashed, ordered, iterated and made JSON. Two secrets are compared in constant time;
    nothing else equals one, not even its own value.
    """

    __slots__ = ("_reveal",)

    def __init__(self, value: T) -> None:
        # In a closure: what walks over attributes and slots, as serialisers and debuggers' helpers do, finds no value.
        self._reveal: Callable[[], T] = lambda: value

    def reveal(self) -> T:
        """The value itself: to be put where it is used, and nowhere else."""
        return self._reveal()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return False
        return hmac.compare_digest(_bytes(self._reveal()), _bytes(other.reveal()))

    __hash__ = None  # type: ignore[assignment]  # a hash is of the value, and takes as long as the value says

    def __repr__(self) -> str:
        return "<Secret withheld>"

    def __format__(self, _: str) -> str:
        return repr(self)

    def __copy__(self) -> NoReturn:
        raise TypeError("A Secret is not copied; pass it on as it is.")

    def __deepcopy__(self, _: Any) -> NoReturn:
        raise TypeError("A Secret is not copied; pass it on as it is.")

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("A Secret is not serialised; reveal it where it is used.")

    def __getstate__(self) -> NoReturn:
        raise TypeError("A Secret is not serialised; reveal it where it is used.")


def _bytes(value: str | bytes) -> bytes:
    # Of different types, too, two values differ.
    return b"b" + value if isinstance(value, bytes) else b"s" + value.encode("utf-8", "surrogatepass")
