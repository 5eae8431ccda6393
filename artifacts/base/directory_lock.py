"""One process per run directory: an advisory lock (flock) that the system releases when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator

from .errors import IO_WRITE, LOCK_HELD, RunError, of_os_error, shown

NAME = "lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def hold(folder: str, warn: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of ``folder``: True; False, with a warning, where there are no locks. E-LOCK-001 when taken."""
    path = os.path.join(folder, NAME)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:  # its target belongs to others, and would be overwritten
            raise RunError(IO_WRITE, "it is a symbolic link", path, "remove the link") from None
        raise of_os_error(error, path) from None
    try:
        yield _acquire(fd, path, warn)
    finally:
        os.close(fd)


def _acquire(fd: int, path: str, warn: Callable[[str], None]) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(LOCK_HELD, f"the directory is in use by {_describe_holder(fd)}", os.path.dirname(path)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise of_os_error(error, path) from None
        warn("this file system has no locks: do not start a second run in this directory")
        return False
    if os.fstat(fd).st_nlink == 0:  # its holder removed the directory after we opened the file and before we locked it
        raise RunError(LOCK_HELD, "the directory was in use by another process", os.path.dirname(path))
    if os.fstat(fd).st_size == 0 or _read_holder(fd):  # else it is a foreign file: locked, but not changed
        _write_holder(fd, path)
    return True


def _write_holder(fd: int, path: str) -> None:
    """Write who holds the lock, for the error message of the next process."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": since}) + "\n"
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)
    except OSError as error:
        raise of_os_error(error, path) from None


def _read_holder(fd: int) -> tuple[str, str, str] | None:
    """The process, host and time of the last holder; None if the file's content is not ours."""
    try:
        entry = json.loads(os.pread(fd, 4096, 0))
        return shown(entry["pid"]), shown(entry["host"]), shown(entry["since"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return None


def _describe_holder(fd: int) -> str:
    holder = _read_holder(fd)
    return "process {} on {} since {}".format(*holder) if holder else "another process"
