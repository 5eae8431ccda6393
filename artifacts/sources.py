"""Files of records: .npz, a directory of .npy, .safetensors, .jsonl. One source gives one array a field, record first.

No pickle is ever read. What is wrong is a RunError with the file and, where there is one, the record and byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import numpy as np
from attrs import frozen

from . import tensors
from .errors import DATA_FIELD, DATA_KIND, DATA_READ, RunError, of_os_error
from .jsonl import read_lines
from .manifest import Field

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
CHUNK = 2**20
_BROKEN = (
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    KeyError,
    SyntaxError,
)


@frozen(eq=False)
class Blob:
    """A file by its name and a way to open it: on disk (``path``), or a member of the artifact."""

    name: str
    open: Callable[[], IO[bytes]]
    path: str | None = None


@frozen(eq=False)
class Shard:
    """``columns``: field -> array [records, ...]. ``digests``: (file name, sha256 in hex) of what was read."""

    name: str
    columns: Mapping[str, np.ndarray]
    digests: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        return len(next(iter(self.columns.values())))


def blobs(folder: str, source: str) -> list[Blob]:
    """The files of the source as written: one, or the .npy files of a directory."""
    path = os.path.join(folder, source)
    if not os.path.isdir(path):
        return [_blob(path)]
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".npy"))
    except OSError as error:
        raise of_os_error(error, path, DATA_READ) from None
    if not names:
        raise RunError(DATA_READ, "the directory holds no .npy files", path)
    return [_blob(os.path.join(path, name)) for name in names]


def _blob(path: str) -> Blob:
    return Blob(path, lambda: open(path, "rb"), path)


def read(files: Sequence[Blob], fields: Sequence[Field]) -> Shard:
    """The records of one source, with the dtypes and shapes of ``fields``."""
    name = files[0].name
    reader = _reader(name)
    for blob in files:
        _check_plain(blob)
    try:
        digests = tuple((os.path.basename(blob.name), _digest(blob)) for blob in files)
        columns = reader(files, fields)
    except MemoryError:
        raise RunError(DATA_READ, "it declares more data than memory holds", name) from None
    except OSError as error:
        raise of_os_error(error, name, DATA_READ) from None
    shard = Shard(os.path.dirname(name) if name.endswith(".npy") else name, columns, digests)
    _check_counts(shard)
    return shard


def _reader(name: str) -> Callable[[Sequence[Blob], Sequence[Field]], dict[str, np.ndarray]]:
    extension = os.path.splitext(name)[1].lower()
    if extension in PICKLES:
        raise RunError(DATA_KIND, "pickle is not read: it can run any code", name, "convert it to safetensors")
    if extension not in READERS:
        raise RunError(
            DATA_KIND,
            f"{extension or 'a file without an extension'} is not a kind of data that is read",
            name,
            "use .npz, a directory of .npy, .safetensors or .jsonl",
        )
    return READERS[extension]


def _check_plain(blob: Blob) -> None:
    if blob.path is None:
        return
    try:
        size = os.stat(blob.path).st_size
    except (OSError, ValueError) as error:
        hint = "give its folder with --data"
        raise RunError(DATA_READ, getattr(error, "strerror", None) or str(error), blob.path, hint) from None
    if not os.path.isfile(blob.path):
        raise RunError(DATA_READ, "not a regular file", blob.path)
    if size == 0:
        raise RunError(DATA_READ, "the file is empty", blob.path)


def _digest(blob: Blob) -> str:
    digest = hashlib.sha256()
    with blob.open() as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_counts(shard: Shard) -> None:
    for field, column in shard.columns.items():
        if len(column) != shard.count:
            first = next(iter(shard.columns))
            raise RunError(DATA_FIELD, f"{first} has {shard.count} records, {field} has {len(column)}", shard.name)


def check_type(where: str, field: Field, shape: tuple[int, ...], dtype: str) -> None:
    """The stored array must be [records, *field.shape] of exactly the field's dtype."""
    if dtype != field.dtype:
        what = f"{field.name} is {dtype}, the loader says {field.dtype}"
        raise RunError(DATA_FIELD, what, where, _saved_as(where, field.dtype))
    if not shape or tuple(shape[1:]) != field.shape:
        have, want = (" ".join(map(str, s)) for s in (shape, ("n", *field.shape)))
        raise RunError(DATA_FIELD, f"{field.name} has the shape [{have}], the loader says [{want}]", where)


def _saved_as(where: str, dtype: str) -> str:
    if dtype == "bf16" and where.endswith((".npy", ".npz")):
        return "NumPy's files hold no bf16: save it as .safetensors"
    return f"save it with .astype({tensors.DTYPES[dtype][0]!r})"


def _absent(where: str, field: Field, have: Sequence[str]) -> RunError:
    return RunError(
        DATA_FIELD, f"there is no field {field.name}", where, f"it has {', '.join(sorted(have)[:10]) or 'none'}"
    )


def _npy_header(file: IO[bytes], where: str, field: Field) -> tuple[tuple[int, ...], np.dtype, bool]:
    """(shape, dtype, column-major) of the .npy ``file``, which must be what ``field`` says."""
    form = np.lib.format
    version = form.read_magic(file)
    read_header = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    shape, column_major, dtype = read_header(file)
    if dtype.hasobject:
        raise RunError(DATA_KIND, f"{field.name} holds Python objects: pickle is not read", where, "save plain numbers")
    check_type(where, field, shape, tensors.dtype_name(np.empty(0, dtype)))
    return shape, dtype, column_major


def _read_npy(file: IO[bytes], where: str, field: Field) -> np.ndarray:
    """The array of the .npy ``file``, read whole."""
    shape, dtype, column_major = _npy_header(file, where, field)
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    data = bytearray()
    while chunk := file.read(min(CHUNK, size + 1 - len(data))):
        data += chunk
    if len(data) != size:
        raise _cut(where, field, len(data), size, size // max(1, shape[0]))
    array = np.frombuffer(data, dtype)
    return array.reshape(shape[::-1]).T if column_major else array.reshape(shape)


def _cut(where: str, field: Field, have: int, want: int, record: int) -> RunError:
    if have > want:
        return RunError(DATA_READ, f"{field.name} has bytes after its last record", where)
    at = have // max(1, record)
    return RunError(DATA_READ, f"cut short: {field.name} ends within record {at}, at byte {have} of its {want}", where)


@contextlib.contextmanager
def _reading(where: str, what: str):
    """Whatever a library says of bad bytes becomes E-DATA-010."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise RunError(DATA_READ, f"not readable as {what}: {error}", where) from None


def read_npz(files: Sequence[Blob], fields: Sequence[Field]) -> dict[str, np.ndarray]:
    """The members FIELD.npy of a zip archive."""
    (blob,) = files
    with _reading(blob.name, ".npz"), blob.open() as file, zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise ValueError("a member stands twice")
        out = {}
        for field in fields:
            if f"{field.name}.npy" not in names:
                raise _absent(blob.name, field, [name.removesuffix(".npy") for name in names])
            with archive.open(f"{field.name}.npy") as member:
                out[field.name] = _read_npy(member, blob.name, field)
        return out


def read_npy(files: Sequence[Blob], fields: Sequence[Field]) -> dict[str, np.ndarray]:
    """The files FIELD.npy of a directory, mapped into memory when they are on disk."""
    by_name = {os.path.basename(blob.name).removesuffix(".npy"): blob for blob in files}
    out = {}
    for field in fields:
        if field.name not in by_name:
            raise _absent(os.path.dirname(files[0].name), field, list(by_name))
        blob = by_name[field.name]
        with _reading(blob.name, ".npy"), blob.open() as file:
            out[field.name] = _map_npy(file, blob, field) if blob.path else _read_npy(file, blob.name, field)
    return out


def _map_npy(file: IO[bytes], blob: Blob, field: Field) -> np.ndarray:
    shape, dtype, column_major = _npy_header(file, blob.name, field)
    start, want = file.tell(), int(np.prod(shape, dtype=object)) * dtype.itemsize
    have = os.fstat(file.fileno()).st_size - start
    if have != want:
        raise _cut(blob.name, field, have, want, want // max(1, shape[0]))
    if want == 0:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", start, shape, "F" if column_major else "C")


def read_safetensors(files: Sequence[Blob], fields: Sequence[Field]) -> dict[str, np.ndarray]:
    """The tensors named as the fields."""
    (blob,) = files
    with blob.open() as file:
        data = file.read()
    try:
        arrays = tensors.load(data)
    except tensors.BadTensors as error:
        raise RunError(DATA_READ, str(error), blob.name) from None
    for field in fields:
        if field.name not in arrays:
            raise _absent(blob.name, field, list(arrays))
        check_type(blob.name, field, arrays[field.name].shape, tensors.dtype_name(arrays[field.name]))
    return {field.name: arrays[field.name] for field in fields}


def read_jsonl(files: Sequence[Blob], fields: Sequence[Field]) -> dict[str, np.ndarray]:
    """One JSON object a line, its keys the fields, its values numbers or nested lists of numbers."""
    (blob,) = files
    with blob.open() as file:
        return read_lines(file, blob.name, fields)


READERS = {".npz": read_npz, ".npy": read_npy, ".safetensors": read_safetensors, ".jsonl": read_jsonl}


def in_memory(name: str, data: bytes) -> Blob:
    """A member of the artifact as a file."""
    return Blob(name, lambda: io.BytesIO(data))
