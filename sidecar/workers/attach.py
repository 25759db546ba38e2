"""One worker's stream: how it presents itself, and where its frames go."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from sidecar._gen.pillion.v1.call_pb2 import StreamErrorReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import ReplyErrorCode
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import LogLevel, RefusedTool, WorkerHello
from sidecar.calls.outbound import call_over, refused
from sidecar.calls.outcome import cut
from sidecar.calls.tool import Tool
from sidecar.telemetry import Counters
from sidecar.telemetry.redaction import Redaction
from sidecar.wire.batch import FrameHead
from sidecar.wire.ending import Ending, EndingReason
from sidecar.wire.limits import WireLimits
from sidecar.wire.protocol import PROTOCOL, agreed_version, limits_message, stream_error
from sidecar.wire.stream import FrameStream
from sidecar.workers.admission import admit
from sidecar.workers.catalogue import Catalogue
from sidecar.workers.instance import Assignment, Instance, InstanceState
from sidecar.workers.limits import WorkerLimits
from sidecar.workers.worker_set import WorkerSet

_log = logging.getLogger(__name__)
_worker_log = logging.getLogger("pillion.worker")

_LOG_LINE_BYTES: Final = 8_192
_LOG_FIELDS: Final = 32
_LOG_FIELD_BYTES: Final = 256
_REGISTRATIONS: Final = 65_536
_LEVELS: Final = {
    LogLevel.LOG_LEVEL_DEBUG: logging.DEBUG,
    LogLevel.LOG_LEVEL_WARNING: logging.WARNING,
    LogLevel.LOG_LEVEL_ERROR: logging.ERROR,
}


class Refusals(Protocol):
    """Who is told what workers were refused."""

    def refused_worker(self, worker: str, reason: str) -> None:
        """Somebody was not let in, who calls itself this."""
        ...

    def refused_tools(self, worker: str, refused: Collection[RefusedTool]) -> None:
        """Tools of a worker were not admitted."""
        ...


class AttachSession:
    """The sidecar's end of one `Attach` stream."""

    def __init__(
        self,
        stream: FrameStream,
        catalogue: Catalogue,
        limits: WorkerLimits,
        wire_limits: WireLimits,
        counters: Counters,
        *,
        redaction: Redaction,
        refusals: Refusals | None,
    ) -> None:
        self.large_bodies: Collection[str] = frozenset(("worker_hello", "tools_changed"))
        """Frames that may fill a message: a worker's tools do not come in parts."""
        self.ending: Ending | None = None
        """Why the sidecar ended the stream, with a sentence for the worker; `None` while it did not."""
        self.handlers: Mapping[str | None, Callable[[Frame], None]] = {"worker_hello": self._hello}
        self._handlers_once_welcome: Mapping[str | None, Callable[[Frame], None]] = {
            "progress": self._progress,
            "outcome": self._outcome,
            "outbound_request": self._outbound_request,
            "register_teardown": self._register_teardown,
            "log": self._log,
            "output": self._output,
            "worker_hello": self._second_hello,
            "tools_changed": self._tools_changed,
            "teardown_done": self._teardown_done,
            "goodbye": self._goodbye,
        }
        self._stream = stream
        self._catalogue = catalogue
        self._limits = limits
        self._wire_limits = wire_limits
        self._counters = counters
        self._redaction = redaction
        self._refusals = refusals
        self._log_text = redaction.stream()
        """Of lines that belong to no call."""
        self._instance: Instance | None = None
        self._running: dict[int, Assignment] = {}
        self._strikes = 0
        self._log_second = 0
        self._log_lines = 0
        self._hello_timer = asyncio.get_running_loop().call_later(limits.hello_within, self._no_hello)

    # --- frames of calls

    def _progress(self, frame: Frame) -> None:
        assignment = self._running.get(frame.call)
        if assignment is not None and (call := assignment.assigned) is not None:
            call.progressed(frame)
        else:
            self._late("late_progress")

    def _outcome(self, frame: Frame) -> None:
        assignment = self._running.get(frame.call)
        if assignment is None:
            self._late("late_outcomes")
        elif assignment.assigned is None:
            self._counters.add("late_outcomes")
            assignment.release()
        else:
            assignment.assigned.ended(frame)

    def _outbound_request(self, frame: Frame) -> None:
        assignment = self._running.get(frame.call)
        if assignment is not None and assignment.assigned is not None:
            assignment.assigned.asked(frame)
            return
        self._late("late_requests")
        if assignment is not None:
            assignment.send(call_over(frame.outbound_request.request_id))

    def _register_teardown(self, frame: Frame) -> None:
        assignment = self._running.get(frame.call)
        if assignment is not None and assignment.assigned is not None:
            assignment.assigned.registering(frame)
            return
        self._late("late_requests")
        if assignment is not None:
            assignment.send(call_over(frame.register_teardown.request_id))

    def _log(self, frame: Frame) -> None:
        instance = self._instance
        if instance is None:
            return
        line = frame.log
        assignment = self._running.get(frame.call)
        # Also of one that is dropped, and before it is cut: half a secret is not found.
        message = (self._log_text if assignment is None else assignment.log_text(self._redaction)).write(line.message)
        if not self._may_log():
            self._counters.add("dropped_log_lines")
            return
        redact = self._redaction.redact
        fields = [(redact(name), redact(value)) for name, value in sorted(line.fields.items())[:_LOG_FIELDS]]
        call = assignment.assigned if assignment is not None else None
        _worker_log.log(
            _LEVELS.get(line.level, logging.INFO),
            "%s",
            cut(message, _LOG_LINE_BYTES),
            extra={
                "worker": instance.workers.name,
                "instance": instance.id,
                "execution_id": call.execution_id if call is not None else None,
                "fields": {cut(name, _LOG_FIELD_BYTES): cut(value, _LOG_FIELD_BYTES) for name, value in fields},
            },
        )

    def _output(self, frame: Frame) -> None:
        assignment = self._running.get(frame.call)
        if assignment is None or assignment.assigned is None:
            self.misdirected(frame, "output")
        else:
            assignment.assigned.reserved("output")

    def _may_log(self) -> bool:
        """Whether another line may be logged in this second."""
        second = int(asyncio.get_running_loop().time())
        if second != self._log_second:
            self._log_second, self._log_lines = second, 0
        self._log_lines += 1
        return self._log_lines <= self._limits.log_lines_per_second

    def _late(self, counter: str) -> None:
        self._counters.add(counter)

    # --- frames of the stream

    def _second_hello(self, _frame: Frame) -> None:
        self._complain("A worker says hello once.")

    def _hello(self, frame: Frame) -> None:
        hello = frame.worker_hello
        workers = self._catalogue.sets.get(hello.worker)
        holder = workers.grant.holder_of(hello.token) if workers is not None else None
        if workers is None or holder is None:
            self._refuse(hello.worker, "No worker of this name has this token.")
            return
        if agreed_version(hello) is None:
            self._turn(EndingReason.PROTOCOL, "This sidecar speaks protocol 1.0, which the worker does not.")
            return
        if len(hello.tools) > self._limits.most_tools or len(hello.reattach.registrations) > _REGISTRATIONS:
            self._turn(
                EndingReason.PROTOCOL,
                f"A worker brings at most {self._limits.most_tools:,} tools and {_REGISTRATIONS:,} registrations.",
            )
            return
        concurrency = hello.concurrency if hello.HasField("concurrency") else self._limits.concurrency
        if not 0 < concurrency <= self._limits.most_concurrency:
            self._turn(EndingReason.PROTOCOL, f"A worker's concurrency is 1 to {self._limits.most_concurrency:,}.")
            return
        self._admit(hello, workers, holder, concurrency)

    def _admit(self, hello: WorkerHello, workers: WorkerSet, holder: str, concurrency: int) -> None:
        self._hello_timer.cancel()
        again = hello.reattach
        kept = workers.kept(again.instance_id) if hello.HasField("reattach") else None
        if kept is not None and not kept.knows(again.secret):
            self._refuse(hello.worker, "The instance to re-attach has another secret.")
            return
        earlier = None
        if kept is not None:
            workers.replace(kept.id)
            earlier = (kept.id, again.secret)
        if hello.HasField("max_frame_bytes"):
            self._stream.outbox.limit_frames(hello.max_frame_bytes)
        tools, turned_away = self._admitted(hello.tools, workers)
        instance = self._instance = Instance(
            workers, self._stream, holder, concurrency, self._limits.nested_headroom, earlier
        )
        self._running = instance.running
        self.handlers = self._handlers_once_welcome
        workers.attach(instance, tools, again=earlier is not None)
        # Frames of the stream itself go before those of calls, so no invoke overtakes the welcome.
        self._stream.control(self._welcome(instance, turned_away))
        for registration in self._unwanted(instance, hello.reattach.registrations, again=earlier is not None):
            release = Frame()
            release.release.registration_id = registration
            self._stream.control(release)
        _log.info("worker %s attached as %s with %d tools", workers.name, instance.id, len(tools))

    def _tools_changed(self, frame: Frame) -> None:
        instance = self._instance
        if instance is None or instance.state is not InstanceState.ACTIVE:
            self._complain("An instance that drains or leaves keeps the tools it has.")
            return
        descriptors = frame.tools_changed.tools
        if len(descriptors) > self._limits.most_tools:
            self._complain(f"A worker brings at most {self._limits.most_tools:,} tools; it keeps those it has.")
            return
        tools, turned_away = self._admitted(descriptors, instance.workers)
        instance.workers.change_tools(instance, tools)
        self._stream.control(self._welcome(instance, turned_away))

    def _teardown_done(self, frame: Frame) -> None:
        if self._instance is None or not self._instance.fired(frame.teardown_done):
            self._late("late_teardowns")

    def _goodbye(self, _frame: Frame) -> None:
        if self._instance is not None:
            self._instance.workers.leave(self._instance)

    def _admitted(
        self, descriptors: Iterable[ToolDescriptor], workers: WorkerSet
    ) -> tuple[dict[str, Tool], list[RefusedTool]]:
        admitted, turned_away = admit(descriptors, workers, self._catalogue.owners(), self._limits)
        told = []
        for tool in turned_away:
            # The name may be cut, and end with the beginning of what is secret.
            name = self._redaction.stream().write(tool.name)
            told.append(RefusedTool(name=name, reason=tool.reason))
            self._counters.add("refused_tools")
            _log.warning("worker %s: tool %s was refused: %s", workers.name, name, tool.reason)
        if told and self._refusals is not None:
            self._refusals.refused_tools(workers.name, told)
        return admitted, turned_away

    def _unwanted(self, instance: Instance, listed: Sequence[str], *, again: bool) -> Sequence[str]:
        """Which of the registrations that a worker brings back are not wanted any more."""
        return self._catalogue.teardowns.returned(instance.id, listed) if again else listed

    def _welcome(self, instance: Instance, turned_away: Iterable[RefusedTool]) -> Frame:
        frame = Frame()
        welcome = frame.welcome
        welcome.instance_id = instance.id
        welcome.reattach_secret = instance.secret
        welcome.limits.CopyFrom(limits_message(self._wire_limits, instance.concurrency))
        welcome.version.CopyFrom(PROTOCOL)
        welcome.refused.extend(turned_away)
        welcome.generation = self._catalogue.snapshot.generation
        welcome.ping_interval.FromNanoseconds(int(self._limits.ping_interval * 1e9))
        welcome.reattach_window.FromNanoseconds(int(self._limits.reattach_window * 1e9))
        return frame

    # --- what goes wrong, and the end

    def misdirected(self, frame: Frame, body: str) -> None:
        """A frame came that a worker may not send: its call fails, or the stream is told."""
        assignment = self._running.get(frame.call)
        if self._instance is None:
            self._turn(EndingReason.PROTOCOL, "The first frame of a worker is its WorkerHello.")
        elif assignment is not None and assignment.assigned is not None:
            assignment.assigned.broke_protocol(f"The worker sent a {body} frame, which is not a worker's to send.")
        else:
            self._complain(f"A {body} frame is not a worker's to send.", frame.call)

    def oversized(self, head: FrameHead) -> None:
        """A frame came that is over a limit: its call alone is harmed."""
        largest = self._wire_limits.max_frame_bytes
        assignment = self._running.get(head.call)
        if self._instance is None:
            self._turn(EndingReason.PROTOCOL, "The first frame of a worker is its WorkerHello.")
        elif assignment is None:
            self._complain(f"A frame has at most {largest:,} bytes, and this one had {head.size:,}.", head.call)
        elif head.body == "progress":
            self._counters.add("oversized_progress")
            _log.warning("a progress frame of %d bytes was dropped", head.size)
        elif assignment.assigned is None:
            if head.body == "outcome":
                assignment.release()
            self._counters.add("late_outcomes" if head.body == "outcome" else "late_requests")
        elif head.body == "outcome":
            assignment.assigned.result_too_large()
        elif head.body == "outbound_request" and head.frame is not None:
            assignment.send(
                refused(
                    head.frame.outbound_request.request_id,
                    ReplyErrorCode.REPLY_ERROR_CODE_INVALID,
                    f"The request is over the {largest:,} bytes that a frame may have.",
                )
            )
        else:
            assignment.assigned.broke_protocol("The worker sent a frame that is over the largest.")

    def unreadable(self, reason: "StreamErrorReason.ValueType") -> None:
        """A message came that cannot be read: told, and the second time the instance is given up."""
        self._strikes += 1
        if self._strikes >= self._limits.strikes:
            self._quarantine("The worker sent messages that are too large or no batches of frames.")
        else:
            self._stream.control(
                stream_error(
                    reason, f"A message is a batch of frames of at most {self._wire_limits.max_message_bytes:,} bytes."
                ),
                droppable=True,
            )

    def relieved(self) -> None:
        """The worker reads again: its slots can be given calls."""
        if self._instance is not None:
            self._instance.workers.slot_freed()

    def half_closed(self) -> None:
        """The worker will send no more: what it runs can get no outcome."""
        if self._instance is not None:
            self._instance.workers.lose(self._instance)
        self._stream.finish()

    def unresponsive(self) -> None:
        """The worker answers no pings: what it runs is decided now."""
        self._quarantine("The worker answered none of the last pings.")

    def ended(self) -> None:
        """The stream is over."""
        self._hello_timer.cancel()
        if self._instance is not None:
            self._instance.workers.lose(self._instance)

    def _complain(self, message: str, call: int | None = None) -> None:
        self._stream.control(
            stream_error(StreamErrorReason.STREAM_ERROR_REASON_PROTOCOL, message, call), droppable=True
        )

    def _quarantine(self, reason: str) -> None:
        self._counters.add("quarantined_instances")
        if self._instance is not None:
            _log.warning("instance %s was given up: %s", self._instance.id, reason)
            self._instance.workers.quarantine(self._instance)
        self._turn(EndingReason.QUARANTINED, reason)

    def _refuse(self, worker: str, reason: str) -> None:
        self._counters.add("refused_workers")
        if self._refusals is not None:
            self._refusals.refused_worker(cut(self._redaction.redact(worker), _LOG_FIELD_BYTES), reason)
        self._turn(EndingReason.UNAUTHENTICATED, reason)

    def _no_hello(self) -> None:
        self._turn(EndingReason.PROTOCOL, f"No WorkerHello came within {self._limits.hello_within:g} s.")

    def _turn(self, reason: EndingReason, message: str) -> None:
        if self.ending is None:
            self.ending = Ending(reason, message)
            self._hello_timer.cancel()
            self._stream.close()
