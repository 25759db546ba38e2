"""How the process keeps its memory."""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 32 * 1024 * 1024
_YOUNG_OBJECTS = 50_000


def keep_memory_warm() -> None:
    """Settles the collector and the C library's heap for a server, once everything is imported.

    A call makes no reference cycles, so collections find next to nothing, and at the default they cost a tenth of the
    CPU. glibc by default gives the memory of a large message back to the kernel as soon as it is freed, and faults it
    in again page by page for the next one, which costs more than all else that is done with it.
    """
    # What imports and the reading of arguments left would be frozen with the rest.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    # Other C libraries have no such function, and other habits.
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
