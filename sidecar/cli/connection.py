"""The SDK's connection to the sidecar, as commands that call tools have it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pillion
from pillion import errors
from sidecar.cli.reach import Reach, Unreachable

_PATIENCE = 5.0


@asynccontextmanager
async def connected(reach: Reach) -> AsyncIterator[pillion.Host]:
    """A connection, as long as the block lasts.

    :raises Unreachable: if no sidecar answers within some seconds, or if it refuses.
    """
    tls = None
    if reach.is_encrypted:
        tls = pillion.Tls(reach.ca, reach.certificate, reach.key, reach.server_name)
    connection = pillion.connect(
        reach.target, token_file=reach.token_file, tls=tls, connect_timeout=_PATIENCE, patience=_PATIENCE
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
