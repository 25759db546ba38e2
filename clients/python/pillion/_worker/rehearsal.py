"""A tool's call without a sidecar, for the tests of who writes tools."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from pillion import _failures, _json, _refusals
from pillion._facts import CancelReason, Identity, TeardownReason, TeardownScope, Trace, set_seconds
from pillion._gen.pillion.v1 import context_pb2
from pillion._gen.pillion.v1.artifacts_pb2 import DownloadRequest
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, TeardownAccepted
from pillion._gen.pillion.v1.worker_pb2 import RegisterTeardown
from pillion._wire.channel import Transport
from pillion._worker.context import ToolContext
from pillion._worker.credentials import AuthorizationRequired, Credential, write_credential
from pillion._worker.pause import Pause, resumption_of
from pillion._worker.port import Cleanup
from pillion._worker.rehearsed_cleanups import RegisteredCleanup, open_scopes, register, tear_down
from pillion._worker.requests import Deliveries
from pillion._worker.shelf import Artifacts
from pillion._worker.signals import ToolResult
from pillion._worker.tool import Tool, made_tool
from pillion._worker.wanted import NotAsWanted, Workspace

Answers = Callable[[OutboundRequest], Reply]
"""Answers what a tool asks; raises a `RequestRefused` to refuse."""


class Rehearsal:
    """What a tool did in a rehearsed call, and the way to disturb it.

    One for each call; or one for several, one after the other, that register cleanups for the same run or session.
    """

    def __init__(self, answers: Answers | None = None, artifacts: Artifacts | None = None) -> None:
        self.progress: list[Any] = []
        """The payloads that it reported."""
        self.logs: list[tuple[int, str, Mapping[str, str]]] = []
        """Its lines of log: level, message, fields."""
        self.requests: list[OutboundRequest] = []
        """What it asked of the sidecar."""
        self.cleanups: list[RegisteredCleanup] = []
        """What it registered for the ends of scopes, in order. A rehearsed call runs none of them: see `tear_down`."""
        self.context: ToolContext | None = None
        """Its context, once it runs."""
        self.artifacts = artifacts
        """The artifact store of the call; `None`: it has none."""
        self._answers = answers
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def cancel(self, reason: CancelReason = CancelReason.CALLER) -> None:
        """Asks the running tool to stop, as a sidecar would. On the event loop's thread."""
        if self.context is not None and self.context.signal.set(reason) and self._task is not None:
            self._task.cancel()

    async def tear_down(self, scope: TeardownScope, reason: TeardownReason | None = None) -> int:
        """Ends a scope: runs what was registered for it, newest first, as a worker would. Answers how many ran.

        `reason` is what they are told; by default that of an end that was asked for. What one raises comes out as it
        is, and those after it are registered still.
        """
        return await tear_down(self.cleanups, scope, reason)

    # --- the port of the context

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the call runs on."""
        assert self._loop is not None, "a rehearsal has a loop while it runs"  # noqa: S101  # set before the context is
        return self._loop

    @property
    def inline_bytes(self) -> int:
        """Everything rides inside frames here."""
        return sys.maxsize

    async def open_upload(self) -> Transport:
        """There are no transfers in a rehearsal, and nothing that would need one."""
        raise _no_transfers()

    async def open_download(self, _request: DownloadRequest) -> Transport:
        """Likewise."""
        raise _no_transfers()

    def report(self, payload: bytes) -> bool:
        """Keeps a report."""
        self.progress.append(_json.decode(payload))
        return True

    def log(self, level: int, message: str, fields: Mapping[str, str]) -> None:
        """Keeps a line."""
        self.logs.append((level, message, fields))

    async def ask(
        self,
        request: OutboundRequest,
        timeout: float | None = None,
        reported: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Answers as the test says; by default as a sidecar that does nothing of the kind."""
        del timeout, reported
        self.requests.append(request)
        stored = self.artifacts.answer(request) if self.artifacts is not None else None
        if stored is not None:
            return stored
        if self._answers is None:
            asked = request.WhichOneof("request") or "this"
            raise _refusals.RequestUnsupported(
                _refusals.ReplyCode.UNSUPPORTED, f"Nothing answers {asked} in this test: pass answers=."
            )
        reply = self._answers(request)
        if reply.HasField("error"):
            raise _refusals.refused(reply.error)
        return reply

    async def register(self, registration: RegisterTeardown, cleanup: Cleanup) -> TeardownAccepted:
        """Keeps a cleanup, or refuses it, as a sidecar does."""
        assert self.context is not None, "a tool that registers has its context"  # noqa: S101  # set before it runs
        return register(self.cleanups, self.context, registration, cleanup)

    def deliveries(self, subscription: str) -> Deliveries:
        """Nothing comes."""
        del subscription
        nothing = Deliveries()
        nothing.end()
        return nothing

    def forget(self, subscription: str) -> None:
        """A subscription is over."""

    async def run(
        self,
        function: Callable[..., Any],
        arguments: Any,
        message: context_pb2.ToolContext,
        answers: Answers | None = None,
    ) -> Any:
        """The value that the tool returns, as its caller would get it. For `call`."""
        self._answers = self._answers or answers
        tool = made_tool(function)
        _check_needs(tool, message)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        text = _json.encode_arguments(arguments if arguments is not None else {})
        message.has_artifacts = message.has_artifacts or self.artifacts is not None
        self._want(tool, _json.decode(text), message)
        self.context = ToolContext(tool.name, message, self)
        try:
            given = tool.arguments.read(text)
        except ValidationError as error:
            issues = [
                _failures.ArgumentIssue("".join(f"/{part}" for part in mistake["loc"]), mistake["type"], mistake["msg"])
                for mistake in error.errors(include_url=False, include_input=False, include_context=False)
            ]
            raise _failures.InvalidArguments("The arguments do not fit.", issues=issues) from None
        if tool.arguments.context_parameter is not None:
            given[tool.arguments.context_parameter] = self.context
        workspace = Workspace()
        try:
            given.update(await self.context.redeem(workspace, tool.arguments.wanted))
            value = await tool.function(**given) if tool.is_async else await asyncio.to_thread(tool.function, **given)
        except NotAsWanted as error:
            raise _failures.InvalidArguments(str(error)) from None
        finally:
            await workspace.close()
        if isinstance(value, ToolResult):
            return value
        returned = tool.returned.write(value)
        return None if returned is None else _json.decode(returned)

    def _want(self, tool: Tool[..., Any], arguments: Mapping[str, Any], message: context_pb2.ToolContext) -> None:
        """Redeems what the tool wants, as a sidecar does before it runs."""
        for name, kind in tool.wants.items():
            if name in arguments and name not in message.wanted.arguments:
                found = self.artifacts.wanted(arguments[name], kind) if self.artifacts is not None else None
                if found is None:
                    raise _failures.ArtifactUnavailable(
                        f"There is no artifact of kind {kind} for {name}: add one, and pass artifacts=."
                    )
                message.wanted.arguments[name].CopyFrom(found)


async def call(  # noqa: PLR0913  # the facts of a call are many, and each has its name
    tool: Callable[..., Any],
    arguments: Mapping[str, Any] | bytes | None = None,
    *,
    rehearsal: Rehearsal | None = None,
    answers: Answers | None = None,
    credentials: Mapping[str, Credential | AuthorizationRequired] | None = None,
    artifacts: Artifacts | None = None,
    timeout: float = 60.0,
    identity: Identity | None = None,
    run_id: str | None = None,
    session_id: str | None = None,
    tool_call_id: str = "test-call",
    iteration: int = 0,
    caller_principal: str | None = None,
    parent_anchor: str | None = None,
    trace: Trace | None = None,
    resume: Pause | None = None,
    answer: Any = None,
    context: context_pb2.ToolContext | None = None,
) -> Any:
    """Calls a tool without a sidecar, and answers the value that its caller would get.

    Arguments and result go through JSON and the tool's annotations as they do in a worker, so what would be refused is
    refused here. What the tool raises comes out as it is. `rehearsal` records what it did; `answers` says what the
    sidecar answers, without which everything is refused as unsupported. `credentials` are those that it could issue, by
    service: the tool has those that it needs, and may ask for all of them. `artifacts` is the store that the tool has,
    where its references are looked up too; without it there is none. `resume` is the `Pause` that an
    earlier call of the tool raised, and `answer` the answer to it. `context` has further fields of the message. A
    `ToolResult` is answered as it is.

    :raises CredentialUnavailable: if the tool needs a credential that is not among them.
    :raises ConsentRequired: if it needs one that a person has to authorise first.
    :raises InvalidArguments: if the arguments do not fit.
    :raises ArtifactUnavailable: if an artifact that the tool wants is not there.
    :raises JsonRefused: if there is no JSON text of the same meaning.
    """
    message = context_pb2.ToolContext(
        execution_id="test-execution",
        tool_call_id=tool_call_id,
        iteration=iteration,
        run_id=run_id,
        session_id=session_id,
        caller_principal=caller_principal,
        parent_anchor=parent_anchor,
        attempt=1,
    )
    set_seconds(message.remaining, timeout)
    if identity is not None:
        _set_named(message.identity, identity, ("tenant", "principal", "conversation_id"))
    if trace is not None:
        _set_named(message.trace, trace, ("traceparent", "tracestate", "baggage"))
    open_scopes(message)
    if resume is not None:
        message.resume.CopyFrom(resumption_of(resume, answer))
    if credentials is not None:
        message.has_credentials = bool(credentials)
        _push(tool, credentials, message)
    if context is not None:
        message.MergeFrom(context)
        if context.HasField("teardown_scopes"):
            message.teardown_scopes.CopyFrom(context.teardown_scopes)
    if answers is None and credentials is not None:
        answers = _issuing(credentials)
    rehearsal = rehearsal or Rehearsal()
    if artifacts is not None:
        rehearsal.artifacts = artifacts
    return await rehearsal.run(tool, arguments, message, answers)


def _set_named(message: Any, facts: object, names: tuple[str, ...]) -> None:
    message.SetInParent()
    for name in names:
        if (value := getattr(facts, name)) is not None:
            setattr(message, name, value)


def _push(
    tool: Callable[..., Any],
    credentials: Mapping[str, Credential | AuthorizationRequired],
    message: context_pb2.ToolContext,
) -> None:
    """Has the context hold what the tool needs, as far as it is there."""
    for need in made_tool(tool).descriptor.needs:
        credential = credentials.get(need.service)
        if isinstance(credential, AuthorizationRequired):
            raise _failures.ConsentRequired(f"A person has to authorise {need.service} first.")
        if credential is not None:
            message.credentials.services[need.service].CopyFrom(write_credential(credential))


def _check_needs(tool: Tool[..., Any], message: context_pb2.ToolContext) -> None:
    """As a sidecar does: a tool without what it needs does not run."""
    for need in tool.descriptor.needs:
        if need.service not in message.credentials.services:
            raise _failures.CredentialUnavailable(
                f"{tool.name} needs a credential for {need.service}: pass credentials={{{need.service!r}: ...}}."
            )


def _issuing(credentials: Mapping[str, Credential | AuthorizationRequired]) -> Answers:
    """Answers requests for these credentials, and nothing else."""

    def answer(request: OutboundRequest) -> Reply:
        if request.WhichOneof("request") != "credential_get":
            raise _refusals.RequestUnsupported(
                _refusals.ReplyCode.UNSUPPORTED, "Nothing but credentials is answered in this test: pass answers=."
            )
        service = request.credential_get.service
        credential = credentials.get(service)
        reply = Reply(request_id=request.request_id)
        if credential is None:
            raise _refusals.CredentialUnconfigured(
                _refusals.ReplyCode.CREDENTIAL_UNCONFIGURED, f"There is no credential for {service} in this test."
            )
        if isinstance(credential, AuthorizationRequired):
            reply.credential.authorization_required.service = service
        else:
            reply.credential.issued.CopyFrom(write_credential(credential))
        return reply

    return answer


def _no_transfers() -> _refusals.RequestUnsupported:
    return _refusals.RequestUnsupported(
        _refusals.ReplyCode.UNSUPPORTED, "A rehearsed call has no transfers: everything is in the messages themselves."
    )
