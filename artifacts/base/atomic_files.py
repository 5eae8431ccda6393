"""Durable, atomic files: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from surroundings import temporary

from .errors import IO_READ, IO_WRITE, RunError, of_os_error

CHUNK = 4 * 2**20
_TEMPORARY = re.compile(r"\.tmp-[0-9]+-[0-9a-f]{8}")

_TEMPORARY = re.compile(r"\.tmp-([0-9]+)-[0-9a-f]{8}")
MAX_PATH = 3800  # bytes of a run directory's path: Linux takes 4096, and the run's files go below it


def write_new(path: str, parts: Iterable[bytes]) -> tuple[int, str]:
    """Create ``path`` (it must not exist) from ``parts`` and sync it; (bytes, sha256). The umask decides its mode."""
    fd = _create(path)
    try:
        return _write(fd, parts)
    finally:
        os.close(fd)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _write(fd: int, parts: Iterable[bytes]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), CHUNK):
            chunk = view[at : at + CHUNK]
            _write_all(fd, chunk)
            digest.update(chunk)
        size += len(view)
    os.fsync(fd)
    return size, digest.hexdigest()


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def sync_directory(path: str) -> None:
    """Make the names in the directory ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: str, parts: Iterable[bytes]) -> None:
    """Write ``parts`` to ``path`` atomically: on failure (RunError E-IO) it is as before. Temporary files of killed
    processes in the same folder are removed."""
    folder = os.path.dirname(path) or "."
    temporary.sweep(folder, _TEMPORARY)
    name, fd = "", -1
    try:
        name, fd = _create_locked(folder)
        _write(fd, parts)
        os.replace(name, path)
        sync_directory(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise of_os_error(error, path) from None
        if isinstance(error, ValueError):  # a NUL in the path
            raise RunError(IO_WRITE, str(error), path) from None
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def _create_locked(folder: str) -> tuple[str, int]:
    """A new temporary file in ``folder``, locked by this process: (path, descriptor)."""
    while True:
        name = os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}")
        fd = _create(name)
        temporary.take(fd)
        if os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)  # another process's sweep removed it before it was locked


def sweep(folder: str) -> None:
    """Remove the leftovers of a killed ``replace`` in ``folder``; the caller makes sure that no other process of ours
    is writing there."""
    with contextlib.suppress(OSError):
        for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)


def make_directory(path: str) -> list[str]:
    """Make the directory ``path`` and its parents; on RunError E-IO a path that cannot exist is not made in part.
    Returns the directories that are new, the innermost first."""
    if len(os.fsencode(os.path.abspath(path))) > MAX_PATH:
        raise RunError(IO_WRITE, f"the path is longer than {MAX_PATH} bytes", path)
    try:
        new = _missing_directories(path)
        os.makedirs(path, exist_ok=True)
        return new
    except FileExistsError:
        raise RunError(IO_WRITE, "it is there already, and is not a directory", path) from None
    except OSError as error:
        raise of_os_error(error, path) from None
    except RecursionError:  # makedirs calls itself for each level
        raise RunError(IO_WRITE, "the path has too many levels", path) from None
    except ValueError as error:
        raise RunError(IO_WRITE, str(error), path) from None


def _missing_directories(path: str) -> list[str]:
    directory, missing = os.path.realpath(path), []  # realpath, since .. after a link is not the textual parent
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing


@contextlib.contextmanager
def removed_on_failure(created: Sequence[str], expected: str) -> Iterator[None]:
    """Remove the directories ``created`` again if the body fails while the innermost of them holds nothing but the file
    ``expected``."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if created and os.listdir(created[0]) == [expected]:
                os.unlink(os.path.join(created[0], expected))
            for path in created:
                os.rmdir(path)
        raise


def remove_flat(path: str, expected: frozenset[str]) -> None:
    """Remove the directory ``path`` and the ``expected`` names in it; with other names in it, it stays. OSError if it
    is a symbolic link, whose target belongs to others."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(fd):
            if name in expected:
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def token() -> str:
    """A random suffix for a new name."""
    return secrets.token_hex(4)


def put_aside(path: str) -> str:
    """Rename the file or link at ``path``; returns its new name."""
    aside = f"{path}.old-{token()}"
    os.rename(path, aside)
    sync_directory(os.path.dirname(path) or ".")
    return aside


def _open_plain(path: str, flags: int) -> BinaryIO:
    """The plain file ``path``, opened for reading without blocking; OSError if it is not a plain file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    return open(fd, "rb")


def read_plain(path: str, limit: int) -> bytes:
    """At most ``limit`` + 1 bytes of the plain file ``path``; OSError if it is not one. Symbolic links are not
    followed."""
    with _open_plain(path, os.O_NOFOLLOW) as file:
        size = os.fstat(file.fileno()).st_size
        return file.read(min(limit, size) + 1)  # read() allocates its argument at once


def open_plain(path: str) -> BinaryIO:
    """The file at ``path``, or at the end of its links, for reading; RunError E-IO-012 unless it is a plain one.
    OSError where it cannot be opened."""
    try:
        return _open_plain(path, 0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise RunError(IO_READ, "it is not a plain file", path) from None
        raise


def plain_bytes(path: str, limit: int) -> bytes | None:
    """The first ``limit`` bytes of the plain file at ``path``; None where nothing is there. RunError, OSError."""
    try:
        with open_plain(path) as file:
            return file.read(limit)
    except FileNotFoundError:
        return None


def free_bytes(path: str) -> int:
    """Bytes an ordinary user may still write to the file system of ``path``."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize
