"""A clock that stands while the process is suspended (SIGSTOP, SIGTSTP): what took long was then somebody else's will.

Nothing tells when a suspension began, and only SIGCONT that it is over. So what has passed since the clock was last
read is taken for it, less the processor's time of this thread, which a suspended one has not. A machine's own sleep is
in no time: the system's clock that this one reads stands then too.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

TICK = 0.25  # seconds between readings, where a thread reads it


class Clock:
    """``now`` in seconds from an arbitrary start, and ``away``: those that were not counted. It stands only within
    ``with``, in the main thread, which alone sees signals. ``ticks``: a thread reads it too, for work that does not."""

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
        """``now`` by ``read``, what time.perf_counter says: for whoever asks a thousand times a second, as it does not
        ask for the processor's time."""
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
