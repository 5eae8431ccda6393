"""The text of a file, whatever is at its path: nothing is waited for, and no more is read than a run file may have."""

from __future__ import annotations

import errno
import os
import stat

from . import codes as c
from .diagnostics import Code, Report, UserError
from .source import Source, Span

MAX_BYTES = 16 * 2**20


def read_file(path: str, report: Report) -> Source | None:
    """The text of the file at ``path``, line ends as LF and without a byte order mark; None when a fault was added.

    E-READ-001 missing, a directory or not readable; E-READ-009 not UTF-8 or a NUL; E-READ-011 too large, or not a
    regular file (a fifo or device is never waited for).
    """
    data = read_bytes(path, report)
    if data is None:
        return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    shown = Source(path, unix(data.decode("utf-8", "replace")))
    nul = data.find(b"\0")
    try:
        data[: nul if nul >= 0 else None].decode("utf-8")
    except UnicodeDecodeError as fault:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        hint = "the file looks like UTF-16" if utf16 else "save the file as UTF-8"
        bad = f"byte {fault.start} (0x{data[fault.start]:02x}) is not UTF-8"
        report.add(UserError(c.READ_BYTES, at_byte(shown, data, fault.start), bad, hint=hint))
        return None
    if nul >= 0:
        report.add(UserError(c.READ_BYTES, at_byte(shown, data, nul), f"byte {nul} is a NUL"))
        return None
    return shown


def read_bytes(path: str, report: Report) -> bytes | None:
    """At most MAX_BYTES of a regular file, without waiting on any other kind; None when a fault was added."""

    def fault(code: Code, message: str) -> None:
        report.add(UserError(code, None, message, where=path))

    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            data = file.read(MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
    except (OSError, ValueError) as reason:
        return fault(c.READ_FILE, why_unread(reason))
    if stat.S_ISDIR(mode):
        return fault(c.READ_FILE, "is a directory")
    if not stat.S_ISREG(mode):
        return fault(c.READ_SIZE, "is not a regular file")
    if len(data) > MAX_BYTES:
        return fault(c.READ_SIZE, f"is larger than {MAX_BYTES // 2**20} MiB")
    return data


def why_unread(reason: OSError | ValueError) -> str:
    """What to say of a file that cannot be opened, after its path."""
    if isinstance(reason, ValueError):
        return "is not a path: it holds a NUL"
    if reason.errno == errno.EISDIR:
        return "is a directory"
    return "no such file" if reason.errno == errno.ENOENT else f"cannot be read: {os.strerror(reason.errno or 0)}"


def unix(text: str) -> str:
    """``text`` with CRLF line ends as LF."""
    return text.replace("\r\n", "\n")


def at_byte(shown: Source, data: bytes, offset: int) -> Span:
    """The place in ``shown``, which was decoded from ``data``, of the byte at ``offset``."""
    start = len(unix(data[:offset].decode("utf-8", "replace")))
    return Span(shown, start, start + 1)
