"""The end of a run or a session, as callers and operators ask for it."""

from sidecar._gen.pillion.v1.admin_pb2 import AdminServiceEndScopeRequest
from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import Refusal
from sidecar.calls.ports import EndedScope
from sidecar.calls.request import usable_id
from sidecar.calls.teardowns import Teardowns
from sidecar.doors.access import check_admitted
from sidecar.policy import Policy
from sidecar.scope import Principal, Scope, ScopeKey, scope_of

_KINDS = {
    "run_id": TeardownScope.TEARDOWN_SCOPE_RUN,
    "session_id": TeardownScope.TEARDOWN_SCOPE_SESSION,
}
_ENDING = "ending"


async def end_scope(request: EndScopeRequest, principal: Principal, teardowns: Teardowns, policy: Policy) -> EndedScope:
    """Ends a run or session for a caller.

    :raises Refusal: if the request names none, or policy does not let the caller act for its tenant and subject.
    """
    scope = _scope_of(request, principal)
    check_admitted(policy, principal, scope)
    return await teardowns.end(_key_of(request, scope), principal)


async def end_any_scope(request: AdminServiceEndScopeRequest, operator: Principal, teardowns: Teardowns) -> EndedScope:
    """Ends one for an operator, of any tenant and subject.

    :raises Refusal: if the request names none.
    """
    caller = operator
    if request.HasField("caller_principal"):
        caller = Principal(request.caller_principal, authenticated=True)
    return await teardowns.end(_key_of(request, _scope_of(request, caller)), operator)


def _key_of(request: EndScopeRequest | AdminServiceEndScopeRequest, scope: Scope) -> ScopeKey:
    name = request.WhichOneof("scope")
    fact = getattr(request, name) if name is not None else ""
    if name is None or not usable_id(fact):
        raise _invalid("Name the run_id or the session_id that is to end, in 1 to 256 bytes.")
    return ScopeKey(_KINDS[name], scope.owner, fact)


def _scope_of(request: EndScopeRequest | AdminServiceEndScopeRequest, caller: Principal) -> Scope:
    identity = request.identity
    if not all(usable_id(value) for _, value in identity.ListFields() if value):
        raise _invalid("Each part of an identity has at most 256 bytes.")
    return scope_of(caller, identity, None, None, _ENDING)


def _invalid(message: str) -> Refusal:
    return Refusal(FailureKind.FAILURE_KIND_INVALID_ARGUMENTS, message)
