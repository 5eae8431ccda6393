"""Readers of record files: .npz, a directory of .npy, .safetensors, .jsonl. A source gives one array a field.

The first axis is the record. Only the loader's fields are read, and never a pickle. A fault is a RunError with the file
and, where there is one, the record and byte. The memory that a source will take is computed before it is read
(``memory_needed``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from attrs import frozen

from ..base import safetensors_io
from ..base.errors import ART_DIGEST, DATA_FIELD, DATA_KIND, DATA_READ, RunError, of_os_error, shown
from ..format.manifest import Field
from ..format.tarball import Artifact
from . import jsonl, numpy_files
from .numpy_files import check_type

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
CHUNK = 2**20
HEADER_GROWTH = 20  # bytes of Python objects for one byte of a JSON header, at most
Columns = dict[str, np.ndarray]


@frozen(eq=False)
class Blob:
    """A file by its name, its size and a way to open it: on disk (``path``), or a member of an artifact, whose
    ``digest`` is listed."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]
    path: str | None = None
    digest: str | None = None


@frozen(eq=False)
class Shard:
    """``columns``: field -> array [records, ...]. ``digests``: (file name, sha256 in hex) of what was read."""

    name: str
    columns: Mapping[str, np.ndarray]
    digests: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        return len(next(iter(self.columns.values())))


def blobs(folder: str, source: str, fields: Sequence[Field]) -> list[Blob]:
    """The files of the source as written: one, or of a directory the .npy files of ``fields``, by name."""
    path = os.path.join(folder, source)
    if not os.path.isdir(path):
        return [_blob(path)]
    try:
        names = {name for name in os.listdir(path) if name.endswith(".npy")}
    except OSError as error:
        raise of_os_error(error, path, DATA_READ) from None
    if not names:
        raise RunError(DATA_READ, "the directory holds no .npy files", path)
    for field in fields:
        if f"{field.name}.npy" not in names:
            raise _missing_field(path, field, [n.removesuffix(".npy") for n in names if not n.startswith(".")])
    return [_blob(os.path.join(path, f"{name}.npy")) for name in sorted(field.name for field in fields)]


def _blob(path: str) -> Blob:
    """The file at ``path``, which must be a plain one that is not empty."""
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError) as error:
        hint = "give its folder with --data"
        raise RunError(DATA_READ, getattr(error, "strerror", None) or str(error), path, hint) from None
    if not os.path.isfile(path):
        raise RunError(DATA_READ, "not a regular file", path)
    if size == 0:
        raise RunError(DATA_READ, "the file is empty", path)
    return Blob(path, size, lambda: open(path, "rb"), path)


def member_blob(artifact: Artifact, member: str) -> Blob:
    """A member of the artifact as a file."""
    file = artifact.members[member][1]
    return Blob(member, file.size, lambda: artifact.file(member), digest=file.sha256)


def read(files: Sequence[Blob], fields: Sequence[Field], tick: Callable[[int], None] = lambda size: None) -> Shard:
    """The records of one source, with the dtypes and shapes of ``fields``; ``tick`` is told of bytes as they are
    read, where that takes long."""
    name = files[0].name
    kind = _kind(name)
    try:
        scanned = [_digest_and_lines(blob) for blob in files]
        with _reading(name, kind.name):
            columns = kind.read(files, fields, scanned[0][1], tick)
    except MemoryError:
        raise RunError(DATA_READ, "it takes more memory than there is", name) from None
    except OSError as error:
        raise of_os_error(error, name, DATA_READ) from None
    digests = tuple((os.path.basename(blob.name), digest) for blob, (digest, _) in zip(files, scanned, strict=True))
    shard = Shard(os.path.dirname(name) if name.endswith(".npy") else name, columns, digests)
    _check_counts(shard)
    return shard


def memory_needed(files: Sequence[Blob], fields: Sequence[Field]) -> int:
    """Upper bound of the bytes of memory that ``read`` will take. 0 for files that it will refuse."""
    try:
        return _kind(files[0].name).memory_needed(files, fields)
    except Exception:  # reported when the files are read
        return 0


def _digest_and_lines(blob: Blob) -> tuple[str, int]:
    """sha256, in hex, and the number of newlines of a file."""
    digest, lines = hashlib.sha256(), 0
    with blob.open() as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            lines += chunk.count(b"\n")
    if blob.digest not in (None, digest.hexdigest()):
        raise RunError(ART_DIGEST, "the member does not have the digest listed", blob.name)
    return digest.hexdigest(), lines


def _check_counts(shard: Shard) -> None:
    for field, column in shard.columns.items():
        if len(column) != shard.count:
            first = next(iter(shard.columns))
            raise RunError(DATA_FIELD, f"{first} has {shard.count} records, {field} has {len(column)}", shard.name)


def _missing_field(where: str, field: Field, have: Sequence[str]) -> RunError:
    names = shown(", ".join(sorted(have)[:10]), 100) or "none"
    return RunError(DATA_FIELD, f"there is no field {field.name}", where, f"it has {names}")


@contextlib.contextmanager
def _reading(where: str, what: str) -> Iterator[None]:
    """An error that a library raises over bad bytes becomes E-DATA-010; a failed system call does not."""
    try:
        yield
    except (RunError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        words = shown(str(error) or type(error).__name__, 100)
        raise RunError(DATA_READ, f"not readable as {what}: {words}", where) from None


# .npz: the members FIELD.npy of a zip archive


def _members(
    blob: Blob, fields: Sequence[Field], use: Callable[[Field, IO[bytes], numpy_files.Header, int], Any]
) -> list[Any]:
    """The result of ``use`` for each field's member, opened behind its header; its last argument is the buffer's
    size."""
    out = []
    with blob.open() as file, zipfile.ZipFile(file) as archive:
        for field in fields:
            info = numpy_files.member(archive, field)
            if info is None:
                raise _missing_field(blob.name, field, [name.removesuffix(".npy") for name in archive.namelist()])
            with archive.open(info) as data:
                header = numpy_files.read_header(data, blob.name, field)
                out.append(use(field, data, header, numpy_files.buffer_bytes(header, info, blob.size)))
    return out


def _read_npz(files: Sequence[Blob], fields: Sequence[Field], lines: int, tick: Callable[[int], None]) -> Columns:
    (blob,) = files
    arrays = _members(blob, fields, lambda field, data, *how: numpy_files.read(data, blob.name, field, *how))
    return {field.name: array for field, array in zip(fields, arrays, strict=True)}


def _needed_npz(files: Sequence[Blob], fields: Sequence[Field]) -> int:
    return sum(_members(files[0], fields, lambda field, data, header, capacity: capacity))


# .npy: the files FIELD.npy of a directory; mapped into memory when they are on disk


def _read_npy(files: Sequence[Blob], fields: Sequence[Field], lines: int, tick: Callable[[int], None]) -> Columns:
    out, by_name = {}, {os.path.basename(blob.name).removesuffix(".npy"): blob for blob in files}
    for field in fields:
        if field.name not in by_name:
            raise _missing_field(os.path.dirname(files[0].name), field, list(by_name))
        blob = by_name[field.name]
        with _reading(blob.name, ".npy"), blob.open() as file:
            header = numpy_files.read_header(file, blob.name, field)
            if blob.path:
                out[field.name] = numpy_files.mapped(file, blob.name, field, header)
            else:
                capacity = min(header.nbytes, blob.size)
                out[field.name] = numpy_files.read(file, blob.name, field, header, capacity)
    return out


def _needed_npy(files: Sequence[Blob], fields: Sequence[Field]) -> int:
    wanted = {f"{field.name}.npy" for field in fields}
    return sum(blob.size for blob in files if not blob.path and os.path.basename(blob.name) in wanted)


# .safetensors: the tensors named as the fields


def _header(file: IO[bytes], blob: Blob) -> tuple[dict[str, Any], int]:
    """The tensors' entries, and the start of their data, whose length must be what they say."""
    size = safetensors_io.header_size(file.read(8), blob.size)
    header, start = safetensors_io.parse_header(file.read(size)), 8 + size
    end, have = safetensors_io.end_of(header), blob.size - start
    if end != have:
        more = f"cut short: {have} data bytes of {end}" if have < end else f"{have - end} bytes after the last tensor"
        raise safetensors_io.BadTensors(more)
    return header, start


def _read_safetensors(
    files: Sequence[Blob], fields: Sequence[Field], lines: int, tick: Callable[[int], None]
) -> Columns:
    (blob,) = files
    out = {}
    try:
        with blob.open() as file:
            header, start = _header(file, blob)
            for field in fields:
                if field.name not in header:
                    raise _missing_field(blob.name, field, list(header))
                entry = header[field.name]
                shape = safetensors_io.entry_shape(field.name, entry)
                dtype = safetensors_io.OF_SAFETENSORS.get(entry["dtype"], shown(entry["dtype"], 20))
                check_type(blob.name, field, shape, dtype)
                file.seek(start + safetensors_io.span(field.name, entry)[0])
                array = out[field.name] = np.empty(shape, safetensors_io.dtype(field.dtype))
                if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:  # type: ignore[attr-defined]
                    raise safetensors_io.BadTensors("the file shrank while it was read")
    except safetensors_io.BadTensors as error:
        raise RunError(DATA_READ, shown(error, 150), blob.name) from None
    return out


def _needed_safetensors(files: Sequence[Blob], fields: Sequence[Field]) -> int:
    with files[0].open() as file:
        header, start = _header(file, files[0])
    spans = (safetensors_io.span(field.name, header[field.name]) for field in fields if field.name in header)
    return HEADER_GROWTH * start + sum(stop - begin for begin, stop, _ in spans)


# .jsonl: one JSON object a line, its keys the fields, its values numbers or nested lists of numbers


def _read_jsonl(files: Sequence[Blob], fields: Sequence[Field], lines: int, tick: Callable[[int], None]) -> Columns:
    (blob,) = files
    with blob.open() as file:
        return jsonl.read_lines(file, blob.name, fields, jsonl.max_records(lines, blob.size, fields), tick)


def _needed_jsonl(files: Sequence[Blob], fields: Sequence[Field]) -> int:
    (blob,) = files
    lines, longest, line = 0, 0, 0
    with blob.open() as file:
        while chunk := file.read(CHUNK):
            ends = chunk.count(b"\n")
            lines += ends
            longest = max(longest, line + chunk.find(b"\n") if ends else line + len(chunk))
            line = len(chunk) - chunk.rfind(b"\n") - 1 if ends else line + len(chunk)
    record = sum(np.dtype(safetensors_io.dtype(f.dtype)).itemsize * int(np.prod(f.shape, dtype=object)) for f in fields)
    decoded_at_once = jsonl.CHUNK + min(max(longest, jsonl.CHUNK), jsonl.MAX_LINE)
    return jsonl.max_records(lines, blob.size, fields) * record + jsonl.OBJECT_BYTES_PER_BYTE * min(
        decoded_at_once, blob.size
    )


@frozen
class Kind:
    """A kind of file: ``read`` and ``memory_needed`` take the files of one source and the fields; ``read`` the number
    of its line ends, too, and ``tick``."""

    name: str
    read: Callable[[Sequence[Blob], Sequence[Field], int, Callable[[int], None]], Columns]
    memory_needed: Callable[[Sequence[Blob], Sequence[Field]], int]


_ALL = (
    Kind(".npz", _read_npz, _needed_npz),
    Kind(".npy", _read_npy, _needed_npy),
    Kind(".safetensors", _read_safetensors, _needed_safetensors),
    Kind(".jsonl", _read_jsonl, _needed_jsonl),
)
KINDS = {kind.name: kind for kind in _ALL}


def _kind(name: str) -> Kind:
    extension = os.path.splitext(name)[1].lower()
    if extension in PICKLES:
        raise RunError(DATA_KIND, "pickle is not read: it can run any code", name, "convert it to safetensors")
    if extension not in KINDS:
        raise RunError(
            DATA_KIND,
            f"{shown(extension, 20) or 'a file without an extension'} is not a kind of data that is read",
            name,
            "use .npz, a directory of .npy, .safetensors or .jsonl",
        )
    return KINDS[extension]
