"""How lists are cut into pages, the same for every store.

A cursor is the place of the last artifact that was shown, by its number within the scope: it tells nothing of other
scopes, and stays right whatever comes and goes.
"""

import re

from sidecar.artifacts.port import LARGEST_PAGE

_CURSOR = re.compile(r"[0-9a-f]{1,15}")


def page_size(limit: int) -> int:
    """How many artifacts a page has where so many are asked for."""
    return min(max(limit, 1), LARGEST_PAGE)


def cursor_after(sequence: int) -> str:
    """The cursor that goes on behind the artifact with this number."""
    return f"{sequence:x}"


def sequence_before(cursor: str | None) -> int | None:
    """The number that all of the page are below; `None`, from the newest, also for a text that is no cursor."""
    return int(cursor, 16) if cursor is not None and _CURSOR.fullmatch(cursor) else None
