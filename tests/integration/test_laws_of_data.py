"""Laws 7 and 8: nothing is invented, and JSON goes through as the bytes that it came as."""

import json
import os
from typing import Any, Literal

import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity, TeardownScope, Trace
from sidecar._gen.pillion.v1.outcome_pb2 import FailureKind, SideEffects
from tests.support import Host, MemoryHost, attach, everywhere, progress, result, tool, tools_changed

INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
INVALID_RESULT = FailureKind.FAILURE_KIND_INVALID_RESULT

Fact = Literal["run_id", "session_id"]

UNALTERED = [
    b"{}",
    b' \n\t{ "b" : 1 ,\r\n "a" : [ ] } ',
    b'{"z":1,"a":2,"m":{"y":null,"b":true}}',
    '{"text":"Grüße, 世界, \U0001f600"}'.encode(),
    rb'{"escaped":"\u0041\u00e9\/\ud83d\ude00\b"}',
    b'{"n":[1.0,1.50,1e2,1E+2,-0,-0.0,0.1,1e-400]}',
    b'{"big":9223372036854775808,"bigger":123456789012345678901234567890}',
    b'{"precise":0.1000000000000000055511151231257827021181583404541015625}',
    b'{"largest":1.7976931348623157e308}',
    b'{"digits":' + b"7" * 4_300 + b"}",
    b'{"minus":-' + b"7" * 4_300 + b"}",
    b'{"deep":' + b"[" * 127 + b"]" * 127 + b"}",
    b'{"":{"":""}}',
]

REFUSED = {
    "empty": b"",
    "no value": b"   ",
    "cut": b'{"a":',
    "two values": b"{} {}",
    "trailing": b"{}x",
    "comma": b'{"a":1,}',
    "comment": b'{"a":1/*no*/}',
    "single quotes": b"{'a':1}",
    "byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": "{}".encode("utf-16"),
    "control character": b'{"a":"\x01"}',
    "same key twice": b'{"SECRET":1,"SECRET":2}',
    "same key twice, escaped": rb'{"a":1,"\u0061":2}',
    "same key twice, deep": b'{"o":[{"k":{"x":1,"x":1}}]}',
    "lone high surrogate": rb'{"a":"SECRET\ud800"}',
    "lone low surrogate": rb'{"a":"\udc00"}',
    "lone surrogate in a key": rb'{"\ud83d":1}',
    "raw surrogate": b'{"a":"\xed\xa0\x80"}',
    "nested 129 deep": b'{"deep":' + b"[" * 128 + b"]" * 128 + b"}",
    "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "4,301 digits": b'{"a":' + b"7" * 4_301 + b"}",
    "infinite": b'{"a":1e400}',
    "minus infinite": b'{"a":-1e309}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "leading zero": b'{"a":01}',
    "plus": b'{"a":+1}',
}

NOT_OBJECTS = [b"[]", b"null", b'"text"', b"1", b"true"]


# --- 7: absent is not empty, and nothing is invented


@everywhere
@pytest.mark.parametrize(("name", "other"), [("run_id", "session_id"), ("session_id", "run_id")])
async def test_law_7_a_fact_is_told_exactly_where_it_was_sent(host: Host, name: Fact, other: Fact) -> None:
    worker, caller = await attach(host), await host.caller()
    sent: list[dict[str, Any]] = [{}, {name: ""}, {name: "r-1"}, {name: "é" * 128}]
    for fields in sent:
        call = await caller.start(**fields)
        invocation = await worker.next_invoke()
        context = invocation.context
        assert context.HasField(name) is bool(fields)
        assert getattr(context, name) == fields.get(name, "")
        assert context.HasField(other) is False
        await worker.result(invocation.call)
        await caller.outcome(call)


@everywhere
async def test_law_7_an_identity_is_told_as_it_was_named_and_only_where_it_was(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    sent = [
        None,
        Identity(),
        Identity(tenant="acme"),
        Identity(principal="ann"),
        Identity(conversation_id="c"),
        Identity(tenant="acme", principal="ann", conversation_id="c"),
    ]
    for identity in sent:
        call = await caller.start(identity=identity)
        invocation = await worker.next_invoke()
        assert invocation.context.HasField("identity") is (identity is not None)
        assert invocation.context.identity == (identity or Identity())
        await worker.result(invocation.call)
        await caller.outcome(call)


@everywhere
async def test_law_7_an_empty_name_in_an_identity_reads_as_none(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.start(identity=Identity(tenant="", principal="ann"))
    identity = (await worker.next_invoke()).context.identity
    assert identity == Identity(principal="ann")


@everywhere
async def test_law_7_a_call_without_facts_has_none(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start()
    invocation = await worker.next_invoke()
    context = invocation.context
    present = {field.name for field, _ in context.ListFields()}
    always = {
        "execution_id",
        "tool_call_id",
        "remaining",
        "teardown_scopes",
        "answerable",
        "tools",
        "attempt",
        "generation",
    }
    # In memory there is no store of artifacts.
    always |= {"has_artifacts"} if host.transport != "memory" else set()
    # Only a unix socket, or memory in its place, proves who is there.
    proven = {"caller_principal"} if host.transport != "tcp" else set()
    assert present == always | proven
    # Neither run nor session is invented, so nothing can be kept for one, and there are no keys.
    assert set(context.teardown_scopes.scopes) == {
        TeardownScope.TEARDOWN_SCOPE_CALL,
        TeardownScope.TEARDOWN_SCOPE_SHUTDOWN,
    }
    if proven:
        assert context.caller_principal == f"local:{os.getuid()}"
    await worker.result(invocation.call)
    outcome = await caller.outcome(call)
    assert outcome.HasField("result")
    assert not outcome.result.HasField("json")


@everywhere
async def test_law_7_an_anchor_is_carried_from_an_authenticated_caller_alone(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    anchor = "anchor: ü " + "x" * 100
    await caller.start(parent_anchor=anchor, trace=Trace(traceparent="00-1-2-01"), iteration=3)
    context = (await worker.next_invoke()).context
    assert context.HasField("parent_anchor") is (host.transport != "tcp")
    assert context.parent_anchor == (anchor if host.transport != "tcp" else "")
    assert context.trace == Trace(traceparent="00-1-2-01")
    assert context.iteration == 3


async def test_law_7_a_dropped_anchor_is_counted(memory_host: MemoryHost) -> None:
    worker, caller = await attach(memory_host), await memory_host.caller()
    await caller.start(parent_anchor="x" * 1_025)
    assert not (await worker.next_invoke()).context.HasField("parent_anchor")
    assert memory_host.counts["dropped_anchors"] == 1


@everywhere
@pytest.mark.parametrize(
    "fields",
    [
        {"run_id": "é" * 129},
        {"session_id": "x" * 257},
        {"tool_call_id": ""},
        {"tool_call_id": "x" * 257},
        {"idempotency_key": ""},
        {"identity": Identity(tenant="x" * 257)},
        {"identity": Identity(conversation_id="é" * 129)},
    ],
    ids=["run", "session", "empty call id", "call id", "empty key", "tenant", "conversation"],
)
async def test_law_7_a_fact_over_its_limit_is_refused_and_not_shortened(host: Host, fields: dict[str, Any]) -> None:
    caller = await host.caller()
    worker = await attach(host)
    failure = (await caller.call(**fields)).failure
    assert (failure.kind, failure.side_effects) == (INVALID_ARGUMENTS, SideEffects.SIDE_EFFECTS_NONE)
    await worker.flush()
    assert worker.invoked == []


# --- 8: arguments and results are bytes, unaltered; what has no one meaning is refused at the door


@everywhere
async def test_law_8_arguments_and_results_are_unaltered(host: Host) -> None:
    worker, caller = await attach(host, tool("echo"), tool("read", output_schema={})), await host.caller()
    for name in ("echo", "read"):
        for sent in UNALTERED:
            call = await caller.start(name, sent)
            invocation = await worker.next_invoke()
            assert invocation.invoke.arguments == sent
            await worker.send(progress(invocation.call, sent), result(invocation.call, sent))
            assert (await caller.outcome(call)).result.json == sent
            reports = [frame.progress.payload for frame in caller.frames[call] if frame.HasField("progress")]
            assert reports == [sent]


@everywhere
async def test_law_8_no_arguments_are_an_empty_object(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    await caller.start()
    assert (await worker.next_invoke()).invoke.arguments == b"{}"


@everywhere
async def test_law_8_what_has_no_one_meaning_is_refused_at_the_door(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    for what, sent in REFUSED.items():
        failure = (await caller.call(arguments=sent)).failure
        assert (failure.kind, failure.side_effects) == (INVALID_ARGUMENTS, SideEffects.SIDE_EFFECTS_NONE), what
        assert failure.message, what
        assert "SECRET" not in failure.message, what
        assert not failure.retryable, what
    await worker.flush()
    assert worker.invoked == []


@everywhere
async def test_law_8_arguments_are_an_object(host: Host) -> None:
    worker, caller = await attach(host), await host.caller()
    for sent in NOT_OBJECTS:
        assert (await caller.call(arguments=sent)).failure.kind == INVALID_ARGUMENTS
    await worker.flush()
    assert worker.invoked == []


@everywhere
async def test_law_8_a_refusal_names_at_most_ten_places_and_quotes_no_value(host: Host) -> None:
    schema = {"properties": {f"p{number}": {"type": "integer"} for number in range(30)}, "required": ["missing"]}
    await attach(host, tool("echo", input_schema=schema))
    caller = await host.caller()
    failure = (await caller.call(arguments={f"p{number}": "SECRET" for number in range(30)})).failure
    assert failure.kind == INVALID_ARGUMENTS
    assert len(failure.issues) == 10
    assert all(issue.rule and issue.message for issue in failure.issues)
    assert "SECRET" not in str(failure)


@everywhere
async def test_law_8_a_result_is_parsed_only_where_a_schema_is_declared(host: Host) -> None:
    tools = tool("echo"), tool("read", output_schema={"type": "object", "required": ["n"]})
    worker, caller = await attach(host, *tools), await host.caller()
    answers: list[tuple[str, bytes | None, bool]] = [
        ("echo", b"not JSON at all", True),
        ("echo", b'{"a":1,"a":2}', True),
        ("echo", b"", True),
        ("echo", None, True),
        ("read", b'{"n": 1e0 }', True),
        ("read", b"not JSON at all", False),
        ("read", b'{"n":1,"n":1}', False),
        ("read", b'{"n":1e400}', False),
        ("read", b'{"SECRET":1}', False),
        ("read", b"", False),
        ("read", None, False),
    ]
    for name, answer, fits in answers:
        call = await caller.start(name)
        await worker.result((await worker.next_invoke()).call, answer)
        outcome = await caller.outcome(call)
        if fits:
            assert (outcome.result.json, outcome.result.HasField("json")) == (answer or b"", answer is not None)
        else:
            assert outcome.failure.kind == INVALID_RESULT
            assert outcome.failure.side_effects == SideEffects.SIDE_EFFECTS_COMMITTED
            assert "SECRET" not in outcome.failure.message


@everywhere
async def test_law_8_what_a_tool_calls_an_error_is_a_result(host: Host) -> None:
    worker, caller = await attach(host, tool("read", output_schema={"type": "object"})), await host.caller()
    call = await caller.start("read")
    await worker.result((await worker.next_invoke()).call, b'"no such file"', is_error=True)
    outcome = await caller.outcome(call)
    assert (outcome.result.json, outcome.result.is_error) == (b'"no such file"', True)


@everywhere
@pytest.mark.parametrize("name", ["input_schema", "output_schema"])
async def test_law_8_a_schema_that_refers_elsewhere_or_runs_away_is_refused_by_name(host: Host, name: str) -> None:
    bad: list[Any] = [
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json"},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"properties": {"a": {"pattern": "(a)\\1"}}},
        {"type": "no such type"},
        b"not JSON",
    ]
    worker, caller = await host.worker(), await host.caller()
    for number, schema in enumerate(bad):
        declared: dict[str, Any] = {name: schema}
        if number == 0:
            welcome = await worker.hello(tool("read", **declared), tool("echo"))
        else:
            await worker.send(tools_changed(tool("read", **declared), tool("echo")))
            welcome = (await worker.next_of("welcome")).welcome
        assert [refused.name for refused in welcome.refused] == ["read"], schema
        assert welcome.refused[0].reason
        call = await caller.start("echo", {"n": number})
        await worker.result((await worker.next_invoke()).call)
        assert (await caller.outcome(call)).HasField("result")


@everywhere
async def test_law_8_a_slow_regular_expression_takes_linear_time(host: Host) -> None:
    schema = {"properties": {"text": {"pattern": "^(a+)+$"}}}
    worker, caller = await attach(host, tool("echo", input_schema=schema)), await host.caller()
    failure = (await caller.call(arguments={"text": "a" * 50_000 + "!"})).failure
    assert failure.kind == INVALID_ARGUMENTS
    call = await caller.start(arguments={"text": "a" * 50_000})
    await worker.result((await worker.next_invoke()).call, json.dumps("fits").encode())
    assert (await caller.outcome(call)).HasField("result")
