"""Temporary files and folders, and the end of those that a killed process left. Whoever makes one holds a lock on it as
long as it is in use; what nobody holds is nobody's."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

PREFIX = ".tmp-sexpgpu-"  # of a folder; the process's number and eight random characters follow
_OURS = re.compile(re.escape(PREFIX) + r"([0-9]+)-[a-z0-9_]{8}")
LAST = -1000  # after what multiprocessing does with its own folder, which lies in ours
LONGEST = 78  # bytes of a folder in which multiprocessing has one with a socket: a socket's path may have 107 bytes


@contextlib.contextmanager
def used() -> Iterator[str]:
    """Within it, this process and the children that it starts make all temporary files in ``folder``."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = path = folder(os.getpid())
    try:
        yield path
    finally:
        tempfile.tempdir = before[0]
        if before[1] is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before[1]


@functools.lru_cache(1)
def folder(pid: int) -> str:
    """A folder of the process ``pid``, this one, for its temporary files: there until it ends, however it ends, or
    until the next one looks. OSError where no place can be written to."""
    return _made(place())


@functools.lru_cache(1)
def for_sockets(pid: int) -> str:
    """The same folder, or another one where its path is too long for a socket in it."""
    usual = folder(pid)
    return usual if len(os.fsencode(usual)) <= LONGEST else _made("/tmp")


def _made(base: str) -> str:
    from multiprocessing import util

    sweep(base, _OURS)
    while True:
        path = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # open, and so held, to the end
        take(fd)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                util.Finalize(None, shutil.rmtree, (path, True), exitpriority=LAST)  # of this process alone
                return path
        os.close(fd)  # another process has swept it away before it was held


def place() -> str:
    """The folder for temporary files, by a path that every library can read."""
    try:
        found = tempfile.gettempdir()
        found.encode("utf-8")
    except UnicodeEncodeError:
        return "/tmp"
    except OSError as error:  # or TMPDIR is relative, and the current folder gone
        raise OSError(errno.ENOENT, "no folder for temporary files can be written to", "TMPDIR") from error
    return found


def take(fd: int) -> bool:
    """Hold the file or folder ``fd`` until it is closed or the process ends; False where another process does, or the
    file system knows no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(where: str, ours: re.Pattern[str]) -> None:
    """Remove the files and folders in ``where`` whose names are ours, that are this user's, and that no living process
    holds. Where the first group of ``ours`` is a process's number, a process of that number that was there before the
    file keeps it too, lock or not. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(where):
            if found := ours.fullmatch(name):
                with contextlib.suppress(OSError):
                    _remove(os.path.join(where, name), int(found[1]) if ours.groups else 0)


def _remove(path: str, owner: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or (owner and _since(owner) <= found.st_mtime):
            return
        if not take(fd) or not os.path.samestat(found, os.lstat(path)):
            return
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            os.unlink(path)
    finally:
        os.close(fd)


def _since(pid: int) -> float:
    """When the process began, in seconds since 1970; infinity where there is none of that number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return math.inf
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
