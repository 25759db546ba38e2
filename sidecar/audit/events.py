"""What the audit log holds beside calls: credentials, what workers were refused, and what operators did."""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason
from sidecar._gen.pillion.v1.worker_pb2 import RefusedTool
from sidecar.audit.chain import quoted
from sidecar.audit.log import AuditLog
from sidecar.audit.names import Names
from sidecar.calls.firing import reason_name, scope_name
from sidecar.calls.paused import PausedCall
from sidecar.calls.ports import EndedScope
from sidecar.credentials.facade import CredentialEvent
from sidecar.scope import UNTIL_THE_STOP, Owner, Principal, Registration, ScopeKey

_MOST_NAMED = 16
_MOST_A_CALL = 16
_CALLS_REMEMBERED = 4_096
_MOST_A_MINUTE = 30
_MINUTE = 60.0


class EventAudit:
    """Adds an entry for each event. Without a log it adds none.

    Principals, tenants and subjects are keyed hashes, as they are of calls. No secret is in what it is told, and what
    others chose, such as names of services and tools, is redacted.
    """

    def __init__(self) -> None:
        self._log: AuditLog | None = None
        self._names: Names = _unnamed
        self._redact: Callable[[str], str] = str
        self._minute = 0.0
        self._told = self._untold = 0
        self._of_calls: OrderedDict[tuple[str, str], int] = OrderedDict()
        """How many entries of credentials each execution has of each kind."""

    def write_to(self, log: AuditLog | None, names: Names, redact: Callable[[str], str]) -> None:
        """Adds entries to this log from now on; `None`: to none."""
        self._log, self._names, self._redact = log, names, redact

    def credential(self, event: CredentialEvent) -> None:
        """A credential was issued, refused or authorised.

        A tool may ask as often as it likes, and is not to push other entries out of the log: of each kind its call has
        16 entries, the last of which says that no more are told.
        """
        if self._log is None:
            return
        number = self._number_of(event) if event.execution is not None else 0
        if number <= _MOST_A_CALL:
            self._log.defer(self._credential, time.time_ns(), event, number == _MOST_A_CALL)

    def refused_tools(self, worker: str, refused: Collection[RefusedTool]) -> None:
        """A worker brought tools that were not admitted, whose names hold no secret."""
        tools = [{"name": tool.name, "reason": tool.reason} for tool in list(refused)[:_MOST_NAMED]]
        self._add("tools_refused", {"worker": worker, "count": len(refused), "tools": tools})

    def refused_worker(self, worker: str, reason: str) -> None:
        """Somebody wanted to be a worker, and was not let in. The name is theirs, and holds no secret.

        Whoever may connect may do so as often as they like, and is not to push other entries out of the log: of those
        beyond 30 a minute the next entry says how many there were.
        """
        now = time.monotonic()
        if now >= self._minute + _MINUTE:
            self._minute, self._told = now, 0
        self._told += 1
        if self._told > _MOST_A_MINUTE:
            self._untold += 1
            return
        untold, self._untold = self._untold, 0
        self._add("worker_refused", {"worker": worker, "reason": reason, "untold": untold})

    def cancelled(self, operator: Principal, execution: str) -> None:
        """An operator asked a call to stop."""
        self._add("call_cancelled", {"execution": execution, **self._by(operator)})

    def followed(self, principal: Principal, execution: str) -> None:
        """Somebody follows a detached call from now on."""
        self._add("call_followed", {"execution": execution, **self._by(principal)})

    def lost_detached(self, execution: str, tool: str) -> None:
        """A detached call ran when the sidecar was killed, and ended with that."""
        self._add("detached_call_lost", {"execution": execution, "tool": self._redact(tool)})

    def shut_down(self, operator: Principal, grace: float | None) -> None:
        """An operator asked the sidecar to stop."""
        self._add("shutdown", {"grace_seconds": grace, **self._by(operator)})

    def reloaded(self, workers: int, changed: Collection[str]) -> None:
        """Other settings are in force."""
        self._add("reloaded", {"workers": workers, "changed": sorted(changed)})

    def fired(self, registration: Registration, reason: "TeardownReason.ValueType") -> None:
        """A cleanup ran, and well."""
        self._teardown("fired", registration, {"reason": reason_name(reason)})

    def failed(self, registration: Registration, reason: "TeardownReason.ValueType", how: str) -> None:
        """A cleanup failed, or what became of it is not known."""
        self._teardown("failed", registration, {"reason": reason_name(reason), "how": how})

    def lost(self, registration: Registration) -> None:
        """The instance that kept a cleanup is gone for good, and the cleanup with it."""
        self._teardown("lost", registration, {"reason": "worker-lost"})

    def pause_ended(self, why: str, paused: PausedCall) -> None:
        """A paused call ended without being resumed: it expired, its scope ended, or the sidecar stopped in it."""
        self._add(
            "pause_ended",
            {
                "why": why,
                "tool": self._redact(paused.pause.tool),
                "execution": paused.pause.execution_id,
                "caller": self._names("caller", paused.caller),
                **self._of(paused.owner),
            },
        )

    def scope_ended(self, key: ScopeKey, by: Principal, ended: EndedScope) -> None:
        """Somebody ended a run or session."""
        self._add(
            "scope_ended",
            {
                "scope": scope_name(key.kind),
                "fired": ended.fired,
                "failed": ended.failed,
                "cancelled": ended.cancelled,
                **self._of(key.owner),
                **self._by(by),
            },
        )

    def _teardown(self, what: str, registration: Registration, facts: Mapping[str, Any]) -> None:
        key = registration.key
        self._add(
            "teardown",
            {
                "what": what,
                "scope": scope_name(key.kind),
                "tool": self._redact(registration.address.tool),
                "worker": registration.worker,
                "instance": registration.instance_id,
                "registration": registration.id,
                **({} if key == UNTIL_THE_STOP else self._of(key.owner)),
                **facts,
            },
        )

    def _of(self, owner: Owner) -> Mapping[str, str]:
        tenant, subject = owner
        told = {"subject": self._names("subject", subject)}
        return told if tenant is None else {**told, "tenant": self._names("tenant", tenant)}

    def _number_of(self, event: CredentialEvent) -> int:
        address = (event.execution or "", event.what)
        number = self._of_calls.pop(address, 0) + 1
        self._of_calls[address] = number
        if len(self._of_calls) > _CALLS_REMEMBERED:
            self._of_calls.popitem(last=False)
        return number

    def _by(self, operator: Principal) -> Mapping[str, str]:
        return {"caller": self._names("caller", operator.name)}

    def _add(self, event: str, facts: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.add(event, facts)

    def _credential(self, now: int, event: CredentialEvent, is_last: bool) -> str:  # noqa: FBT001  # by position, as all that is deferred
        """The entry, written as text: with a need there is one for each call."""
        tenant, subject = event.scope.owner
        told = (
            f'"time_unix_nano":{now},"event":"credential","what":"{event.what}",'
            f'"service":{quoted(self._redact(event.service))},"mode":"{event.mode.name.lower()}",'
            f'"caller":"{self._names("caller", event.principal.name)}","subject":"{self._names("subject", subject)}"'
        )
        if tenant is not None:
            told += f',"tenant":"{self._names("tenant", tenant)}"'
        if event.worker is not None:
            told += f',"worker":{quoted(event.worker)}'
        if event.execution is not None:
            told += f',"execution":"{event.execution}"'
        if event.detail:
            told += f',"detail":"{event.detail}"'
        if is_last:
            told += ',"more_untold":true'
        return told


def _unnamed(_kind: str, _text: str) -> str:
    return ""
