"""Ctrl-C and its like, kept in mind. One that falls into a callback of TVM comes back as an error without a name, or is
taken for a failed schedule rule, and the build would go on to another artifact: so the driver and the command line ask
here."""

from __future__ import annotations

import signal
from typing import Any

from surroundings.end_signals import HANDLED, TIMERS

_seen: list[int] = []


def watch() -> None:
    """From now on the signals that ask for an end are remembered, and raised as KeyboardInterrupt, so that temporary
    files are removed on the way out; one that was ignored or handled otherwise stays so."""
    for number in HANDLED:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _remember)


def _remember(number: int, frame: Any) -> None:
    again = number in TIMERS and number in _seen
    _seen.append(number)
    if not again:
        raise KeyboardInterrupt


def seen(error: Exception | None = None) -> bool:
    """Whether a signal has come since ``watch``, to this process or to the one whose end ``error`` tells of: a limit of
    processor time is each process's own."""
    ended = -(getattr(error, "status", None) or 0)
    if not _seen and ended in HANDLED:
        _seen.append(ended)
    return bool(_seen)


def said() -> tuple[str, int]:
    """The line that tells of the signal, and the exit status."""
    number = signal.Signals(_seen[0] if _seen else signal.SIGINT)
    return f"stopped by {number.name}", 128 + number


def check() -> None:
    """KeyboardInterrupt where a signal has come, even if that was swallowed since."""
    if _seen:
        raise KeyboardInterrupt
