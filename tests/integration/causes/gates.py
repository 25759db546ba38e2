"""Causes at the gates: the tool is not run."""

from collections.abc import Callable
from typing import Any

from sidecar._gen.pillion.v1.call_pb2 import ResumeTicket
from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.outcome_pb2 import Failure
from sidecar._gen.pillion.v1.tool_pb2 import CredentialNeed
from sidecar.credentials.port import Answer, AuthorizationRequired, ProviderDown, Request
from sidecar.credentials.secret import Secret
from sidecar.credentials.static import StaticProvider
from sidecar.policy import Decision
from sidecar.scope import Principal, Scope
from tests.integration.causes.stage import KIB, MIB, Stage, happens
from tests.support import CallLimits, WireLimits, quiet


def at_the_gates(cause: str, *arguments: Any, **fields: Any) -> None:
    """A cause that is in the `Start` itself."""

    @happens(cause, "no")
    async def refused(stage: Stage) -> Failure:
        await stage.open()
        await stage.attach(input_schema={"type": "object", "properties": {"count": {"type": "integer"}}})
        return await stage.fails(*arguments, **fields)


at_the_gates("the Start is over the largest frame", "echo", {"text": "x" * MIB})
at_the_gates("no tool is named", "")
at_the_gates("the ticket opens nothing", resume=ResumeTicket(ticket="t"))
at_the_gates("the answer is not strict JSON", resume=ResumeTicket(ticket="t", answer=b"{"))
at_the_gates("the call is on behalf of another sidecar's caller", on_behalf_of="ana")
at_the_gates("an id is over 256 bytes", run_id="r" * 257)
at_the_gates("the idempotency key is empty", idempotency_key="")
at_the_gates("the idle timeout is not positive", idle_timeout=0)
at_the_gates("the arguments are not strict JSON", "echo", b'{"a": 1, "a": 2}')
at_the_gates("there is no such tool", "missing")
at_the_gates("the timeout is not positive", timeout=0)
at_the_gates("the arguments do not fit the schema", "echo", {"count": "many"})


@happens("the call has been here before", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    return await stage.fails(hops=["another", stage.host.pipeline.ids.process])


@happens("the sidecar is stopping", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.drain(30)
    return await stage.fails()


@happens("the stream has too many calls in flight", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(in_flight_per_stream=1))
    await stage.attach()
    await stage.running()
    return await stage.fails()


@happens("too much of the stream is unread", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(wire=WireLimits(undelivered_soft=10 * KIB))
    await stage.attach()
    runs = [(await stage.running())[1] for _ in range(6)]
    stage.caller.pause()
    for run in runs:
        await stage.worker.result(run.call, "x" * 4 * KIB)
    await quiet()
    call = await stage.caller.start()
    await quiet()
    stage.caller.resume()
    return await stage.failed(call)


class _Policy:
    def __init__(self, decision: Decision | None) -> None:
        self._decision = decision

    def decide(self, principal: Principal, scope: Scope, tool: str) -> Decision:
        if self._decision is None:
            raise RuntimeError("policy cannot be reached")
        return self._decision


def by_policy(cause: str, decision: Decision | None) -> None:
    @happens(cause, "no")
    async def refused(stage: Stage) -> Failure:
        await stage.open()
        await stage.attach()
        stage.patch.setattr(stage.host.pipeline, "_policy", _Policy(decision))
        return await stage.fails()


by_policy("policy hides the tool", Decision(allowed=False, listed=False))
by_policy("policy says no", Decision(allowed=False, listed=True))
by_policy("policy fails", None)


@happens("the token of the caller's stream has expired", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.until = 0.0
    stage.caller = await stage.host.caller()
    return await stage.fails()


@happens("the sidecar fails in a gate", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()

    def broken(scope: Scope) -> None:
        raise RuntimeError(scope)

    stage.patch.setattr(stage.host.pipeline.admission, "enter", broken)
    return await stage.fails()


@happens("the subject has too many calls in flight", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(calls=CallLimits(in_flight_per_subject=1))
    await stage.attach()
    await stage.running()
    return await stage.fails()


@happens("the tool declares what is not provided", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    # Memory has no artifact store.
    await stage.attach(wants={"text": "note"})
    return await stage.fails()


@happens("the tool holds something for a session, and the call names none", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach(holds=SESSION)
    return await stage.fails(run_id="r")


SESSION = TeardownScope.TEARDOWN_SCOPE_SESSION
GITHUB = """
[[credential]]
service = "github"
provider = "static"
insecure = true
values = { token = "token-of-github" }
"""
NEEDS_GITHUB = [CredentialNeed(service="github")]


@happens("no credentials are configured", "no")
async def _(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach(needs=NEEDS_GITHUB)
    return await stage.fails()


@happens("the worker's grant does not hold a needed credential", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(credentials=GITHUB, granted={"main": ("jira",)})
    await stage.attach(needs=NEEDS_GITHUB)
    return await stage.fails()


@happens("a needed credential cannot be issued", "no")
async def _(stage: Stage) -> Failure:
    await stage.open(credentials=GITHUB, granted={"main": ("jira",)})
    await stage.attach(needs=[CredentialNeed(service="jira")])
    return await stage.fails()


def by_its_provider(cause: str, answer: Callable[[], Answer]) -> None:
    """A cause that a stand-in for the configured provider brings about."""

    @happens(cause, "no")
    async def refused(stage: Stage) -> Failure:
        await stage.open(credentials=GITHUB, granted={"main": ("github",)})
        await stage.attach(needs=NEEDS_GITHUB)

        async def issue(_provider: StaticProvider, _request: Request) -> Answer:
            return answer()

        stage.patch.setattr(StaticProvider, "issue", issue)
        return await stage.fails()


def _is_down() -> Answer:
    raise ProviderDown("The provider did not answer; try again in a moment.")


by_its_provider("the provider of a needed credential does not answer", _is_down)
by_its_provider(
    "a person has to authorise first", lambda: AuthorizationRequired("github", Secret("https://id.example.com"))
)


@happens("the record of paused calls cannot be reached", "no")
async def _no_record_of_pauses(stage: Stage) -> Failure:
    await stage.open()
    await stage.attach()
    stage.host.pause_store.broken = True
    call = await stage.caller.start("", resume=ResumeTicket(ticket="t"))
    return await stage.failed(call)
