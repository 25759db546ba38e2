"""How a call ended, as the wire has it, and what it reported on its way."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pillion import _failures, _json
from pillion._artifacts import ArtifactMeta, read_meta
from pillion._content import Content, read_content
from pillion._facts import Secret, SideEffects, TeardownScope
from pillion._gen.pillion.v1 import outcome_pb2


class Result:
    """What a tool returned."""

    __slots__ = ("content", "is_error", "json", "placed")

    def __init__(
        self,
        json: bytes | None = None,
        content: tuple[Content, ...] = (),
        *,
        is_error: bool = False,
        placed: ArtifactMeta | None = None,
    ) -> None:
        self.json = json
        """The value as JSON text, exactly as the tool sent it; `None` where it returned none, which is not `null`."""
        self.content = content
        """Blocks beside the value."""
        self.is_error = is_error
        """The tool's own word that this is an error."""
        self.placed = placed
        """The artifact that holds the value, where it was too large to be passed on; `json` is `None` then."""

    @property
    def value(self) -> Any:
        """The value; `None` where the tool returned `null`, and where it returned none.

        :raises JsonRefused: if the text is not JSON.
        """
        return None if self.json is None else _json.decode(self.json)

    def __repr__(self) -> str:
        size = "no value" if self.json is None else f"{len(self.json)} bytes"
        return f"<Result {size}, {len(self.content)} blocks{', an error' if self.is_error else ''}>"


class Paused:
    """What a paused call asks for."""

    __slots__ = ("kind", "message", "schema_json", "ticket")

    def __init__(self, kind: str, message: str, schema_json: bytes | None, ticket: Secret | None) -> None:
        self.kind = kind
        """`consent`, or a word of the tool's."""
        self.message = message
        """A sentence for a person."""
        self.schema_json = schema_json
        """JSON Schema of the answer, as text, exactly as the tool sent it; `None` for any."""
        self.ticket = ticket
        """What `Host.resume` takes, once. It neither prints nor serialises; `reveal` it to keep it. `None` in a tool
        that made the call: the call that it is in has the ticket."""

    @property
    def schema(self) -> Any:
        """JSON Schema of the answer; `None` for any.

        :raises JsonRefused: if the text is not JSON.
        """
        return None if self.schema_json is None else _json.decode(self.schema_json)

    def __repr__(self) -> str:
        return f"<Paused for {self.kind}>"


Outcome = Result | Paused | _failures.CallFailed
"""How a call ended."""


class Progress:
    """One report of a running tool."""

    __slots__ = ("coalesced", "json", "sequence", "time_unix_nano")

    def __init__(self, json: bytes, coalesced: int, sequence: int, time_unix_nano: int) -> None:
        self.json = json
        """The payload as JSON text, exactly as the tool sent it."""
        self.coalesced = coalesced
        """How many reports were lost just before this one, because somebody was slow to read."""
        self.sequence = sequence
        """Counts what the sidecar sent of the call, from 1."""
        self.time_unix_nano = time_unix_nano
        """When the sidecar handled it, in nanoseconds since the Unix epoch."""

    @property
    def payload(self) -> Any:
        """The payload.

        :raises JsonRefused: if the text is not JSON.
        """
        return _json.decode(self.json)

    @property
    def time(self) -> datetime:
        """The same time, to a microsecond."""
        return datetime.fromtimestamp(self.time_unix_nano / 1e9, UTC)

    def __repr__(self) -> str:
        return f"<Progress {self.sequence}, {len(self.json)} bytes, {self.coalesced} lost before it>"


@dataclass(frozen=True, slots=True)
class RegisteredTeardown:
    """What a running tool keeps for the end of a scope."""

    scope: TeardownScope
    key_digest: str
    """Twelve hexadecimal digits that are the same for all that is kept for that run or session."""
    label: str | None
    """The tool's name of it, for people; not trusted."""
    reused: bool
    """Whether it was kept already."""


def read_outcome(outcome: outcome_pb2.Outcome) -> Outcome:
    """How a call ended, from its last frame."""
    kind = outcome.WhichOneof("kind")
    if kind == "result":
        result = outcome.result
        json = result.json if result.HasField("json") else None
        if not (result.content or result.is_error or result.HasField("placed")):
            return Result(json)
        placed = read_meta(result.placed) if result.HasField("placed") else None
        return Result(json, read_content(result.content), is_error=result.is_error, placed=placed)
    if kind == "failure":
        return _failures.failed(outcome.failure)
    if kind == "paused":
        ask = outcome.paused.ask
        schema = ask.schema if ask.HasField("schema") else None
        ticket = Secret(outcome.paused.ticket) if outcome.paused.HasField("ticket") else None
        return Paused(ask.kind, ask.message, schema, ticket)
    return _failures.InternalFailure(
        "The call ended in a way that this SDK does not know.", side_effects=SideEffects.POSSIBLE
    )


def value_of(outcome: Outcome) -> Any:
    """The value of a result, or the artifact that it was placed in; everything else is raised.

    :raises CallFailed: if the call did not return.
    :raises ErrorResult: if the tool says that its result is an error.
    :raises CallPaused: if the tool waits for an answer.
    """
    if isinstance(outcome, Result):
        if outcome.is_error:
            raise _failures.ErrorResult(outcome)
        return outcome.placed if outcome.json is None else _json.decode(outcome.json)
    if isinstance(outcome, Paused):
        raise _failures.CallPaused(outcome)
    raise _failures.copied(outcome)
