"""A sidecar, as a caller without asyncio has it."""

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from pillion import _failures
from pillion._caller import call as _call
from pillion._caller import host as _host
from pillion._caller.host import CallOptions, EndedScope, Resumable
from pillion._caller.listing import HostInfo, Tools
from pillion._caller.outcome import Outcome, Progress, RegisteredTeardown, Result
from pillion._caller.questions import Handler, Question
from pillion._facts import CancelReason, Identity, Secret
from pillion._sync.artifacts import Artifacts
from pillion._sync.portal import Portal, following
from pillion._sync.transport import BlockingConnection
from pillion._wire.channel import Connection
from pillion._wire.security import Security, StrPath, Tls, TokenSource

PlainHandler = Callable[[Question], Any]
"""Answers a question with a JSON value, in a thread of its own; `None` is an answer without a value."""


class Call:
    """A call: its progress, its result, and the way to cancel it.

    It begins with its `with` block, and leaving that before its end cancels it, unless it was detached. For use by any
    thread; one at a time may iterate.
    """

    def __init__(self, portal: Portal, call: _call.Call) -> None:
        self._portal = portal
        self._call = call

    def __enter__(self) -> Self:
        """Sends the call; waits with that as the asynchronous one does.

        :raises Closed: if the connection was closed, or the call was started before.
        """
        self._portal.wait(self._call.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.wait(self._call.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[Progress]:
        """The reports, until the call ended."""
        while (progress := self._portal.wait(following(self._call))) is not None:
            yield progress

    def result(self) -> Any:
        """The value that the tool returned; raises as `pillion.Call.result` does."""
        return self._portal.wait(self._call.result())

    def raw(self) -> Result:
        """The result as it came; raises as `pillion.Call.raw` does."""
        return self._portal.wait(self._call.raw())

    def ended(self) -> Outcome:
        """How the call ended, as it came."""
        return self._portal.wait(self._call.ended())

    def cancel(self, reason: CancelReason = CancelReason.CALLER) -> None:
        """Asks the call to stop, and waits for nothing."""
        self._portal.wait(self._call.cancel(reason))

    def detach(self) -> str:
        """Lets go of a detachable call, and answers its ticket; raises as `pillion.Call.detach` does."""
        return self._portal.wait(self._call.detach())

    @property
    def ticket(self) -> str | None:
        """The handle to follow it with, where it is detachable; `None` until its first frame came. Secret."""
        return self._call.ticket

    @property
    def execution_id(self) -> str | None:
        """The sidecar's id of the execution; `None` until the call's first frame came."""
        return self._call.execution_id

    @property
    def tool_call_id(self) -> str | None:
        """The caller's id of the call, or the one that was minted for it; `None` as above."""
        return self._call.tool_call_id

    @property
    def teardowns(self) -> tuple[RegisteredTeardown, ...]:
        """What its tool has registered for the ends of scopes, the newest 32 of it."""
        return self._call.teardowns


class Host:
    """A connection to a sidecar, for use by any number of threads. Every method is that of `pillion.Host`."""

    def __init__(self, portal: Portal, host: _host.Host) -> None:
        self._portal = portal
        self._host = host

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Runs a tool and answers the value it returned; raises as `pillion.Host.call` does."""
        return self._portal.wait(self._host.call(tool, arguments, **options))

    def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Call:
        """A call to be begun by `with`.

        :raises JsonRefused: if the arguments have no JSON text of the same meaning.
        """

        async def made() -> _call.Call:
            return self._host.start(tool, arguments, **options)

        return Call(self._portal, self._portal.wait(made()))

    def resume(self, ticket: Resumable, answer: Any = None, /, **options: Unpack[CallOptions]) -> Any:
        """Resumes a call that paused, and answers the value its tool then returned; raises as `pillion.Host.resume`."""
        return self._portal.wait(self._host.resume(ticket, answer, **options))

    def start_resumed(self, ticket: Resumable, answer: Any = None, /, **options: Unpack[CallOptions]) -> Call:
        """The same as a call to be begun by `with`.

        :raises JsonRefused: if the answer has no JSON text of the same meaning.
        """

        async def made() -> _call.Call:
            return self._host.start_resumed(ticket, answer, **options)

        return Call(self._portal, self._portal.wait(made()))

    def follow(self, ticket: str, *, from_sequence: int = 0) -> Call:
        """A detached call to be followed by `with`, as `pillion.Host.follow` has it."""

        async def made() -> _call.Call:
            return self._host.follow(ticket, from_sequence=from_sequence)

        return Call(self._portal, self._portal.wait(made()))

    @property
    def artifacts(self) -> Artifacts:
        """The artifact store."""
        return Artifacts(self._portal, self._host.artifacts)

    def tools(self, identity: Identity | None = None) -> Tools:
        """The tools that this caller may call for this subject."""
        return self._portal.wait(self._host.tools(identity))

    def watch_tools(self, identity: Identity | None = None) -> Generator[Tools, None, None]:
        """The tools, whole, now and whenever they change. To be closed by who iterates (`contextlib.closing`)."""
        watched: Any = self._host.watch_tools(identity)
        try:
            while (tools := self._portal.wait(following(watched))) is not None:
                yield tools
        finally:
            self._portal.wait(watched.aclose())

    def info(self) -> HostInfo:
        """What the sidecar is and can do."""
        return self._portal.wait(self._host.info())

    def end_run(self, run_id: str, identity: Identity | None = None) -> EndedScope:
        """Ends a run, and answers what that did."""
        return self._portal.wait(self._host.end_run(run_id, identity))

    def end_session(self, session_id: str, identity: Identity | None = None) -> EndedScope:
        """Ends a session, and answers what that did."""
        return self._portal.wait(self._host.end_session(session_id, identity))

    def complete_consent(self, service: str, callback: str | Secret, identity: Identity | None = None) -> None:
        """Hands in what a person was sent back with after they authorised a service for this subject."""
        self._portal.wait(self._host.complete_consent(service, callback, identity))

    @property
    def connected(self) -> bool:
        """Whether the stream is there now."""
        return self._host.connected


class connect:  # noqa: N801  # reads as the verb it is: `with pillion.sync.connect(...) as host`
    """Connects to a sidecar without asyncio, and is closed with its `with` block: what still runs then is cancelled.

    `target` may also be a synchronous `grpc.Channel`, which stays open, and takes no `tls`. `can_answer` has plain
    functions, each called in a thread. All else is as of `pillion.connect`. Beside it run one thread with an event loop
    and gRPC's own.
    """

    def __init__(
        self,
        target: str | grpc.Channel,
        *,
        token: str | Secret | TokenSource | None = None,
        token_file: StrPath | None = None,
        tls: Tls | None = None,
        can_answer: Mapping[str, PlainHandler] | None = None,
        connect_timeout: float | None = 30.0,
        outcome_grace: float = 10.0,
        patience: float = 30.0,
    ) -> None:
        self._portal: Portal | None = None
        handlers = {method: _in_thread(handler) for method, handler in (can_answer or {}).items()}
        self._connect = _Connect(
            target,
            token=token,
            token_file=token_file,
            tls=tls,
            can_answer=handlers,
            connect_timeout=connect_timeout,
            outcome_grace=outcome_grace,
            patience=patience,
        )

    def __enter__(self) -> Host:
        if self._portal is not None:
            raise _failures.Closed("A connection is entered once.")
        portal = self._portal = Portal()
        try:
            return Host(portal, portal.wait(self._connect.__aenter__()))
        except BaseException:
            portal.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._portal is not None:
            try:
                self._portal.wait(self._connect.__aexit__(kind, error, traceback))
            finally:
                self._portal.close()


class _Connect(_host.connect):
    """The asynchronous one, over gRPC's synchronous API."""

    def __init__(self, way: str | grpc.Channel, **options: Any) -> None:
        # A channel that was brought along has its own ways to be safe.
        super().__init__(way if isinstance(way, str) else "unix:", **options)
        self._way = way

    def _connected(self, security: Security) -> Connection:
        return BlockingConnection(self._way, security)


def _in_thread(handler: PlainHandler) -> Handler:
    async def answer(question: Question) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, handler, question)

    return answer
