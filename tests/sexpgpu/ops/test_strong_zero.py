"""A cotangent that is exactly 0 gives 0, whatever the derivative: generated over the operator table.

An element of an input is set to what makes values or derivatives infinite or NaN. Outputs that it reaches get the
cotangent 0, all others the one they have. The gradients must be those of the ordinary input, and 0 at that element.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_cases import Built, build, compiled, grad_cases, params, scheduled
from test_rows import total

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Graph, Value
from sexpgpu.graph.interpreter import evaluate, numpy_dtype
from sexpgpu.graph.simplify import simplify

NAN, INF = float("nan"), float("inf")
POISON = (0.0, -1.0, -2.5, 1e-40, 3e38, INF, -INF, NAN)  # 0 of log, -1 of log1p, below 0 of sqrt, overflow of exp
SUMS = ("matmul", "attend", "attention")  # sums of products as the machine makes them: docs/run-file.md names them


def floats(values: tuple[Value, ...]) -> list[Value]:
    return [v for v in values if v.type.kind == "float"]


def poisoned(x: np.ndarray, value: float, everywhere: bool) -> np.ndarray:
    out = x.copy()
    with np.errstate(all="ignore"):
        out[... if everywhere else (0,) * x.ndim] = value
    return out


def reached(built: Built, x: Value, everywhere: bool) -> list[np.ndarray]:
    """Of each float output: which elements follow from the poisoned ones."""
    ys = floats(built.outputs)
    ordinary = evaluate(ys, built.feeds)
    found = [np.zeros(y.type.shape, bool) for y in ys]
    for value in (0.3, 2.0, 50.0, NAN):
        moved = evaluate(ys, {**built.feeds, x.name: poisoned(built.feeds[x.name], value, everywhere)})
        found = [f | ~((a == b) | ((a != a) & (b != b))) for f, a, b in zip(found, ordinary, moved, strict=True)]
    return found


def gradient(built: Built) -> tuple[list[Value], list[Value]]:
    """The cotangents of the float outputs, as inputs, and the gradients of the float inputs."""
    b, ys = built.builder, floats(built.outputs)
    weights = [b.input(f"w{i}", y.type) for i, y in enumerate(ys)]
    found = gradients(b, total(b, ys, [b("cast", w, dtype="f64") for w in weights]), floats(built.inputs))
    return weights, found


def faults(built: Built, weights: list[Value], run: Callable[[dict[str, np.ndarray]], list[np.ndarray]]) -> list[str]:
    """Which input, set to what, changes the gradients that ``run`` makes of all feeds."""
    rng, out = np.random.default_rng(1), []
    given = [rng.uniform(0.5, 1.5, w.type.shape) for w in weights]
    for x, everywhere in itertools.product(floats(built.inputs), (False, True)):
        where = reached(built, x, everywhere)
        feeds = dict(built.feeds)
        for w, r, g in zip(weights, where, given, strict=True):
            feeds[w.name] = np.asarray(np.where(r, 0.0, g)).astype(numpy_dtype(w.type))
        want = run(feeds)
        for value in POISON:
            got = run({**feeds, x.name: poisoned(built.feeds[x.name], value, everywhere)})
            if not all(np.array_equal(g, w) for g, w in zip(got, want, strict=True)):
                out.append(f"{built.row.name}: {x.name}{' all' if everywhere else ''} {value}")
    return out


CASES = [c for c in grad_cases() if c[1].name not in SUMS]


@pytest.mark.parametrize("row, case", params(iter(CASES)))
def test_a_cotangent_of_0_gives_0_whatever_the_derivative(row: Any, case: Any) -> None:
    built = build(row, case)
    weights, found = gradient(built)
    assert not faults(built, weights, lambda feeds: evaluate(found, feeds))


@pytest.mark.build
def test_compiled_code_keeps_to_the_rule() -> None:
    """The first case of f32 of every row."""
    tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
    first = {row.name: build(row, case) for _, row, case in reversed(CASES) if case[0][0][0] == "f32"}
    made = [(built, *gradient(built)) for built in first.values()]
    graphs = [
        simplify(Graph(f"f{i}", (*built.inputs, built.builder.seed, *weights), named(found)))
        for i, (built, weights, found) in enumerate(made)
    ]
    machine, out = compiled(graphs, scheduled), []
    for graph, (built, weights, _) in zip(graphs, made, strict=True):

        def run(feeds: dict[str, np.ndarray], graph: Graph = graph) -> list[np.ndarray]:
            return [y.numpy() for y in machine[graph.name](*(tvm.runtime.tensor(feeds[v.name]) for v in graph.inputs))]

        out += faults(built, weights, run)
    assert not out, "\n".join(out)


def named(values: list[Value]) -> tuple[tuple[str, Value], ...]:
    return tuple((f"y{i}", v) for i, v in enumerate(values))
