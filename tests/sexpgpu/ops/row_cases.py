"""Every case of every row of the operator table, with its inputs, its values and its parameters for pytest."""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
import pytest
from attrs import frozen

from sexpgpu.graph.core import Graph, Value
from sexpgpu.graph.interpreter import numpy_dtype
from sexpgpu.ops import OPS, Op
from sexpgpu.ops.types import DTYPES, TensorType
from sexpgpu.trace.random_draws import DrawBuilder


@frozen
class Built:
    """One case made into a graph: ``outputs`` is one value, or several of a row that gives a list."""

    row: Op
    builder: DrawBuilder
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: dict[str, Any]
    feeds: dict[str, np.ndarray]

    def arrays(self) -> list[np.ndarray]:
        return [self.feeds[x.name] for x in self.inputs]


def type_of(spec: tuple[Any, ...]) -> TensorType:
    return TensorType(tuple(spec[1]), spec[0])


def array(rng: np.random.Generator, spec: tuple[Any, ...]) -> np.ndarray:
    """An input of ``spec``: (dtype, shape), or (dtype, shape, low, high) drawn from [low, high)."""
    t, between = type_of(spec), spec[2:]
    if t.kind == "bool":
        return rng.random(t.shape) < 0.5
    if t.kind == "float":
        drawn = rng.uniform(between[0], between[1], t.shape) if between else rng.standard_normal(t.shape)
        return np.asarray(drawn).astype(numpy_dtype(t))
    low, high = between or ((0, 6) if t.kind == "uint" else (-5, 6))
    return np.asarray(rng.integers(low, high, t.shape, dtype="int64")).astype(numpy_dtype(t))


def build(row: Op, case: tuple[Any, dict[str, Any]]) -> Built:
    """The case's values. The random numbers depend on the row's name and on the case, on nothing else."""
    specs, attrs = case
    rng = np.random.default_rng(zlib.crc32(f"{row.name} {case}".encode()))
    seed = Value("", (), {}, TensorType((2,), "u32"), "seed")
    b = DrawBuilder(seed, iter(range(1000, 2000)))
    xs = tuple(b.input(f"x{i}", type_of(spec)) for i, spec in enumerate(specs))
    out = b(row.name, *xs, **attrs)
    feeds = {x.name: array(rng, spec) for x, spec in zip(xs, specs, strict=True)}
    feeds["seed"] = np.array([7, 2**31], "uint32")
    normal = row.normal(tuple(x.type for x in xs), attrs) if row.normal else attrs
    return Built(row, b, xs, out if isinstance(out, tuple) else (out,), normal, feeds)


def all_cases() -> Iterator[tuple[str, Op, Any]]:
    for row in OPS.values():
        for i, case in enumerate(row.cases):
            yield f"{row.name}-{i}", row, case


def grad_cases() -> Iterator[tuple[str, Op, Any]]:
    """Cases of every row that a gradient can pass, or whose gradient is said to be zero."""
    for row in OPS.values():
        if row.vjp is None and row.expand is None:
            continue
        chosen = row.cases if row.grad_cases is None else row.grad_cases
        for i, case in enumerate(chosen):
            if any(DTYPES[spec[0]].kind == "float" for spec in case[0]) and makes_floats(row, case):
                yield f"{row.name}-{i}", row, case


def makes_floats(row: Op, case: Any) -> bool:
    return any(y.type.kind == "float" for y in build(row, case).outputs)


def params(cases: Iterator[tuple[str, Op, Any]]) -> list[Any]:
    return [pytest.param(row, case, id=name) for name, row, case in cases]


def plain(func: Any, target: Any) -> Any:
    """A scheduler that takes nothing: every kernel as TVM writes it."""
    from schedules import Scheduled

    return Scheduled(None, "", ())


def scheduled(func: Any, target: Any) -> Any:
    """The scheduler of a build."""
    import schedules

    return schedules.first(func, schedules.default()[-1])


def inlined(func: Any, target: Any) -> Any:
    """Every value that another one reads is written into its expression, and the innermost loop runs on vectors: all
    that TVM's simplifier could get to see, as other schedules than ours would show it."""
    from tvm.s_tir import Schedule, ScheduleError

    from schedules import Scheduled

    work = Schedule(func)
    for block in work.get_child_blocks(work.get_sblock("root")):
        try:
            work.compute_inline(block)
        except ScheduleError:  # the last value, and whatever cannot be inlined
            with contextlib.suppress(ScheduleError):
                work.vectorize(work.get_loops(block)[-1])
    return Scheduled(work.mod["main"], "inlined", ())


def compiled(graphs: Sequence[Graph], scheduler: Callable[[Any, Any], Any]) -> Any:
    """A virtual machine with a function for each graph, compiled for the target that most machines of this kind run."""
    import tvm

    from lowering import emit
    from lowering.codegen import objects
    from lowering.link import shared_library
    from schedules import default

    target = default()[-1]
    library = shared_library.library(objects.compile(emit.emit(graphs), target.tvm, scheduler), target.machine)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phases.so"
        path.write_bytes(library)
        module = tvm.runtime.load_module(str(path))
    cpu: Any = tvm.cpu()
    return tvm.relax.VirtualMachine(module, cpu)
