"""A channel of gRPC to the sidecar, for commands that need no more of it than single requests."""

import argparse
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import grpc
import grpc.aio

from sidecar.cli.console import tell
from sidecar.cli.reach import Reach, Unreachable, reach_of
from sidecar.config import ConfigRefused
from sidecar.doors.address import UNIX, is_loopback
from sidecar.private_files import tokens_in

_OPTIONS = (
    # A proxy is never between this machine's programs.
    ("grpc.enable_http_proxy", 0),
    # A sidecar that is starting is there within a second, so look for it often.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)

Action = Callable[[argparse.Namespace, "Way"], Awaitable[int]]
"""What a command does; answers its exit code."""
_Metadata = tuple[tuple[str, str], ...]


class Way(NamedTuple):
    """A channel to the sidecar, and what goes with each request."""

    channel: grpc.aio.Channel
    metadata: _Metadata


async def with_channel(options: argparse.Namespace, action: Action) -> int:
    """Does something with a channel to the sidecar that the options name; what that refuses is told.

    :raises ConfigRefused: if it takes the settings to find it, and they cannot be used.
    :raises Unreachable: if no sidecar answers, or it does not take this caller.
    """
    reach = reach_of(options)
    token, channel = _opened(reach)
    async with channel:
        try:
            return await action(options, Way(channel, token))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise Unreachable(reach.target) from None
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise Unreachable(reach.target, refusal=error.details() or "") from None
            tell(error.details() or error.code().name)
            return 1


def _opened(reach: Reach) -> tuple[_Metadata, grpc.aio.Channel]:
    token: _Metadata = ()
    if reach.token_file is not None:
        if not (reach.is_encrypted or reach.target.startswith(UNIX) or is_loopback(reach.target.rpartition(":")[0])):
            raise ConfigRefused("A token would go over the network in the clear: name certificates by --tls-ca.")
        token = (("authorization", f"Bearer {tokens_in(reach.token_file, 'The token file')[0]}"),)
    if not reach.is_encrypted:
        return token, grpc.aio.insecure_channel(reach.target, options=_OPTIONS)
    pem: list[bytes | None] = []
    for path in (reach.ca, reach.key, reach.certificate):
        try:
            pem.append(None if path is None else path.read_bytes())
        except OSError as error:
            raise ConfigRefused(f"{path} cannot be read: {error.strerror}.") from None
    name = (("grpc.ssl_target_name_override", reach.server_name),) if reach.server_name else ()
    credentials = grpc.ssl_channel_credentials(*pem)
    return token, grpc.aio.secure_channel(reach.target, credentials, options=(*_OPTIONS, *name))
