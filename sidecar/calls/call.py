"""One call, from the gates to its outcome."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from sidecar._gen.pillion.v1.context_pb2 import CancelReason
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, Outcome, SideEffects
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls import causes, joining
from sidecar.calls.clock import CallClock
from sidecar.calls.context import renew
from sidecar.calls.outbound import OutboundRequests, harmless
from sidecar.calls.outcome import NONE, failed
from sidecar.calls.paused import Pause, Resumption
from sidecar.calls.ports import Assignment, Caller, Sink, WorkerSet
from sidecar.calls.result import checked, effects_of, effects_of_attempt, effects_of_return, too_large
from sidecar.calls.state import CANCELLING, DONE, ENDED, GATES, JOINED, NEEDING, RUNNING, SETTLING, WAITING
from sidecar.calls.tool import Tool
from sidecar.scope import call_scope
from sidecar.telemetry.spans import Span

if TYPE_CHECKING:
    from sidecar.calls.pipeline import Pipeline

_log = logging.getLogger(__name__)

_has: Final = Outcome.HasField
_UNSAFE: Final = Effects.EFFECTS_UNSAFE
_LEAST_TIME: Final = 1e-9
_RECORDING: Final = 0.1
"""The part of `teardown_grace` that is left to record an outcome when a cleanup takes all the rest."""
_CALLER: Final = CancelReason.CANCEL_REASON_CALLER
_PARENT: Final = CancelReason.CANCEL_REASON_PARENT
_OF_ONE_CALLER: Final = frozenset((_CALLER, CancelReason.CANCEL_REASON_DISCONNECT))


class Call(CallClock):
    """The life of one call. Everything happens on the event loop, and nothing here waits.

    Whatever happens first decides the outcome; what comes later is counted. Exactly one outcome is sent, at the latest
    `cancel_grace` and `teardown_grace` after the timeout.
    """

    __slots__ = (
        "_assignment",
        "_attempt",
        "_cause",
        "_endings",
        "_looked_only",
        "_requests",
        "_tears_down",
        "admitted",
        "inner",
        "joined",
        "joiners",
        "joins",
        "outcome",
        "paused_inner",
        "reports",
        "settlement",
        "span",
        "started_sent",
        "worker_set",
    )

    def __init__(
        self,
        pipeline: "Pipeline",
        caller: Caller,
        sink: Sink,
        tool_call_id: str,
        now: float,
        parent: "Call | None" = None,
    ) -> None:
        CallClock.__init__(self, pipeline, tool_call_id, caller, sink, now, parent)
        self.outcome: Frame | None = None
        """The outcome frame, from when it is known until it is sent."""
        self.settlement: asyncio.Future[Frame | None] | None = None
        """Where there is one, the outcome is given to it first, and sent when `deliver` is called."""
        self.admitted = False
        self.joins = False
        """Whether it joined or replays another call."""
        self.joined: Call | None = None
        self.joiners: list[Call] | None = None
        self.inner: set[Call] | None = None
        """The calls that its tool made and that are not over."""
        self.paused_inner: list[Pause] | None = None
        """Calls that its tool made and that have paused, until it pauses itself."""
        self.started_sent = parent is not None
        """Whether its `Started` was sent, if it is: a tool that makes a call knows when that began."""
        self.reports = 0
        """How often its tool reported."""
        self.worker_set: WorkerSet | None = None
        self.span: Span | None = None
        """Its span, where calls are traced."""
        self._assignment: Assignment | None = None
        self._attempt = 0
        self._cause: Failure | None = None
        self._endings: list[Callable[[], object]] | None = None
        self._looked_only = True
        self._requests: OutboundRequests | None = None
        self._tears_down = False
        """Whether its outcome waits for the cleanups of its own scope."""

    @property
    def done(self) -> bool:
        """Whether the outcome was sent."""
        return self.state is DONE

    def count(self, what: str) -> None:
        """Counts something that happened in this call."""
        self._pipeline.counters.add(what)

    @property
    def attempts(self) -> int:
        """How often its tool was invoked."""
        return self._attempt

    @property
    def worker_instance_id(self) -> str | None:
        """The instance that runs it, if one does."""
        return self._assignment.instance_id if self._assignment is not None else None

    @property
    def assignment(self) -> Assignment | None:
        """Its slot on that instance."""
        return self._assignment

    def at_end(self, ending: Callable[[], object]) -> None:
        """Has something called when the call is over, or at once if it is. It may not raise."""
        if self.state is DONE:
            ending()
        elif self._endings is None:
            self._endings = [ending]
        else:
            self._endings.append(ending)

    # --- to an instance

    def go_on_from(self, resumption: Resumption) -> None:
        """The call is another one's that has paused, which goes on."""
        scope = self.scope if self.parent is None else self.parent.scope
        if scope is None:
            return
        pause = resumption.pause
        self.resumption, self.paused_inner = resumption, list(pause.inner)
        self.kept_for = call_scope(scope.owner, pause.execution_id)
        self._pipeline.teardowns.resume_call(self)

    def hold(self) -> None:
        """Goes back into the gates to wait for one of them, at most until the deadline."""
        self.state = GATES
        self._set_due(self._pipeline.loop.time())

    def route(self, workers: WorkerSet, now: float) -> None:
        """Asks for an instance, waiting for one at most `worker_wait`.

        :raises Refusal: if too many wait already.
        """
        self.worker_set = workers
        self.state = WAITING
        workers.place(self, now)
        if self.state is WAITING:
            self._until = min(self.deadline, now + self._pipeline.limits.worker_wait)
            self._pipeline.clocks.set(self, self._until, now)

    def route_and_settle(self) -> "asyncio.Future[Frame | None]":
        """Routes the call; answers its outcome, which is sent only by `deliver`, or `None` if it was sent already."""
        settlement = self._pipeline.loop.create_future()
        if self.done or self.tool is None:
            settlement.set_result(None)
        else:
            self.settlement = settlement
            self._route_again(self.tool)
        return settlement

    def pause_and_settle(self, frame: Frame) -> "asyncio.Future[Frame | None]":
        """Pauses before the tool is invoked, likewise."""
        settlement = self._pipeline.loop.create_future()
        if self.done or self.tool is None:
            settlement.set_result(None)
        else:
            self.settlement = settlement
            self.pause(self.tool, frame, for_consent=True)
        return settlement

    def pause(self, tool: Tool, frame: Frame, *, for_consent: bool = False) -> None:
        """Waits for an answer from outside, as the outcome in this frame asks: that is its outcome once it is kept."""
        pauses = self._pipeline.pauses
        if pauses is None:
            self.settle(failed(causes.not_paused(tool, effects_of_attempt(tool) if self._attempt else NONE)))
        elif self.parent is not None:
            self.settle(pauses.keep_inner(self, frame))
        else:
            effects = self.effects_so_far()
            self._settle_by(pauses.keep(self, frame, for_consent=for_consent), causes.pause_unrecorded(tool, effects))

    def retime(self) -> None:
        """Its times are other ones than before."""
        if self.state is WAITING:
            self._until = min(self._until, self.deadline)
        self._set_due(self._pipeline.loop.time())

    def resolve_again(self) -> None:
        """The tool has come, or its version has changed, while the call waited: takes it through the gates again."""
        self._pipeline.gate(self, self._pipeline.resolve_again, self)

    def placed(self, assignment: Assignment, now: float) -> None:
        """An instance has a slot for the call: invokes the tool."""
        invocation = self.invocation
        if self.state is not WAITING or invocation is None:
            assignment.release()
            return
        self._assignment = assignment
        self.instance_id = assignment.instance_id
        self._attempt = attempt = self._attempt + 1
        self.state = RUNNING
        self._progressed_at = now
        remaining = self.deadline - now
        renew(invocation.invoke.context, remaining if remaining > 0 else _LEAST_TIME, attempt, self.generation)
        self._set_due(now)
        tool = self.tool
        if (issued_to := self._pipeline.issued_to) or attempt > 1:
            invocation.invoke.context.has_credentials = tool is not None and tool.workers.name in issued_to
        reason = None
        if tool is not None and tool.declares:
            reason = self._pipeline.placed(self, tool, assignment)
        if reason is None and not assignment.send(invocation):
            reason = causes.arguments_too_large(self._pipeline.max_frame_bytes)
        if reason is not None:
            self._assignment = None
            self._attempt -= 1
            assignment.release()
            self.refused(reason)

    # --- from the instance

    def progressed(self, frame: Frame) -> None:
        """The tool reports."""
        self.reports += 1
        if not self.started_sent:
            self._send_started()
        if self.idle_timeout is not None:
            self._progressed_at = self._pipeline.loop.time()
        if self._pipeline.watch is not None:
            self._pipeline.watch.reported(self, frame)
        if self.joiners is not None:
            joining.report(self.joiners, frame)
        self.sink.report(frame)

    def asked(self, frame: Frame) -> None:
        """The tool asks the sidecar something."""
        request = frame.outbound_request
        if not harmless(request):
            self._looked_only = False
        if self._requests is None:
            self._requests = OutboundRequests(self, self._pipeline)
        self._requests.ask(request)

    def reply(self, reply: Frame) -> bool:
        """Answers the tool, if it is still there. False: the answer is over the worker's largest frame."""
        return self._assignment is None or self._assignment.send(reply)

    def ask(self, frame: Frame) -> bool:
        """Sends a question to the caller. False: it is over the caller's largest frame and was not sent."""
        if not self.started_sent:
            self._send_started()
        if self._pipeline.watch is not None:
            self._pipeline.watch.asked(self)
        return self.sink.send(frame)

    def consent(self, service: str, url: str) -> bool:
        """Tells the caller where a person authorises a service. False: it does not take that, or does not read."""
        caller = self.caller
        if not caller.takes_consent or caller.congested or self.state not in NEEDING:
            return False
        if not self.started_sent:
            self._send_started()
        frame = Frame()
        frame.consent.service = service
        frame.consent.url = url
        return self.sink.send(frame)

    def started_frame(self) -> Frame:
        """The `Started` of the call."""
        frame = Frame()
        started = frame.started
        started.execution_id = self.execution_id
        started.tool_call_id = self.tool_call_id
        started.generation = self.generation
        if self.joins:
            started.joined = True
        return frame

    def tell_started(self) -> None:
        """Tells the caller at once that the call is started."""
        if not self.started_sent:
            self._send_started()

    def told(self, frame: Frame) -> None:
        """Tells the tool what a call that it made reports, which may give way to newer."""
        if self._assignment is not None:
            self._assignment.report(frame)

    def registering(self, frame: Frame) -> None:
        """The tool registers a teardown."""
        self._looked_only = False
        if self._requests is None:
            self._requests = OutboundRequests(self, self._pipeline)
        self._requests.register(frame.register_teardown)

    def registered(self, frame: Frame) -> None:
        """Tells the caller that a teardown stands."""
        if not self.started_sent:
            self._send_started()
        self.sink.send(frame)

    def ended(self, frame: Frame) -> None:
        """The tool ended: its slot is free. Unless the end was decided before, this is the outcome."""
        assignment, self._assignment = self._assignment, None
        tool = self.tool
        if assignment is None or tool is None:
            self._pipeline.counters.add("late_outcomes")
            return
        self._requests_end()
        assignment.release()
        cause = self._cause
        if cause is None:
            takes_uploads = tool.places and self._pipeline.placer is not None
            outcome = checked(frame, tool, self._pipeline.redact, takes_uploads=takes_uploads)
            if tool.places and (placing := self._pipeline.placing(self, tool, outcome)) is not None:
                self._settle_by(placing, causes.not_placed(tool))
            elif _has(outcome.outcome, "paused"):
                self.pause(tool, outcome)
            else:
                self.settle(outcome)
            return
        self._pipeline.counters.add("late_outcomes")
        cause.side_effects = effects_of(frame, tool)
        self.settle(failed(cause))

    def broke_protocol(self, message: str) -> None:
        """A peer broke the protocol in this call: the tool is asked to stop, and the call fails."""
        self._decide(causes.protocol_broken(message, self.effects_so_far()), _CALLER)

    def reserved(self, body: str) -> None:
        """A peer sent a frame that is reserved: the tool is asked to stop, and the call fails."""
        self._decide(causes.reserved(body, self.effects_so_far()), _CALLER)

    def result_too_large(self) -> None:
        """The tool ended in an outcome that is over the limit."""
        if self.tool is not None:
            self.ended(failed(too_large(self.tool, self._pipeline.max_frame_bytes, effects_of_return(self.tool))))

    def lost(self) -> None:
        """The instance is gone, and took the tool with it if it was invoked."""
        assignment, self._assignment = self._assignment, None
        tool = self.tool
        if assignment is None or tool is None:
            return
        self._requests_end()
        if self._cause is not None:
            self.settle(failed(self._cause))
        elif not assignment.invoked:
            self._attempt -= 1
            self._run_again(tool)
        elif tool.effects == _UNSAFE:
            self.settle(failed(causes.outcome_unknown(tool)))
        elif self._attempt == 1 and self._looked_only:
            self._pipeline.counters.add("retries")
            self._run_again(tool)
        else:
            self.settle(failed(causes.worker_lost(tool)))

    # --- from the caller, the clock and the house

    def cancel(self, reason: "CancelReason.ValueType") -> None:
        """Asks the call to stop. The first reason is the one; a finished call is left alone.

        What a caller wishes, or the loss of its stream, ends that caller's part alone while others have joined.
        """
        if reason in _OF_ONE_CALLER and self.joiners and self.state not in ENDED:
            joining.hand_over(self, failed(causes.left_to_others(self.effects_so_far())))
            return
        self._decide(causes.cancelled(reason, self.effects_so_far()), reason)

    def end_with_parent(self) -> None:
        """The call that made it is over: it has its outcome now, whatever its tool does."""
        self._decide(causes.cancelled(CancelReason.CANCEL_REASON_PARENT, self.effects_so_far()), _PARENT)
        if self.state is CANCELLING:
            self._give_up()
        if self._tears_down:
            self._torn_down()

    def due(self, now: float) -> None:
        """A time of the call may have come."""
        state = self.state
        if state is DONE:
            return
        if state is CANCELLING:
            if now >= self._until:
                self._give_up()
                return
        elif state is SETTLING:
            if now >= self._until:
                self._settled_in_vain()
                return
        elif now >= self._latest:
            self._decide(causes.out_of_time(self.effects_so_far()), CancelReason.CANCEL_REASON_DEADLINE)
            return
        elif state is WAITING and now >= self._until:
            self._waited_in_vain()
            return
        elif state is RUNNING and self._is_idle(now):
            self._decide(causes.idle(self.effects_so_far()), CancelReason.CANCEL_REASON_IDLE)
            return
        self._set_due(now)

    def replay(self, frame: Frame) -> None:
        """Ends the call with the outcome that its request had before."""
        self.joins = True
        self.settle(frame)

    def follow(self, original: "Call") -> None:
        """Joins another call: gets its later progress and its outcome."""
        self.state = JOINED
        self.joins = True
        self.joined = original
        if original.joiners is None:
            original.joiners = []
        original.joiners.append(self)
        if self.span is not None and original.span is not None:
            self.span.join(original.span)
        self._set_due(self._pipeline.loop.time())
        if self.caller.detaches:
            self.tell_started()

    def effects_so_far(self) -> "SideEffects.ValueType":
        """What its tool may have done to the world by now, or the tool that runs for the call that it joined."""
        if self.joined is not None:
            return self.joined.effects_so_far()
        return effects_of_attempt(self.tool) if self._attempt and self.tool is not None else NONE

    # --- the end

    def refused(self, reason: Failure) -> None:
        """A gate says no. A call whose first instance was lost has been run all the same, and fails for that."""
        if self._attempt and self.tool is not None:
            reason = causes.worker_lost(self.tool)
        self.settle(failed(reason))

    def settle(self, frame: Frame) -> None:
        """Ends the call with an outcome frame: tears down its scope, records it where there is a key, then sends it.

        A call that pauses is not over, and what is kept for its end stays.
        """
        if self.outcome is not None or self.state is DONE:
            self._pipeline.counters.add("late_outcomes")
            return
        if self.state is WAITING and self.worker_set is not None:
            self.worker_set.withdraw(self)
        self.invocation = None
        self.outcome = frame
        if self.kept_for is not None or self.paused_inner:
            if frame.outcome.HasField("paused") or self._goes_on_later:
                self._pipeline.teardowns.pause_call(self)
            elif (tearing_down := self._pipeline.teardowns.end_call(self)) is not None:
                self._tear_down(tearing_down)
                return
        if self.settlement is None:
            self.deliver()
        else:
            self._conclude(frame)

    def deliver(self) -> None:
        """Sends the outcome, if there is one that was not sent."""
        frame = self.outcome
        if frame is None or self.state is DONE:
            return
        pipeline = self._pipeline
        self.state = DONE
        self.outcome = None
        pipeline.clocks.clear(self)
        if self.admitted and self.scope is not None:
            pipeline.admission.leave(self.scope.owner)
        if self.joined is not None and self.joined.joiners is not None and self in self.joined.joiners:
            self.joined.joiners.remove(self)
        if self.joiners:
            joining.settle(self, frame)
        if not self.started_sent:
            self._send_started()
        caller = self.caller
        if caller.overfull and frame.outcome.ByteSize() > pipeline.limits.large_outcome:
            frame = self._instead_of_large(frame, pipeline.limits.large_outcome)
        if not self.sink.send(frame):
            frame = self._instead_of_large(frame, pipeline.max_frame_bytes)
            self.sink.send(frame)
        if self._endings is not None:
            self._end()
        pipeline.finished(self, frame)
        caller.in_flight -= 1
        caller.finished(self)

    # --- parts of the above

    @property
    def _goes_on_later(self) -> bool:
        """Whether its tool was not invoked, and it can be resumed by the same ticket once more."""
        return self.resumption is not None and self.resumption.ticket_digest is not None and not self._attempt

    def _decide(self, cause: Failure, reason: "CancelReason.ValueType") -> None:
        """Fixes how the call ends. A tool that runs is asked to stop and given its grace; else this is the outcome."""
        if self._cause is not None or self.state in ENDED:
            self._pipeline.counters.add("late_causes")
            return
        if self.state is not RUNNING or self._assignment is None:
            self.settle(failed(cause))
            return
        self._cause = cause
        self.state = CANCELLING
        now = self._pipeline.loop.time()
        self._until = now + self._pipeline.limits.cancel_grace
        self._pipeline.clocks.set(self, self._until, now)
        if self._pipeline.watch is not None:
            self._pipeline.watch.cancelled(self, reason)
        self._assignment.cancel(reason)
        for inner in tuple(self.inner or ()):
            inner.cancel(_PARENT)

    def _give_up(self) -> None:
        """The tool ignored the cancel: the call ends without it, and its slot leaks until the tool does end."""
        if self._requests is not None:
            self._requests.refuse()
            self._requests = None
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            assignment.leak()
        if self._cause is not None:
            self.settle(failed(self._cause))

    def _settled_in_vain(self) -> None:
        """What follows the tool's end took too long: the outcome goes out without it."""
        if self.outcome is None and self._cause is not None:
            self.settle(failed(self._cause))
        if self._tears_down:
            self._torn_down()
        elif not self.done:
            self._pipeline.counters.add("unrecorded_outcomes")
            self.deliver()

    def _waited_in_vain(self) -> None:
        workers, name = self.worker_set, self.tool_name
        if workers is not None and workers.brings(name):
            self.refused(causes.all_full(name))
        else:
            self.refused(causes.none_attached(name, self._pipeline.limits.worker_wait))

    def _route_again(self, tool: Tool) -> None:
        self._pipeline.gate(self, self.route, tool.workers, self._pipeline.loop.time())

    def _run_again(self, tool: Tool) -> None:
        """Its instance is gone: it goes to another one."""
        self._pipeline.gate(self, self._pipeline.run_again, self, tool)

    def _requests_end(self) -> None:
        """The tool is gone, and takes no answers."""
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.cancel()

    def _settle_by(self, settling: Coroutine[Any, Any, Frame], in_vain: Failure) -> None:
        """Waits for the outcome, at most `teardown_grace`; where it cannot be had, it is the failure."""
        self._begin_settling()
        self._cause = in_vain
        task = self._pipeline.loop.create_task(settling)
        self.at_end(task.cancel)

        def settled(task: asyncio.Task[Frame]) -> None:
            if task.cancelled() or self.outcome is not None or self.done:
                return
            error = task.exception()
            if error is None:
                self.settle(task.result())
                return
            _log.error("what a tool ended in could not be put or kept", exc_info=error)
            self._pipeline.counters.add("internal_errors")
            self.settle(failed(in_vain))

        task.add_done_callback(settled)

    def _tear_down(self, tearing_down: "asyncio.Task[int]") -> None:
        """Waits for the cleanups of its scope, at most what is left of `teardown_grace`; they go on without it."""
        self._tears_down = True
        self._begin_settling()
        if self.settlement is not None:
            self._extend_settling(-self._pipeline.limits.teardown_grace * _RECORDING)
        tearing_down.add_done_callback(self._torn_down)

    def _torn_down(self, _task: object = None) -> None:
        """Its scope is torn down, or is not waited for any more."""
        frame = self.outcome
        if not self._tears_down or frame is None:
            return
        self._tears_down = False
        if self.settlement is not None:
            self._extend_settling(self._pipeline.limits.teardown_grace * _RECORDING)
        self._conclude(frame)

    def _conclude(self, frame: Frame) -> None:
        """Sends the outcome; where there is a key, once it is recorded."""
        if self.settlement is None:
            self.deliver()
            return
        self._begin_settling()
        self.settlement.set_result(frame)

    def _begin_settling(self) -> None:
        """From now on, what follows the tool's end has `teardown_grace` in all."""
        if self.state is SETTLING:
            return
        now = self._pipeline.loop.time()
        self.state = SETTLING
        self._until = now + self._pipeline.limits.teardown_grace
        self._pipeline.clocks.set(self, self._until, now)

    def _extend_settling(self, seconds: float) -> None:
        self._until += seconds
        self._pipeline.clocks.set(self, self._until, self._pipeline.loop.time())

    def _end(self) -> None:
        endings, self._endings = self._endings, None
        for ending in endings or ():
            ending()

    def _instead_of_large(self, frame: Frame, limit: int) -> Frame:
        """The outcome in place of one that cannot be carried; it keeps what that one says of effects."""
        if self.tool is None:
            return frame
        return failed(too_large(self.tool, limit, effects_of(frame, self.tool)))

    def _send_started(self) -> None:
        self.started_sent = True
        self.sink.send(self.started_frame())
