"""The CUDA text of a part's kernels, and the module that stands for them in the shared library.

The library holds a key in the place of the text. When the library is loaded, the runtime asks the runner for the
compiled kernels of that key. It never sees the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from attrs import frozen
from tvm import tirx
from tvm.ir.expr import TensorLoad

from ..passes.memory_usage import parts_of
from . import module_blob

FORMAT = "cuda"  # TVM's word for a module whose code is CUDA text, to be compiled when it is loaded
PREFIX = "sexpgpu-kernels:"  # the library holds this prefix and the key
# TVM's switch for a build machine without CUDA: the module stays CUDA text, whatever this machine has.
FORCE_FALLBACK = "TVM_COMPILE_FORCE_FALLBACK"
KERNEL = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)', re.MULTILINE)
BOOL_ARRAY = re.compile(r"\bbool\s*\*?\s*(?:__restrict__\s+)?(\w+)\s*(?:\[|,|$)", re.MULTILINE)
VECTOR_ACCESS = re.compile(r"\*\(\s*\w+\d\s*\*\s*\)\s*\(\s*(\(\(bool\*\)|\w+)")
BINDING = tirx.ForKind.THREAD_BINDING


@frozen
class Device:
    """The kernels of one part.

    source:  their CUDA text, as TVM wrote it
    kernels: the names of its functions that the library launches
    head:    the module's bytes up to its code: how each kernel is launched
    """

    source: str
    kernels: tuple[str, ...]
    head: bytes

    @property
    def key(self) -> str:
        """sha256 of the text, in hex: the name of the compiled kernels."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def module(self) -> bytes:
        """The module for the library, with the key in the place of the code."""
        return self.head + module_blob.string((PREFIX + self.key).encode())


@contextlib.contextmanager
def as_text() -> Iterator[None]:
    """While TVM builds: CUDA stays text, even where the machine has CUDA, whose compiler TVM would call."""
    before = os.environ.get(FORCE_FALLBACK)
    os.environ[FORCE_FALLBACK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE_FALLBACK]
        else:
            os.environ[FORCE_FALLBACK] = before


def device(built: Any) -> Device | None:
    """The kernels of a module that ``tirx.build`` made ``as_text``; None if it has none. RuntimeError if TVM's module
    has another layout."""
    if not built.imports:
        return None
    (module,) = built.imports
    source = str(module.inspect_source(FORMAT))
    data = module_blob.saved(module)
    code = module_blob.string(source.encode())
    if not data.endswith(code):
        raise RuntimeError("TVM's CUDA module is not laid out as this release's")
    kernels = tuple(dict.fromkeys(m[1] for m in KERNEL.finditer(source)))
    head = data.removesuffix(code)
    unknown = [name for name in kernels if module_blob.string(name.encode()) not in head]
    if unknown or _count(head) != len(kernels):
        raise RuntimeError(f"TVM's CUDA module and its text differ in their kernels: {kernels}")
    return Device(source, kernels, head)


def _count(head: bytes) -> int:
    """The number of kernels of a module: the u64 after its format."""
    return struct.unpack_from("<Q", head, len(module_blob.string(FORMAT.encode())))[0]


def unbound(module: tvm.IRModule) -> tuple[str, ...]:
    """The scheduled programs with a statement that no loop binds to threads. TVM would silently compile it for the CPU,
    and that code would get device addresses."""
    programs = ((gv.name_hint, f) for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    return tuple(sorted(name for name, func in programs if not _is_bound(func.body)))


def _is_bound(stmt: Any) -> bool:
    """Whether every store, call and load of ``stmt`` is inside a loop over threads or thread blocks."""
    if isinstance(stmt, tirx.For) and stmt.kind == BINDING:
        return True
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent":
        return True
    if isinstance(stmt, tirx.Evaluate):
        return isinstance(stmt.value, tirx.IntImm)
    if isinstance(stmt, tirx.BufferStore) or (isinstance(stmt, tirx.Bind) and _loads(stmt.value)):
        return False
    return all(_is_bound(part) for part in parts_of(stmt))


def _loads(value: Any) -> bool:
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, [(TensorLoad, loads.append)], order="post")
    return bool(loads)


def bool_vectors(source: str) -> tuple[str, ...]:
    """The kernels of CUDA text with a vector access to a bool array. TVM 0.27 makes such an access twice as wide as it
    should be."""
    starts = [m for m in KERNEL.finditer(source) if source[m.end() :].lstrip().startswith("{")]
    ends = [m.start() for m in starts[1:]] + [len(source)]
    return tuple(m[1] for m, end in zip(starts, ends, strict=True) if _has_bool_vector(m[2], source[m.end() : end]))


def _has_bool_vector(parameters: str, body: str) -> bool:
    arrays = {m[1] for part in (*parameters.split(","), body) for m in BOOL_ARRAY.finditer(part.strip())}
    return any(m[1].startswith("((bool*)") or m[1] in arrays for m in VECTOR_ACCESS.finditer(body))
