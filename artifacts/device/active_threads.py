"""Adapts the number of working threads to the load of the machine, several times a second.

A kernel on several threads ends when its last thread does: one thread whose core has other work delays all the others,
at every kernel. So when threads are delayed, as many work as there are cores without other work: at most the number
that the run began with, and at least half of it, since other processes may not take the whole machine. No bit depends
on it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping

from attrs import define, frozen

PERIOD = 0.25  # seconds between decisions: some 25 ticks of the kernel's accounting
# Times a second that a thread may be sent off its core, and one more for each thread, before there is a look.
MAX_SWITCHES = 30
MAX_WAIT_SHARE = 0.1  # share of the time that a thread is runnable but not running, from which on it delays the others
REST_BELOW, ADD_ABOVE = 0.5, 0.75  # of a core: missing for a thread to rest, free for one to work again
STABLE_DECISIONS = 2  # decisions in a row before more threads work: a core that is idle for a moment is not free yet
STAT, TASKS = "/proc/stat", "/proc/self/task"


@frozen
class Reading:
    """Accounts since the start of the machine or of the process, in seconds.

    at:    when
    busy:  of the cores that the process may use, all of their work, what a virtual machine's host takes included
    own:   this process's part of it
    waits: thread -> how long it wanted to run and might not
    """

    at: float
    busy: float
    own: float
    waits: Mapping[str, float]


def read(path: str = STAT, tasks: str = TASKS) -> Reading | None:
    """The accounts now; None if the system does not provide them."""
    cores, ticks, busy = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK"), 0
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, *words = line.split()
                if not name.startswith("cpu"):
                    break
                if name != "cpu" and int(name[3:]) in cores:
                    user, nice, system, _idle, _wait, *more = map(int, words[:8])
                    busy += user + nice + system + sum(more)
        waits = {task: _wait_of(f"{tasks}/{task}/schedstat") for task in os.listdir(tasks)}
    except (OSError, ValueError):
        return None
    return Reading(time.perf_counter(), busy / ticks, time.process_time(), waits)


def _wait_of(path: str) -> float:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().split()[1]) * 1e-9
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return 0.0


def switches() -> int:
    """Involuntary context switches of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def free_cores(before: Reading, now: Reading, cores: int) -> float:
    """Cores that had no other work between the two readings."""
    spent = now.at - before.at
    others = (now.busy - before.busy - (now.own - before.own)) / spent
    return cores - max(0.0, others)


def is_held_up(before: Reading, now: Reading) -> bool:
    """Whether some thread waited for its core so long that it delayed the others."""
    longest = max((wait - before.waits.get(task, wait) for task, wait in now.waits.items()), default=0.0)
    return longest > MAX_WAIT_SHARE * (now.at - before.at)


@define
class ActiveThreads:
    """``active`` of ``max_threads`` threads work; ``tell`` passes the number to the runtime. ``look`` is called between
    two
    calls into it, from the same thread: it costs a reading of the clock, and a system call several times a second."""

    max_threads: int
    tell: Callable[[int], object]
    active: int = 0
    min_active: int = 0
    _next: float = 0.0
    _switches: int = 0
    _before: Reading | None = None  # the reading of the last decision, where this one can go on from it
    _more: int = 0  # decisions in a row that were for more threads

    def __attrs_post_init__(self) -> None:
        self.active = self.min_active = self.max_threads
        self._next = time.perf_counter() + PERIOD if self.max_threads > 1 else float("inf")
        self._switches = switches()

    def look(self) -> None:
        now = time.perf_counter()
        if now >= self._next:
            spent, self._next = now - self._next + PERIOD, now + PERIOD
            if self._wanted(spent):
                self._decide(read())
            else:
                self._before = None

    def _wanted(self, spent: float) -> bool:
        """Whether there is something to decide: some threads rest, or other processes want their cores."""
        before, self._switches = self._switches, switches()
        return self.active < self.max_threads or self._switches - before > (MAX_SWITCHES + self.max_threads) * spent

    def _decide(self, now: Reading | None) -> None:
        before, self._before = self._before, now
        if before is None or now is None:
            return
        free = free_cores(before, now, len(os.sched_getaffinity(0)))
        count = self._count(free, is_held_up(before, now))
        if count != self.active:
            self.tell(count)
            self.active, self.min_active, self._more = count, min(self.min_active, count), 0

    def _count(self, free: float, held_up: bool) -> int:
        if held_up and free < self.active - REST_BELOW:
            self._more = 0
            return max(-(-self.max_threads // 2), min(self.active, int(free + 1 - REST_BELOW)))
        more = min(self.max_threads, int(free + 1 - ADD_ABOVE))
        self._more = self._more + 1 if more > self.active else 0
        return more if self._more >= STABLE_DECISIONS else self.active
