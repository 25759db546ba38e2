"""Calls that cannot be taken, through both doors: each is refused in a typed way before any tool is invoked."""

from typing import Any

import grpc.aio
import pytest

from sidecar._gen.pillion.v1.call_pb2 import ResumeTicket, Start
from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar._gen.pillion.v1.frame_pb2 import Frame
from sidecar._gen.pillion.v1.outcome_pb2 import Failure, FailureKind, SideEffects
from tests.faults.doors import Doors, detail_of, texts_of
from tests.support import SocketHost, attach, on_sockets, on_unix, start_of, tool

CANARY = "canary-of-the-caller"
MIB = 1024 * 1024

INVALID_ARGUMENTS = FailureKind.FAILURE_KIND_INVALID_ARGUMENTS
PROTOCOL = FailureKind.FAILURE_KIND_PROTOCOL
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
TIMEOUT = FailureKind.FAILURE_KIND_TIMEOUT
UNKNOWN_TOOL = FailureKind.FAILURE_KIND_UNKNOWN_TOOL
TICKET_INVALID = FailureKind.FAILURE_KIND_TICKET_INVALID
UNSUPPORTED = FailureKind.FAILURE_KIND_UNSUPPORTED
NONE = SideEffects.SIDE_EFFECTS_NONE

NOT_TAKEN = {
    "no text": b"",
    "white space": b" \n",
    "no JSON": CANARY.encode(),
    "an open object": b'{"canary-of-the-caller": 1',
    "a missing value": b'{"canary-of-the-caller":}',
    "a trailing comma": b'{"canary-of-the-caller": 1,}',
    "single quotes": b"{'canary-of-the-caller': 1}",
    "a comment": b"{} // canary-of-the-caller",
    "two values": b'{} {"canary-of-the-caller": 1}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"canary-of-the-caller": 1}'.encode("utf-16"),
    "bytes of no encoding": b'{"canary-of-the-caller": "\xff"}',
    "an array": b'["canary-of-the-caller"]',
    "a text": b'"canary-of-the-caller"',
    "null": b"null",
    "a number": b"7",
    "a key twice": b'{"canary-of-the-caller": 1, "canary-of-the-caller": 1}',
    "a key twice, far below": b'{"a": [{"b": {"canary-of-the-caller": 1, "canary-of-the-caller": 2}}]}',
    "a key twice, once escaped": b'{"a": 1, "\\u0061": 2}',
    "half a pair, escaped": b'{"a": "canary-of-the-caller \\ud83d"}',
    "half a pair, escaped, in a key": b'{"canary-of-the-caller \\udc00": 1}',
    "half a pair, raw": b'{"a": "canary-of-the-caller \xed\xa0\xbd"}',
    "infinite as a double": b'{"a": 1e400}',
    "negative infinite as a double": b'{"a": [-1e400]}',
    "not a number": b'{"a": NaN}',
    "infinity": b'{"a": Infinity}',
    "negative infinity": b'{"a": -Infinity}',
    "100,000 nested arrays": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 open arrays": b"[" * 100_000,
    "100,000 nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "129 nested": b'{"a": ' + b"[" * 128 + b"]" * 128 + b"}",
    "an integer of 5,000 digits": b'{"a": ' + b"7" * 5_000 + b"}",
    "a negative integer of 5,000 digits": b'{"a": -' + b"7" * 5_000 + b"}",
    "5 MiB": b'{"a": "' + b"x" * (5 * MIB) + b'"}',
}

TAKEN = {
    "2^63": b'{"a": 9223372036854775808}',
    "2^64 and its like": b'{"a": [18446744073709551616, -9223372036854775809]}',
    "4,300 digits": b'{"a": ' + b"7" * 4_300 + b"}",
    "decimals that no double is": b'{"a": 0.1000000000000000055511151231257827}',
    "the largest double": b'{"a": 1.7976931348623157e308}',
    "too small for a double": b'{"a": 1e-400}',
    "a whole pair": b'{"a": "\\ud83d\\ude00"}',
    "white space and order": b'{ "b" : 1 ,\n"a":\t2 }',
    "128 nested": b'{"a": ' + b"[" * 127 + b"]" * 127 + b"}",
    "brackets in texts": b'{"a": "' + b"[" * 100_000 + b'"}',
    "a key that is a word of JavaScript": b'{"__proto__": {"constructor": 1}}',
}

LONG = CANARY.ljust(257, "x")
LONG_IN_BYTES = "é" * 129

REFUSED: dict[str, tuple[dict[str, Any], "FailureKind.ValueType"]] = {
    "an unknown tool": ({"tool": "nobody"}, UNKNOWN_TOOL),
    "no tool": ({"tool": ""}, UNKNOWN_TOOL),
    "a tool of no name that can be": ({"tool": f"echo\n{CANARY}"}, UNKNOWN_TOOL),
    "a tool of a long name": ({"tool": LONG * 40}, UNKNOWN_TOOL),
    "a tool that is none's": ({"tool": "ECHO"}, UNKNOWN_TOOL),
    "an expired deadline": ({"timeout": 0}, TIMEOUT),
    "a negative deadline": ({"timeout": -5}, TIMEOUT),
    "no idle time": ({"idle_timeout": 0}, INVALID_ARGUMENTS),
    "a negative idle time": ({"idle_timeout": -1}, INVALID_ARGUMENTS),
    "no time for people": ({"human_timeout": 0}, INVALID_ARGUMENTS),
    "a long run": ({"run_id": LONG}, INVALID_ARGUMENTS),
    "a long session": ({"session_id": LONG}, INVALID_ARGUMENTS),
    "a session that is long in bytes": ({"session_id": LONG_IN_BYTES}, INVALID_ARGUMENTS),
    "a long id": ({"tool_call_id": LONG}, INVALID_ARGUMENTS),
    "an empty id": ({"tool_call_id": ""}, INVALID_ARGUMENTS),
    "a long tenant": ({"identity": Identity(tenant=LONG)}, INVALID_ARGUMENTS),
    "a long principal": ({"identity": Identity(principal=LONG)}, INVALID_ARGUMENTS),
    "a long conversation": ({"identity": Identity(conversation_id=LONG)}, INVALID_ARGUMENTS),
    "an empty key": ({"idempotency_key": ""}, INVALID_ARGUMENTS),
    "a long key": ({"idempotency_key": LONG}, INVALID_ARGUMENTS),
    "a key that is long in bytes": ({"idempotency_key": LONG_IN_BYTES}, INVALID_ARGUMENTS),
    "a ticket of nothing": ({"resume": ResumeTicket(ticket=CANARY)}, TICKET_INVALID),
    "an endless ticket": ({"resume": ResumeTicket(ticket=CANARY * 9_000)}, TICKET_INVALID),
    "no ticket": ({"resume": ResumeTicket()}, TICKET_INVALID),
    "an answer that is not JSON": ({"resume": ResumeTicket(ticket=CANARY, answer=b"{")}, INVALID_ARGUMENTS),
    "a call for another": ({"on_behalf_of": CANARY}, UNSUPPORTED),
}


def is_refusal(failure: Failure, kind: "FailureKind.ValueType") -> bool:
    """Whether it says of this kind, in a sentence that quotes nothing, that nothing was done."""
    return (
        failure.kind == kind
        and failure.side_effects == NONE
        and not failure.retryable
        and failure.message.endswith(".")
        and CANARY not in str(failure)
    )


@on_sockets
async def test_arguments_that_are_not_taken(host: SocketHost) -> None:
    worker = await attach(host)
    async with Doors(host) as doors:
        for name, door in doors.by_name.items():
            for case, arguments in NOT_TAKEN.items():
                outcome = await door.call(start_of("echo", arguments))
                assert is_refusal(outcome.failure, INVALID_ARGUMENTS), (name, case, outcome)
    await worker.flush()
    assert not worker.invoked


@on_sockets
async def test_arguments_that_are_taken_arrive_as_they_were_sent(host: SocketHost) -> None:
    worker, caller = await attach(host), await host.caller()
    for case, arguments in TAKEN.items():
        call = await caller.start("echo", arguments)
        run = await worker.next_invoke()
        assert run.invoke.arguments == arguments, case
        await worker.result(run.call, arguments)
        assert (await caller.outcome(call)).result.json == arguments, case


@on_sockets
async def test_starts_that_are_refused(host: SocketHost) -> None:
    worker = await attach(host)
    async with Doors(host) as doors:
        for name, door in doors.by_name.items():
            for case, (fields, kind) in REFUSED.items():
                outcome = await door.call(start_of(**({"tool": "echo"} | fields)))
                assert is_refusal(outcome.failure, kind), (name, case, outcome)
            assert (await door.call(Start())).failure.kind == UNKNOWN_TOOL
    await worker.flush()
    assert not worker.invoked


@on_unix
async def test_a_call_that_came_back_is_refused(host: SocketHost) -> None:
    await attach(host)
    itself = (await host.info()).instance_id
    async with Doors(host) as doors:
        for name, door in doors.by_name.items():
            outcome = await door.call(start_of("echo", hops=["another", itself]))
            assert is_refusal(outcome.failure, PROTOCOL), (name, outcome)


@on_unix
async def test_a_call_that_came_by_others_is_taken(host: SocketHost) -> None:
    worker, caller = await attach(host), await host.caller()
    call = await caller.start("echo", hops=["another"])
    await worker.result((await worker.next_invoke()).call, 1)
    assert (await caller.outcome(call)).result.json == b"1"


@on_unix
async def test_what_is_no_ticket_is_followed_by_nobody(host: SocketHost) -> None:
    caller = await host.caller()
    follow = Frame(call=1)
    follow.follow.ticket = CANARY
    await caller.send(follow)
    assert is_refusal((await caller.outcome(1)).failure, TICKET_INVALID)
    assert caller.bodies(1) == ["started", "outcome"]


@on_unix
async def test_arguments_that_do_not_fit_are_told_where(host: SocketHost) -> None:
    schema = {"required": ["text"], "properties": {"text": {"type": "string"}}, "additionalProperties": False}
    worker = await attach(host, tool("echo", input_schema=schema))
    async with Doors(host) as doors:
        for name, door in doors.by_name.items():
            outcome = await door.call(start_of("echo", {"text": 1, CANARY: CANARY}))
            assert is_refusal(outcome.failure, INVALID_ARGUMENTS), (name, outcome)
            assert {(issue.path, issue.rule) for issue in outcome.failure.issues} == {
                ("/text", "type"),
                ("", "additionalProperties"),
            }
    await worker.flush()
    assert not worker.invoked


@on_sockets
@pytest.mark.parametrize(
    "message",
    [CANARY.encode(), b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03\x0a\x01\xff"],
    ids=["no message", "a length beyond the end", "a tool's name of no encoding"],
)
async def test_a_request_that_is_no_message_is_refused_without_a_word_of_how(host: SocketHost, message: bytes) -> None:
    async with Doors(host) as doors:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await doors.raw.unary_unary("/pillion.v1.ToolHostService/Call")(message)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        told = texts_of(raised.value)
        assert not any(word in told for word in ("Exception", "Error parsing", "DecodeError", "Traceback", CANARY))


@on_unix
async def test_a_result_that_is_too_large_for_a_status_is_cut(host: SocketHost) -> None:
    worker = await attach(host)
    async with Doors(host) as doors:
        request = doors.raw.unary_unary("/pillion.v1.ToolHostService/Call")
        rpc = request(b"\x0a\x06" + Start(tool="echo").SerializeToString())
        await worker.fail((await worker.next_invoke()).call, message="é" * 10_000)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rpc
        failure = detail_of(raised.value)
        assert failure.kind == FailureKind.FAILURE_KIND_TOOL_FAILED
        assert failure.message == "é" * 512
