"""Compile graphs for this machine's kind and run the library as a runner does, by tvm_ffi alone, on aligned inputs."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
import pytest

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.ops import OPS
from sexpgpu.ops.types import DTYPES, TensorType

tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
tvm_ffi = pytest.importorskip("tvm_ffi")

X86 = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"}
ARM = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a72"}


def target(spec: Mapping[str, str] = X86) -> Any:
    return tvm.target.Target(dict(spec))


def no_rule(func: Any, target: Any) -> Any:
    """A scheduler that leaves every kernel as it is."""
    return SimpleNamespace(func=None, rule="", failures=())


def T(dtype: str, *shape: int) -> TensorType:  # noqa: N802  (a type, as the language writes it)
    return TensorType(shape, dtype)


def inputs(b: Builder, **types: TensorType) -> list[Value]:
    return [b.input(name, type) for name, type in types.items()]


def graph(name: str, ins: Sequence[Value], **outs: Value) -> Graph:
    return Graph(name, tuple(ins), tuple(outs.items()))


def compiled(*graphs: Graph, scheduler: Any = no_rule, in_place: Any = None, spec: Any = X86, dump: Any = None) -> Any:
    from lowering import emit
    from lowering.codegen import objects

    return objects.compile(emit.emit(graphs), target(spec), scheduler, in_place, dump)


def tensor(array: np.ndarray) -> Any:
    """``array`` in memory of the runtime's own, which is aligned."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    make = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    out = make(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), tvm_ffi.device("cpu", 0), None)
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")(out, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return out


def numpy(handle: Any) -> np.ndarray:
    """A copy of the tensor's values."""
    out = np.empty(tuple(handle.shape), np.dtype(str(handle.dtype)))
    tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")(handle, ctypes.c_void_p(out.ctypes.data), out.nbytes)
    return out


def load(library: bytes) -> Callable[[str], Callable[..., Any]]:
    """Function symbol -> a callable of tensors. The loaded library needs its file no longer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phases.so"
        path.write_bytes(library)
        vm = tvm_ffi.load_module(str(path))["vm_load_executable"]()
    vm["vm_initialization"](1, 0, 2)  # CPU, device 0, pooled allocator
    return lambda name: vm[name]


def run_functions(made: Any, calls: Mapping[str, Sequence[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    """Function -> the values it returns for the given inputs."""
    from lowering.link import shared_library

    functions = load(shared_library.library(made, "x86_64"))
    return {name: [numpy(y) for y in functions(name)(*map(tensor, arrays))] for name, arrays in calls.items()}


def reference(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs by the rows' ``ref`` columns."""
    known: dict[Value, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for value in graph.values():
        if value.op:
            ref = OPS[value.op].ref(np, *(known[a] for a in value.args), **value.attrs)
            known[value] = np.asarray(ref, DTYPES[value.type.dtype].numpy)
    return [known[v] for _, v in graph.outputs]


def sample(type: TensorType, seed: int = 0) -> np.ndarray:
    """Reproducible values: floats about N(0, 1), integers from the whole range."""
    rng = np.random.default_rng(seed)
    if type.kind == "float":
        return rng.standard_normal(type.shape).astype(DTYPES[type.dtype].numpy)
    if type.kind == "bool":
        return rng.integers(0, 2, type.shape).astype(bool)
    info = np.iinfo(DTYPES[type.dtype].numpy)
    return rng.integers(info.min, info.max, type.shape, info.dtype, endpoint=True)


def samples(graph: Graph) -> list[np.ndarray]:
    return [sample(v.type, n) for n, v in enumerate(graph.inputs)]
