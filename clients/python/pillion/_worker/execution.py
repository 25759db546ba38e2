"""One invoked call: from its arguments to its outcome."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pydantic import ValidationError

from pillion import _failures, _json, _refusals
from pillion._content import write_content
from pillion._facts import CancelReason, Effects, SideEffects, TeardownScope, set_seconds
from pillion._failures import FailureKind
from pillion._gen.pillion.v1.artifacts_pb2 import DownloadRequest
from pillion._gen.pillion.v1.context_pb2 import ToolContext as ContextMessage
from pillion._gen.pillion.v1.frame_pb2 import Frame
from pillion._gen.pillion.v1.outbound_pb2 import OutboundRequest, Reply, TeardownAccepted
from pillion._gen.pillion.v1.worker_pb2 import Invoke, LogLevel, Progress, RegisterTeardown
from pillion._wire.channel import Transport
from pillion._wire.outbox import Lane
from pillion._worker.cleanups import Kept
from pillion._worker.context import ToolContext
from pillion._worker.pause import pause_in
from pillion._worker.port import Cleanup
from pillion._worker.requests import Deliveries, Requests
from pillion._worker.signals import ToolError, ToolResult
from pillion._worker.tool import Tool
from pillion._worker.wanted import NotAsWanted, NotHandedOver, Workspace

_log = logging.getLogger("pillion.worker")

_ISSUES = 10
_MESSAGE_BYTES = 4_096
_PATH_BYTES, _LINE_BYTES = 256, 8_192
_FAILED = "The tool failed; its worker's log says why."


class Owner(Protocol):
    """Who runs executions."""

    loop: asyncio.AbstractEventLoop

    def finished(self, execution: "Execution") -> None:
        """An execution has ended. On the event loop."""
        ...

    def clear(self, workspace: Workspace) -> None:
        """Removes what an execution was handed. On the event loop."""
        ...

    def open_transfer(self, request: DownloadRequest | None) -> Transport:
        """A stream of a download; without a request, of an upload."""
        ...

    def expect_cleanup(self, call: int, request_id: int, kept: Kept) -> None:
        """A cleanup is on its way to be registered."""
        ...


class Execution:
    """One run of one tool, and its way to the sidecar."""

    __slots__ = (
        "_arguments",
        "_begun",
        "_lane",
        "_owner",
        "_requests",
        "_task",
        "_workspace",
        "context",
        "loop",
        "tool",
    )

    def __init__(self, owner: Owner, tool: Tool[..., Any], invoke: Invoke, lane: Lane) -> None:
        self.tool = tool
        self.loop = owner.loop
        self._owner = owner
        self._lane = lane
        self._arguments = invoke.arguments
        message = ContextMessage()
        message.CopyFrom(invoke.context)  # the message that it came in may be large, and is not kept alive
        self.context = ToolContext(tool.name, message, self)
        self._requests: Requests | None = None
        self._task: asyncio.Task[None] | None = None
        self._workspace: Workspace | None = None
        self._begun = False

    @property
    def call(self) -> int:
        """The call's number on its stream."""
        return self._lane.call

    def start(self) -> None:
        """Runs an asynchronous tool."""
        self._task = self.loop.create_task(self._run())

    def run_in_thread(self) -> None:
        """Runs a plain tool to its end, in this thread."""
        try:
            self._begun = True
            contextvars.copy_context().run(self._run_plain)
        finally:
            try:
                self.loop.call_soon_threadsafe(self._finish)
            except RuntimeError:  # The loop is closed: nobody waits for it any more.
                _log.debug("a tool ended after its worker")

    def cancel(self, reason: CancelReason) -> None:
        """Asks the tool to stop, once."""
        if self.context.signal.set(reason):
            if self._requests is not None and reason is CancelReason.DISCONNECT:
                self._requests.close("The call's stream was lost.")
            # A task that did not begin would end without a word: it looks at the signal first.
            if self._task is not None and self._begun:
                self._task.cancel()

    def replied(self, reply: Reply) -> None:
        """An answer to one of its requests came."""
        if self._requests is not None:
            self._requests.replied(reply)

    def reported(self, progress: Progress) -> None:
        """A call that it made reports."""
        if self._requests is not None:
            self._requests.reported(progress.request_id, progress.payload)

    def delivered(self, frame: Frame) -> None:
        """Something came for one of its subscriptions."""
        if self._requests is not None:
            self._requests.delivered(frame.delivery)

    # --- running

    async def _run(self) -> None:
        self._begun = True
        try:
            self.context.raise_if_cancelled()
            arguments = self._read()
            if arguments is not None and self.tool.wants:
                await self._redeem(arguments)
            if arguments is not None:
                large = self._return(await self.tool.function(**arguments))
                if large is not None:
                    await self._upload(large)
        except BaseException as error:  # noqa: BLE001  # however a tool ends, its call ends and the worker lives on
            self._fail(error)
        finally:
            self._finish()

    def _run_plain(self) -> None:
        try:
            self.context.raise_if_cancelled()
            arguments = self._read()
            if arguments is not None and self.tool.wants:
                self.context.wait(self._redeem(arguments))
            if arguments is not None:
                large = self._return(self.tool.function(**arguments))
                if large is not None:
                    self.context.wait(self._upload(large))
        except BaseException as error:  # noqa: BLE001  # as above
            self._fail(error)

    def _read(self) -> dict[str, Any] | None:
        """The arguments; `None` after the call was failed because they do not fit."""
        text, self._arguments = self._arguments, b""
        tool = self.tool
        try:
            arguments = tool.arguments.read(text)
        except ValidationError as error:
            self._refuse(error)
            return None
        except _json.JsonRefused as error:
            self._end(FailureKind.INVALID_ARGUMENTS, str(error), SideEffects.NONE)
            return None
        parameter = tool.arguments.context_parameter
        if parameter is not None:
            arguments[parameter] = self.context
        return arguments

    async def _redeem(self, arguments: dict[str, Any]) -> None:
        """Puts the artifacts that the tool wants in the place of their references."""
        self._workspace = Workspace()
        arguments.update(await self.context.redeem(self._workspace, self.tool.arguments.wanted))

    def _return(self, value: Any) -> Frame | None:
        """Ends the call in what the tool returned, or answers the outcome whose value is to be uploaded."""
        tool = self.tool
        if isinstance(value, ToolResult):
            frame = Frame(call=self._lane.call)
            result = frame.outcome.result
            result.is_error = value.is_error
            result.content.extend(write_content(value.content))
            # An error is not what the tool declares to return.
            json = (
                (None if value.value is None else _json.encode(value.value))
                if value.is_error
                else tool.returned.write(value.value)
            )
            if json is not None:
                result.json = json
            sent = self._lane.send(frame.SerializeToString(), last=True)
            if not sent and json is not None and not value.is_error and self._places:
                return frame
        else:
            json = tool.returned.write(value)
            if json is not None:
                sent = self._lane.result(json)
                if not sent and self._places:
                    frame = Frame(call=self._lane.call)
                    frame.outcome.result.json = json
                    return frame
            else:
                frame = Frame(call=self._lane.call)
                frame.outcome.result.SetInParent()
                sent = self._lane.send(frame.SerializeToString(), last=True)
        if not sent:
            self._end_too_large("is over what a frame can carry")
        return None

    @property
    def _places(self) -> bool:
        """Whether a result that is over a frame may be uploaded."""
        return self.tool.placement is not None and self.context.has_artifacts

    async def _upload(self, frame: Frame) -> None:
        """Ends the call in a result whose value is uploaded in place of riding in the frame."""
        result, tool = frame.outcome.result, self.tool
        try:
            meta = await self.context.place(result.json, tool.placement)
        except (_refusals.RequestRefused, _failures.ConnectionFailed) as error:
            _log.warning("a result of %s could not be uploaded: %s", tool.name, error)
            self._end_too_large("could not be put as an artifact, and is over what a frame can carry")
            return
        result.ClearField("json")
        frame.outcome.uploaded_reference = meta.reference
        if not self._lane.send(frame.SerializeToString(), last=True):
            self._end_too_large("has blocks that are over what a frame can carry")

    def _end_too_large(self, why: str) -> None:
        self._end(
            FailureKind.RESULT_TOO_LARGE,
            f"The result of {self.tool.name} {why}; ask for less.",
            SideEffects.NONE if self.tool.effects is Effects.READ else SideEffects.COMMITTED,
        )

    def _fail(self, error: BaseException) -> None:
        side_effects = SideEffects.NONE if self.tool.effects is Effects.READ else SideEffects.POSSIBLE
        if self._pause(error):
            return
        if isinstance(error, ToolError):
            said = side_effects if error.side_effects is None else error.side_effects
            try:
                self._end(FailureKind.TOOL_FAILED, error.message, said, error)
            except (ArithmeticError, AttributeError, TypeError, ValueError):
                # What a tool gives may be anything, and its call ends all the same.
                _log.exception(
                    "%s failed in %s in a way that cannot be told", self.tool.name, self.context.execution_id
                )
                self._end(FailureKind.TOOL_FAILED, _FAILED, side_effects)
        elif isinstance(error, _refusals.CredentialRefused):
            self._end(FailureKind.CREDENTIAL_UNAVAILABLE, error.message, side_effects, error)
        elif isinstance(error, asyncio.CancelledError) and self.context.cancelled:
            message = "The tool stopped because its call was cancelled."
            self._end(FailureKind.CANCELLED, message, side_effects)
        elif isinstance(error, NotAsWanted):
            self._end(FailureKind.INVALID_ARGUMENTS, str(error), SideEffects.NONE)
        elif isinstance(error, NotHandedOver):
            self._end(FailureKind.ARTIFACT_UNAVAILABLE, str(error), SideEffects.NONE)
        else:
            _log.error("%s failed in %s", self.tool.name, self.context.execution_id, exc_info=error)
            self._end(FailureKind.TOOL_FAILED, _FAILED, side_effects)

    def _pause(self, error: BaseException) -> bool:
        """Ends the call in a pause, where the tool raised one."""
        try:
            paused = pause_in(error)
            if paused is None:
                return False
            paused.ask.message = _cut(paused.ask.message, _MESSAGE_BYTES)
            frame = Frame(call=self._lane.call)
            frame.outcome.paused.CopyFrom(paused)
        except (_json.JsonRefused, TypeError, ValueError):
            # What a tool gives may be anything.
            _log.exception("%s paused in %s in a way that cannot be told", self.tool.name, self.context.execution_id)
            return False
        if not self._lane.send(frame.SerializeToString(), last=True):
            self._end_too_large("keeps more for its resume than a frame can carry")
        return True

    def _refuse(self, error: ValidationError) -> None:
        """The arguments do not fit the annotations. The text of a tool's own check may quote them, and stays here."""
        frame = Frame(call=self._lane.call)
        failure = frame.outcome.failure
        failure.kind = FailureKind.INVALID_ARGUMENTS.value  # type: ignore[assignment]  # the same numbers
        failure.message = f"The arguments do not fit {self.tool.name}."
        failure.side_effects = SideEffects.NONE.value  # type: ignore[assignment]  # the same numbers
        for mistake in error.errors(include_url=False, include_input=False, include_context=False)[:_ISSUES]:
            own = mistake["type"] in ("value_error", "assertion_error")
            issue = failure.issues.add()
            issue.path = _cut("".join(f"/{_escaped(part)}" for part in mistake["loc"]), _PATH_BYTES)
            issue.rule = mistake["type"]
            issue.message = "It does not pass the tool's own check." if own else _cut(mistake["msg"], _PATH_BYTES)
        self._lane.send(frame.SerializeToString(), last=True)

    def _end(
        self,
        kind: FailureKind,
        message: str,
        side_effects: SideEffects,
        error: ToolError | _refusals.CredentialRefused | None = None,
    ) -> None:
        frame = Frame(call=self._lane.call)
        failure = frame.outcome.failure
        failure.kind = kind.value  # type: ignore[assignment]  # the same numbers
        failure.message = _cut(message, _MESSAGE_BYTES)
        failure.side_effects = side_effects.value  # type: ignore[assignment]  # the same numbers
        if error is not None:
            failure.retryable = error.retryable
            if error.retry_after is not None:
                set_seconds(failure.retry_after, error.retry_after)
        self._lane.send(frame.SerializeToString(), last=True)

    def _finish(self) -> None:
        self._task = None
        if self._workspace is not None:
            self._owner.clear(self._workspace)
        if self._requests is not None:
            self._requests.close("The call has ended: a tool asks while it runs.")
        self._owner.finished(self)

    # --- the port of its context

    @property
    def inline_bytes(self) -> int:
        """The largest payload of an artifact that rides inside a frame."""
        return self._lane.inline_bytes

    async def open_upload(self) -> Transport:
        """A stream to upload an artifact by."""
        return self._owner.open_transfer(None)

    async def open_download(self, request: DownloadRequest) -> Transport:
        """A stream of an artifact."""
        return self._owner.open_transfer(request)

    def report(self, payload: bytes) -> bool:
        """Sends progress, from any thread."""
        return self._lane.report(payload)

    def log(self, level: int, message: str, fields: Mapping[str, str]) -> None:
        """Sends a line of log, from any thread."""
        frame = Frame(call=self._lane.call)
        frame.log.level = (
            LogLevel.LOG_LEVEL_ERROR
            if level >= logging.ERROR
            else LogLevel.LOG_LEVEL_WARNING
            if level >= logging.WARNING
            else LogLevel.LOG_LEVEL_INFO
            if level >= logging.INFO
            else LogLevel.LOG_LEVEL_DEBUG
        )
        frame.log.message = _cut(message, _LINE_BYTES)
        for name, value in list(fields.items())[:32]:
            frame.log.fields[_cut(name, _PATH_BYTES)] = _cut(value, _PATH_BYTES)
        self._lane.send(frame.SerializeToString())

    async def ask(
        self,
        request: OutboundRequest,
        timeout: float | None = None,
        reported: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """The answer to a request."""
        return await self._asking().ask(request, timeout, reported)

    async def register(self, registration: RegisterTeardown, cleanup: Cleanup) -> TeardownAccepted:
        """Registers a cleanup."""
        kept = Kept(cleanup, self.tool.name, TeardownScope(registration.scope), registration.HasField("cleanup_call"))

        def sent(request_id: int) -> None:
            self._owner.expect_cleanup(self._lane.call, request_id, kept)

        return (await self._asking().ask(registration, None, sent=sent)).teardown

    def deliveries(self, subscription: str) -> Deliveries:
        """What comes for a subscription."""
        return self._asking().deliveries(subscription)

    def forget(self, subscription: str) -> None:
        """A subscription is over."""
        self._asking().forget(subscription)

    def _asking(self) -> Requests:
        """Its requests; most calls have none."""
        if self._requests is None:
            self._requests = Requests(self._send)
            if self._lane.closed or self.context.cancel_reason is CancelReason.DISCONNECT:
                self._requests.close("The call has ended: a tool asks while it runs.")
        return self._requests

    def _send(self, frame: Frame) -> bool:
        frame.call = self._lane.call
        return self._lane.send(frame.SerializeToString())


def _cut(text: str, most: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return encoded.decode() if len(encoded) <= most else encoded[:most].decode("utf-8", "ignore")


def _escaped(part: int | str) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")
