"""How a tool waits for an answer from outside without holding a slot, and what it goes on from."""

import asyncio
from typing import Any

from pillion import _json
from pillion._failures import CallPaused, PillionError
from pillion._gen.pillion.v1 import context_pb2, outcome_pb2


class Pause(PillionError):
    """Raised by a tool: its call pauses until its caller resumes it with an answer, and the tool is then run again.

    ::

        async def transfer(amount: int, ctx: pillion.ToolContext) -> str:
            if ctx.resume is None:
                raise pillion.Pause(f"Transfer {amount}?", kind="confirm", schema={"type": "boolean"})
            return "done" if ctx.resume.answer is True else "left"

    `message` is a sentence for a person, of at most 4 KiB, and `kind` says what kind of answer is wanted, a word of the
    tool's. `schema` is the JSON Schema of the answer, which nobody holds the answer to: check it. `state` is what the
    tool wants back, a JSON value, or bytes, of at most 64 KiB; it is stored, so it may hold no secret.

    :raises ValueError: if the message is empty.
    :raises JsonRefused: if the state has no JSON form.
    """

    def __init__(self, message: str, *, kind: str = "input", schema: Any = None, state: Any = None) -> None:
        super().__init__(message)
        self.message = str(message)
        if not self.message:
            raise ValueError("A pause needs a message: a sentence for the person who is to answer.")
        self.kind = kind
        self.schema = schema
        self.state = _bytes_of(state)
        """What is kept, as bytes; empty for nothing."""

    def __repr__(self) -> str:
        return f"<Pause for {self.kind}>"


class Resumed:
    """What a call goes on from: the state that its tool paused with, and the answer to the pause."""

    __slots__ = ("answer_json", "state_bytes")

    def __init__(self, state: bytes, answer: bytes) -> None:
        self.state_bytes = state
        """The state as bytes; empty where the tool kept none."""
        self.answer_json = answer
        """The answer as JSON text, exactly as the caller sent it; empty where it sent none. Not trusted."""

    @property
    def state(self) -> Any:
        """The state; `None` where the tool kept none.

        :raises JsonRefused: if the tool kept bytes that are not JSON.
        """
        return _json.decode(self.state_bytes) if self.state_bytes else None

    @property
    def answer(self) -> Any:
        """The answer; `None` where it is `null`, and where there is none. Not trusted."""
        return _json.decode(self.answer_json) if self.answer_json else None

    def __repr__(self) -> str:
        return f"<Resumed with {len(self.state_bytes)} bytes of state, {len(self.answer_json)} of answer>"


def pause_in(error: BaseException) -> outcome_pb2.Paused | None:
    """What the call of a tool that raised this waits for; `None`: it does not wait.

    One that another tool waits for, whose call is within this one, is this one's too. Of several the first counts.
    """
    if isinstance(error, Pause):
        paused = outcome_pb2.Paused(state=error.state or None)
        paused.ask.kind, paused.ask.message = error.kind, error.message
        if error.schema is not None:
            paused.ask.schema = _json.encode(error.schema)
        return paused
    if isinstance(error, CallPaused):
        said = error.paused
        if said.ticket is not None:
            # Of a call of its own, through another connection: only whoever has the ticket can answer it.
            return None
        paused = outcome_pb2.Paused()
        paused.ask.kind, paused.ask.message = said.kind, said.message
        if said.schema_json is not None:
            paused.ask.schema = said.schema_json
        return paused
    if isinstance(error, BaseExceptionGroup):
        rest = error.split((Pause, CallPaused, asyncio.CancelledError))[1]
        if rest is None:
            found = [pause for one in error.exceptions if (pause := pause_in(one)) is not None]
            return found[0] if found else None
    return None


def resumed_of(message: context_pb2.ToolContext) -> Resumed | None:
    """What a call goes on from; `None`: it is new."""
    return Resumed(message.resume.state, message.resume.answer) if message.HasField("resume") else None


def resumption_of(resume: Pause, answer: Any) -> context_pb2.Resume:
    """What a tool that paused so is told with this answer."""
    return context_pb2.Resume(state=resume.state, answer=b"" if answer is None else _json.encode(answer))


def _bytes_of(state: Any) -> bytes:
    if state is None:
        return b""
    return state if isinstance(state, bytes) else _json.encode(state)
