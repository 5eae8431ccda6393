"""How many of the runtime's threads work, by how busy the machine is, decided anew several times a second.

A kernel on several threads is over when the last of them is: one whose core has other work too holds up all the others,
at every kernel. So where they are held up, as many work as there are cores without other work: at most those that the
run began with, and at least half of them, since a machine that others fill is not theirs alone. No bit depends on it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping

from attrs import define, frozen

PERIOD = 0.25  # seconds between decisions: some 25 ticks of the kernel's own accounts
CALM = 30  # times a second that a thread may be sent off its core, and one more for each thread, before there is a look
HELD = 0.1  # of the time that a thread wants to run and may not, from which on it holds up the others
FEWER, MORE = 0.5, 0.75  # of a core that is lacking for a thread to rest, or there for one to work again
TWICE = 2  # decisions in a row for more threads: what is idle for a moment is not yet free
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
    """The accounts now; None where the system does not tell."""
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
    """How often a thread of this process was sent off its core by others."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def free_cores(before: Reading, now: Reading, cores: int) -> float:
    """Cores without other work between the two readings."""
    spent = now.at - before.at
    others = (now.busy - before.busy - (now.own - before.own)) / spent
    return cores - max(0.0, others)


def held_up(before: Reading, now: Reading) -> bool:
    """Did some thread wait for its core so long that it held up the others?"""
    longest = max((wait - before.waits.get(task, wait) for task, wait in now.waits.items()), default=0.0)
    return longest > HELD * (now.at - before.at)


@define
class Crew:
    """``working`` of ``most`` threads, as ``tell`` has told the runtime. ``look`` between two calls into it, from the
    thread that makes them: it costs the reading of a clock, and where nobody else wants a core a call of the system
    several times a second."""

    most: int
    tell: Callable[[int], object]
    working: int = 0
    fewest: int = 0
    _next: float = 0.0
    _switches: int = 0
    _before: Reading | None = None  # the reading of the last decision, where this one can go on from it
    _more: int = 0  # decisions in a row that were for more threads

    def __attrs_post_init__(self) -> None:
        self.working = self.fewest = self.most
        self._next = time.perf_counter() + PERIOD if self.most > 1 else float("inf")
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
        """Is there something to decide? With all threads at work only where others want their cores."""
        before, self._switches = self._switches, switches()
        return self.working < self.most or self._switches - before > (CALM + self.most) * spent

    def _decide(self, now: Reading | None) -> None:
        before, self._before = self._before, now
        if before is None or now is None:
            return
        free = free_cores(before, now, len(os.sched_getaffinity(0)))
        count = self._count(free, held_up(before, now))
        if count != self.working:
            self.tell(count)
            self.working, self.fewest, self._more = count, min(self.fewest, count), 0

    def _count(self, free: float, held: bool) -> int:
        if held and free < self.working - FEWER:
            self._more = 0
            return max(-(-self.most // 2), min(self.working, int(free + 1 - FEWER)))
        more = min(self.most, int(free + 1 - MORE))
        self._more = self._more + 1 if more > self.working else 0
        return more if self._more >= TWICE else self.working
