"""How one kernel is timed, in every process alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any


def best(call: Callable[[], Any], seconds: float) -> float:
    """The best mean time of a round of calls that lasts some 3 ms, over rounds that last ``seconds`` together."""
    call()
    start = time.perf_counter()
    call()
    turns = max(1, min(2000, int(0.003 / max(time.perf_counter() - start, 1e-7))))
    least, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(turns):
            call()
        least = min(least, (time.perf_counter() - start) / turns)
    return least
