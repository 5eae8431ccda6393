"""Signal handling: a signal sets a flag that the loop checks; a second one exits.

The flag is checked before every trip, microbatch and batch of a pass, while data are awaited, and before every launch
of a CUDA graph. An update is never broken off.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from types import FrameType
from typing import Any

from surroundings.end_signals import HANDLED, TIMERS

from .base import canonical_json
from .base.clock import Clock

MAX_GRACE = 10  # seconds of processor time, at most, between SIGXCPU and the hard limit, which kills


class Stopped(Exception):
    """Raised by ``Stop.look`` once a signal has come; ``exit`` is the process's status after a clean stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit = number, 128 + number


class Stop:
    """Whether a signal has come. Within ``with``, handled signals only set the flag; a signal that the process was
    started to ignore (nohup, a background job) stays ignored.

    at_once: while true, as it is until there is state to save, a signal raises Stopped immediately
    longest: the longest time between two checks in seconds: how long a signal would have waited
    clock:   measures that and all times of a run
    """

    def __init__(self, as_json: bool = False) -> None:
        self.number = 0
        self.at_once = True
        self.longest = 0.0
        self.clock = Clock()
        self._as_json = as_json
        self._looked: float | None = None
        self._before: dict[int, Any] = {}
        self._limit: tuple[int, int] | None = None

    def look(self) -> None:
        """Raise Stopped if a signal has come."""
        now = self.clock.own(time.perf_counter())
        if self._looked is not None:
            self.longest = max(self.longest, now - self._looked)
        self._looked = now
        if self.number:
            raise Stopped(self.number)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number:
            if number in TIMERS:
                return
            self._end(number)
        self.number = number
        if self.at_once:
            raise Stopped(number)

    def _end(self, number: int) -> None:
        message = "stopped at once; the last checkpoint is kept"
        with contextlib.suppress(OSError):
            os.write(2, ((canonical_json.line({"warning": message}) if self._as_json else message) + "\n").encode())
        os._exit(128 + number)

    def __enter__(self) -> Stop:
        for number in HANDLED:
            before = signal.getsignal(number)
            if before is not None and before is not signal.SIG_IGN:  # None: a library has it, such as a profiler
                self._before[number] = signal.signal(number, self._handle)
        self._limit = lower_limit()
        self.clock.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self.clock.__exit__()
        if self._limit:
            resource.setrlimit(resource.RLIMIT_CPU, self._limit)
        for number, before in self._before.items():
            signal.signal(number, before)


def lower_limit() -> tuple[int, int] | None:
    """If soft and hard limit of processor time are equal, as ``ulimit -t`` sets them, the system kills the process
    without SIGXCPU. This sets a lower soft limit, so that the signal comes first. Returns the old limits if they were
    changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard in (resource.RLIM_INFINITY, 0, 1) or 0 <= soft < hard:
        return None
    resource.setrlimit(resource.RLIMIT_CPU, (hard - min(MAX_GRACE, max(1, hard // 10)), hard))
    return soft, hard
