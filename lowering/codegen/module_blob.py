"""The modules that a library carries beside its code, as TVM writes them into it.

TVM can write only modules that it holds, and that of a GPU's kernels reaches the process that links as bytes, from the
one that compiled. So it is put into TVM's own list here. The list is <bytes : u64> <tree> and for each module
<kind : string> <bytes : string>; the kind _lib stands for the library's code and has no bytes. The tree is, for each
module, which others it looks its functions up in: <starts : u64s> <children : u64s>. A string and a list of u64s have
their length before them, as u64; all in little endian (tvm_ffi's library_module.cc).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from tvm.runtime import _ffi_api

CODE = "_lib"


@frozen
class Entry:
    """One module: its kind, its bytes (None of the library's code), and the places of those it imports."""

    kind: str
    data: bytes | None
    children: tuple[int, ...]


def string(data: bytes) -> bytes:
    """``data`` after its length, as dmlc writes strings."""
    return struct.pack("<Q", len(data)) + data


def numbers(values: Sequence[int]) -> bytes:
    """``values`` as u64s, after their number."""
    return struct.pack(f"<{1 + len(values)}Q", len(values), *values)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def number(self) -> int:
        (value,) = struct.unpack_from("<Q", self.data, self.offset)
        self.offset += 8
        return value

    def numbers(self) -> list[int]:
        return [self.number() for _ in range(self.number())]

    def string(self) -> bytes:
        size = self.number()
        self.offset += size
        return self.data[self.offset - size : self.offset]


def packed(module: Any) -> bytes:
    """The list that TVM writes for ``module`` and all that it imports."""
    return bytes(_ffi_api.ModulePackImportsToTensor(module).numpy())


def read(data: bytes) -> list[Entry]:
    """The entries of a list; the first is the root."""
    reader = _Reader(data)
    reader.number()
    starts, children = reader.numbers(), reader.numbers()
    entries = []
    for first, last in zip(starts, starts[1:], strict=False):
        kind = reader.string().decode()
        entries.append(Entry(kind, None if kind == CODE else reader.string(), tuple(children[first:last])))
    return entries


def write(entries: Sequence[Entry]) -> bytes:
    """The blob of ``entries``: the tree of imports, then each module's kind and data."""
    starts = [0]
    for entry in entries:
        starts.append(starts[-1] + len(entry.children))
    tree = numbers(starts) + numbers([child for entry in entries for child in entry.children])
    modules = [string(e.kind.encode()) + (b"" if e.data is None else string(e.data)) for e in entries]
    return string(tree + b"".join(modules))


def saved(module: Any) -> bytes:
    """The bytes of one module that imports no other."""
    (entry,) = read(packed(module))
    assert entry.data is not None
    return entry.data


def with_modules(data: bytes, kind: str, modules: Sequence[bytes]) -> bytes:
    """The list ``data`` with ``modules`` of one kind as imports of the library's code."""
    entries = read(data)
    new = tuple(range(len(entries), len(entries) + len(modules)))
    extended = [Entry(e.kind, e.data, e.children + new if e.kind == CODE else e.children) for e in entries]
    return write([*extended, *(Entry(kind, module, ()) for module in modules)])
