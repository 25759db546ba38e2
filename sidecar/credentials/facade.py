"""The one door to credentials: grants, providers, freshness and redaction behind one question."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol
from urllib.parse import parse_qsl

from sidecar.credentials.freshness import Ask, CredentialLimits, Freshness, FreshnessStatistics
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.port import (
    Answer,
    Consenting,
    CredentialDenied,
    CredentialFailed,
    CredentialRefused,
    CredentialUnconfigured,
    Issued,
    Mode,
    Need,
    Provider,
    ProviderDown,
    Request,
)
from sidecar.credentials.redactor import Redactor, RedactorFull
from sidecar.credentials.secret import Secret
from sidecar.scope import Owner, Principal, Scope

_CLOSING = 5.0
_MOST_PARAMETERS = 32


class Resource(Protocol):
    """What providers use, such as connections."""

    async def aclose(self) -> None:
        """Gives back what it holds. Again: does nothing."""
        ...


class CredentialEvent(NamedTuple):
    """What happened to one question, for the audit. It holds no secret."""

    what: Literal["issued", "authorization_required", "denied", "failed", "authorized"]
    service: str
    mode: Mode
    scope: Scope
    principal: Principal
    worker: str | None
    """The worker set that asked; none where a caller handed in an authorisation."""
    detail: str
    """The kind of what was issued, or the class of the failure."""
    execution: str | None
    """The execution that asked, where one did."""


class _Key(NamedTuple):
    """What one credential is remembered by. Never of two tenants or subjects."""

    owner: Owner
    need: Need
    user_token: bytes | None


class Credentials:
    """Issues credentials to workers, for the calls of one event loop."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        resources: Sequence[Resource] = (),
        redactor: Redactor | None = None,
        limits: CredentialLimits | None = None,
        clock: Callable[[], float] = time.time,
        report: Callable[[CredentialEvent], None] = lambda _: None,
    ) -> None:
        """`providers`: by service. `resources`: what they use; closed with this. `report`: is told of each question."""
        self.redactor = redactor or Redactor()
        """Knows what was issued, and takes it out of what is written down."""
        self._providers = providers
        self._limits = limits or CredentialLimits()
        self._freshness = Freshness(self._limits, clock=clock)
        self._report = report
        self._resources = tuple(resources)

    def statistics(self) -> FreshnessStatistics:
        """What is remembered, and what is asked for now."""
        return self._freshness.statistics()

    def configured_for(self, grant: CredentialGrant) -> bool:
        """Whether there is any credential that a worker with this grant may be issued."""
        return any(
            grant.permits(service, mode) for service, provider in self._providers.items() for mode in provider.modes
        )

    def at_once(
        self,
        scope: Scope,
        principal: Principal,
        need: Need,
        *,
        grant: CredentialGrant,
        user_token: Secret[str] | None = None,
        execution: str | None = None,
    ) -> Issued | None:
        """The credential, if it is remembered and good. Else `resolve` answers.

        :raises CredentialFailed: as `resolve` does, where no provider need be asked for that.
        """
        request = self._request(scope, principal, need, user_token, execution, force_refresh=False)
        provider = self._admitted(request, grant)
        if not provider.keeps_for:
            return None
        issued = self._freshness.at_once(_key_of(request, provider), provider.keeps_for, _ask(provider, request))
        if issued is not None:
            self._issued(request, issued, grant)
        return issued

    async def resolve(
        self,
        scope: Scope,
        principal: Principal,
        need: Need,
        *,
        grant: CredentialGrant,
        force_refresh: bool = False,
        user_token: Secret[str] | None = None,
        execution: str | None = None,
    ) -> Answer:
        """A credential for the scope's tenant and subject, or that a person must authorise the service first.

        A remembered one that is good is answered without waiting for anything. With `force_refresh` it must not do.
        Its secrets are redacted from now on. Who waits may be cancelled; what was begun goes on.

        :raises CredentialFailed: if there is none; its class says why, its text what would work.
        """
        request = self._request(scope, principal, need, user_token, execution, force_refresh=force_refresh)
        provider = self._admitted(request, grant)
        try:
            if provider.keeps_for:
                key, ask = _key_of(request, provider), _ask(provider, request)
                answer = await self._freshness.get(key, provider.keeps_for, ask, forced=force_refresh)
            else:
                answer = await self._asked(provider, request)
            if isinstance(answer, Issued):
                self._issued(request, answer, grant)
                return answer
            self._look_for((answer.url,))
        except CredentialFailed as error:
            self._tell("failed", request, grant.worker, type(error).__name__)
            raise
        self._tell("authorization_required", request, grant.worker, "")
        return answer

    async def complete(self, scope: Scope, principal: Principal, service: str, callback_query: Secret[str]) -> None:
        """Takes the query of the address that a person was sent back to. The login is synced on return.

        :raises CredentialFailed: if it answers no authorisation that this principal began for this subject.
        """
        try:
            need, provider = await self._completed(scope, principal, service, callback_query)
        except CredentialFailed as error:
            request = self._request(scope, principal, Need(service, (), Mode.USER), None, None, force_refresh=False)
            self._tell("failed", request, None, type(error).__name__)
            raise
        request = self._request(scope, principal, need, None, None, force_refresh=False)
        self._freshness.forget(_key_of(request, provider))
        self._tell("authorized", request, None, "")

    async def _completed(
        self, scope: Scope, principal: Principal, service: str, callback_query: Secret[str]
    ) -> tuple[Need, Provider]:
        """What is issued from now on, and who issues it."""
        provider = self._providers.get(service)
        if not isinstance(provider, Consenting):
            raise CredentialUnconfigured(_none_such(service))
        try:
            pairs = parse_qsl(
                callback_query.reveal().lstrip("?"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS
            )
        except ValueError:
            pairs = []
        callback = dict(pairs)
        if len(callback) < len(pairs) or not callback:
            raise CredentialRefused("That is no query of an address; pass on what comes after its question mark.")
        return await provider.complete(scope, principal, callback), provider

    async def aclose(self) -> None:
        """Lets what is under way finish, for a while, and closes the resources. Closing again does nothing."""
        await self._freshness.aclose(_CLOSING)
        for resource in self._resources:
            await resource.aclose()

    def _request(
        self,
        scope: Scope,
        principal: Principal,
        need: Need,
        user_token: Secret[str] | None,
        execution: str | None,
        *,
        force_refresh: bool,
    ) -> Request:
        scopes = tuple(sorted(set(need.scopes)))
        return Request(scope, principal, need._replace(scopes=scopes), force_refresh, user_token, execution)

    def _admitted(self, request: Request, grant: CredentialGrant) -> Provider:
        """The provider of what the worker may be issued. A worker learns of no other services."""
        need = request.need
        mode = need.mode.name.lower()
        if not self._providers:
            # There is nothing that a worker could learn of.
            self._tell("failed", request, grant.worker, CredentialUnconfigured.__name__)
            raise CredentialUnconfigured(
                "This sidecar has no credentials; add a [[credential]] to its settings, and name it in the "
                f"credentials of worker {grant.worker}."
            )
        if not grant.permits(need.service, need.mode):
            self._tell("denied", request, grant.worker, CredentialDenied.__name__)
            raise CredentialDenied(
                f"Worker {grant.worker} may not be issued a credential for this service in {mode} mode; "
                "grant it in the settings of the worker."
            )
        provider = self._providers.get(need.service)
        if provider is None or need.mode not in provider.modes:
            self._tell("failed", request, grant.worker, CredentialUnconfigured.__name__)
            if provider is None:
                raise CredentialUnconfigured(_none_such(need.service))
            others = " or ".join(sorted(other.name.lower() for other in provider.modes))
            raise CredentialUnconfigured(f"{need.service} has no credentials in {mode} mode; ask in {others} mode.")
        return provider

    async def _asked(self, provider: Provider, request: Request) -> Answer:
        try:
            async with asyncio.timeout(self._limits.patience):
                return await provider.issue(request)
        except TimeoutError:
            raise ProviderDown(
                f"The provider did not answer within {self._limits.patience:g} s; try again in a moment."
            ) from None

    def _issued(self, request: Request, issued: Issued, grant: CredentialGrant) -> None:
        self._look_for(issued.credential.secrets())
        self._tell("issued", request, grant.worker, issued.credential.kind)

    def _look_for(self, secrets: Iterable[Secret[str] | Secret[bytes]]) -> None:
        try:
            self.redactor.remember(secrets)
        except RedactorFull as full:
            raise ProviderDown(str(full)) from None

    def _tell(
        self,
        what: Literal["issued", "authorization_required", "denied", "failed", "authorized"],
        request: Request,
        worker: str | None,
        detail: str,
    ) -> None:
        need = request.need
        self._report(
            CredentialEvent(
                what,
                need.service,
                need.mode,
                request.scope,
                request.principal,
                worker,
                detail,
                request.execution,
            )
        )


def _key_of(request: Request, provider: Provider) -> _Key:
    token = request.user_token if provider.takes_user_token else None
    digest = None if token is None else hashlib.sha256(token.reveal().encode()).digest()
    return _Key(request.scope.owner, request.need, digest)


def _ask(provider: Provider, request: Request) -> Ask:
    return lambda forced: provider.issue(replace(request, force_refresh=forced))


def _none_such(service: str) -> str:
    return f"No credential is configured for {service}; add a [[credential]] for it to the sidecar's settings."
