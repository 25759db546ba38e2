"""What the audit log holds of calls."""

import hmac
from functools import lru_cache
from typing import Any

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Outcome, SideEffects
from sidecar.audit.log import AuditLog
from sidecar.calls.call import Call
from sidecar.calls.outcome import kind_name

_REMEMBERED = 1_024
_PURPOSE = b"pillion audit name "
_PREFIX = "SIDE_EFFECTS_"
_has = Outcome.HasField


class CallAudit:
    """Adds an entry for each call that ends.

    Principals, tenants and subjects stand in it as keyed hashes: the same one reads the same, and nobody without the
    key learns or guesses which. Messages of failures are left out; arguments and results are there only if asked for.
    """

    def __init__(self, log: AuditLog, key: bytes, *, required: bool, arguments: bool, results: bool) -> None:
        self.keeps_arguments = arguments
        """Whether calls are to keep their arguments until they end."""
        self.flush = log.flush
        self._log = log
        self._required = required
        self._results = results
        self._name = lru_cache(_REMEMBERED)(_Names(key))

    @property
    def refuses(self) -> bool:
        """Whether calls are to be refused, because the log cannot be written."""
        return self._required and self._log.failing

    def ended(self, call: Call, frame: Frame, seconds: float) -> None:
        """A call has the outcome in this frame, so long after its start."""
        outcome = frame.outcome
        facts: dict[str, Any] = {
            "execution": call.execution_id,
            "tool_call": call.tool_call_id,
            "tool": call.tool_name,
            "caller": self._name("caller", call.caller.principal.name),
            "took_ms": round(seconds * 1e3, 3),
            "attempts": call.attempts,
        }
        if call.tool is not None:
            facts["worker"] = call.tool.workers.name
            facts["generation"] = call.generation
        if call.instance_id is not None:
            facts["instance"] = call.instance_id
        if call.scope is not None:
            owner = call.scope.owner
            if owner.tenant is not None:
                facts["tenant"] = self._name("tenant", owner.tenant)
            facts["subject"] = self._name("subject", owner.subject)
        if call.joins:
            facts["joined"] = True
        if call.anchor is not None:
            facts["parent_anchor"] = {"asserted": call.anchor}
        if _has(outcome, "failure"):
            reason = outcome.failure
            facts["outcome"] = kind_name(reason.kind)
            facts["side_effects"] = SideEffects.Name(reason.side_effects).removeprefix(_PREFIX)
        else:
            facts["outcome"] = "RESULT"
            if outcome.result.is_error:
                facts["is_error"] = True
            if self._results:
                facts["result"] = outcome.result.json.decode(errors="replace")
        if call.arguments is not None:
            facts["arguments"] = call.arguments.decode(errors="replace")
        self._log.add("call", facts)


class _Names:
    """Keyed hashes of names."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, kind: str, name: str) -> str:
        return hmac.digest(self._key, _PURPOSE + f"{kind} {name}".encode(errors="surrogatepass"), "sha256")[:16].hex()
