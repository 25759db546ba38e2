"""What is said of the protocol itself."""

import pytest

from sidecar._gen.pillion.v1.call_pb2 import CallerHello, ProtocolVersion, StreamErrorReason
from sidecar.wire.limits import KIB, MIB, WireLimits
from sidecar.wire.protocol import PROTOCOL, agreed_version, limits_message, stream_error


def version(text: str) -> ProtocolVersion | None:
    if not text:
        return None
    major, minor = text.split(".")
    return ProtocolVersion(major=int(major), minor=int(minor))


@pytest.mark.parametrize(
    ("minimum", "maximum", "agrees"),
    [
        ("", "", True),
        ("1.0", "1.0", True),
        ("", "1.0", True),
        ("1.0", "", True),
        ("1.0", "1.7", True),
        ("1.0", "3.2", True),
        ("1.1", "1.7", False),
        ("2.0", "2.0", False),
        ("1.1", "", False),
    ],
)
def test_the_version_is_agreed_where_the_ranges_meet(minimum: str, maximum: str, agrees: bool) -> None:
    hello = CallerHello(minimum=version(minimum), maximum=version(maximum))
    assert agreed_version(hello) == (PROTOCOL if agrees else None)


def test_a_peer_is_told_the_limits_in_force() -> None:
    limits = limits_message(WireLimits(max_frame_bytes=2 * MIB, max_inline_bytes=KIB, max_message_bytes=3 * MIB), 17)
    assert limits.max_frame_bytes == 2 * MIB
    assert limits.max_inline_bytes == KIB
    assert limits.max_message_bytes == 3 * MIB
    assert limits.max_in_flight == 17


def test_a_stream_error_names_its_call_where_there_is_one() -> None:
    reason = StreamErrorReason.STREAM_ERROR_REASON_CALL_ID_ZERO
    error = stream_error(reason, "no", 0).stream_error
    assert (error.reason, error.message, error.HasField("call"), error.call) == (reason, "no", True, 0)
    assert not stream_error(reason, "no").stream_error.HasField("call")
