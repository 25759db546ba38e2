"""What a tool knows of its call, and what it may ask while it runs."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pillion import _json
from pillion._artifacts import ArtifactMeta, ArtifactShape, read_meta
from pillion._facts import (
    CallerPrincipal,
    CancelReason,
    Identity,
    ParentAnchor,
    Registration,
    TeardownReason,
    TeardownScope,
    Trace,
    seconds_of,
)
from pillion._gen.pillion.v1 import context_pb2
from pillion._refusals import ArtifactRefused
from pillion._verbs import Artifacts
from pillion._worker.artifacts import CallArtifacts
from pillion._worker.bus import PubSub
from pillion._worker.credentials import Credential, Credentials, read_credential
from pillion._worker.jobs import Jobs
from pillion._worker.kv import Kv
from pillion._worker.pause import Resumed, resumed_of
from pillion._worker.peers import Caller, NestedTools
from pillion._worker.port import Cleanup, Port
from pillion._worker.registrations import registration_of, scope_of
from pillion._worker.signals import CancelSignal
from pillion._worker.wanted import WantedParameter, Workspace

if TYPE_CHECKING:
    from pillion._worker.tool import Placement

_log = logging.getLogger("pillion.worker")

_KEY_DIGITS = 12

Answer = TypeVar("Answer")


class ToolContext:
    """Everything that a tool is told of its call, and all that it may ask. Given to a tool that has a parameter of it.

    It is dead with the call. What is absent is `None` and is not invented; nothing in it proves who the caller is but
    `caller_principal`. Properties, `progress`, `log` and the ways to notice a cancel may be used from any thread; what
    is awaited is for the event loop, and `wait` does that from the thread of a plain tool.

    **Cancel.** When the call is asked to stop, `cancelled` becomes true for good, and an asynchronous tool gets
    `asyncio.CancelledError` in its task at the same moment, once. A plain tool in a thread gets nothing thrown: it
    looks at `cancelled`, calls `raise_if_cancelled` or sleeps with `sleep`. Either has `cancel_grace` (2 s by default)
    to end.
    """

    __slots__ = ("_began", "_credentials", "_message", "_port", "_warned", "signal", "tool")

    def __init__(self, tool: str, message: context_pb2.ToolContext, port: Port) -> None:
        self.tool = tool
        """The tool's name."""
        self.signal = CancelSignal()
        """For the worker."""
        self._began = time.monotonic()
        self._message = message
        self._port = port
        self._credentials: Credentials | None = None
        self._warned = False

    def __repr__(self) -> str:
        return f"<ToolContext of {self.tool}, {self.execution_id}>"

    # --- facts

    @property
    def execution_id(self) -> str:
        """The sidecar's id of this execution."""
        return self._message.execution_id

    @property
    def tool_call_id(self) -> str:
        """The caller's id of the call, or one that was minted for it. Not trusted, and not unique."""
        return self._message.tool_call_id

    @property
    def iteration(self) -> int:
        """Which turn of the caller's loop this is; 0 for none."""
        return self._message.iteration

    @property
    def run_id(self) -> str | None:
        """The caller's run."""
        return self._message.run_id if self._message.HasField("run_id") else None

    @property
    def session_id(self) -> str | None:
        """The caller's session."""
        return self._message.session_id if self._message.HasField("session_id") else None

    @property
    def identity(self) -> Identity | None:
        """Whom the call is for, as the caller named it."""
        if not self._message.HasField("identity"):
            return None
        named = self._message.identity
        return Identity(
            named.tenant if named.HasField("tenant") else None,
            named.principal if named.HasField("principal") else None,
            named.conversation_id if named.HasField("conversation_id") else None,
        )

    @property
    def caller_principal(self) -> CallerPrincipal | None:
        """Who the connection proved the caller to be. It neither prints nor serialises."""
        return CallerPrincipal(self._message.caller_principal) if self._message.HasField("caller_principal") else None

    @property
    def parent_anchor(self) -> ParentAnchor | None:
        """The caller's provenance anchor. It neither prints nor serialises."""
        return ParentAnchor(self._message.parent_anchor) if self._message.HasField("parent_anchor") else None

    @property
    def trace(self) -> Trace | None:
        """The trace that the call belongs to."""
        if not self._message.HasField("trace"):
            return None
        trace = self._message.trace
        return Trace(
            trace.traceparent if trace.HasField("traceparent") else None,
            trace.tracestate if trace.HasField("tracestate") else None,
            trace.baggage if trace.HasField("baggage") else None,
        )

    @property
    def deadline(self) -> float:
        """When the absolute timeout passes, on the clock of `time.monotonic`."""
        return self._began + seconds_of(self._message.remaining)

    @property
    def remaining(self) -> float:
        """Seconds until the absolute timeout; not below 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def idle_timeout(self) -> float | None:
        """Seconds that may pass without progress."""
        return seconds_of(self._message.idle_timeout) if self._message.HasField("idle_timeout") else None

    @property
    def attempt(self) -> int:
        """1, or 2 where the call runs once more after a lost worker."""
        return self._message.attempt

    @property
    def resume(self) -> Resumed | None:
        """The state that the tool paused with and the answer to its pause; `None` where it runs for the first time."""
        return resumed_of(self._message)

    @property
    def cleanup_reason(self) -> TeardownReason | None:
        """Why this call cleans up in the place of a worker that is gone; `None` where a caller has called."""
        return TeardownReason(self._message.cleanup_reason) if self._message.HasField("cleanup_reason") else None

    # --- cancel

    @property
    def cancelled(self) -> bool:
        """Whether the call was asked to stop."""
        return self.signal.reason is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why it was asked to stop; `None` while it was not."""
        return self.signal.reason

    def raise_if_cancelled(self) -> None:
        """Goes on, unless the call was asked to stop.

        :raises Cancelled: if it was; a kind of `asyncio.CancelledError`.
        """
        self.signal.raise_if_set()

    async def wait_cancelled(self) -> CancelReason:
        """Returns the reason once the call is asked to stop."""
        return await self.signal.wait()

    def sleep(self, seconds: float) -> None:
        """Sleeps in the thread of a plain tool.

        :raises Cancelled: as soon as the call is asked to stop.
        """
        self.signal.wait_in_thread(seconds)
        self.signal.raise_if_set()

    # --- what is told

    def progress(self, payload: Any = None) -> None:
        """Reports to the caller: any JSON value, such as `{"message": "half way", "done": 1, "total": 2}`.

        Returns at once and never raises, from any thread. When somebody is slow to read, the newest reports are kept.
        One that has no JSON text, or is too large (64 KiB by default), is dropped, with one warning in the log.
        """
        try:
            data = _json.encode(payload)
            if self._port.report(data):
                return
            problem = f"one of {len(data):,} bytes is too large"
        except Exception as error:  # noqa: BLE001  # a report must not harm the tool
            problem = str(error) if isinstance(error, _json.JsonRefused) else type(error).__name__
        if not self._warned:
            self._warned = True
            _log.warning("progress of %s was dropped: %s", self.tool, problem)

    def log(self, message: str, level: int = logging.INFO, **fields: object) -> None:
        """Sends a line to the sidecar's log, with the ids of this call. `level` is one of `logging`. Never raises."""
        try:
            self._port.log(level, str(message), {name: str(value) for name, value in fields.items()})
        except Exception:  # noqa: BLE001  # a line of log must not harm the tool
            _log.exception("a line of log of %s was dropped", self.tool)

    # --- what may be asked

    @property
    def has_credentials(self) -> bool:
        """Whether the sidecar has any provider of credentials for this worker."""
        return self._message.has_credentials

    @property
    def credentials(self) -> Credentials:
        """The credentials of the tool's declared needs by service, and a way to ask for more."""
        if self._credentials is None:
            services = self._message.credentials.services
            pushed = {service: read_credential(credential) for service, credential in services.items()}
            self._credentials = Credentials(self._port, pushed)
        return self._credentials

    @property
    def credential(self) -> Credential | None:
        """The one credential of a tool that declared one need; `None` for any other tool."""
        credentials = self.credentials
        return next(iter(credentials.values())) if len(credentials) == 1 else None

    @property
    def has_artifacts(self) -> bool:
        """Whether the sidecar has an artifact store."""
        return self._message.has_artifacts

    @property
    def artifacts(self) -> Artifacts:
        """The artifact store, within this call's scope."""
        return Artifacts(CallArtifacts(self._port))

    @property
    def wanted(self) -> Mapping[str, ArtifactMeta] | None:
        """What is known of the artifacts in the tool's arguments, by argument; `None` if it has none."""
        if not self._message.HasField("wanted"):
            return None
        return {name: read_meta(artifact.meta) for name, artifact in self._message.wanted.arguments.items()}

    async def place(self, json: bytes, placement: "Placement | None") -> ArtifactMeta:
        """Puts a result that is too large for a frame. For the worker.

        :raises RequestRefused: if it cannot be put.
        """
        kind = placement.kind if placement is not None else None
        wanted = self.wanted or {}
        parents = tuple(dict.fromkeys(meta.reference for meta in wanted.values()))
        stated: dict[str, Any] = {
            "kind": kind or f"tool-result/{self.tool}",
            "media_type": "application/json",
            "label": f"{self.tool} result",
            "shape": ArtifactShape.JSON,
        }
        try:
            return await self.artifacts.put(json, parents=parents, **stated)
        except ArtifactRefused:
            if not parents:
                raise
            # One that was wanted is gone by now, which is no reason to lose the result.
            return await self.artifacts.put(json, **stated)

    async def redeem(self, workspace: Workspace, parameters: Mapping[str, WantedParameter]) -> dict[str, Any]:
        """What the tool is handed of those. For the worker.

        :raises NotAsWanted: if one is not what the tool takes.
        :raises NotHandedOver: if one cannot be had any more.
        """
        return await workspace.redeem(self._port, self._message.wanted.arguments, parameters)

    @property
    def has_tools(self) -> bool:
        """Whether other tools may be called."""
        return self._message.HasField("tools")

    @property
    def tools(self) -> NestedTools:
        """Other tools, called within this call."""
        return NestedTools(self._port, self._message.tools.remaining_depth if self.has_tools else None)

    @property
    def caller(self) -> Caller:
        """The caller, to be asked."""
        answerable = self._message.answerable
        return Caller(self._port, frozenset(answerable.methods) if self._message.HasField("answerable") else None)

    @property
    def has_bus(self) -> bool:
        """Whether the sidecar has a bus: `kv`, `pubsub` and `jobs`."""
        return self._message.has_bus

    @property
    def kv(self) -> Kv:
        """The key-value store."""
        return Kv(self._port)

    @property
    def pubsub(self) -> PubSub:
        """Publish and subscribe."""
        return PubSub(self._port)

    @property
    def jobs(self) -> Jobs:
        """The job queues."""
        return Jobs(self._port)

    # --- what is kept beyond the call

    @property
    def teardown_scopes(self) -> frozenset[TeardownScope] | None:
        """The scopes that a cleanup may be registered for in this call; `None` where there is no teardown at all."""
        if not self._message.HasField("teardown_scopes"):
            return None
        return frozenset(TeardownScope(scope) for scope in self._message.teardown_scopes.scopes if 1 <= scope <= 4)  # noqa: PLR2004  # the scopes there are

    def session_key(self, scope: TeardownScope) -> str | None:
        """Twelve hexadecimal digits to pool under what is kept for a scope. Nobody else has them; they may be logged.

        `None` where the call lacks the scope's fact, and for SHUTDOWN, which is one for all.
        """
        if scope_of(scope) is TeardownScope.CALL:
            return hashlib.sha256(self.execution_id.encode()).hexdigest()[:_KEY_DIGITS]
        for key in self._message.session_keys:
            if key.scope == scope.value:
                return key.digest
        return None

    async def on_teardown(
        self,
        cleanup: Cleanup,
        *,
        scope: TeardownScope,
        name: str | None = None,
        label: str | None = None,
        cleanup_call: tuple[str, Mapping[str, Any] | bytes | None] | None = None,
    ) -> Registration:
        """Registers what to run when a scope ends. The cleanup is told why it ended.

        A registration is of this worker's process, this tool, the scope and `name`. The same again keeps the first
        cleanup, drops this one, and tells the sidecar that the scope is still in use; so a tool may register in each
        call. `label` is for people. `cleanup_call` is a tool and its arguments, which any worker that has it runs once
        where this process is gone by then; without one, what it kept is reported as lost.

        The cleanup runs at most once, in time (5 s by default), when nothing of the call is there any more: it asks the
        sidecar for nothing. What it cleans may be gone already. If this raises, nothing was registered, but if it is
        cancelled it may have been.

        :raises TypeError: if this is no cleanup, no scope, or no pair of a tool and its arguments.
        :raises TeardownRefused: if the scope is not honoured here, or the call lacks its fact.
        :raises RequestCancelled: if the scope is being ended.
        :raises RequestRefused: as for every request.
        """
        registration = registration_of(cleanup, scope, name, label, cleanup_call)
        accepted = await self._port.register(registration, cleanup)
        return Registration(accepted.reused, accepted.count)

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Awaits something of this context from the thread of a plain tool: `entry = ctx.wait(ctx.kv.get("b", "k"))`.

        :raises RuntimeError: on the event loop's own thread, where it would wait for ever.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._port.loop:
            work.close()
            raise RuntimeError("This is the event loop's thread: await it instead.")
        return asyncio.run_coroutine_threadsafe(work, self._port.loop).result()
