"""The standard streams as a command needs them: there, and written whole however slowly they are read."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any


class Patient(io.RawIOBase):
    """Writes to a descriptor that may not block, as a pipe of a program that set it so: it waits for the reader.
    Python's own stream then fails, or loses what does not fit (PYTHONUNBUFFERED=1). The descriptor stays open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:
                wanted = select.poll()
                wanted.register(self._fd, select.POLLOUT)
                wanted.poll()


@contextlib.contextmanager
def standard() -> Iterator[None]:
    """Within it the descriptors 0 to 2 have a place, and standard output and error write whole lines."""
    open_standard()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(patient, before, (1, 2))
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        sys.stdout, sys.stderr = before


def patient(stream: Any, number: int) -> Any:
    """A stream like ``stream`` that waits for its reader; itself where it has no descriptor. None is the one of
    descriptor ``number`` that came closed."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(Patient(number)), "utf-8", "backslashreplace")
    try:
        fd = stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):  # it is no file, as in a test
        return stream
    at_once = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(io.BufferedWriter(Patient(fd)), stream.encoding, stream.errors, line_buffering=at_once)


def open_standard() -> None:
    """Give the descriptors 0 to 2 a place if they came closed: else the next file opened would take one of them, and
    whatever a library prints would land in it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def discard(stream: Any) -> None:
    """Send what is left in ``stream`` to nowhere, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
