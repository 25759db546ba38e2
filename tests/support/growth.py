"""How what a computation costs grows with the size of its input."""

import contextlib
import gc
import math
import time
from collections.abc import Callable

TIMES = 16
_MOST = 80
_SLACK = 0.001
_ROUNDS = 8
_SECONDS = 10.0


def assert_grows_in_proportion(work: Callable[[int], Callable[[], object]], largest: int) -> None:
    """Fails if an input of this size costs far more than 16 times what one of a sixteenth costs.

    `work` makes an input and gives what is to be done with it; what that raises of `ValueError` is an answer too. A
    cost in proportion is 16 times as much, a quadratic one 256 times, and the line is between them. What is compared is
    the CPU time of this thread without the collector's, the least of several rounds: a machine with other work to do
    slows down both.
    """
    small, large = work(largest // TIMES), work(largest)
    least_small = least_large = math.inf
    for _ in range(_ROUNDS):
        least_small = min(least_small, _seconds(small))
        least_large = min(least_large, _seconds(large))
        if least_large <= _MOST * least_small + _SLACK:
            return
        if least_large > _SECONDS:
            break
    raise AssertionError(f"{TIMES} times the input takes {least_large / least_small:.0f} times as long")


def _seconds(run: Callable[[], object]) -> float:
    gc.disable()
    try:
        began = time.thread_time()
        with contextlib.suppress(ValueError):
            run()
        return time.thread_time() - began
    finally:
        gc.enable()
