import copy
import enum
import json
import pickle
from typing import Any

import pytest

from pillion import _facts, _failures, _refusals, errors
from pillion._gen.pillion.v1 import context_pb2, outbound_pb2, outcome_pb2, tool_pb2
from pillion._gen.pillion.v1.outcome_pb2 import Failure


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (errors.FailureKind, outcome_pb2.FailureKind, "FAILURE_KIND_"),
        (errors.ReplyCode, outbound_pb2.ReplyErrorCode, "REPLY_ERROR_CODE_"),
        (_facts.Effects, tool_pb2.Effects, "EFFECTS_"),
        (_facts.SideEffects, outcome_pb2.SideEffects, "SIDE_EFFECTS_"),
        (_facts.CancelReason, context_pb2.CancelReason, "CANCEL_REASON_"),
        (_facts.TeardownScope, context_pb2.TeardownScope, "TEARDOWN_SCOPE_"),
        (_facts.TeardownReason, context_pb2.TeardownReason, "TEARDOWN_REASON_"),
    ],
    ids=["kinds", "codes", "effects", "side effects", "cancel", "scopes", "reasons"],
)
def test_numbers_are_those_of_the_protocol(ours: type[enum.IntEnum], theirs: Any, prefix: str) -> None:
    named = {name.removeprefix(prefix): number for name, number in theirs.items() if number}
    assert {member.name: member.value for member in ours} == named


@pytest.mark.parametrize("kind", errors.FailureKind, ids=lambda kind: kind.name)
def test_every_kind_has_its_class(kind: errors.FailureKind) -> None:
    failure = Failure(message="why", retryable=True, side_effects=outcome_pb2.SIDE_EFFECTS_NONE)
    failure.kind = kind.value  # type: ignore[assignment]  # the same numbers
    failure.retry_after.FromMilliseconds(1_500)
    failure.issues.add(path="/a", rule="required", message="a")
    error = _failures.failed(failure)
    assert type(error) is not errors.CallFailed
    assert error.kind is kind
    assert str(error) == error.message == "why"
    assert error.retryable
    assert error.retry_after == 1.5
    assert error.side_effects is _facts.SideEffects.NONE
    assert error.issues == (errors.ArgumentIssue("/a", "required", "a"),)


def test_kinds_that_differ_have_classes_that_differ() -> None:
    numbers: list[Any] = [kind.value for kind in errors.FailureKind]
    classes = {type(_failures.failed(Failure(kind=number))) for number in numbers}
    assert len(classes) == len(errors.FailureKind)


def test_an_unknown_kind_is_internal_and_unknown_side_effects_are_possible() -> None:
    failure = Failure()
    failure.kind = 99  # type: ignore[assignment]  # of a later protocol
    error = _failures.failed(failure)
    assert isinstance(error, errors.InternalFailure)
    assert error.side_effects is _facts.SideEffects.POSSIBLE


def test_timeouts_are_pythons_too() -> None:
    assert issubclass(errors.CallTimedOut, TimeoutError)
    assert issubclass(errors.IdleTimedOut, errors.CallTimedOut)
    assert issubclass(errors.RequestTimedOut, TimeoutError)


@pytest.mark.parametrize("code", errors.ReplyCode, ids=lambda code: code.name)
def test_every_code_has_a_class(code: errors.ReplyCode) -> None:
    reply = outbound_pb2.ReplyError(message="why")
    reply.code = code.value  # type: ignore[assignment]  # the same numbers
    error = _refusals.refused(reply)
    assert error.code is code
    if code is not errors.ReplyCode.INTERNAL:
        assert type(error) is not errors.RequestRefused


def test_a_peers_error_is_unaltered() -> None:
    reply = outbound_pb2.ReplyError(code=outbound_pb2.REPLY_ERROR_CODE_PEER_ERROR)
    reply.peer.code, reply.peer.message, reply.peer.data = -32_001, "no", b'{"x":1}'
    error = _refusals.refused(reply)
    assert isinstance(error, errors.PeerFailed)
    assert (error.peer_code, str(error), error.peer_data) == (-32_001, "no", {"x": 1})


@pytest.mark.parametrize("cls", [_facts.CallerPrincipal, _facts.ParentAnchor, _facts.Secret])
def test_what_is_withheld_neither_prints_nor_serialises(cls: type[_facts.Withheld]) -> None:
    value = cls("canary")
    assert value.reveal() == "canary"
    for text in (str(value), repr(value), f"{value}", f"{value:>40}", "%s" % value, repr([value])):  # noqa: UP031  # one of them
        assert "canary" not in text
    for serialise in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            serialise(value)
    assert not hasattr(value, "__dict__")
    assert value == cls("canary")
    assert value != "canary"
    assert len({value, cls("canary")}) == 1
