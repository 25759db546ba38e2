"""The gates that every call passes, whichever door it came in by."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeVarTuple

from sidecar._gen.pillion.v1.call_pb2 import Start
from sidecar._gen.pillion.v1.context_pb2 import Trace
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, Outcome
from sidecar._gen.pillion.v1.tool_pb2 import Effects
from sidecar.calls import questions
from sidecar.calls.admission import Admission
from sidecar.calls.call import Call
from sidecar.calls.clocks import Clocks
from sidecar.calls.context import invocation
from sidecar.calls.detached import Detached
from sidecar.calls.idempotency import Requests
from sidecar.calls.ids import Ids
from sidecar.calls.limits import CallLimits
from sidecar.calls.nesting import Nesting
from sidecar.calls.outcome import NONE, PauseWanted, Refusal, failed, failure, kind_name
from sidecar.calls.paused import Resumption
from sidecar.calls.pauses import Pauses
from sidecar.calls.ports import Assignment, Audit, Caller, Catalogue, Placer, Responder, Sink, Supplier, WorkerSet
from sidecar.calls.request import decode, usable_id
from sidecar.calls.stores import IdempotencyStore
from sidecar.calls.strict_json import parse
from sidecar.calls.supplying import finish_supplying
from sidecar.calls.teardowns import Teardowns
from sidecar.calls.tool import Tool
from sidecar.calls.watch import Watch, Watcher
from sidecar.policy import Policy
from sidecar.scope import Principal, Scope, ScopeLimits, scope_of
from sidecar.telemetry import Counters, Durations
from sidecar.telemetry.spans import Ended, Tracer
from sidecar.wire.limits import MIB

_log = logging.getLogger(__name__)
_Arguments = TypeVarTuple("_Arguments")

_has: Final = Outcome.HasField
_says: Final = Start.HasField
_UNKNOWN_TOOL: Final = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
_RETRY_AFTER: Final = 1.0
_PERISHABLE: Final = ("needs",)
_NO_TOOL: Final = "There is no tool of this name; ListTools says which there are."


class Pipeline:
    """Starts calls and passes them through the gates, in order, without waiting where nothing has to be waited for.

    A gate refuses by raising `Refusal`; one that raises anything else refuses too. Refusals come before the tool is
    invoked, so nothing had an effect.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        policy: Policy,
        store: IdempotencyStore,
        limits: CallLimits,
        counters: Counters,
        *,
        max_frame_bytes: int = MIB,
        scopes: ScopeLimits | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.max_frame_bytes = max_frame_bytes
        """The largest frame: what arguments and results have to fit into."""
        self.counters = counters
        self.durations = Durations()
        self.ids = Ids()
        self.clocks = Clocks()
        self.admission = Admission(limits)
        self.requests = Requests(store, counters)
        self.running: set[Call] = set()
        self._idle: asyncio.Future[None] | None = None
        self.tracer: Tracer | None = None
        """Who makes spans of calls; `None`: nobody, and a caller's trace context is passed on as it came."""
        self.watch: Watch | None = None
        """Who is told what happens to calls; `None`: nobody looks on."""
        self.audit: Audit | None = None
        """Who keeps a record of calls; `None`: nobody."""
        self.detached: Detached | None = None
        """Who keeps detached calls; `None`: nobody, and a call that is to be detachable is refused."""
        self.suppliers: dict[str, Supplier] = {}
        """Who puts in what tools declare: under `wants` and under `needs`."""
        nesting = Nesting(self)
        self.responders: dict[str, Responder] = {
            "caller_request": questions.ask,
            "tools_call": nesting.call,
            "tools_has": nesting.has,
        }
        """Who answers what running tools ask, by the name of the request."""
        self.has_artifacts = False
        """Whether tools have an artifact store."""
        self.placer: Placer | None = None
        """Who moves large results; `None`: nobody, and they are refused."""
        self.pauses: Pauses | None = None
        """Who keeps paused calls; `None`: nobody, and none pauses."""
        self.issued_to: frozenset[str] = frozenset()
        """The worker sets that there are credentials for: their tools are told so."""
        self.redact: Callable[[str], str] | None = None
        """Takes secrets out of texts; `None`: there are none."""
        self.teardowns = catalogue.teardowns = Teardowns(self, catalogue, scopes or ScopeLimits())
        """What tools keep for the ends of scopes."""
        self.draining = False
        """Whether new calls are refused because the sidecar stops."""
        self._catalogue = catalogue
        self._policy = policy

    def start(
        self,
        start: Start,
        caller: Caller,
        sink: Sink,
        parent: Call | None = None,
        resumption: Resumption | None = None,
    ) -> Call:
        """Starts a call, of a caller or of the tool of another. It may be done on return.

        Its `Started` and outcome go to the sink in any case. `resumption`: what one of a tool goes on from.
        """
        now = self.loop.time()
        tool_call_id = start.tool_call_id
        if not tool_call_id or (parent is None and not usable_id(tool_call_id)):
            tool_call_id = ""
        call = Call(self, caller, sink, tool_call_id, now, parent)
        if resumption is not None:
            call.go_on_from(resumption)
        if self.tracer is not None:
            call.span = self.tracer.begin(start.trace)
        self._enter(call)
        try:
            self._admit(call, start, now)
        except Exception as reason:
            self.turn_away(call, reason)
        return call

    def run(self, call: Call, start: Start) -> None:
        """Has a call of the sidecar's own pass the gates. It may be done on return."""
        if self.tracer is not None:
            call.span = self.tracer.begin(start.trace)
        self._enter(call)
        self.gate(call, self._admit, call, start, self.loop.time())

    def refuse(self, refusal: Refusal, caller: Caller, sink: Sink, tool_call_id: str = "") -> None:
        """Answers a call that is not even looked at, as any other: `Started` and an outcome."""
        call = Call(self, caller, sink, tool_call_id if usable_id(tool_call_id) else "", self.loop.time())
        if self.tracer is not None:
            call.span = self.tracer.begin(Trace())
        self._enter(call)
        call.settle(failed(refusal.failure))

    def gate(self, call: Call, step: Callable[[*_Arguments], None], *arguments: *_Arguments) -> None:
        """Takes a step of a call; if the step refuses or fails, the call ends so."""
        try:
            step(*arguments)
        except Exception as reason:
            self.turn_away(call, reason)

    def watched(self, tool: str | None) -> AbstractContextManager[Watcher]:
        """Somebody looks on at the calls of a tool, or of all, inside the block."""
        self.watch = self.watch or Watch(self)
        return self.watch.watching(tool)

    def idle(self) -> "asyncio.Future[None]":
        """Done once the last call that runs now is over; others may run by then. There must be one."""
        self._idle = self._idle or self.loop.create_future()
        return asyncio.shield(self._idle)

    def finished(self, call: Call, frame: Frame) -> None:
        """Counts an outcome."""
        self.running.discard(call)
        if self._idle is not None and not self.running:
            self._idle.set_result(None)
            self._idle = None
        outcome = frame.outcome
        if _has(outcome, "failure"):
            self.counters.add(f"failures.{kind_name(outcome.failure.kind)}")
        else:
            self.counters.add("pauses" if _has(outcome, "paused") else "results")
        seconds = self.loop.time() - call.started_at
        self.durations.add(seconds)
        if self.watch is not None:
            self.watch.ended(call, frame)
        if self.audit is not None:
            self.audit.ended(call, frame, seconds)
        if call.span is not None:
            call.span.end(_ended(call, outcome, self.redact))

    def resolve_again(self, call: Call) -> None:
        """Takes a call that waited for its tool, or whose version of it has gone, through the gates from 3 on.

        Policy, which does not look at versions, has had its say.

        :raises Refusal: if a gate refuses it now.
        """
        tool = self._catalogue.snapshot.tools.get(call.tool_name)
        if tool is None:
            raise Refusal(
                FailureKind.FAILURE_KIND_UNAVAILABLE,
                "The tool went away while the call waited for it; try again later.",
                retryable=True,
                retry_after=_RETRY_AFTER,
            )
        if call.attempts and tool.effects == Effects.EFFECTS_UNSAFE:
            raise Refusal(
                FailureKind.FAILURE_KIND_WORKER_LOST, "The tool may not be run again in the version that is there now."
            )
        invocation = call.invocation
        if invocation is not None:
            # What the earlier version had declared is not for this one.
            invocation.invoke.context.ClearField("wanted")
            self._fit(call, tool, parse(invocation.invoke.arguments), self.loop.time())

    def lets_run(self, call: Call, tool: str) -> bool:
        """Whether there is a tool of this name that policy lets this call's caller run for its subject."""
        if call.scope is None or tool not in self._catalogue.snapshot.tools:
            return False
        try:
            self.check_policy(call.caller.principal, call.scope, tool)
        except Refusal:
            return False
        return True

    def run_again(self, call: Call, tool: Tool) -> None:
        """Gives a call whose instance is gone to another, by way of gate 9: credentials do not last.

        :raises Refusal: if a gate refuses it now.
        """
        perished = [declared for declared in tool.declares if declared in _PERISHABLE]
        self._go_on(call, tool, self._supply(call, tool, perished), self.loop.time())

    def placed(self, call: Call, tool: Tool, assignment: Assignment) -> Failure | None:
        """An instance was found for a call of a tool that declares something. Answers why it cannot be invoked."""
        try:
            for declared in tool.declares:
                self.suppliers[declared].placed(call, assignment)
        except Exception:
            _log.exception("what is for an instance alone could not be put in; the call was refused")
            self.counters.add("internal_errors")
            return _failed_before()
        return None

    def placing(self, call: Call, tool: Tool, frame: Frame) -> Coroutine[Any, Any, Frame] | None:
        """Whether a result has to be put somewhere, and what becomes of it."""
        return self.placer.place(call, tool, frame) if self.placer is not None else None

    def _enter(self, call: Call) -> None:
        call.caller.in_flight += 1
        self.running.add(call)
        self.counters.add("calls")

    def turn_away(self, call: Call, reason: Exception) -> None:
        """Ends a call that a gate did not let pass, or has it pause there."""
        if isinstance(reason, Refusal):
            call.refused(reason.failure)
            return
        if isinstance(reason, PauseWanted) and call.tool is not None:
            call.pause(call.tool, reason.frame, for_consent=True)
            return
        _log.error("a gate failed; the call was refused", exc_info=reason)
        self.counters.add("internal_errors")
        call.refused(_failed_before())

    def _admit(self, call: Call, start: Start, now: float) -> None:
        """What comes before the gates: whether calls are taken at all, and whether this one resumes another."""
        caller, audit, parent = call.caller, self.audit, call.parent
        # While the sidecar drains, running calls finish with all that belongs to them.
        if parent is None and (
            self.draining or caller.in_flight > self.limits.in_flight_per_stream or caller.congested
        ):
            raise self._no_room(caller)
        if audit is not None and audit.refuses:
            raise _unaudited()
        if parent is None and _says(start, "resume"):
            if self.pauses is None:
                raise Refusal(FailureKind.FAILURE_KIND_UNSUPPORTED, "This sidecar resumes no calls; start a new one.")
            self.pauses.resume(call, start)
        else:
            self.pass_gates(call, start, now)

    def pass_gates(self, call: Call, start: Start, now: float) -> None:
        """Gates 1 to 10 of a call with what its caller said, or had said before it paused.

        :raises Refusal: if one refuses it.
        """
        caller, audit, parent = call.caller, self.audit, call.parent
        arguments, parsed, identity = decode(start, call, self.ids.process)
        if self.watch is not None:
            self.watch.started(call)
        if audit is not None and audit.keeps_arguments:
            call.arguments = arguments
        principal = caller.principal
        call.scope = scope = (
            scope_of(
                principal,
                identity,
                call.session_id,
                call.run_id,
                call.execution_id if call.resumption is None else call.resumption.pause.execution_id,
            )
            if parent is None or parent.scope is None
            else parent.scope
        )
        name = call.tool_name
        if parent is not None:
            _look_for_cycle(call, name, arguments)
        tool = self._catalogue.snapshot.tools.get(name)
        expected = self._catalogue.expected(name) if tool is None else None
        if tool is None and expected is None:
            raise Refusal(_UNKNOWN_TOOL, _NO_TOOL)
        self.check_policy(principal, scope, name)
        if call.run_id or call.session_id:
            self.teardowns.enter(call)
        call.invocation = invocation(
            start, call, arguments, identity, self.teardowns.secret, has_artifacts=self.has_artifacts
        )
        if call.resumption is not None:
            call.resumption.tell(call.invocation.invoke.context)
        if call.span is not None:
            call.span.carry(call.invocation.invoke.context.trace)
        if tool is not None:
            self._fit(call, tool, parsed, now)
        elif expected is not None:
            call.limit_time(None)
            if self.detached is not None and caller.detaches:
                call.generation = self._catalogue.snapshot.generation
                self.detached.open(call, partial(self._route_to, call, expected))
            else:
                call.route(expected, now)

    def _fit(self, call: Call, tool: Tool, arguments: object, now: float) -> None:
        """Gates 5 to 10."""
        is_new = call.tool is None
        if tool.holds:
            tool = tool.workers.version_for(call, tool)
        call.tool = tool
        call.generation = self._catalogue.snapshot.generation
        call.limit_time(tool)
        if not tool.arguments.accepts(arguments):
            raise Refusal(
                FailureKind.FAILURE_KIND_INVALID_ARGUMENTS,
                f"The arguments do not fit the input schema of {tool.name}.",
                issues=tool.arguments.issues(arguments),
            )
        if is_new and self.detached is not None and call.caller.detaches:
            self.detached.open(call, partial(self._go_in, call, tool))
        elif is_new and call.key is not None:
            self.requests.enter(call, tool, call.key, partial(self._provide, call, tool))
        else:
            self._go_on(call, tool, self._provide(call, tool), now)

    def _go_in(self, call: Call, tool: Tool) -> None:
        """Gates 6 to 10, for a call that can be followed now."""
        if call.key is not None:
            self.requests.enter(call, tool, call.key, partial(self._provide, call, tool))
        else:
            self._go_on(call, tool, self._provide(call, tool), self.loop.time())

    def _route_to(self, call: Call, expected: WorkerSet) -> None:
        """Waits for the tool, for a call that can be followed now."""
        call.route(expected, self.loop.time())

    def _go_on(self, call: Call, tool: Tool, supplying: asyncio.Task[None] | None, now: float) -> None:
        """Gate 10, at once or when the task is done."""
        if supplying is None and call.resumption is None:
            call.route(tool.workers, now)
        elif supplying is None:
            self._route(call, tool, now)
        else:
            call.hold()
            supplying.add_done_callback(partial(self._supplied, call, tool))

    def _route(self, call: Call, tool: Tool, now: float) -> None:
        """Routes a call; before that, one that resumes another claims its ticket."""
        resumption = call.resumption
        if resumption is None or resumption.is_claimed or self.pauses is None:
            call.route(tool.workers, now)
        else:
            self.pauses.run(call)

    def _provide(self, call: Call, tool: Tool) -> asyncio.Task[None] | None:
        """Gates 7 to 9. `None`: they are passed; else they are once the task is done, which ends with the call."""
        if not call.admitted and call.scope is not None and call.parent is None:
            self.admission.enter(call.scope.owner)
            call.admitted = True
        return self._supply(call, tool, tool.declares) if tool.declares else None

    def _supply(self, call: Call, tool: Tool, what: Iterable[str]) -> asyncio.Task[None] | None:
        """Gates 8 and 9, one after the other."""
        suppliers = iter([self._supplier(tool, declared) for declared in what])
        for supplier in suppliers:
            supplying = supplier.supply(call, tool)
            if supplying is not None:
                task = self.loop.create_task(finish_supplying(call, tool, supplying, suppliers))
                task.add_done_callback(partial(_close, supplying))
                call.at_end(task.cancel)
                return task
        return None

    def _supplier(self, tool: Tool, declared: str) -> Supplier:
        supplier = self.suppliers.get(declared)
        if supplier is None:
            raise Refusal(
                FailureKind.FAILURE_KIND_UNSUPPORTED,
                f"{tool.name} declares {declared}, which this sidecar does not provide.",
            )
        return supplier

    def _supplied(self, call: Call, tool: Tool, supplying: asyncio.Task[None]) -> None:
        """What a call waited for is there, or cannot be had."""
        if supplying.cancelled():
            return
        reason = supplying.exception()
        if call.outcome is not None or call.done:
            return
        if reason is None:
            self.gate(call, self._route, call, tool, self.loop.time())
        elif isinstance(reason, Exception):
            self.turn_away(call, reason)

    def crowd_of(self, caller: Caller) -> Refusal | None:
        """Why nothing more is to be begun for this caller, if so."""
        most = self.limits.in_flight_per_stream
        if caller.in_flight > most:
            message = f"This stream has {most:,} calls in flight, which is the most."
        elif caller.congested:
            message = "Too much of what this stream was sent is unread; read on, then try again."
        else:
            return None
        return Refusal(FailureKind.FAILURE_KIND_OVERLOADED, message, retryable=True, retry_after=_RETRY_AFTER)

    def _no_room(self, caller: Caller) -> Refusal:
        """Why a call of this caller cannot be taken now."""
        crowd = None if self.draining else self.crowd_of(caller)
        return crowd or Refusal(
            FailureKind.FAILURE_KIND_UNAVAILABLE,
            "The sidecar is stopping and takes no new calls; try another one, or again later.",
            retryable=True,
            retry_after=_RETRY_AFTER,
        )

    def check_policy(self, principal: Principal, scope: Scope, tool: str) -> None:
        """Gate 4.

        :raises Refusal: if policy does not let this caller run the tool for this subject.
        """
        try:
            allowed, listed = self._policy.decide(principal, scope, tool)
        except Exception:
            _log.exception("policy failed; the call was denied")
            self.counters.add("internal_errors")
            raise Refusal(FailureKind.FAILURE_KIND_DENIED, "Policy could not decide, which denies.") from None
        if allowed:
            return
        if not listed:
            raise Refusal(_UNKNOWN_TOOL, _NO_TOOL)
        raise Refusal(
            FailureKind.FAILURE_KIND_DENIED,
            "Policy does not let this caller run this tool for this tenant and subject.",
        )


def _look_for_cycle(call: Call, tool: str, arguments: bytes) -> None:
    for outer in call.ancestors():
        running = outer.invocation
        if outer.tool_name == tool and running is not None and running.invoke.arguments == arguments:
            raise Refusal(
                FailureKind.FAILURE_KIND_INVALID_ARGUMENTS,
                f"{tool} already runs with the same arguments further out, and would never come to an end; call it "
                "with others.",
            )


def _close(supplying: Coroutine[Any, Any, None], _task: asyncio.Task[None]) -> None:
    """One that is cancelled before it began would be warned of."""
    supplying.close()


def _failed_before() -> Failure:
    return failure(FailureKind.FAILURE_KIND_INTERNAL, "The sidecar failed before the tool was invoked.", NONE)


def _unaudited() -> Refusal:
    return Refusal(
        FailureKind.FAILURE_KIND_UNAVAILABLE,
        "The sidecar cannot write its audit log just now, and runs nothing that is not in it; try again later.",
        retryable=True,
        retry_after=_RETRY_AFTER,
    )


def _kind_of(outcome: Outcome) -> str:
    if _has(outcome, "failure"):
        return kind_name(outcome.failure.kind)
    return "PAUSED" if _has(outcome, "paused") else "RESULT"


def _ended(call: Call, outcome: Outcome, redact: Callable[[str], str] | None) -> Ended:
    workers = call.tool.workers if call.tool is not None else call.worker_set
    return Ended(
        tool=call.tool_name if workers is not None else None,
        worker=workers.name if workers is not None else None,
        kind=_kind_of(outcome),
        is_error=outcome.result.is_error,
        execution_id=call.execution_id,
        tool_call_id=call.tool_call_id if redact is None else redact(call.tool_call_id),
    )
