"""Arrays in NumPy's own format: the members of a .npz, and .npy files.

A header is compared with the size of the file before memory is allocated for it, and no pickle is read.
"""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from typing import IO

import numpy as np
from attrs import frozen

from ..base import safetensors_io
from ..base.errors import DATA_FIELD, DATA_KIND, DATA_READ, RunError, shown
from ..format.manifest import Field

CHUNK = 2**20
MAX_DEFLATE_RATIO = 1032  # bytes that one byte of deflated data can expand to, at most


@frozen
class Header:
    """``shape`` has the records first; ``start``: bytes before the data."""

    shape: tuple[int, ...]
    dtype: np.dtype
    column_major: bool
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, data: np.ndarray) -> np.ndarray:
        """``data``, the bytes (u8), as the array that they are."""
        flat = data.view(self.dtype)
        return flat.reshape(self.shape[::-1]).T if self.column_major else flat.reshape(self.shape)


def check_type(where: str, field: Field, shape: tuple[int, ...], dtype: str) -> None:
    """The stored array must be [records, *field.shape] of exactly the field's dtype."""
    if dtype != field.dtype:
        what = f"{field.name} is {dtype}, the loader says {field.dtype}"
        raise RunError(DATA_FIELD, what, where, _saved_as(where, field.dtype))
    if not shape or tuple(shape[1:]) != field.shape:
        have, want = (shown(" ".join(map(str, s))) for s in (shape, ("n", *field.shape)))
        raise RunError(DATA_FIELD, f"{field.name} has the shape [{have}], the loader says [{want}]", where)


def _saved_as(where: str, dtype: str) -> str:
    if dtype == "bf16" and where.endswith((".npy", ".npz")):
        return "NumPy's files hold no bf16: save it as .safetensors"
    return f"save it with .astype({safetensors_io.DTYPES[dtype][0]!r})"


def read_header(file: IO[bytes], where: str, field: Field) -> Header:
    """The header of the .npy ``file``, which must be what ``field`` says; whatever NumPy raises where it is none."""
    form = np.lib.format
    version = form.read_magic(file)
    parse = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 2 has written it
        shape, column_major, dtype = parse(file)
    if dtype.hasobject:
        raise RunError(DATA_KIND, f"{field.name} holds Python objects: pickle is not read", where, "save plain numbers")
    check_type(where, field, shape, safetensors_io.dtype_name(np.empty(0, dtype)))
    if any(length < 0 for length in shape):
        raise ValueError("a length in its shape is negative")
    return Header(shape, dtype, column_major, file.tell())


def member(archive: zipfile.ZipFile, field: Field) -> zipfile.ZipInfo | None:
    """The field's array in a .npz; None where it has none. ValueError where it has two."""
    members = [info for info in archive.infolist() if info.filename == f"{field.name}.npy"]
    if len(members) > 1:
        raise ValueError(f"the member {field.name}.npy stands twice")
    return members[0] if members else None


def buffer_bytes(header: Header, info: zipfile.ZipInfo, size: int) -> int:
    """Bytes to allocate for a member of an archive of ``size`` bytes: those of its header, but no more than its
    compressed data can expand to."""
    max_ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: MAX_DEFLATE_RATIO}.get(info.compress_type)
    stored = min(info.compress_size, size)
    return header.nbytes if max_ratio is None else min(header.nbytes, max_ratio * stored)


def read(file: IO[bytes], where: str, field: Field, header: Header, capacity: int) -> np.ndarray:
    """The array behind ``header``, read whole into ``capacity`` bytes."""
    data, at = np.empty(capacity, np.uint8), 0
    while at < capacity and (got := file.readinto(data[at : at + CHUNK])):  # type: ignore[attr-defined]
        at += got
    if at == header.nbytes and file.read(1):
        at += 1
    if at != header.nbytes:
        raise wrong_size(where, field, at, header)
    return header.array(data)


def mapped(file: IO[bytes], where: str, field: Field, header: Header) -> np.ndarray:
    """The array of a .npy ``file`` on disk, mapped into memory."""
    have = os.fstat(file.fileno()).st_size - header.start
    if have != header.nbytes:
        raise wrong_size(where, field, have, header)
    if not have:
        return np.empty(header.shape, header.dtype)
    order = "F" if header.column_major else "C"
    return np.memmap(file, header.dtype, "r", header.start, header.shape, order)  # type: ignore[call-overload]


def wrong_size(where: str, field: Field, have: int, header: Header) -> RunError:
    """E-DATA-010 for ``have`` bytes in place of those of ``header``."""
    if have > header.nbytes:
        return RunError(DATA_READ, f"{field.name} has bytes after its last record", where)
    record = header.nbytes // max(1, header.shape[0])
    at = have // max(1, record)
    what = f"cut short: {field.name} ends within record {at}, at byte {have} of its {header.nbytes}"
    return RunError(DATA_READ, what, where)
