"""Calls that have paused: what is kept of them until they are resumed."""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sidecar._gen.pillion.v1.context_pb2 import ToolContext
from sidecar.scope import Owner


class Pause(NamedTuple):
    """Where one tool paused, with the calls that it had made and that had paused themselves."""

    tool: str
    digest: bytes
    """Of its arguments, byte for byte: see `digest_of_arguments`."""
    execution_id: str
    """The execution that its `call` teardowns are kept under: the first of those that paused one after the other."""
    ask: bytes
    """The serialised `Ask`."""
    state: bytes | None = None
    """What the tool kept; `None`: it has not run yet."""
    answer: bytes = b""
    """An answer that the tool has not been given yet."""
    waits_for_consent: bool = False
    """Whether it paused before its tool ran, for a person to authorise a service."""
    inner: tuple["Pause", ...] = ()

    def to_bytes(self) -> bytes:
        """All of it as bytes."""
        return json.dumps(_members(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Pause":
        """What `to_bytes` made."""
        return _read(json.loads(data))

    def execution_ids(self) -> Iterator[str]:
        """The executions that `call` teardowns of it and of what it made are kept under."""
        yield self.execution_id
        for inner in self.inner:
            yield from inner.execution_ids()


class PausedCall(NamedTuple):
    """A call of a caller that has paused, as it is stored."""

    ticket_digest: bytes
    caller: str
    """The principal that may resume it."""
    owner: Owner
    run_id: str | None
    session_id: str | None
    start: bytes
    """The serialised `Start` that it may be run by again: its facts and arguments."""
    pause: Pause
    expires_at: float
    """In seconds since the Unix epoch."""
    is_used: bool = False
    """Whether it was resumed. It is remembered for who resumes it once more with the same idempotency key."""


class Resumption:
    """What a call goes on from. A caller's call uses up a ticket by it."""

    __slots__ = ("answer", "answered", "is_claimed", "is_replaced", "pause", "ticket_digest")

    def __init__(self, pause: Pause, answer: bytes, ticket_digest: bytes | None = None) -> None:
        self.pause = pause
        self.answer = answer
        self.ticket_digest = ticket_digest
        """`None`: another call made it."""
        self.is_claimed = ticket_digest is None
        """Whether nobody else may go on from there any more."""
        self.is_replaced = False
        """Whether the call has paused once more, by another ticket."""
        asked = [inner for inner in pause.inner if inner.ask == pause.ask] or pause.inner
        self.answered = asked[-1] if asked else None
        """The inner call that the answer is for as well."""

    @property
    def told(self) -> tuple[bytes, bytes] | None:
        """State and answer, as the tool is told; `None`: it runs for the first time."""
        pause = self.pause
        if pause.state is None:
            return None
        return pause.state, pause.answer if pause.waits_for_consent else self.answer

    def tell(self, context: ToolContext) -> None:
        """Puts state and answer into what the tool is told of its call."""
        if (told := self.told) is not None:
            context.resume.state, context.resume.answer = told


def digest_of_arguments(arguments: bytes) -> bytes:
    """What tells arguments apart."""
    return hashlib.sha256(arguments).digest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _members(pause: Pause) -> dict[str, Any]:
    return {
        "tool": pause.tool,
        "digest": _text(pause.digest),
        "execution": pause.execution_id,
        "ask": _text(pause.ask),
        "state": None if pause.state is None else _text(pause.state),
        "answer": _text(pause.answer),
        "consent": pause.waits_for_consent,
        "inner": [_members(inner) for inner in pause.inner],
    }


def _read(members: Any) -> Pause:
    return Pause(
        members["tool"],
        base64.b64decode(members["digest"]),
        members["execution"],
        base64.b64decode(members["ask"]),
        None if members["state"] is None else base64.b64decode(members["state"]),
        base64.b64decode(members["answer"]),
        members["consent"],
        tuple(_read(inner) for inner in members["inner"]),
    )
