"""A worker whose tools share a database in memory for as long as a session lasts.

The sidecar brings every call of a session to the process that has its database (`holds`), and has it closed when the
session ends (`on_teardown`).
"""

import logging
import os
import sqlite3
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Annotated

from database import Database, Refused, Value
from pydantic import BaseModel, Field

import pillion

SESSION = pillion.TeardownScope.SESSION
NONE = pillion.SideEffects.NONE
ROWS = 1_000

log = logging.getLogger("workspace")
workspaces: dict[str, Database] = {}
opening = threading.Lock()


class Answer(BaseModel):
    """What every tool says beside its result: which process it ran in."""

    process: int = Field(default_factory=os.getpid)


class Engine(Answer):
    """What the tables are kept by."""

    sqlite: str


class Opened(Answer):
    """A table that was made."""

    table: str
    rows: int


class Found(Answer):
    """What a query found."""

    columns: list[str]
    rows: list[list[Value]]
    more: bool


class Changed(Answer):
    """What became of a change."""

    rows: int
    kept: bool


class Handed(Answer):
    """A table that was handed out."""

    reference: str
    rows: int


def workspace_of(ctx: pillion.ToolContext) -> Database:
    """The database of the call's session, which is closed with it."""
    key = ctx.session_key(SESSION)
    if key is None:
        raise pillion.ToolError("Name the session that the tables are to be kept for.")
    # In each call: it is closed by the first, and that the session is in use is told by all.
    ctx.wait(ctx.on_teardown(partial(close, key), scope=SESSION, label="workspace"))
    with opening:
        if key not in workspaces:
            workspaces[key] = Database()
        return workspaces[key]


def close(key: str, reason: pillion.TeardownReason) -> None:
    """Closes a session's database, if it has one still."""
    with opening:
        database = workspaces.pop(key, None)
    if database is not None:
        tables = ", ".join(database.tables())
        database.close()
        log.info("closed the workspace of session %s (%s): %s", key, reason.name, tables)


@pillion.tool(title="Say where it runs", effects=pillion.READ)
def engine() -> Engine:
    """Says which SQLite this is, and in which process."""
    return Engine(sqlite=sqlite3.sqlite_version)


@pillion.tool(title="Open a CSV file", effects=pillion.IDEMPOTENT, timeout=60, wants={"data": "csv"}, holds=SESSION)
def open_csv(
    data: Annotated[Path, Field(description="The reference of the CSV file.")],
    ctx: pillion.ToolContext,
    table: Annotated[str, Field(description="What to call the table.")] = "data",
) -> Opened:
    """Makes a table of a CSV file, for the queries of this session. Use it before the first of them."""

    def report(rows: int) -> None:
        ctx.raise_if_cancelled()
        ctx.progress({"message": f"read {rows:,} rows"})

    try:
        rows = workspace_of(ctx).load(table, data, report)
    except (Refused, UnicodeDecodeError) as refused:
        raise pillion.ToolError(str(refused), side_effects=NONE) from None
    return Opened(table=table, rows=rows)


@pillion.tool(title="Query with SQL", effects=pillion.READ, timeout=60, holds=SESSION)
def query(
    sql: Annotated[str, Field(description="One SELECT, as SQLite understands it.")],
    ctx: pillion.ToolContext,
    most: Annotated[int, Field(ge=1, le=ROWS, description="How many rows at most.")] = 100,
) -> Found:
    """Answers a question about the tables that this session has opened. It changes nothing."""
    try:
        columns, rows, more = workspace_of(ctx).query(sql, most, lambda: ctx.cancelled)
    except Refused as refused:
        ctx.raise_if_cancelled()
        raise pillion.ToolError(str(refused)) from None
    return Found(columns=columns, rows=rows, more=more)


@pillion.tool(title="Change rows with SQL", timeout=60, holds=SESSION)
def change(
    sql: Annotated[str, Field(description="One INSERT, UPDATE or DELETE.")], ctx: pillion.ToolContext
) -> Changed:
    """Changes rows of this session's tables, once the person who called has agreed to their number."""
    if not ctx.caller.can("elicitation/create"):
        raise pillion.ToolError("Nobody can be asked, and nothing is changed without.", side_effects=NONE)
    database = workspace_of(ctx)
    try:
        rows = database.change(sql, None, lambda: ctx.cancelled)
        answer = ctx.wait(
            ctx.caller.elicit(
                f"This changes {rows:,} rows. Keep that?",
                {"type": "object", "properties": {"keep": {"type": "boolean"}}, "required": ["keep"]},
            )
        )
        kept = answer.action == "accept" and answer.content["keep"] is True
        if kept:
            database.change(sql, rows, lambda: ctx.cancelled)
    except Refused as refused:
        ctx.raise_if_cancelled()
        raise pillion.ToolError(str(refused), side_effects=NONE) from None
    return Changed(rows=rows, kept=kept)


@pillion.tool(title="Hand a table out", timeout=60, holds=SESSION)
def hand_out(
    table: Annotated[str, Field(description="The table.")],
    ctx: pillion.ToolContext,
) -> Handed:
    """Puts a table as a CSV artifact, after somebody has approved; that may take days, and occupies nothing here."""
    database = workspace_of(ctx)
    try:
        rows = database.size(table)
        if ctx.resume is None:
            question = f"Hand out {rows:,} rows of {table}?"
            raise pillion.Pause(question, kind="approval", schema={"type": "boolean"}, state={"rows": rows})
        if ctx.resume.answer is not True:
            raise pillion.ToolError("It was not approved.", side_effects=NONE)
        if rows != ctx.resume.state["rows"]:
            raise pillion.ToolError("The table has changed since this was asked.", side_effects=NONE)
        with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as file:
            database.save(table, file)
            file.flush()
            put = ctx.artifacts.put(Path(file.name), kind="csv", media_type="text/csv", label=f"{table}.csv")
            meta = ctx.wait(put)
    except Refused as refused:
        raise pillion.ToolError(str(refused), side_effects=NONE) from None
    return Handed(reference=meta.reference, rows=rows)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # The sidecar that starts this program says where it is, and with which token to attach.
    pillion.run_worker([engine, open_csv, query, change, hand_out], concurrency=8)
