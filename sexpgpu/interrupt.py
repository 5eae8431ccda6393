"""Ctrl-C and its like, kept in mind. One that falls into a callback of TVM comes back as an error without a name, or is
taken for a failed schedule rule, and the build would go on to another artifact: so the driver and the command line ask
here."""

from __future__ import annotations

import signal
from typing import Any

_seen: list[int] = []


def watch() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP are remembered, and raised as KeyboardInterrupt, so that temporary files
    are removed on the way out; one that was ignored or handled otherwise stays so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _remember)


def _remember(number: int, frame: Any) -> None:
    _seen.append(number)
    raise KeyboardInterrupt


def seen() -> bool:
    """Whether a signal has come since ``watch``."""
    return bool(_seen)


def said() -> tuple[str, int]:
    """The line that tells of the signal, and the exit status."""
    number = signal.Signals(_seen[0] if _seen else signal.SIGINT)
    return f"stopped by {number.name}", 128 + number


def check() -> None:
    """KeyboardInterrupt where a signal has come, even if that was swallowed since."""
    if _seen:
        raise KeyboardInterrupt
