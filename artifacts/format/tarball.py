"""The artifact's file: an uncompressed USTAR archive of plain files, in canonical form.

It is written atomically. It is read member by member: each header must equal the only one allowed, and every byte is
covered by a digest. Nothing is ever unpacked.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from attrs import frozen

from ..base.errors import (
    ART_CUT,
    ART_DIGEST,
    ART_FORMAT,
    ART_KIND,
    ART_MANIFEST,
    ART_MEMBERS,
    ART_NAME,
    ART_SIZE,
    IO_READ,
    RunError,
    of_os_error,
    shown,
)
from .manifest import File, Manifest
from .manifest_reader import read_manifest

MANIFEST = "manifest.json"
DIGEST = "manifest.sha256"  # the second member: the artifact's hash, so that a damaged manifest is not another artifact
RESERVED = (MANIFEST, DIGEST)
BLOCK = 512
END = bytes(2 * BLOCK)
MAX_MANIFEST, MAX_MEMBERS, MAX_MEMBER = 16 * 2**20, 10_000, 8 * 2**30 - 1
CHUNK = 2**20
_PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(10))}


def name_allowed(name: str) -> bool:
    """Relative, at most 100 characters, parts of letters, digits and ``. _ - +`` that start with none of ``. -``."""
    parts = name.split("/")
    return len(name) <= 100 and all(_PART.fullmatch(p) and p.split(".")[0].lower() not in _DEVICES for p in parts)


def header(name: str, size: int) -> bytes:
    """The one header a member of this name and size may have: mode 0644, all else zero or empty."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def digest_line(manifest: bytes) -> bytes:
    """What DIGEST holds, in the form that ``sha256sum --check`` reads."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode("ascii")


class _MemberFile(io.RawIOBase):
    """``size`` bytes of an open file from ``start`` on, as a file with a position of its own."""

    def __init__(self, fd: int, path: str, start: int, size: int) -> None:
        self._fd, self._path, self._start, self._size, self._at = fd, path, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), CHUNK, self._size - self._at))
        buffer[:size] = _pread(self._fd, self._path, self._start + self._at, size)
        self._at += size
        return size


@frozen(eq=False)
class Artifact:
    """An open artifact. Its descriptor is kept: the file may be replaced or deleted while it is used."""

    path: str
    manifest: Manifest
    hash: str
    fd: int
    members: Mapping[str, tuple[int, File]]

    def read(self, member: str) -> bytes:
        """The verified bytes of ``member``."""
        if member not in self.members:
            raise RunError(ART_MEMBERS, f"there is no member {shown(member)}", self.path)
        start, file = self.members[member]
        data = b"".join(self._chunks(start, file.size))
        self._compare(file, hashlib.sha256(data).hexdigest())
        return data

    def file(self, member: str) -> BinaryIO:
        """The bytes of ``member`` as a file that can be read and sought; not verified."""
        start, file = self.members[member]
        return io.BufferedReader(_MemberFile(self.fd, self.path, start, file.size))  # type: ignore[return-value]

    def verify(self) -> None:
        """Compare every member with its digest, in bounded memory."""
        for start, file in self.members.values():
            digest = hashlib.sha256()
            for chunk in self._chunks(start, file.size):
                digest.update(chunk)
            self._compare(file, digest.hexdigest())

    def _compare(self, file: File, digest: str) -> None:
        if digest != file.sha256:
            raise RunError(
                ART_DIGEST, f"{file.path} has sha256 {digest[:16]}..., listed is {file.sha256[:16]}...", self.path
            )

    def _chunks(self, start: int, size: int) -> Iterable[bytes]:
        for at in range(start, start + size, CHUNK):
            yield _pread(self.fd, self.path, at, min(CHUNK, start + size - at))

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open(path: str) -> Artifact:  # noqa: A001 (the module is always named: tarball.open)
    """The artifact at ``path``, its layout checked against its manifest; members are verified as they are read."""
    fd = _open_file(path)
    try:
        text, at = _read_manifest(fd, path)
        manifest = read_manifest(text, path)
        members = _walk(fd, path, manifest, at)
    except BaseException:
        os.close(fd)
        raise
    return Artifact(path, manifest, hashlib.sha256(text).hexdigest(), fd, members)


def verify(path: str) -> Manifest:
    """The manifest of the artifact at ``path`` after every byte of it was checked; no native code is loaded."""
    with open(path) as artifact:
        artifact.verify()
        return artifact.manifest


def _open_file(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not make us wait
    except OSError as error:
        raise of_os_error(error, path, IO_READ) from None
    except ValueError as error:  # a NUL in the path
        raise RunError(IO_READ, str(error), path) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RunError(ART_FORMAT, "not a regular file", path)
    return fd


def _pread(fd: int, path: str, at: int, size: int) -> bytes:
    """Exactly ``size`` bytes from byte ``at``."""
    try:
        data = os.pread(fd, size, at)
    except OSError as error:
        raise of_os_error(error, path, IO_READ) from None
    if len(data) < size:
        raise RunError(ART_CUT, f"cut short at byte {at + len(data)}", path)
    return data


def _read_manifest(fd: int, path: str) -> tuple[bytes, int]:
    """The manifest's bytes and where the next header starts."""
    total = os.fstat(fd).st_size
    first = os.pread(fd, BLOCK, 0)
    if first[:2] == b"\x1f\x8b":
        raise RunError(ART_FORMAT, "it is compressed with gzip", path, "artifacts are not compressed: gunzip it")
    if first[257:262] != b"ustar"[: max(0, len(first) - 257)] or len(first) < 262:
        raise RunError(ART_FORMAT, f"not an artifact ({total} bytes)", path)
    name, size = _parse(first, path, 0)
    if name != MANIFEST:
        raise RunError(ART_MEMBERS, f"its first member is {shown(name)}, not {MANIFEST}", path)
    if size > MAX_MANIFEST:
        raise RunError(ART_SIZE, f"the manifest declares {size} bytes; the limit is {MAX_MANIFEST}", path)
    text = _pread(fd, path, BLOCK, size)
    _check_padding(fd, path, BLOCK + size)
    return text, _check_digest(fd, path, text, _after(BLOCK + size))


def _check_digest(fd: int, path: str, manifest: bytes, at: int) -> int:
    """Check that the second member holds the digest of the first; returns where the next header starts."""
    name, size = _parse(os.pread(fd, BLOCK, at), path, at)
    if name != DIGEST:
        what = f"its second member is {shown(name)}, not {DIGEST}"
        raise RunError(ART_MEMBERS, what, path, "if an older sexpgpu wrote it, build it again")
    line = digest_line(manifest)
    if size != len(line) or _pread(fd, path, at + BLOCK, size) != line:
        raise RunError(ART_DIGEST, f"{MANIFEST} has sha256 {line[:16].decode()}..., {DIGEST} has another", path)
    _check_padding(fd, path, at + BLOCK + size)
    return _after(at + BLOCK + size)


def _after(at: int) -> int:
    return at + -at % BLOCK


def _check_padding(fd: int, path: str, at: int) -> None:
    size = -at % BLOCK
    if any(_pread(fd, path, at, size)):
        raise RunError(ART_CUT, f"stray bytes in the padding at byte {at}", path)


def _parse(block: bytes, path: str, at: int) -> tuple[str, int]:
    """(name, size) of a header block, which must equal ``header(name, size)``."""
    if len(block) < BLOCK:
        raise RunError(ART_CUT, f"cut short at byte {at + len(block)}", path)
    if block[257:265] == b"ustar  \0":
        raise RunError(ART_FORMAT, "another program has packed it", path, "take the file as sexpgpu build wrote it")
    if block[257:263] != b"ustar\0":
        raise RunError(ART_CUT, f"there is no member header at byte {at}", path)
    raw = block[:100].split(b"\0", 1)[0]
    name = raw.decode("ascii", "backslashreplace")
    if block[156:157] != b"0" or block[100:108] != b"0000644\0" or any(block[157:257]):
        raise RunError(ART_KIND, f"{shown(name)} is not a plain file of mode 644", path)
    if block[345:346] != b"\0" or not name_allowed(name):
        raise RunError(ART_NAME, f"the member name {shown(name)} is not allowed", path)
    if not re.fullmatch(rb"[0-7]{11}\0", block[124:136]):
        raise RunError(ART_SIZE, f"{name} declares a size over the limit of {MAX_MEMBER}", path)
    size = int(block[124:135], 8)
    if header(name, size) != block:
        raise RunError(ART_FORMAT, f"the header of {name} is not as sexpgpu build writes it", path)
    return name, size


def _walk(fd: int, path: str, manifest: Manifest, at: int) -> dict[str, tuple[int, File]]:
    """member -> (its first byte, its entry). Every header must be where the manifest's list of files puts it."""
    _check_list(manifest, path)
    members: dict[str, tuple[int, File]] = {}
    for file in manifest.files:
        block = os.pread(fd, BLOCK, at)
        if not any(block) and len(block) == BLOCK:
            raise RunError(ART_MEMBERS, f"the member {file.path} is missing", path)
        name, size = _parse(block, path, at)
        if name != file.path:
            twice = name in members or name in RESERVED
            raise RunError(
                ART_MEMBERS, f"{name} stands {'twice' if twice else 'where ' + file.path + ' is listed'}", path
            )
        if size != file.size:
            raise RunError(ART_DIGEST, f"{name} has {size} bytes, listed are {file.size}", path)
        members[name] = (at + BLOCK, file)
        if at + BLOCK + size > os.fstat(fd).st_size:
            raise RunError(ART_CUT, f"cut short at byte {os.fstat(fd).st_size}, within {name}", path)
        _check_padding(fd, path, at + BLOCK + size)
        at = _after(at + BLOCK + size)
    _check_end(fd, path, at, members)
    return members


def _check_list(manifest: Manifest, path: str) -> None:
    names = [file.path for file in manifest.files]
    if len(names) > MAX_MEMBERS:
        raise RunError(ART_SIZE, f"{len(names)} members; the limit is {MAX_MEMBERS}", path)
    for file in manifest.files:
        if not name_allowed(file.path) or file.path in RESERVED:
            raise RunError(ART_NAME, f"the member name {shown(file.path)} is not allowed", path)
        if not 0 <= file.size <= MAX_MEMBER or not re.fullmatch("[0-9a-f]{64}", file.sha256):
            raise RunError(ART_MANIFEST, f"{file.path} has a bad size or sha256", path)
    if names != sorted(set(names)):
        raise RunError(ART_MEMBERS, "the manifest's files are not sorted, or one is listed twice", path)


def _check_end(fd: int, path: str, at: int, members: Mapping[str, Any]) -> None:
    """Two blocks of zeros and nothing more."""
    tail = os.pread(fd, len(END) + 1, at)
    if tail[257:263] == b"ustar\0":
        name, _ = _parse(tail[:BLOCK], path, at)
        raise RunError(ART_MEMBERS, f"{name} {'stands twice' if name in members else 'is not listed'}", path)
    if tail == END:
        return
    if len(tail) < len(END) and not any(tail):
        raise RunError(ART_CUT, f"cut short at byte {at + len(tail)}: the end is missing", path)
    raise RunError(ART_CUT, f"there are bytes after its end, at byte {at}", path)
