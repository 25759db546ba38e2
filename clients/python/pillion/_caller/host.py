"""A sidecar, as its caller has it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypedDict, Unpack
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError

from pillion import _failures
from pillion._caller.artifacts import HostArtifacts
from pillion._caller.call import Call, follow_of, resume_of, start_of
from pillion._caller.link import Link
from pillion._caller.listing import HostInfo, ToolInfo, Tools, read_info, read_tool
from pillion._caller.outcome import Paused, value_of
from pillion._caller.questions import Handler, Questions
from pillion._facts import Identity, Secret, SideEffects, Trace
from pillion._gen.pillion.v1.execute_pb2 import (
    CompleteConsentRequest,
    CompleteConsentResponse,
    EndScopeRequest,
    EndScopeResponse,
    GetInfoResponse,
    ListToolsRequest,
    ListToolsResponse,
    WatchToolsResponse,
)
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._wire.channel import Connection, GrpcConnection, StreamEnded, unanswered
from pillion._wire.security import Security, StrPath, Tls, Token, TokenSource

_SERVICE = "/pillion.v1.ToolHostService/"
_REQUEST_SECONDS = 30.0
_END_SECONDS = 120.0
"""Calls are waited for, and cleanups run: more than a sidecar gives those by default."""
_HUMAN_SECONDS = 600.0
"""How long a sidecar lets people answer, where nobody says."""
_CONSENT_REFUSED: Mapping[str, type[_failures.CallFailed]] = {
    "FAILED_PRECONDITION": _failures.CredentialUnavailable,
    "INVALID_ARGUMENT": _failures.InvalidArguments,
    "PERMISSION_DENIED": _failures.Denied,
}


Resumable = str | Secret | Paused | _failures.CallPaused
"""What can be resumed: a ticket, or that which brought it."""


class CallOptions(TypedDict, total=False):
    """What may be said of a call beside its tool and arguments."""

    timeout: float | None
    """Seconds that the call may take in all; by default what the tool or the sidecar says."""
    idle_timeout: float | None
    """Seconds that may pass without progress; by default any number."""
    human_timeout: float | None
    """Seconds that people may take to answer, in all; they are added to the timeout as they are taken."""
    identity: Identity | None
    """Whom the call is for."""
    run_id: str | None
    """The run it belongs to."""
    session_id: str | None
    """The session it belongs to."""
    tool_call_id: str | None
    """This side's id for it, such as a model's."""
    idempotency_key: str | None
    """The same key, tool and subject is the same request."""
    iteration: int
    """Which turn of this side's loop it is; 0 for none."""
    parent_anchor: str | None
    """A provenance anchor."""
    trace: Trace | None
    """The trace it belongs to."""
    detachable: bool
    """Whether it goes on when the connection is lost, or once it was detached."""
    resend: bool
    """Whether to send it again when the stream is lost. Needs an `idempotency_key`."""


@dataclass(frozen=True, slots=True)
class EndedScope:
    """What the end of a run or a session did."""

    fired: int
    """Cleanups that ran."""
    failed: int
    """Those of them that failed, took too long, or were lost with their worker."""
    cancelled: int
    """Running calls that were cancelled, and paused ones that are not resumed any more."""


class Host:
    """A connection to a sidecar. Thousands of calls share one stream, which comes back by itself when it is lost.

    Made by `connect`. For use by tasks of one event loop.
    """

    def __init__(self, connection: Connection, link: Link, *, outcome_grace: float) -> None:
        self._connection = connection
        self._link = link
        self._outcome_grace = outcome_grace

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Runs a tool and answers the value it returned, or the `ArtifactMeta` of where a large one was placed.

        `arguments` is a mapping, or the bytes of a JSON object, which are passed on as they are. Cancelling the task
        cancels the call. While the stream is away the call waits, up to its timeout, else up to the patience of the
        connection. A call that was sent is never sent again, unless `resend` and an idempotency key say so.

        Numbers in the value are ints of any size, and floats where a float has exactly that number as its shortest
        text; all others are `decimal.Decimal`.

        :raises CallFailed: if the call did not return; each kind has its class.
        :raises ErrorResult: if the tool says that its result is an error.
        :raises CallPaused: if the tool waits for an answer from outside.
        :raises JsonRefused: if the arguments have no JSON text of the same meaning, or what came is not JSON.
        :raises Closed: if the connection was closed.
        """
        return value_of(await self._made(tool, arguments, options, iterated=False).run())

    def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Call:
        """A call to be begun by `async with`, for its progress, its raw result, or to cancel or detach it.

        Options as of `call`.

        :raises JsonRefused: if the arguments have no JSON text of the same meaning.
        """
        return self._made(tool, arguments, options, iterated=True)

    async def resume(self, ticket: Resumable, answer: Any = None, /, **options: Unpack[CallOptions]) -> Any:
        """Resumes a call that paused, and answers the value that its tool then returned; raises as `call` does.

        `ticket` is that of the pause, or what was raised. `answer` is a JSON value, or the bytes of one, which are
        passed on as they are; `None` is none. A ticket is good once, for the caller that it was given to and the tenant
        and principal that the paused call was for: name its `identity` again. Tool, arguments and all that is not named
        are the paused call's. One that was not even tried to be run, as `Overloaded` says, leaves the ticket good.

        :raises TicketInvalid: if it opens nothing: it is wrong, was used, has expired, or is another's.
        :raises CallPaused: if the tool waits for another answer, by another ticket.
        """
        return value_of(await self._resumed(ticket, answer, options, iterated=False).run())

    def start_resumed(self, ticket: Resumable, answer: Any = None, /, **options: Unpack[CallOptions]) -> Call:
        """The same as a call to be begun by `async with`, for its progress, its raw result, or to cancel it.

        :raises JsonRefused: if the answer has no JSON text of the same meaning.
        """
        return self._resumed(ticket, answer, options, iterated=True)

    def follow(self, ticket: str, *, from_sequence: int = 0) -> Call:
        """A detached call to be followed by `async with`: its progress from a number on, and its result.

        0 is all that the sidecar has kept; who has seen a report goes on with the number behind its `sequence`. Leaving
        the block leaves the call running, and `cancel` stops it. Only the newest follower is told anything: any other
        one's part ends as `Superseded`. A ticket that this caller cannot use makes it `TicketInvalid`.

        :raises TypeError: if the ticket is no text, as that of a pause is not.
        """
        if not isinstance(ticket, str):
            raise TypeError("The ticket is the text that `detach` answered; that of a pause is for `resume`.")
        call = Call(
            self._link,
            follow_of(ticket, from_sequence),
            None,
            grace=self._outcome_grace,
            resend=False,
            iterated=True,
        )
        call.ticket, call.is_let_go, call.sequence = ticket, True, max(from_sequence - 1, 0)
        return call

    def _made(self, tool: str, arguments: Any, options: CallOptions, *, iterated: bool) -> Call:
        return self._to_run(partial(start_of, tool, arguments), options, iterated=iterated)

    def _resumed(self, ticket: Resumable, answer: Any, options: CallOptions, *, iterated: bool) -> Call:
        return self._to_run(partial(resume_of, ticket, answer), options, iterated=iterated)

    def _to_run(self, first_of: Callable[..., Frame], options: CallOptions, *, iterated: bool) -> Call:
        given: dict[str, Any] = {**options}
        resend = given.pop("resend", False) if given else False
        if resend and not given.get("idempotency_key"):
            raise ValueError("Only a call with an idempotency key may be sent again.")
        first = first_of(**given)
        grace = self._outcome_grace
        if self._link.can_answer:
            # While somebody is asked, the sidecar's clock stands still.
            people = given.get("human_timeout")
            grace += _HUMAN_SECONDS if people is None else people
        return Call(self._link, first, given.get("timeout"), grace=grace, resend=resend, iterated=iterated)

    @property
    def artifacts(self) -> HostArtifacts:
        """The artifact store: `host.artifacts.within(session_id="s-1")` is where calls of that session have theirs."""
        return HostArtifacts(self._connection)

    async def tools(self, identity: Identity | None = None) -> Tools:
        """The tools that this caller may call for this subject.

        :raises ConnectionFailed: if the sidecar does not answer.
        :raises Closed: if the connection was closed.
        """
        answer = await self._ask("ListTools", _listing(identity), ListToolsResponse)
        return self._read(answer)

    async def watch_tools(self, identity: Identity | None = None) -> AsyncGenerator[Tools, None]:
        """The tools, whole, now and whenever they change. To be closed by who iterates (`contextlib.aclosing`).

        :raises ConnectionFailed: if the sidecar is lost.
        :raises Closed: if the connection was closed.
        """
        await self._connection.prepare()
        stream = self._connection.subscribe(_SERVICE + "WatchTools", _listing(identity).SerializeToString())
        messages: asyncio.Queue[bytes | StreamEnded] = asyncio.Queue(1)

        async def pump() -> None:
            try:
                while True:
                    await messages.put(await stream.read())
            except StreamEnded as ended:
                await messages.put(ended)
            except Exception as error:  # noqa: BLE001  # nobody else would tell who iterates
                await messages.put(StreamEnded(grpc.StatusCode.UNKNOWN, type(error).__name__))

        # The stream is read by a task of its own: scopes of anyio leak out of gRPC's awaits.
        task = asyncio.get_running_loop().create_task(pump())
        try:
            while not isinstance(message := await messages.get(), StreamEnded):
                yield self._read(WatchToolsResponse.FromString(message))
            self._link.raise_if_over()
            if message.code is not None:
                raise unanswered(message)
            raise _failures.ConnectionFailed("The sidecar tells no more: it stops.")
        finally:
            stream.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(task, return_exceptions=True)

    async def info(self) -> HostInfo:
        """What the sidecar is and can do.

        :raises ConnectionFailed: if it does not answer.
        """
        return read_info(await self._ask("GetInfo", None, GetInfoResponse))

    async def end_run(self, run_id: str, identity: Identity | None = None) -> EndedScope:
        """Ends a run of a subject: cancels its calls, waits for them, and has run what tools keep for its end.

        Meanwhile no new call of it is taken; afterwards one of the same id is a new run. One that does not exist, or
        that another ends just now, answers zeros. The end goes on where this is cancelled.

        :raises Denied: if this caller may not act for the subject.
        :raises InvalidArguments: if this can be no id.
        :raises ConnectionFailed: if the sidecar does not answer.
        """
        return await self._end_scope(EndScopeRequest(run_id=run_id), identity)

    async def end_session(self, session_id: str, identity: Identity | None = None) -> EndedScope:
        """Ends a session of a subject, in the same way as `end_run`."""
        return await self._end_scope(EndScopeRequest(session_id=session_id), identity)

    async def complete_consent(self, service: str, callback: str | Secret, identity: Identity | None = None) -> None:
        """Hands in what a person was sent back with after they authorised a service for this subject.

        `callback` is the address that they came back to, or the query of it. Only who was told where to authorise may
        hand it in, for the subject that it was for, and once.

        :raises CredentialUnavailable: if it answers no authorisation that was begun so, or the provider refuses it.
        :raises Denied: if this caller may not act for the subject.
        :raises ConnectionFailed: if the sidecar does not answer.
        """
        text = callback.reveal() if isinstance(callback, Secret) else callback
        query = urlsplit(text).query if "://" in text.partition("?")[0] else text.removeprefix("?")
        request = CompleteConsentRequest(service=service, callback_query=query)
        if identity is not None:
            request.identity.CopyFrom(_listing(identity).identity)
        try:
            await self._ask("CompleteConsent", request, CompleteConsentResponse)
        except _failures.ConnectionFailed as error:
            refused = _CONSENT_REFUSED.get(error.status or "")
            if refused is None:
                raise
            raise refused(error.details, side_effects=SideEffects.NONE) from None

    @property
    def connected(self) -> bool:
        """Whether the stream is there now."""
        return self._link.instance_id is not None

    @property
    def in_flight(self) -> int:
        """How many calls were sent and have not ended."""
        return self._link.in_flight

    @property
    def reconnects(self) -> int:
        """How often the stream was lost."""
        return self._link.reconnects

    async def _end_scope(self, request: EndScopeRequest, identity: Identity | None) -> EndedScope:
        if identity is not None:
            request.identity.CopyFrom(_listing(identity).identity)
        try:
            answer = await self._ask("EndScope", request, EndScopeResponse, _END_SECONDS)
        except _failures.ConnectionFailed as error:
            if error.reason is None:
                raise
            raise _failures.failed(error.reason) from None
        return EndedScope(answer.fired, answer.failed, answer.cancelled)

    async def _ask(self, method: str, request: Any, answer: type[Any], seconds: float = _REQUEST_SECONDS) -> Any:
        message = b"" if request is None else request.SerializeToString()
        try:
            return answer.FromString(await self._connection.request(_SERVICE + method, message, seconds))
        except DecodeError:
            raise _failures.ConnectionFailed("The sidecar's answer cannot be read.") from None

    def _read(self, answer: ListToolsResponse | WatchToolsResponse) -> Tools:
        tools: dict[str, ToolInfo] = {tool.name: read_tool(tool) for tool in answer.tools}
        self._link.effects = {name: tool.effects for name, tool in tools.items()}
        return Tools(answer.generation, tools)


def _listing(identity: Identity | None) -> ListToolsRequest:
    request = ListToolsRequest()
    if identity is not None:
        request.identity.SetInParent()
        for name in ("tenant", "principal", "conversation_id"):
            value = getattr(identity, name)
            if value is not None:
                setattr(request.identity, name, value)
    return request


class connect:  # noqa: N801  # reads as the verb it is: `async with pillion.connect(...) as host`
    """Connects to a sidecar, and is closed with its `async with` block: what still runs then is cancelled.

    `target` is `unix:/path` or `host:port` of the callers' listener. By TCP it asks for a `token`, which may be in a
    `token_file`, or for certificates, `tls`; files are read again for each stream. A token that expires is best given
    as a function that answers a good one, async or not: it is called for each stream and request, so it should keep
    what it has. Before the stream's token expires another stream takes its place, and running calls end on theirs.
    Entering waits until the sidecar
    answers, up to `connect_timeout` seconds (`None` for ever). `can_answer` has a handler for each JSON-RPC method that
    tools may ask this caller, such as `elicitation/create`. A call with a timeout fails here if its outcome did not
    come `outcome_grace` seconds after it. While the stream is away, calls without a timeout wait up to `patience`
    seconds. Calls that are detachable go on without a connection.

    Entering raises `ConnectionFailed` if the sidecar does not answer in time, `NotAuthenticated` if it refuses, and
    `CannotConnect` if the token or the certificates cannot be used, or a token would go over a network in the clear.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | Secret | TokenSource | None = None,
        token_file: StrPath | None = None,
        tls: Tls | None = None,
        can_answer: Mapping[str, Handler] | None = None,
        connect_timeout: float | None = 30.0,
        outcome_grace: float = 10.0,
        patience: float = 30.0,
    ) -> None:
        self._target = target
        self._token = Secret(token) if isinstance(token, str) else token
        self._token_file = token_file
        self._tls = tls
        self._can_answer = can_answer or {}
        self._connect_timeout = connect_timeout
        self._outcome_grace = outcome_grace
        self._patience = patience
        self._link: Link | None = None
        self._connection: Connection | None = None

    async def __aenter__(self) -> Host:
        if self._link is not None:
            raise _failures.Closed("A connection is entered once.")
        security = Security(self._target, Token(self._token, self._token_file), self._tls)
        connection = self._connection = self._connected(security)
        link = self._link = Link(connection, Questions(self._can_answer), patience=self._patience)
        try:
            await connection.prepare()
            await link.open(self._connect_timeout)
        except BaseException:
            await self._close()
            raise
        return Host(connection, link, outcome_grace=self._outcome_grace)

    def _connected(self, security: Security) -> Connection:
        return GrpcConnection(self._target, security)

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        link, connection = self._link, self._connection
        if link is not None and connection is not None:
            try:
                await link.close()
            finally:
                await connection.close()
