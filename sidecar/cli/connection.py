"""The SDK's connection to the sidecar, as commands that call tools have it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pillion
from pillion import errors
from sidecar.cli.reach import Reach, Unreachable

_PATIENCE = 5.0
Handler = Callable[[pillion.Question], Awaitable[Any]]


@asynccontextmanager
async def connected(reach: Reach, can_answer: Mapping[str, Handler] | None = None) -> AsyncIterator[pillion.Host]:
    """A connection, as long as the block lasts. `can_answer`: the methods that tools may ask, with who answers.

    :raises Unreachable: if no sidecar answers within some seconds, or if it refuses.
    """
    tls = None
    if reach.is_encrypted:
        tls = pillion.Tls(reach.ca, reach.certificate, reach.key, reach.server_name)
    connection = pillion.connect(
        reach.target,
        token_file=reach.token_file,
        tls=tls,
        can_answer=can_answer,
        connect_timeout=_PATIENCE,
        patience=_PATIENCE,
    )
    try:
        async with connection as host:
            yield host
    except errors.NotAuthenticated as refused:
        raise Unreachable(reach.target, refusal=str(refused)) from None
    except errors.CannotConnect as error:
        raise Unreachable(reach.target, refusal=str(error)) from None
    except (errors.ConnectionFailed, errors.Unreachable):
        raise Unreachable(reach.target) from None
