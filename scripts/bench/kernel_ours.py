"""The kernels as our compiler makes them, a function each in one library, called through the virtual machine."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm  # noqa: F401  (brings the runtime that the library needs)
import tvm_ffi
from attrs import evolve
from kernel_cases import ADAMW, Case

import schedules
from lowering import emit
from lowering.codegen import objects
from lowering.link import shared_library
from lowering.math import elementary
from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Graph, Value
from sexpgpu.ops.types import TensorType
from sexpgpu.trace.random_draws import DrawBuilder

PLACE = 1000  # of draws


def library(cases: tuple[Case, ...], target: str) -> tuple[bytes, list[str]]:
    """The shared library whose function ``k<n>`` is case n, and the rules that took each."""
    aimed = evolve(schedules.TARGETS[target], functions=elementary.STEPS)
    graphs = [graph(n, case) for n, case in enumerate(cases)]
    in_place = {f"k{n}": [(0, 0), (1, 2), (2, 3)] for n, case in enumerate(cases) if case.what == "adamw"}
    made = objects.compile(emit.emit(graphs), aimed.tvm, lambda func, _: schedules.first(func, aimed), in_place)
    rules: dict[str, dict[str, None]] = {}
    for row in made.kernels:
        for function in row.calls:
            rules.setdefault(function, {})[row.rule or "NONE"] = None
    return shared_library.library(made, aimed.machine), [" ".join(rules[f"k{n}"]) for n in range(len(cases))]


def graph(n: int, case: Case) -> Graph:
    seed = Value("", (), {}, TensorType((2,), "u32"), "seed")
    b = DrawBuilder(seed, iter(range(PLACE, PLACE + 10)))
    kinds = {"float32": "f32", "int32": "i32"}
    xs = [b.input(f"x{i}", TensorType(x.shape, kinds[x.dtype.name])) for i, x in enumerate(case.inputs())]
    out = _outputs(b, case, xs)
    ins = [seed, *xs] if case.what.endswith("draw") else xs
    return Graph(f"k{n}", tuple(ins), tuple((f"y{i}", y) for i, y in enumerate(out)))


def _outputs(b: Any, case: Case, xs: list[Any]) -> list[Any]:
    s = case.sizes
    if case.group == "product":
        return [b("matmul", *xs, ta=case.what[0] == "T", tb=case.what[1] == "T")]
    simple: dict[str, Callable[[], Any]] = {
        "add": lambda: b("+", *xs),
        "gelu": lambda: b("gelu", *xs),
        "transpose": lambda: b("transpose", *xs, axes=(1, 0)),
        "softmax": lambda: b("softmax", *xs, axis=-1),
        "normalize": lambda: _normalize(b, *xs),
        "argmax": lambda: b("argmax", *xs, axis=-1),
        "cross-entropy": lambda: b("cross-entropy", *xs),
        "sum of columns": lambda: b("sum", *xs, axes=(1,)),
        "sum of rows": lambda: b("sum", *xs, axes=(0,)),
        "sum of all": lambda: b("sum", *xs, axes=(0, 1)),
        "gather": lambda: b("gather", *xs),
        "scatter-add": lambda: b("scatter-add", *xs),
        "uniform draw": lambda: b("random-uniform", shape=s),
        "normal draw": lambda: b("random-normal", shape=s),
    }
    if case.what in simple:
        return [simple[case.what]()]
    return _gradients(b, case, xs)


def _normalize(b: Any, x: Any, g: Any, shift: Any) -> Any:
    return b("+", b("*", b("normalize", x, axes=(-1,), eps=1e-5), g), shift)


def _gradients(b: Any, case: Case, xs: list[Any]) -> list[Any]:
    """The gradients of the sum of dy * y; the loss itself is no output."""
    if case.what == "adamw":
        return _adamw(b, *xs)
    if case.what == "embedding gradient":
        table = b("full", shape=case.sizes[1:], value=0.0, dtype="f32")
        return [b("scatter-add", table, *xs)]
    if case.what == "cross-entropy gradient":
        loss, wrt = b("mean", b("cross-entropy", *xs)), xs[:1]
    else:
        forward, wrt = {
            "gelu gradient": lambda: (b("gelu", xs[0]), xs[:1]),
            "softmax gradient": lambda: (b("softmax", xs[0], axis=-1), xs[:1]),
            "normalize gradient": lambda: (_normalize(b, *xs[:3]), xs[:3]),
        }[case.what]()
        loss = b("sum", b("*", forward, xs[-1]), axes=tuple(range(len(xs[-1].type.shape))))
    return gradients(b, loss, wrt)


def _adamw(b: Any, p: Any, g: Any, m: Any, v: Any) -> list[Any]:
    """The first step of the prelude's adamw."""

    def c(x: float) -> Any:
        return b.const(x, "f32")

    h = ADAMW
    m = b("+", b("*", c(h["beta1"]), m), b("*", c(1 - h["beta1"]), g))
    v = b("+", b("*", c(h["beta2"]), v), b("*", c(1 - h["beta2"]), b("square", g)))
    root = b("+", b("sqrt", b("/", v, c(1 - h["beta2"]))), c(h["eps"]))
    direction = b("+", b("/", b("/", m, c(1 - h["beta1"])), root), b("*", c(h["decay"]), p))
    return [b("-", p, b("*", c(h["lr"]), direction)), m, v]


class Loaded:
    """The library, loaded as a runner loads it."""

    def __init__(self, path: Path) -> None:
        self._machine = tvm_ffi.load_module(str(path))["vm_load_executable"]()
        self._machine["vm_initialization"](1, 0, 2)  # CPU, device 0, pooled allocator
        self._allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")

    def tensor(self, array: np.ndarray) -> Any:
        kind = tvm_ffi.Shape(array.shape), tvm_ffi.dtype(array.dtype.name)
        out = self._allocate(*kind, tvm_ffi.device("cpu", 0), None)
        ctypes.memmove(out.data_ptr(), array.ctypes.data, array.nbytes)
        return out

    def call(self, n: int, case: Case) -> tuple[Callable[..., Any], list[Any]]:
        """Case n as a function, and its inputs."""
        given = case.inputs()
        if case.what.endswith("draw"):
            given = [np.array([7, 0], np.uint32), *given]
        return self._machine[f"k{n}"], [self.tensor(np.ascontiguousarray(x)) for x in given]


def array(handle: Any) -> np.ndarray:
    kind = np.dtype(str(handle.dtype))
    memory = (ctypes.c_char * (math.prod(handle.shape) * kind.itemsize)).from_address(handle.data_ptr())
    return np.frombuffer(memory, kind).reshape(tuple(handle.shape)).copy()
