"""Credentials in calls: what a tool declares is there before it runs, and what a running one asks for is answered."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind
from sidecar.calls.call import Call
from sidecar.calls.outbound import refused
from sidecar.calls.outcome import PauseWanted, Refusal
from sidecar.calls.pipeline import Pipeline
from sidecar.calls.ports import Assignment
from sidecar.calls.tool import Tool
from sidecar.config import ConfigRefused, Settings
from sidecar.credentials.facade import CredentialEvent, Credentials
from sidecar.credentials.grant import CredentialGrant
from sidecar.credentials.making import CredentialsRefused, Made, Maker, unknown_grants
from sidecar.credentials.message import NeedRefused, answer_of, code_of, message_of, need_of, needs_of
from sidecar.credentials.port import (
    Answer,
    Credential,
    CredentialDenied,
    CredentialFailed,
    Issued,
    Mode,
    Need,
    ProviderDown,
)
from sidecar.credentials.redactor import Hold, Redactor, RedactorFull
from sidecar.scope import Scope

_log = logging.getLogger(__name__)

_CONSENT = "consent"
_RETRY_AFTER = 1.0


class _Issuance:
    """What one call was issued: for its invocation, and so that it is redacted while the call runs."""

    __slots__ = ("_held", "_redactor", "pushed")

    def __init__(self, redactor: Redactor) -> None:
        self.pushed: dict[Need, Issued] = {}
        """For the needs of its tool."""
        self._redactor = redactor
        self._held: dict[tuple[str, Mode], tuple[Credential, Hold]] = {}

    def hold(self, need: Need, issued: Issued) -> None:
        """Keeps the newest credential of each service and mode looked for.

        :raises ProviderDown: if too many are.
        """
        address = (need.service, need.mode)
        held = self._held.get(address)
        if held is not None and held[0] is issued.credential:
            return
        try:
            hold = self._redactor.hold(issued.credential.secrets())
        except RedactorFull as full:
            raise ProviderDown(str(full)) from None
        self._held[address] = (issued.credential, hold)
        if held is not None:
            held[1].release()

    def release(self) -> None:
        """The call is over."""
        for _, hold in self._held.values():
            hold.release()


class Issuing:
    """Issues credentials to the calls of a pipeline: supplies `needs` in gate 9, and answers `credential_get`.

    Nobody but the caller may learn where a person authorises. One that says it takes that is told, by a frame of its
    own, and its call pauses; any other call with a need that waits for a person is refused as CONSENT_REQUIRED, and a
    tool that asks learns that much.
    """

    def __init__(self, credentials: Credentials, pipeline: Pipeline, grants: Iterable[CredentialGrant]) -> None:
        self.credentials = credentials
        """The door to credentials."""
        self._pipeline = pipeline
        self._grants: Mapping[str, CredentialGrant] = {}
        self._issuances: dict[Call, _Issuance] = {}
        pipeline.suppliers["needs"] = self
        pipeline.responders["credential_get"] = self.answer
        pipeline.redact = credentials.redactor.redact
        self.renew(grants)

    def renew(self, grants: Iterable[CredentialGrant]) -> None:
        """Holds worker sets to these grants from now on, running calls too. A set without one may be issued nothing."""
        self._grants = {grant.worker: grant for grant in grants}
        self._pipeline.issued_to = frozenset(
            name for name, grant in self._grants.items() if self.credentials.configured_for(grant)
        )

    # --- gate 9

    def supply(self, call: Call, tool: Tool) -> Coroutine[Any, Any, None] | None:
        """Has what the tool needs issued: at once where all of it is remembered, else when the coroutine ends.

        :raises Refusal: if something cannot be had; the coroutine likewise.
        """
        issuance = self._issuance(call)
        issuance.pushed.clear()
        missing = []
        for need in needs_of(tool.descriptor.needs):
            try:
                issued = self._at_once(call, need)
                if issued is not None:
                    issuance.hold(need, issued)
            except CredentialFailed as failed:
                raise _refusal(tool, need, failed) from None
            if issued is None:
                missing.append(need)
            else:
                issuance.pushed[need] = issued
        return self._supply_missing(call, tool, issuance, missing) if missing else None

    def placed(self, call: Call, _assignment: Assignment) -> None:
        """Puts what was issued into the invocation, with how long it is good for from now.

        What the worker may not be issued any more, after a reload while the call waited for it, is left out.
        """
        issuance, invocation = self._issuances.get(call), call.invocation
        if issuance is None or invocation is None:
            return
        now, grant = time.time(), self._grant_of(call)
        context = invocation.invoke.context
        # Those of an attempt before are not good for this one.
        context.ClearField("credentials")
        services = context.credentials.services
        for need, issued in issuance.pushed.items():
            if grant.permits(need.service, need.mode):
                services[need.service].CopyFrom(message_of(issued, now))

    async def _supply_missing(self, call: Call, tool: Tool, issuance: _Issuance, missing: list[Need]) -> None:
        if len(missing) == 1:
            issued = [await self._needed(call, tool, missing[0])]
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    asking = [group.create_task(self._needed(call, tool, need)) for need in missing]
            except BaseExceptionGroup as failures:
                # The first that failed ended the others; what they asked for goes on, for whoever asks next.
                raise failures.exceptions[0] from None
            issued = [task.result() for task in asking]
        for need, each in zip(missing, issued, strict=True):
            issuance.pushed[need] = each

    async def _needed(self, call: Call, tool: Tool, need: Need) -> Issued:
        try:
            answer = await self._resolve(call, need, force_refresh=False)
        except CredentialFailed as failed:
            raise _refusal(tool, need, failed) from None
        if isinstance(answer, Issued):
            return answer
        how = f"as by: pillion credentials login {need.service}"
        if call.consent(answer.service, answer.url.reveal()):
            if self._pauses(call):
                raise PauseWanted(_CONSENT, f"{tool.name} needs a person to authorise {need.service} first.")
            how = "at the address that was sent with this call; complete that, and call again"
        raise Refusal(
            FailureKind.FAILURE_KIND_CONSENT_REQUIRED,
            f"{tool.name} needs a credential for {need.service}, which a person has to authorise first for this "
            f"subject, {how}",
        )

    def _pauses(self, call: Call) -> bool:
        """Whether a call waits for a person by a pause: once, and not where its tool has run by now."""
        resumption = call.resumption
        return (
            self._pipeline.pauses is not None
            and call.parent is None
            and not call.attempts
            and (resumption is None or not resumption.pause.waits_for_consent)
        )

    # --- what running tools ask

    def answer(self, call: Call, request: OutboundRequest) -> Frame | Coroutine[Any, Any, Frame]:
        """Answers a running tool."""
        asked, number = request.credential_get, request.request_id
        try:
            need = need_of(asked.service, asked.scopes, asked.mode)
            issued = None if asked.force_refresh else self._at_once(call, need)
            if issued is None:
                return self._answer_later(call, number, need, force_refresh=asked.force_refresh)
            self._issuance(call).hold(need, issued)
        except NeedRefused as refusal:
            return refused(number, ReplyErrorCode.REPLY_ERROR_CODE_INVALID, str(refusal))
        except CredentialFailed as failed:
            return _reply_failed(number, failed)
        return _reply(number, issued)

    async def _answer_later(self, call: Call, number: int, need: Need, *, force_refresh: bool) -> Frame:
        try:
            answer = await self._resolve(call, need, force_refresh=force_refresh)
        except CredentialFailed as failed:
            return _reply_failed(number, failed)
        if not isinstance(answer, Issued):
            call.consent(answer.service, answer.url.reveal())
        return _reply(number, answer)

    # --- both

    def _at_once(self, call: Call, need: Need) -> Issued | None:
        return self.credentials.at_once(
            _scope_of(call), call.caller.principal, need, grant=self._grant_of(call), execution=call.execution_id
        )

    async def _resolve(self, call: Call, need: Need, *, force_refresh: bool) -> Answer:
        answer = await self.credentials.resolve(
            _scope_of(call),
            call.caller.principal,
            need,
            grant=self._grant_of(call),
            force_refresh=force_refresh,
            execution=call.execution_id,
        )
        if isinstance(answer, Issued):
            self._issuance(call).hold(need, answer)
        return answer

    def _grant_of(self, call: Call) -> CredentialGrant:
        name = call.tool.workers.name if call.tool is not None else ""
        return self._grants.get(name) or CredentialGrant(name)

    def _issuance(self, call: Call) -> _Issuance:
        issuance = self._issuances.get(call)
        if issuance is None:
            issuance = self._issuances[call] = _Issuance(self.credentials.redactor)
            call.at_end(partial(self._end, call))
        return issuance

    def _end(self, call: Call) -> None:
        self._issuances.pop(call).release()


@asynccontextmanager
async def issuing(
    settings: Settings, pipeline: Pipeline, redactor: Redactor, report: Callable[[CredentialEvent], None]
) -> AsyncIterator[Issuing]:
    """Issues credentials inside the block, as the settings say. Behind it, what was begun has ended.

    :raises ConfigRefused: if what they come from cannot be used; the text says what to change.
    """
    made = Made({}, ())
    if settings.credential:
        try:
            made = await asyncio.to_thread(Maker(settings, settings.state_dir, os.environ).made)
        except CredentialsRefused as refusal:
            raise ConfigRefused(str(refusal)) from None
    credentials = Credentials(made.providers, resources=made.resources, redactor=redactor, report=report)
    try:
        yield Issuing(credentials, pipeline, credential_grants(settings))
    finally:
        with anyio.CancelScope(shield=True):
            await credentials.aclose()


def credential_grants(settings: Settings) -> list[CredentialGrant]:
    """What each worker set may be issued. What is granted in vain is told in the log."""
    grants = [CredentialGrant.of(worker.name, worker.credentials) for worker in settings.worker]
    for sentence in unknown_grants(settings, grants):
        _log.warning("%s", sentence)
    return grants


def _scope_of(call: Call) -> Scope:
    scope = call.scope
    if scope is None:
        raise ProviderDown("The call has no scope yet, which a credential is for.")
    return scope


def _refusal(tool: Tool, need: Need, failed: CredentialFailed) -> Refusal:
    kind = FailureKind.FAILURE_KIND_CREDENTIAL_UNAVAILABLE
    if isinstance(failed, CredentialDenied):
        kind = FailureKind.FAILURE_KIND_DENIED
    return Refusal(
        kind,
        f"{tool.name} needs a credential for {need.service}. {failed}",
        retryable=failed.retryable,
        retry_after=_RETRY_AFTER if failed.retryable else None,
    )


def _reply(number: int, answer: Answer) -> Frame:
    frame = Frame()
    frame.reply.request_id = number
    frame.reply.credential.CopyFrom(answer_of(answer, time.time()))
    return frame


def _reply_failed(number: int, failed: CredentialFailed) -> Frame:
    return refused(number, code_of(failed), str(failed), retry_after=_RETRY_AFTER if failed.retryable else None)
