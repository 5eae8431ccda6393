"""How many threads the runtime computes with, and on which cores.

The runtime's own placing is turned off: it ignores the cores that a process is confined to (taskset, cpusets), and puts
the runs of few threads of one machine all on the same first cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import CLI_VALUE, RunError


def set_threads(count: int | None) -> int:
    """Fix the number of threads of the runtime, before it is loaded; default: the cores this process may use."""
    if count is not None and not 1 <= count <= 1024:
        raise RunError(CLI_VALUE, f"--threads is {count}; the range is 1 to 1024")
    cores = len(os.sched_getaffinity(0))
    chosen = count or cores
    os.environ["TVM_NUM_THREADS"] = str(chosen)
    os.environ["TVM_BIND_THREADS"] = "0"
    if chosen > cores:  # threads that look for work in a loop before they sleep would keep the cores from the others
        os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "0"
    return chosen


def settle(start: Callable[[], object]) -> None:
    """Start the pool of this thread by ``start``, and give each of its threads and this one a core of its own, if
    together they fill the cores that this process may use; with fewer, the scheduler chooses."""
    cores, before = sorted(os.sched_getaffinity(0)), _tasks()
    start()
    team = [threading.get_native_id(), *sorted(_tasks() - before)]
    if len(team) == len(cores):
        for task, core in zip(team, cores, strict=True):
            os.sched_setaffinity(task, {core})


def anywhere() -> None:
    """Let this thread run on every core that the process computes on: a thread is born on its parent's core."""
    os.sched_setaffinity(0, set().union(*map(os.sched_getaffinity, _tasks())))


def _tasks() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


@contextmanager
def restored() -> Iterator[None]:
    """This thread may use the cores again afterwards that it may use now."""
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
