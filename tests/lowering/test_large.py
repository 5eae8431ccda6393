"""Tensors of 2^31 elements and more, of which no axis has as many: nothing of them is counted in 32 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

import schedules
from lowering import pipeline
from lowering.codegen import objects
from lowering.emit import emit
from lowering.math import elementary
from lowering.passes.reshape_views import MIN_LARGE_ELEMENTS
from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Graph, Value, order
from sexpgpu.graph.simplify import simplify
from tests.lowering.lowering_runs import T, inputs
from tests.sexpgpu.ops.row_cases import DrawBuilder, type_of

LOGITS = (64, 1024, 50257)
Make = Callable[[Any], list[Value]]


def objective(dtype: str) -> Make:
    """The mean cross-entropy of logits, and its gradients."""

    def make(b: Any) -> list[Value]:
        x, w, ids = inputs(b, x=T("f32", *LOGITS[:2], 16), w=T("f32", 16, LOGITS[2]), ids=T("i32", *LOGITS[:2]))
        loss = b("mean", b("cross-entropy", b("matmul", *(b("cast", v, dtype=dtype) for v in (x, w))), ids))
        return [loss, *gradients(b, loss, [x, w])]

    return make


def applied(op: str, *specs: tuple[Any, ...], **more: Any) -> Make:
    return lambda b: [b(op, *(b.input(f"x{n}", type_of(s)) for n, s in enumerate(specs)), **more)]


def many_rows(b: Any) -> list[Value]:
    """More rows than an axis has places: as one matrix they cannot be said."""
    x, w = inputs(b, x=T("f32", 40_000, 60_000, 2), w=T("f32", 2, 3))
    return gradients(b, b("mean", b("square", b("matmul", x, w))), [x, w])


CASES: dict[str, Make] = {
    "objective of f32": objective("f32"),
    "objective of bf16": objective("bf16"),
    "rows": many_rows,
    "view between maps": lambda b: [
        b("exp", b("reshape", b("sin", b.input("x", T("f32", *LOGITS))), shape=(1024, 64, LOGITS[2])))
    ],
    "transpose": applied("transpose", ("f32", LOGITS), perm=(2, 0, 1)),
    "sum": applied("sum", ("f32", LOGITS)),
    "softmax": applied("softmax", ("f32", LOGITS)),
    "argmax": applied("argmax", ("f32", LOGITS), axis=2, keepdims=False),
    "cumsum": applied("cumsum", ("f32", LOGITS), axis=2),
    "one-hot": applied("one-hot", ("i32", LOGITS[:2]), depth=LOGITS[2], dtype="f32"),
    "gather": applied("gather", ("f32", (5_000_000, 1024)), ("i32", (7,))),
    "scatter-rows": applied("scatter-rows", ("f32", (7, 1024)), ("i32", (7,)), n=5_000_000),
    "dropout": applied("dropout", ("f32", LOGITS), rate=0.1),
    "attention": applied("attention", *[("f32", (16, 16, 4096, 64))] * 3, causal=True),
}  # fmt: skip


def graph(make: Make) -> Graph:
    b = DrawBuilder(Value("", (), {}, T("u32", 2), "seed"), iter(range(100)))
    outputs = make(b)
    given = tuple(v for v in order(outputs) if not v.op)
    return simplify(Graph("main", given, tuple((f"y{n}", y) for n, y in enumerate(outputs))))


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_large_tensors_are_scheduled_and_compiled(name: str) -> None:
    lowered = pipeline.lower(emit([graph(CASES[name])]), {})
    for target in (schedules.TARGETS["cpu-x86-64-v3"], schedules.TARGETS["cuda-sm_80"]):
        aimed = attrs.evolve(target, functions=elementary.STEPS)
        for part in objects.parts(lowered):
            made = objects.compile_part(part, target.tvm, lambda func, _, aimed=aimed: schedules.first(func, aimed))
            assert all(rule and not failures for rule, failures in made.outcomes.values()), made.outcomes


def test_a_large_reshape_between_kernels_is_a_view() -> None:
    lowered = pipeline.lower(emit([graph(CASES["view between maps"])]), {})
    assert not [name for name in lowered.programs if "reshape" in name and "exp" not in name]
    assert math.prod(LOGITS) > MIN_LARGE_ELEMENTS
