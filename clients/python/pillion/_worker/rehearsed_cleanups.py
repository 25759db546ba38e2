"""What a tool registers for the ends of scopes where there is no sidecar."""

import asyncio
import hashlib
import inspect
from dataclasses import dataclass
from typing import Any

from pillion import _json, _refusals
from pillion._facts import TeardownReason, TeardownScope
from pillion._gen.pillion.v1 import context_pb2
from pillion._gen.pillion.v1.outbound_pb2 import TeardownAccepted
from pillion._gen.pillion.v1.worker_pb2 import RegisterTeardown
from pillion._worker.context import ToolContext
from pillion._worker.port import Cleanup

_ENDS = {
    TeardownScope.CALL: TeardownReason.CALL_END,
    TeardownScope.RUN: TeardownReason.RUN_END,
    TeardownScope.SESSION: TeardownReason.SESSION_END,
    TeardownScope.SHUTDOWN: TeardownReason.SHUTDOWN,
}
_FACTS = {TeardownScope.RUN: "run_id", TeardownScope.SESSION: "session_id"}
_KEY_DIGITS = 12


@dataclass(slots=True)
class RegisteredCleanup:
    """What a tool has registered for the end of a scope."""

    tool: str
    scope: TeardownScope
    key: str | None
    """What `ToolContext.session_key` answers."""
    cleanup: Cleanup
    """The first that was registered; it is the one that runs."""
    name: str | None
    label: str | None
    cleanup_call: tuple[str, Any] | None
    """The tool, and its arguments."""
    count: int = 1
    """How many times it was registered."""

    @property
    def address(self) -> tuple[object, ...]:
        """What it shares with another that is the same again."""
        return self.tool, self.scope, self.key, self.name


def open_scopes(message: context_pb2.ToolContext) -> None:
    """Has a context name the scopes that a sidecar would honour, and the keys to pool under."""
    for scope in TeardownScope:
        fact = _FACTS.get(scope)
        if fact is None:
            message.teardown_scopes.scopes.append(scope.value)  # type: ignore[arg-type]  # the same numbers
        elif value := getattr(message, fact):
            message.teardown_scopes.scopes.append(scope.value)  # type: ignore[arg-type]  # the same numbers
            digest = hashlib.sha256(f"{fact} {value}".encode()).hexdigest()[:_KEY_DIGITS]
            message.session_keys.add(scope=scope.value, digest=digest)


def register(
    cleanups: list[RegisteredCleanup], context: ToolContext, registration: RegisterTeardown, cleanup: Cleanup
) -> TeardownAccepted:
    """Adds a cleanup to those there are.

    :raises TeardownRefused: if the context does not have its scope.
    """
    scope = TeardownScope(registration.scope)
    if scope not in (context.teardown_scopes or ()):
        raise _not_honoured(scope)
    called = registration.cleanup_call
    made = RegisteredCleanup(
        tool=context.tool,
        scope=scope,
        key=context.session_key(scope),
        cleanup=cleanup,
        name=registration.name if registration.HasField("name") else None,
        label=registration.label if registration.HasField("label") else None,
        cleanup_call=(called.tool, _json.decode(called.arguments or b"{}")) if called.tool else None,
    )
    for number, standing in enumerate(cleanups, 1):
        if standing.address == made.address:
            standing.count += 1
            return TeardownAccepted(registration_id=str(number), reused=True, count=standing.count)
    cleanups.append(made)
    return TeardownAccepted(registration_id=str(len(cleanups)), count=1)


async def tear_down(cleanups: list[RegisteredCleanup], scope: TeardownScope, reason: TeardownReason | None) -> int:
    """Runs those of a scope, newest first, and takes each out before it runs. Answers how many there were."""
    due = [registered for registered in cleanups if registered.scope is scope]
    for registered in reversed(due):
        cleanups.remove(registered)
        await _clean(registered.cleanup, reason or _ENDS[scope])
    return len(due)


async def _clean(cleanup: Cleanup, reason: TeardownReason) -> None:
    if inspect.iscoroutinefunction(cleanup):
        await cleanup(reason)
        return
    answer = await asyncio.to_thread(cleanup, reason)
    if inspect.isawaitable(answer):
        await answer


def _not_honoured(scope: TeardownScope) -> _refusals.TeardownRefused:
    fact = _FACTS.get(scope)
    if fact is not None:
        return _refusals.TeardownRefused(
            _refusals.ReplyCode.TEARDOWN_FACT_MISSING, f"The call names no {fact}: pass {fact}=."
        )
    return _refusals.TeardownRefused(
        _refusals.ReplyCode.TEARDOWN_SCOPE_UNSUPPORTED, f"The scope {scope.name} is not honoured in this test."
    )
