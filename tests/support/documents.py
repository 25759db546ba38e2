"""The project's documents as the tests read them: tables, code blocks and links of Markdown."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_HEADING = re.compile(r"#+ +(.*)")
_FENCE = "```"


class Block(NamedTuple):
    """A fenced block of code."""

    heading: str
    """The heading it is under, without code marks."""
    language: str
    text: str


@cache
def lines(document: str) -> tuple[str, ...]:
    """The lines of a document, by its path in the repository."""
    return tuple((ROOT / document).read_text("utf-8").splitlines())


def table(document: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading, by column; code marks are taken off."""
    rows: list[list[str]] = []
    inside = False
    for line in lines(document):
        found = _HEADING.fullmatch(line)
        if found:
            if inside:
                break
            inside = _plain(found[1]) == heading
        elif inside and line.startswith("|"):
            rows.append([_plain(cell) for cell in line.strip("|").split("|")])
        elif rows:
            break
    assert len(rows) > 2, f"{document} has no table under {heading!r}"
    head, _, *body = rows
    return [dict(zip(head, row, strict=True)) for row in body]


def blocks(document: str, language: str) -> list[Block]:
    """The fenced blocks of a language."""
    found: list[Block] = []
    heading = ""
    opened: list[str] | None = None
    of = ""
    for line in lines(document):
        if opened is not None:
            if line == _FENCE:
                if of == language:
                    found.append(Block(heading, of, "\n".join(opened) + "\n"))
                opened = None
            else:
                opened.append(line)
        elif line.startswith(_FENCE):
            opened, of = [], line.removeprefix(_FENCE)
        elif match := _HEADING.fullmatch(line):
            heading = _plain(match[1])
    return found


def links(document: str) -> list[str]:
    """The targets of all links."""
    return re.findall(r"\]\(([^)\s]+)\)", "\n".join(lines(document)))


def anchors(document: str) -> set[str]:
    """What a link can point to within a document."""
    headings = [match[1] for line in lines(document) if (match := _HEADING.fullmatch(line))]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _plain(cell: str) -> str:
    return cell.strip().replace("`", "")
