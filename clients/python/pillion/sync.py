"""The caller without asyncio.

For example::

with pillion.sync.connect("unix:/run/pillion/callers.sock") as host:
    with host.start("render", {"scene": 7}) as call:
        for progress in call:
            print(progress.payload)
        image = call.result()
"""

from pillion._sync.host import Call, Host, PlainHandler, connect

__all__ = ("Call", "Host", "PlainHandler", "connect")
