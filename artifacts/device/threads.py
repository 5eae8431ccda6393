"""The number of threads that the runtime computes with, and how they wait for work.

The scheduler chooses their cores. The runtime's own pinning ignores the cores that a process is confined to (taskset,
cpusets), and a thread that is pinned to a core waits there for whatever else runs on it, and all others wait for it at
the end of each kernel.
"""

from __future__ import annotations

import math
import os

from ..base.errors import CLI_VALUE, RunError
from . import control_groups

# How often a waiting thread polls for work before it sleeps: about half a millisecond, longer than the time to the next
# kernel. The runtime's default of 300,000 keeps a core from threads that have work, such as the one waited for.
SPIN_COUNT = 1000


def available(proc: str = control_groups.PROC, usual: str = control_groups.USUAL) -> int:
    """The cores that this process may use: those it is confined to, or as many as its control groups grant time of."""
    granted = control_groups.quota(proc, usual)
    cores = len(os.sched_getaffinity(0))
    return cores if granted is None else max(1, min(cores, math.ceil(granted[0])))


def set_threads(count: int | None) -> int:
    """Fix the number of threads of the runtime, before it is loaded; default: the cores this process may use."""
    if count is not None and not 1 <= count <= 1024:
        raise RunError(CLI_VALUE, f"--threads is {count}; the range is 1 to 1024")
    cores = available()
    chosen = count or cores
    os.environ["TVM_NUM_THREADS"] = str(chosen)
    os.environ["TVM_BIND_THREADS"] = "0"
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = str(SPIN_COUNT if chosen <= cores else 0)
    return chosen


def description(count: int | None) -> str:
    """How many threads there will be, and why."""
    granted = control_groups.quota()
    more = f", and a quota of {granted[0]:g} of a core in {granted[1]}" if granted else ""
    reason = "by --threads; " if count else ""
    return f"threads: {count or available()} ({reason}this process may use {len(os.sched_getaffinity(0))} cores{more})"
