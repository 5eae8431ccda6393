"""A clock that stops while the process is suspended (SIGSTOP, SIGTSTP), so that times and rates leave that out.

Nothing tells when a suspension began; SIGCONT tells that it is over. So the suspension is taken to be the time since
the clock was last read, less this thread's processor time, which does not grow while suspended. A machine's sleep
counts for
nothing: the system clock that this one reads stops then too.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

TICK = 0.25  # seconds between readings, where a thread reads it


class Clock:
    """``now``: seconds from an arbitrary start; ``away``: seconds of suspension, not counted. Suspensions are seen only
    within ``with``, in the main thread, which gets the signals. ``ticks``: a thread reads the clock too, for work that
    does not."""

    def __init__(self, ticks: bool = False) -> None:
        self.away = 0.0
        self._ticks = ticks
        self._over = threading.Event()
        self._before: Any = None
        self._late: tuple[float, float] | None = None  # when a tick came late, and how long after the one before
        self._worked = time.thread_time()
        self._began = self._read = time.perf_counter()

    def now(self) -> float:
        self._worked = time.thread_time()
        self._began = self._read = read = time.perf_counter()
        return read - self.away

    def own(self, read: float) -> float:
        """``now``, given ``read`` from time.perf_counter: cheap enough for a thousand calls a second, since it does not
        read the processor time."""
        self._read = read
        return read - self.away

    def _continued(self, number: int, frame: Any) -> None:
        now = time.perf_counter()
        since = now - self._read
        if self._late and now - self._late[0] < TICK:  # the other thread was continued before this one
            since += self._late[1]
        idle = now - self._began - (time.thread_time() - self._worked)
        self.away += max(0.0, min(since, idle))
        self._late = None
        self.now()
        if callable(self._before):
            self._before(number, frame)

    def _tick(self) -> None:
        while not self._over.wait(TICK):
            now = time.perf_counter()
            if now - self._read > 2 * TICK:
                self._late = now, now - self._read
            self._read = now

    def __enter__(self) -> Clock:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGCONT)
            signal.signal(signal.SIGCONT, self._continued)
        if self._ticks:
            threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        if self._before is not None:
            signal.signal(signal.SIGCONT, self._before)
