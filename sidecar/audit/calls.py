"""What the audit log holds of calls."""

import time
from collections.abc import Callable
from typing import Final

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome, SideEffects
from sidecar.audit.chain import quoted
from sidecar.audit.log import AuditLog
from sidecar.audit.names import Names
from sidecar.calls.call import Call
from sidecar.calls.outcome import kind_name

_PREFIX: Final = "SIDE_EFFECTS_"
_kind_of: Final = Outcome.WhichOneof
_REMEMBERED: Final = 1_024


class CallAudit:
    """Adds an entry for each call that ends.

    Principals, tenants and subjects stand in it as keyed hashes: the same one reads the same, and nobody without the
    key learns or guesses which. Messages of failures are left out; arguments and results are there only if asked for.
    What others chose is redacted.
    """

    def __init__(
        self,
        log: AuditLog,
        names: Names,
        redact: Callable[[str], str],
        *,
        required: bool,
        arguments: bool,
        results: bool,
    ) -> None:
        self.keeps_arguments = arguments
        """Whether calls are to keep their arguments until they end."""
        self.flush = log.flush
        self._log = log
        self._required = required
        self._results = results
        self._name = names
        self._redact = redact
        self._known: dict[object, str] = {}
        """What is told of a tool, its version and instance, and of whom it ran for."""

    @property
    def refuses(self) -> bool:
        """Whether calls are to be refused, because the log cannot be written."""
        return self._required and self._log.failing

    def ended(self, call: Call, frame: Frame, seconds: float) -> None:
        """A call has the outcome in this frame, so long after its start."""
        self._log.defer(self._members, time.time_ns(), call, frame.outcome, seconds)

    def _members(self, now: int, call: Call, outcome: Outcome, seconds: float) -> str:
        """The entry of a call. Written as text, which takes a third of the time that an encoder does."""
        redact, took = self._redact, format(seconds * 1e3, ".3f")
        told = (
            f'"time_unix_nano":{now},"event":"call","execution":"{call.execution_id}",'
            f'"tool_call":{quoted(redact(call.tool_call_id))},"took_ms":{took},"attempts":{call.attempts}'
            f"{self._who(call)}"
        )
        if call.parent is not None:
            told += f',"parent":"{call.parent.execution_id}"'
        if call.joins:
            told += ',"joined":true'
        if call.resumption is not None:
            told += f',"resumes":"{call.resumption.pause.execution_id}"'
        if call.caller.detaches:
            told += ',"detached":true'
        if call.anchor is not None:
            told += f',"parent_anchor":{{"asserted":{quoted(redact(call.anchor))}}}'
        if call.arguments is not None:
            told += f',"arguments":{quoted(redact(call.arguments.decode(errors="replace")))}'
        return told + self._outcome(outcome)

    def _who(self, call: Call) -> str:
        """What ran, where, and for whom: alike in many calls, so it is remembered."""
        tool, scope = call.tool, call.scope
        if tool is None or scope is None:
            # The name may be anything, and hold what is a secret by now.
            return self._told_of(call)
        key = (tool, call.generation, call.instance_id, call.caller.principal, scope.owner)
        told = self._known.get(key)
        if told is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            told = self._known[key] = self._told_of(call)
        return told

    def _told_of(self, call: Call) -> str:
        caller = self._name("caller", call.caller.principal.name)
        told = f',"tool":{quoted(self._redact(call.tool_name))},"caller":"{caller}"'
        if call.tool is not None:
            told += f',"worker":{quoted(call.tool.workers.name)},"generation":{call.generation}'
        if call.instance_id is not None:
            told += f',"instance":{quoted(call.instance_id)}'
        if call.scope is not None:
            tenant, subject = call.scope.owner
            told += f',"subject":"{self._name("subject", subject)}"'
            if tenant is not None:
                told += f',"tenant":"{self._name("tenant", tenant)}"'
        return told

    def _outcome(self, outcome: Outcome) -> str:
        kind = _kind_of(outcome, "kind")
        if kind == "failure":
            reason = outcome.failure
            effects = SideEffects.Name(reason.side_effects).removeprefix(_PREFIX)
            return f',"outcome":"{kind_name(reason.kind)}","side_effects":"{effects}"'
        if kind == "paused":
            return f',"outcome":"PAUSED","ask":{quoted(self._redact(outcome.paused.ask.kind))}'
        told = ',"outcome":"RESULT"'
        result = outcome.result
        if result.is_error:
            told += ',"is_error":true'
        if self._results:
            told += f',"result":{quoted(self._redact(result.json.decode(errors="replace")))}'
        return told
