"""What the tests of the rules share: kernels as Relax leaves them, compiled alone, and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import tvm
from tvm import relax, te, tirx

import schedules
from lowering.codegen.objects import CONFIG, prepare_for_codegen
from lowering.emit import emit
from lowering.math import elementary
from sexpgpu.graph.core import Builder, Graph
from sexpgpu.ops import OPS
from sexpgpu.ops.types import TensorType

V3, V4 = "cpu-x86-64-v3", "cpu-x86-64-v4"
Shape = tuple[int, ...]
Kinds = Sequence[tuple[Shape, str]]
PAGE, MARK = 4096, 0xA5
PASSES = ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR", "DeadCodeElimination")


def runs_here(target: str) -> bool:
    """Has this CPU what the target's library needs?"""
    words = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return set(schedules.TARGETS[target].cpu_flags) <= set(words)


def tvm_target(name: str) -> Any:
    target = tvm.target.Target(dict(schedules.TARGETS[name].tvm))
    return target.with_host(target)


def graph(build: Callable[..., Any], *kinds: tuple[Shape, str]) -> list[Any]:
    """The programs that Relax makes of ``build(emit, *variables)``, in the order of their names."""
    bb = relax.BlockBuilder()
    args = [relax.Var(f"a{n}", relax.TensorType(shape, dtype)) for n, (shape, dtype) in enumerate(kinds)]
    with bb.function("main", args):
        with bb.dataflow():
            out = bb.emit_output(bb.normalize(build(bb.emit, *args)))
        bb.emit_func_output(out)
    module = bb.get()
    with tvm_target(V3):
        for name in PASSES:
            module = getattr(relax.transform, name)()(module)
    found = {gv.name_hint: f for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    return [found[name] for name in sorted(found)]


def program(function: Callable[..., Any], *kinds: tuple[Shape, str]) -> Any:
    """A tensor-expression function of placeholders, as one program."""
    args = [te.placeholder(shape, dtype, f"a{n}") for n, (shape, dtype) in enumerate(kinds)]
    out = function(*args)
    outs = list(out) if isinstance(out, list | tuple) else [out]
    return te.create_prim_func([*args, *outs]).with_attr("tirx.noalias", True)


def operator(name: str, *kinds: tuple[str, Shape], **attrs: Any) -> Any:
    """The programs of one operator on arguments of (dtype, shape), which must be a single one."""
    b = Builder()
    args = [b.input(f"x{n}", TensorType(shape, dtype)) for n, (dtype, shape) in enumerate(kinds)]
    graph = Graph("main", tuple(args), (("y", b(name, *args, **attrs)),))
    module = emit([graph])
    with tvm_target(V3):
        for name in PASSES:
            module = getattr(relax.transform, name)()(module)
    (func,) = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func


def reference(name: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
    """What the operator's row says of ``arrays``."""
    return np.asarray(OPS[name].ref(np, *arrays, **attrs))


def product(kind: str, m: int, k: int, n: int, batch: Shape = ()) -> Any:
    """A matrix product, ``kind`` NN, TN, NT or TT: which operand is stored transposed."""
    shapes = [
        (*batch, k, m) if kind[0] == "T" else (*batch, m, k),
        (*batch, n, k) if kind[1] == "T" else (*batch, k, n),
    ]

    def function(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        depth = te.reduce_axis((0, k), "k")

        def element(*at: Any) -> Any:
            *lead, i, j = at
            left = a(*lead, depth, i) if kind[0] == "T" else a(*lead, i, depth)
            return te.sum(left * (b(*lead, j, depth) if kind[1] == "T" else b(*lead, depth, j)), axis=depth)

        return te.compute((*batch, m, n), element, "matmul")

    return program(function, *((shape, "float32") for shape in shapes))


@attrs.frozen
class Built:
    """A compiled program and the rule that scheduled it."""

    rule: str
    call: Any
    params: tuple[tuple[Shape, str], ...]

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The parameters after ``inputs``, as the program leaves them, which must leave what lies around them alone."""
        given = [tvm.runtime.tensor(np.asarray(x, order="C")) for x in inputs]
        outs = [Guarded.full(shape, dtype) for shape, dtype in self.params[len(given) :]]
        self.call(*given, *(out.tensor for out in outs))
        assert all(out.untouched() for out in outs), "written outside an output"
        return [out.tensor.numpy() for out in outs]


@attrs.frozen(eq=False)
class Guarded:
    """An output with a page before it and one behind that nothing may write."""

    before: np.ndarray
    behind: np.ndarray
    tensor: Any

    @classmethod
    def full(cls, shape: Shape, dtype: str) -> Guarded:
        start = np.full(shape, 7).astype(dtype)
        memory = np.full(start.nbytes + 3 * PAGE, MARK, "uint8")
        begin = PAGE + -memory.ctypes.data % 64
        end = begin + start.nbytes
        memory[begin:end] = np.frombuffer(start.tobytes(), "uint8")
        tensor = tvm.runtime.from_dlpack(memory[begin:end])._create_view(shape, dtype)
        return cls(memory[:begin], memory[end:], tensor)

    def untouched(self) -> bool:
        return bool((self.before == MARK).all() and (self.behind == MARK).all())


def build(func: Any, target: str = V3, code: str | None = None) -> Built:
    """``func`` as the rules of ``target`` schedule it, in the instructions of ``code`` (default: the target's own).

    Raises AssertionError if no rule took it or one crashed."""
    elementary.install()
    aimed = attrs.evolve(schedules.TARGETS[target], functions=elementary.STEPS)
    done = schedules.first(func.with_attr("global_symbol", "main"), aimed)
    assert done.func is not None and not done.failures, done.failures
    module = tvm.IRModule({"main": done.func})
    made_for = tvm_target(code or target)
    with made_for, tvm.transform.PassContext(config=CONFIG):
        library = tvm.compile(prepare_for_codegen(module, made_for), target=made_for)
    params = tuple((tuple(map(int, p.shape)), str(p.dtype)) for p in func.params)
    return Built(done.rule, library["main"], params)


def threads(count: int) -> None:
    """Run kernels on ``count`` threads from here on."""
    tvm.get_global_func("runtime.config_threadpool")(1, count)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """float32 from the standard normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def random_inputs(func: Any, count: int) -> list[np.ndarray]:
    """The first ``count`` arguments of ``func``, each with a seed of its own."""
    return [numbers(*map(int, p.shape), seed=s) for s, p in enumerate(list(func.params)[:count])]


def assert_close(got: np.ndarray, want: np.ndarray, depth: int = 1) -> None:
    """Equal up to what ``depth`` additions in float32 in another order may differ: each rounds to half of 2^-23, errors
    of random sign grow as the root, and the terms are of order one."""
    bound = 4 * 2.0**-24 * max(1.0, depth) ** 0.5 * (1 + np.abs(want).max(initial=0.0))
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)
