"""Signals set a flag that the loop looks at before every trip, microbatch and batch. A second one ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Stopped(Exception):
    """Raised by ``Stop.look`` once a signal has come; ``exit`` is the process's status after a clean stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit = number, 128 + number


class Stop:
    """Has a signal come? Within ``with``, the handled signals only set the flag; a signal that the process was started
    to ignore (nohup, a background job) stays ignored. While ``at_once`` is true, as it is until there is state to keep,
    the signal raises Stopped where the program stands. ``longest``: seconds between two looks at most, so
    how long a signal would have waited."""

    def __init__(self) -> None:
        self.number = 0
        self.at_once = True
        self.longest = 0.0
        self._looked: float | None = None
        self._before: dict[int, Any] = {}

    def look(self) -> None:
        """Raise Stopped if a signal has come."""
        now = time.perf_counter()
        if self._looked is not None:
            self.longest = max(self.longest, now - self._looked)
        self._looked = now
        if self.number:
            raise Stopped(self.number)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number:
            with contextlib.suppress(OSError):
                os.write(2, b"stopped at once; the last checkpoint is kept\n")
            os._exit(128 + number)
        self.number = number
        if self.at_once:
            raise Stopped(number)

    def __enter__(self) -> Stop:
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
