"""What a call waits for at gates 8 and 9: what its tool declares, put in one after the other."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from sidecar.calls.call import Call
from sidecar.calls.ports import Supplier
from sidecar.calls.tool import Tool
from sidecar.calls.waiting import is_asked_to_stop


async def finish_supplying(
    call: Call, tool: Tool, supplying: Coroutine[Any, Any, None], others: Iterable[Supplier]
) -> None:
    """Waits for one supplier, then has the others put in what is theirs.

    :raises Refusal: if one cannot.
    :raises RuntimeError: if what was waited for was cancelled, and this was not.
    """
    try:
        await supplying
        for supplier in others:
            more = supplier.supply(call, tool)
            if more is not None:
                await more
    except asyncio.CancelledError as cancelled:
        if is_asked_to_stop():
            raise
        raise RuntimeError("what a call waited for was cancelled") from cancelled
