"""Durable files: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence

from .errors import IO_WRITE, RunError, of_os_error

CHUNK = 4 * 2**20

LONGEST = 3800  # bytes of a run directory's path: Linux takes 4096, and the run's files go below it


def write_new(path: str, parts: Iterable[bytes]) -> tuple[int, str]:
    """Create ``path`` (it must not exist) from ``parts`` and sync it; (bytes, sha256). The umask decides its mode."""
    digest, size = hashlib.sha256(), 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), CHUNK):
                chunk = view[at : at + CHUNK]
                _write_all(fd, chunk)
                digest.update(chunk)
            size += len(view)
        os.fsync(fd)
    finally:
        os.close(fd)
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
    """``path`` holds ``parts`` afterwards, or is as before (RunError E-IO): never something between."""
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_new(temporary, parts)
        os.replace(temporary, path)
        sync_directory(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise of_os_error(error, path) from None
        if isinstance(error, ValueError):  # a NUL in the path
            raise RunError(IO_WRITE, str(error), path) from None
        raise


def make_directory(path: str) -> list[str]:
    """The directory ``path`` exists afterwards; else RunError E-IO, and no part of a hopeless path either. Answers what
    was not there before: ``path`` and folders around it, the innermost first."""
    if len(os.fsencode(os.path.abspath(path))) > LONGEST:
        raise RunError(IO_WRITE, f"the path is longer than {LONGEST} bytes", path)
    try:
        new = _absent(path)
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


def _absent(path: str) -> list[str]:
    around, found = os.path.abspath(path), []
    while not os.path.lexists(around):
        found.append(around)
        around = os.path.dirname(around)
    return found


@contextlib.contextmanager
def given_up(made: Sequence[str], known: str) -> Iterator[None]:
    """Directories that were just ``made`` are gone again where what follows fails before there is more in the innermost
    of them than the file ``known``."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if made and os.listdir(made[0]) == [known]:
                os.unlink(os.path.join(made[0], known))
            for path in made:
                os.rmdir(path)
        raise


def remove_flat(path: str, known: frozenset[str]) -> None:
    """Remove the directory ``path`` and the ``known`` names in it; with anything else inside it stays."""
    for name in os.listdir(path):
        if name in known:
            os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)


def free_bytes(path: str) -> int:
    """Bytes an ordinary user may still write to the file system of ``path``."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize
