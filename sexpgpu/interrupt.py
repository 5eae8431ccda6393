"""Ctrl-C, kept in mind. One that falls into a callback of TVM comes back as an error without a name, or is taken for a
failed schedule rule, and the build would go on to another artifact: so the driver and the command line ask here."""

from __future__ import annotations

import signal
from typing import Any

_seen: list[int] = []


def watch() -> None:
    """From now on SIGINT is remembered, and raised as ever; one that was ignored or handled otherwise stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _remember)


def _remember(number: int, frame: Any) -> None:
    _seen.append(number)
    raise KeyboardInterrupt


def seen() -> bool:
    return bool(_seen)


def check() -> None:
    """KeyboardInterrupt where SIGINT has come, even if that was swallowed since."""
    if _seen:
        raise KeyboardInterrupt
