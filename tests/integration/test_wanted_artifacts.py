"""Gate 8, with bare stubs: the artifacts that a tool wants, redeemed before it runs."""

from sidecar._gen.pillion.v1.artifacts_pb2 import DeleteRequest, DownloadRequest, ScopeFacts, UploadHeader
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from tests.support import (
    READ,
    SocketHost,
    StartHost,
    WireLimits,
    attach,
    on_unix,
    seconds,
    tool,
)
from tests.support.artifacts import MIB, Artifacts, failure_of, stated

pytestmark = on_unix

KIB = 1024
UNAVAILABLE = FailureKind.FAILURE_KIND_ARTIFACT_UNAVAILABLE
DENIED = FailureKind.FAILURE_KIND_DENIED
HERE = ScopeFacts(session_id="s")
NOWHERE = "art_" + "0" * 22
WANTS = {"data": "note", "more": "note"}


async def test_a_wanted_artifact_rides_in_the_invocation(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants=WANTS)), await host.caller()
    meta = (await artifacts.put(HERE, b"a,b\n1,2\n", label="numbers")).meta
    arguments = b'{ "data": "%b",\n "other": 1.10 }' % meta.reference.encode()
    call = await caller.start(arguments=arguments, session_id="s")
    run = await worker.next_invoke()
    assert run.invoke.arguments == arguments, "not a byte of them is changed"
    assert run.context.has_artifacts
    assert set(run.context.wanted.arguments) == {"data"}, "what was not sent is not there"
    wanted = run.context.wanted.arguments["data"]
    assert (wanted.inline.content, wanted.transfer_token) == (b"a,b\n1,2\n", "")
    assert (wanted.meta.reference, wanted.meta.label, wanted.meta.size) == (meta.reference, "numbers", 8)
    await worker.result(run.call)
    assert (await caller.outcome(call)).HasField("result")


async def test_without_its_arguments_nothing_is_wanted(host: SocketHost) -> None:
    worker, caller = await attach(host, tool(wants=WANTS)), await host.caller()
    await caller.start(arguments={"other": 1})
    assert not (await worker.next_invoke()).context.HasField("wanted"), "absent is not empty"


async def test_a_payload_of_no_bytes_and_a_json_keep_their_shape(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants=WANTS)), await host.caller()
    empty = (await artifacts.put(HERE, b"", shape=2)).meta.reference
    number = (await artifacts.put(HERE, b"7", shape=3)).meta.reference
    await caller.start(arguments={"data": empty, "more": number}, session_id="s")
    wanted = (await worker.next_invoke()).context.wanted.arguments
    assert wanted["data"].HasField("inline")
    assert [(each.inline.shape, each.inline.content) for _, each in sorted(wanted.items())] == [(2, b""), (3, b"7")]


async def test_what_is_not_there_is_one_answer_whatever_the_reason(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants={"data": "note"})), await host.caller()
    foreign = [
        (await artifacts.put(ScopeFacts(session_id=session, tenant=tenant, principal=principal), b"x")).meta.reference
        for session, tenant, principal in (("t", "", ""), ("s", "acme", ""), ("s", "", "ann"), ("S", "", ""))
    ]
    foreign.append((await artifacts.put(ScopeFacts(run_id="s"), b"x")).meta.reference)
    foreign.append((await artifacts.put(ScopeFacts(execution_id="s"), b"x")).meta.reference)
    expired = (await artifacts.put(HERE, b"x", expires_in=seconds(1e-9))).meta.reference
    deleted = (await artifacts.put(HERE, b"x")).meta.reference
    await artifacts.stub.Delete(DeleteRequest(scope=HERE, reference=deleted))
    malformed = [
        "",
        " ",
        "art_",
        "art_x",
        "_",
        "%5F",
        "../../etc/passwd",
        "a/b",
        ".",
        "..",
        "'\"\\",
        "😀",
        "x" * 200,
        "%",
    ]
    told = set()
    reference: object
    for reference in (NOWHERE, expired, deleted, *foreign, *malformed, 7, None, True, [], {}):
        outcome = await caller.call(arguments={"data": reference}, session_id="s")
        assert outcome.failure.kind == UNAVAILABLE, reference
        assert (outcome.failure.side_effects, outcome.failure.retryable) == (SideEffects.SIDE_EFFECTS_NONE, False)
        told.add(outcome.SerializeToString())
    assert len(told) == 1
    assert not worker.invoked


async def test_all_arguments_are_judged_and_what_would_do_is_named(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants={"a": "note", "b": "csv", "c": "note"})), await host.caller()
    note = (await artifacts.put(HERE, b"x")).meta.reference
    csv = (await artifacts.put(HERE, b"x", kind="csv")).meta.reference
    chart = (await artifacts.put(HERE, b"x", kind="chart")).meta.reference
    failure = (await caller.call(arguments={"a": NOWHERE, "b": note, "c": note}, session_id="s")).failure
    assert failure.kind == UNAVAILABLE
    assert failure.message == (
        "echo did not run. a: there is no such artifact here; b: the artifact is of another kind than csv. "
        f"Of kind csv, note there are: {csv}, {note}."
    )
    assert chart not in failure.message
    assert not worker.invoked


async def test_a_damaged_payload_is_not_handed_out(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants=WANTS)), await host.caller()
    reference = (await artifacts.put(HERE, b"mine", digest=True)).meta.reference
    (payload,) = host.settings.state_dir.glob("artifacts/payloads/*/*")
    payload.write_bytes(b"fine")
    failure = (await caller.call(arguments={"data": reference}, session_id="s")).failure
    assert failure.kind == UNAVAILABLE
    assert "damaged" in failure.message
    assert not worker.invoked


async def test_a_larger_one_comes_by_a_token_of_its_call(
    host: SocketHost, artifacts: Artifacts, for_workers: Artifacts
) -> None:
    worker, caller, payload = await host.worker(), await host.caller(), bytes(range(256)) * 4 * KIB
    secret = (await worker.hello(tool(wants=WANTS))).reattach_secret
    other = (await (await host.worker()).hello(tool("other"), worker="other")).reattach_secret
    same = (await (await host.worker()).hello(tool(wants=WANTS), concurrency=1)).reattach_secret
    reference = await uploaded(artifacts, HERE, payload)
    call = await caller.start(arguments={"data": reference}, session_id="s")
    run = await worker.next_invoke()
    wanted = run.context.wanted.arguments["data"]
    assert (wanted.WhichOneof("payload"), wanted.meta.size) == ("transfer_token", len(payload))
    request = DownloadRequest(transfer_token=wanted.transfer_token)
    for wrong in (other, same, ""):
        assert (await failure_of(for_workers.download(request, wrong))).kind == DENIED, "another instance's"
    first = await for_workers.download(DownloadRequest(transfer_token=wanted.transfer_token, length=10), secret)
    assert first[1] == payload[:10]
    assert (await failure_of(for_workers.download(request, secret))).kind == DENIED, "it is used up"
    await worker.result(run.call)
    assert (await caller.outcome(call)).HasField("result")


async def test_a_token_is_worth_nothing_once_its_call_has_ended(
    host: SocketHost, artifacts: Artifacts, for_workers: Artifacts
) -> None:
    worker, caller = await host.worker(), await host.caller()
    secret = (await worker.hello(tool(wants=WANTS))).reattach_secret
    reference = await uploaded(artifacts, HERE, b"x" * MIB)
    call = await caller.start(arguments={"data": reference}, session_id="s")
    run = await worker.next_invoke()
    await worker.result(run.call)
    await caller.outcome(call)
    request = DownloadRequest(transfer_token=run.context.wanted.arguments["data"].transfer_token)
    assert (await failure_of(for_workers.download(request, secret))).kind == DENIED
    assert not len(host.sidecar._keeping.transfers)


async def test_together_they_leave_room_for_the_arguments(start_host: StartHost) -> None:
    host = await start_host(wire=WireLimits(max_frame_bytes=256 * KIB))
    assert isinstance(host, SocketHost)
    wants = {f"a{number}": "note" for number in range(8)}
    worker, caller = await attach(host, tool(wants=wants)), await host.caller()
    async with Artifacts(host.callers_at) as artifacts:
        references = {name: (await artifacts.put(HERE, b"x" * 60 * KIB)).meta.reference for name in wants}
    await caller.start(arguments=references | {"filling": "y" * 60 * KIB}, session_id="s")
    wanted = (await worker.next_invoke()).context.wanted.arguments
    ways = [wanted[name].WhichOneof("payload") for name in sorted(wanted)]
    assert ways == ["inline"] * 2 + ["transfer_token"] * 6


async def test_a_retry_has_tokens_of_its_own(host: SocketHost, artifacts: Artifacts, for_workers: Artifacts) -> None:
    descriptor, payload = tool(wants=WANTS, effects=READ), b"x" * (32 * MIB)
    first, second, caller = await host.worker(), await host.worker(), await host.caller()
    secret = (await first.hello(descriptor)).reattach_secret
    reference = await uploaded(artifacts, HERE, payload)
    call = await caller.start(arguments={"data": reference}, session_id="s")
    earlier = (await first.next_invoke()).context.wanted.arguments["data"].transfer_token
    metadata = (("pillion-instance-secret", secret),)
    running = for_workers.stub.Download(DownloadRequest(transfer_token=earlier), metadata=metadata)
    await running.read()
    other = (await second.hello(descriptor)).reattach_secret
    first.cut()
    run = await second.next_invoke()
    token = run.context.wanted.arguments["data"].transfer_token
    assert run.context.attempt == 2
    assert token != earlier
    for shown in (secret, other):
        request = DownloadRequest(transfer_token=earlier)
        assert (await failure_of(for_workers.download(request, shown))).kind == DENIED
    assert (await for_workers.download(DownloadRequest(transfer_token=token), other))[1] == payload
    running.cancel()
    await second.result(run.call)
    assert (await caller.outcome(call)).HasField("result")


TENANTS = ("_", "%5F", "a/b", "a", "b", "..", ".", "'", '"', "a\\b", "😀", "x" * 200, "%", "__", "A")


async def test_each_tenant_has_its_own_whatever_its_name(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants=WANTS)), await host.caller()
    own = {
        tenant: (await artifacts.put(ScopeFacts(tenant=tenant, session_id="s"), tenant.encode())).meta.reference
        for tenant in TENANTS
    }
    for tenant in TENANTS:
        identity = Identity(tenant=tenant)
        for other, reference in own.items():
            call = await caller.start(arguments={"data": reference}, session_id="s", identity=identity)
            if other == tenant:
                run = await worker.next_invoke()
                assert run.context.wanted.arguments["data"].inline.content == tenant.encode()
                await worker.result(run.call)
            outcome = await caller.outcome(call)
            assert outcome.HasField("result") is (other == tenant)


async def test_interleaved_subjects_get_their_own(host: SocketHost, artifacts: Artifacts) -> None:
    worker, caller = await attach(host, tool(wants=WANTS)), await host.caller()
    people = [Identity(tenant="acme", principal=name, conversation_id="1") for name in ("ann", "bob")]
    scopes = [ScopeFacts(tenant="acme", principal=name, conversation_id="1") for name in ("ann", "bob")]
    own = [(await artifacts.put(scope, scope.principal.encode())).meta.reference for scope in scopes]
    calls: dict[str, str] = {}
    for number in range(40):
        which = number % 2
        calls[f"c{number}"] = people[which].principal
        await caller.start(arguments={"data": own[which]}, identity=people[which], tool_call_id=f"c{number}")
    for _ in range(40):
        run = await worker.next_invoke()
        content = run.context.wanted.arguments["data"].inline.content
        assert content.decode() == calls[run.context.tool_call_id] == run.context.identity.principal


async def test_another_version_of_the_tool_is_given_what_it_wants_itself(
    host: SocketHost, artifacts: Artifacts
) -> None:
    worker, caller = await host.worker(), await host.caller()
    await worker.hello(tool(wants=WANTS), concurrency=1)
    reference = (await artifacts.put(HERE, b"x")).meta.reference
    await caller.start(arguments={}, session_id="s")
    running = await worker.next_invoke()
    waiting = await caller.start(arguments={"data": reference}, session_id="s")
    await caller.flush()
    later = await host.worker()
    await later.hello(tool())
    run = await later.next_invoke()
    assert not run.context.HasField("wanted")
    await later.result(run.call)
    assert (await caller.outcome(waiting)).HasField("result")
    await worker.result(running.call)


async def uploaded(artifacts: Artifacts, scope: ScopeFacts, payload: bytes) -> str:
    """The reference of one that is put by an upload."""
    header = UploadHeader(scope=scope, input=stated(), size=len(payload))
    chunks = [payload[offset : offset + MIB] for offset in range(0, len(payload), MIB)]
    return (await artifacts.upload(header, chunks)).meta.reference
