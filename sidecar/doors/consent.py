"""Takes what a person was sent back with, after they authorised a service."""

from typing import Protocol

from sidecar._gen.pillion.v1.execute_pb2 import CompleteConsentRequest
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.outcome import Refusal
from sidecar.credentials.port import NOT_BEGUN, CredentialFailed, CredentialUnconfigured
from sidecar.credentials.secret import Secret
from sidecar.doors.access import check_admitted
from sidecar.policy import Policy
from sidecar.scope import Principal, Scope, scope_of

_QUERY_BYTES = 65_536
_FACT_BYTES = 256
_SERVICE_BYTES = 128
_RETRY_AFTER = 1.0
_NO_EXECUTION = ""


class Consents(Protocol):
    """Takes up authorisations that were begun."""

    async def complete(self, scope: Scope, principal: Principal, service: str, callback_query: Secret[str]) -> None:
        """Takes the query of the address that a person was sent back to. The login is synced on return.

        :raises CredentialFailed: if it answers no authorisation that this principal began for this subject.
        """
        ...


async def complete_consent(
    request: CompleteConsentRequest, principal: Principal, consents: Consents, policy: Policy
) -> None:
    """Completes an authorisation for the subject that the request names.

    :raises Refusal: if policy does not let the caller act for it, or it is the answer to nothing that the caller began
        for it. Whether there is such a service is not told apart.
    """
    query = request.callback_query
    if len(query.encode()) > _QUERY_BYTES:
        raise Refusal(FailureKind.FAILURE_KIND_INVALID_ARGUMENTS, f"callback_query is over {_QUERY_BYTES:,} bytes.")
    for field, value in request.identity.ListFields():
        if len(value.encode()) > _FACT_BYTES:
            raise Refusal(
                FailureKind.FAILURE_KIND_INVALID_ARGUMENTS, f"identity.{field.name} is over {_FACT_BYTES} bytes."
            )
    if len(request.service.encode()) > _SERVICE_BYTES:
        raise Refusal(FailureKind.FAILURE_KIND_INVALID_ARGUMENTS, f"service is over {_SERVICE_BYTES} bytes.")
    scope = scope_of(principal, request.identity, None, None, _NO_EXECUTION)
    check_admitted(policy, principal, scope)
    try:
        await consents.complete(scope, principal, request.service, Secret(query))
    except CredentialFailed as failed:
        raise Refusal(
            FailureKind.FAILURE_KIND_CREDENTIAL_UNAVAILABLE,
            NOT_BEGUN if isinstance(failed, CredentialUnconfigured) else str(failed),
            retryable=failed.retryable,
            retry_after=_RETRY_AFTER if failed.retryable else None,
        ) from None
