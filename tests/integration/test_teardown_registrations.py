"""What tools are told of teardown scopes, and how they register for their ends."""

import asyncio

from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.execute_pb2 import EndScopeRequest
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outbound_pb2 import OutboundRequest, ReplyErrorCode
from sidecar._gen.pillion.v1.worker_pb2 import CleanupCall, RegisterTeardown
from tests.integration.teardowns import CALL, RUN, SESSION, SHUTDOWN, kept, refusal
from tests.support import (
    Host,
    MemoryHost,
    ScopeLimits,
    SocketHost,
    StartHost,
    attach,
    end_scope,
    everywhere,
    on_unix,
    quiet,
)
from tests.support.slow_store import SlowStore


@everywhere
async def test_the_context_says_which_scopes_are_honoured_and_has_a_key_for_each_fact(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    digests: dict[int, str] = {}
    for facts in ({}, {"run_id": "r"}, {"session_id": "s"}, {"run_id": "r", "session_id": "s"}, {"session_id": ""}):
        await caller.start(**facts)
        context = (await worker.next_invoke()).context
        lasting = {scope for scope, fact in ((RUN, "run_id"), (SESSION, "session_id")) if facts.get(fact)}
        assert len(context.teardown_scopes.scopes) == 2 + len(lasting)
        assert set(context.teardown_scopes.scopes) == {CALL, SHUTDOWN} | lasting
        keys = {key.scope: key.digest for key in context.session_keys}
        assert keys.keys() == lasting
        for scope, digest in keys.items():
            assert len(digest) == 12
            assert int(digest, 16) >= 0
            assert digests.setdefault(scope, digest) == digest, "a key is of its own fact alone"
    assert digests[RUN] != digests[SESSION]


@everywhere
async def test_keys_of_different_tenants_subjects_and_facts_differ(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    identities = (
        None,
        Identity(tenant="a"),
        Identity(tenant="b"),
        Identity(principal="a"),
        Identity(tenant="a", principal="b"),
    )
    digests = []
    for identity in identities:
        for session in ("s", "a", "as"):
            await caller.start(session_id=session, identity=identity)
            (key,) = (await worker.next_invoke()).context.session_keys
            digests.append(key.digest)
    assert len(set(digests)) == len(digests)


@on_unix
async def test_keys_are_the_same_after_a_restart(socket_host: SocketHost) -> None:
    digests = []
    hosts = [socket_host, SocketHost("unix", socket_host.settings)]
    for host in hosts:
        if host is not socket_host:
            await socket_host.aclose()
            await host.open()
        worker, caller = await attach(host), await host.caller()
        await caller.start(session_id="s", run_id="r")
        digests.append([key.digest for key in (await worker.next_invoke()).context.session_keys])
    await hosts[1].aclose()
    assert digests[0] == digests[1]


@everywhere
async def test_a_registration_is_told_to_the_caller_and_again_is_reused(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start(session_id="s")
    invocation = await worker.next_invoke()
    run = invocation.call
    first = await worker.registered(run, SESSION, 1, label="browser")
    assert (first.reused, first.count) == (False, 1)
    told = (await caller.next_of("teardown_registered", call)).teardown_registered
    assert (told.scope, told.label, told.reused) == (SESSION, "browser", False)
    assert told.key_digest == invocation.context.session_keys[0].digest
    again = await worker.registered(run, SESSION, 2, label="another")
    assert (again.registration_id, again.reused, again.count) == (first.registration_id, True, 2)
    told = (await caller.next_of("teardown_registered", call)).teardown_registered
    assert (told.label, told.reused) == ("browser", True)
    other = await worker.registered(run, SESSION, 3, name="other")
    assert (other.reused, other.count) == (False, 1)
    assert caller.bodies(call) == ["started", *["teardown_registered"] * 3][: len(caller.bodies(call))]
    await worker.result(run)
    await caller.outcome(call)
    # By the same tool and instance it is the same in another call, and another in another scope.
    assert await kept(worker, caller, "s") == first.registration_id
    others = {
        await kept(worker, caller, "t"),
        await kept(worker, caller, "s", identity=Identity(tenant="t")),
        await kept(worker, caller, "s", name=""),
    }
    assert len({first.registration_id, other.registration_id, *others}) == 5


@everywhere
async def test_what_lasts_until_the_stop_is_registered_once_for_all(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    of = [
        await kept(worker, caller, "s", scope=SHUTDOWN),
        await kept(worker, caller, "t", scope=SHUTDOWN, identity=Identity(tenant="t")),
    ]
    assert of[0] == of[1]


@everywhere
async def test_a_scope_is_named_and_has_its_fact_or_is_refused(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.start(run_id="r", session_id="")
    run = (await worker.next_invoke()).call
    error = await refusal(worker, run, RegisterTeardown(request_id=1, scope=SESSION))
    assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_FACT_MISSING
    assert "session_id" in error.message
    assert "call, shutdown or run" in error.message
    await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    error = await refusal(worker, run, RegisterTeardown(request_id=1, scope=RUN))
    assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_FACT_MISSING
    assert "run_id" in error.message
    for unknown in (0, 77):
        error = await refusal(worker, run, RegisterTeardown(request_id=2, scope=unknown))  # type: ignore[arg-type]
        assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_TEARDOWN_SCOPE_UNSUPPORTED
        assert "call, shutdown or session" in error.message


@everywhere
async def test_what_is_registered_is_bounded(start_host: StartHost, transport: str) -> None:
    host = await start_host(
        scopes=ScopeLimits(registrations_per_instance=5, registrations_per_scope=3, cleanup_arguments=64)
    )
    worker, caller = await attach(host), await host.caller()
    await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    long = "ä" * 128 + "x"
    for wrong in (
        RegisterTeardown(name=long),
        RegisterTeardown(label=long),
        RegisterTeardown(cleanup_call=CleanupCall(tool="")),
        RegisterTeardown(cleanup_call=CleanupCall(tool="x" * 65)),
        RegisterTeardown(cleanup_call=CleanupCall(tool="echo", arguments=b'{"a": "' + b"x" * 64 + b'"}')),
        RegisterTeardown(cleanup_call=CleanupCall(tool="echo", arguments=b'{"a": 1')),
        RegisterTeardown(cleanup_call=CleanupCall(tool="echo", arguments=b"[]")),
    ):
        wrong.request_id, wrong.scope = 1, SESSION
        error = await refusal(worker, run, wrong)
        assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_INVALID, wrong
    zero = await refusal(worker, run, RegisterTeardown(scope=CALL))
    assert zero.code == ReplyErrorCode.REPLY_ERROR_CODE_INVALID
    for number in range(1, 4):
        await worker.registered(run, SESSION, number, name=str(number), label=long[:-1])
    error = await refusal(worker, run, RegisterTeardown(request_id=9, scope=SESSION, name="9"))
    assert (error.code, error.retryable) == (ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED, True)
    # What stands already takes no more room.
    assert (await worker.registered(run, SESSION, 10, name="1")).reused
    for number in range(4, 6):
        await worker.registered(run, CALL, number, name=str(number))
    error = await refusal(worker, run, RegisterTeardown(request_id=9, scope=CALL, name="9"))
    assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED


async def test_registrations_are_numbered_as_requests_are(memory_host: MemoryHost) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=1, scope=SESSION)))
    await quiet()
    error = await refusal(worker, run, RegisterTeardown(request_id=1, scope=CALL))
    assert error.code == ReplyErrorCode.REPLY_ERROR_CODE_INVALID
    request = OutboundRequest(request_id=1)
    request.tools_has.tool = "echo"
    assert (await worker.ask(run, request)).error.code == ReplyErrorCode.REPLY_ERROR_CODE_INVALID
    store.go_on()
    assert (await worker.next_of("reply", run)).reply.HasField("teardown")


async def test_a_registration_is_acknowledged_once_it_is_stored(memory_host: MemoryHost) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    for number in (1, 2):
        await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=number, scope=SESSION)))
    await quiet()
    assert worker.bodies(run) == ["invoke"]
    assert caller.bodies(call) == []
    assert len(store.kept) == 1
    store.go_on()
    answers = [(await worker.next_of("reply", run)).reply for _ in range(2)]
    assert [answer.request_id for answer in answers] == [1, 2]
    assert [answer.teardown.reused for answer in answers] == [False, True]
    assert len({answer.teardown.registration_id for answer in answers} | store.kept.keys()) == 1


async def test_a_registration_that_cannot_be_stored_is_refused_and_never_fires(memory_host: MemoryHost) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    store.broken = True
    store.go_on()
    for scope in (SESSION, SHUTDOWN):
        error = await refusal(worker, run, RegisterTeardown(request_id=1, scope=scope))
        assert (error.code, error.retryable) == (ReplyErrorCode.REPLY_ERROR_CODE_OVERLOADED, True)
    # What is over before its call is needs no store.
    assert not (await worker.registered(run, CALL)).reused
    await worker.result(run)
    await worker.torn_down((await worker.next_teardown()).registration_id)
    await caller.outcome(call)
    assert not any(await end_of("s", memory_host))


async def test_what_is_not_acknowledged_when_its_call_ends_is_forgotten(memory_host: MemoryHost) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=1, scope=SESSION)))
    await quiet()
    await worker.result(run)
    await caller.outcome(call)
    store.go_on()
    await quiet()
    assert not store.kept
    assert memory_host.pipeline.teardowns.registry.registrations == 0
    assert not any(await end_of("s", memory_host))


async def test_what_is_not_acknowledged_when_its_scope_ends_is_refused_and_does_not_fire(
    memory_host: MemoryHost,
) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    call = await caller.start(session_id="s")
    run = (await worker.next_invoke()).call
    await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=1, scope=SESSION)))
    await quiet()
    (pending,) = store.kept.values()
    assert memory_host.pipeline.teardowns.registry.claim_one(pending)
    store.go_on()
    reply = (await worker.next_of("reply", run)).reply
    assert reply.error.code == ReplyErrorCode.REPLY_ERROR_CODE_CANCELLED
    await quiet()
    assert not store.kept
    await worker.result(run)
    await caller.outcome(call)
    assert not worker.teardowns()


async def end_of(session: str, host: Host) -> tuple[int, int, int]:
    answer = await end_scope(host, EndScopeRequest(session_id=session))
    return answer.fired, answer.failed, answer.cancelled


async def test_many_registrations_at_once_each_stand_once(memory_host: MemoryHost) -> None:
    memory_host.pipeline.teardowns.firing.store = store = SlowStore()
    worker, caller = await attach(memory_host), await memory_host.caller()
    runs = []
    for _ in range(20):
        await caller.start(session_id="s")
        runs.append((await worker.next_invoke()).call)
    for run in runs:
        await worker.send(Frame(call=run, register_teardown=RegisterTeardown(request_id=1, scope=SESSION)))
    await quiet()
    store.go_on()
    accepted = await asyncio.gather(*(worker.next_of("reply", run) for run in runs))
    assert len({frame.reply.teardown.registration_id for frame in accepted}) == 1
    assert sorted(frame.reply.teardown.count for frame in accepted) == list(range(1, 21))
    assert sum(not frame.reply.teardown.reused for frame in accepted) == 1
    assert len(store.kept) == 1
