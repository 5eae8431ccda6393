"""TVM's blob of the modules that a shared library imports beside its own code: reader and writer.

TVM can write only modules that it holds in memory. The module of a GPU's kernels arrives at the linking process as
bytes, from the process that compiled it, so it is added to TVM's blob here. Layout (tvm_ffi's library_module.cc), all
little endian: <bytes : u64> <tree>, then for each module <kind : string> <bytes : string>; the kind _lib stands for the
library's code and has no bytes. The tree holds the imports of each module: <starts : u64s> <children : u64s>. A string
or a list of u64s is preceded by its length as u64.
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
    """One module: its kind, its bytes (None for the library's code), and the positions of the modules it imports."""

    kind: str
    data: bytes | None
    children: tuple[int, ...]


def string(data: bytes) -> bytes:
    """``data`` preceded by its length, as dmlc writes strings."""
    return struct.pack("<Q", len(data)) + data


def numbers(values: Sequence[int]) -> bytes:
    """``values`` as u64s, preceded by their number."""
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
    """The blob that TVM writes for ``module`` and all modules that it imports."""
    return bytes(_ffi_api.ModulePackImportsToTensor(module).numpy())


def read(data: bytes) -> list[Entry]:
    """The entries of a blob; the first is the root."""
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
    """The bytes of a single module without imports."""
    (entry,) = read(packed(module))
    assert entry.data is not None
    return entry.data


def with_modules(data: bytes, kind: str, modules: Sequence[bytes]) -> bytes:
    """The blob ``data`` with ``modules`` of one kind added as imports of the library's code."""
    entries = read(data)
    new = tuple(range(len(entries), len(entries) + len(modules)))
    extended = [Entry(e.kind, e.data, e.children + new if e.kind == CODE else e.children) for e in entries]
    return write([*extended, *(Entry(kind, module, ()) for module in modules)])
