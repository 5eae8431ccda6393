"""Reductions, indexing and neural rows at their edges: by the reference, and by the code compiled for this CPU.

Results are written out by hand, so that a shared mistake of reference and kernel shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_cases import compiled, plain, scheduled

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.ops.types import TensorType

NAN, INF = float("nan"), float("inf")
NAMES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "bool": "bool", "uint32": "u32"}
FAR = 2**62

Make = Callable[..., Value]
Edge = tuple[str, list[np.ndarray], Make, Any]


def op(name: str, **attrs: Any) -> Make:
    return lambda b, *xs: b(name, *xs, **attrs)


def f32(*rows: Any) -> np.ndarray:
    return np.array(rows, "float32")


def f64(*rows: Any) -> np.ndarray:
    return np.array(rows, "float64")


def i32(*rows: Any) -> np.ndarray:
    return np.array(rows, "int32")


def i64(*rows: Any) -> np.ndarray:
    return np.array(rows, "int64")


HARD = ([-INF, -INF, -INF], [-INF, -1.0, -2.0], [1.0, NAN, INF], [INF, -INF, INF], [-1e-40, -0.0, -1e-45])
ORDER = ([NAN, 1.0, NAN], [-INF, -INF, -INF], [2.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [0.0, -0.0, 1.0], [5.0, INF, NAN])
TABLE = f32([1, 2], [3, 4], [5, 6])
Q = f32([1.0, 0.0], [0.0, 1.0])
V = f32([1.0, 2.0], [4.0, 8.0])

EDGES: tuple[Edge, ...] = (
    ("reduce-max of infinities and NaN", [f32(*HARD)], op("reduce-max", axes=(1,)), [-INF, -1, NAN, INF, -0.0]),
    ("reduce-max, f64", [f64(*HARD)], op("reduce-max", axes=(1,)), [-INF, -1, NAN, INF, -0.0]),
    ("reduce-max down columns", [f32(*HARD).T.copy()], op("reduce-max", axes=(0,)), [-INF, -1, NAN, INF, -0.0]),
    ("reduce-min of infinities and NaN", [-f32(*HARD)], op("reduce-min", axes=(1,)), [INF, 1, NAN, -INF, 0.0]),
    ("reduce-min, f64", [-f64(*HARD)], op("reduce-min", axes=(1,)), [INF, 1, NAN, -INF, 0.0]),
    ("argmax", [f32(*ORDER)], op("argmax"), [0, 0, 1, 0, 2, 2]),
    ("argmax, f64", [f64(*ORDER)], op("argmax"), [0, 0, 1, 0, 2, 2]),
    ("argmin", [-f32(*ORDER)], op("argmin"), [0, 0, 1, 0, 2, 2]),
    ("argmax down columns", [f32(*ORDER).T.copy()], op("argmax", axis=0), [0, 0, 1, 0, 2, 2]),
    ("argmax of the smallest integers", [i32([-(2**31)] * 3, [-1, -(2**31), -1])], op("argmax"), [0, 0]),
    ("argmin of the largest integers", [i32([2**31 - 1] * 3, [1, 2**31 - 1, 1])], op("argmin"), [0, 0]),
    ("logsumexp", [f32([-INF, -INF], [INF, 0.0], [NAN, 0.0], [1000.0, 1000.0])], op("logsumexp", axes=(1,)),
     [-INF, INF, NAN, 1000 + np.log(2)]),
    ("softmax", [f32([0.0, -INF, 0.0], [NAN, 0.0, 0.0], [0.0, -1e9, -1e30])], op("softmax"),
     [[0.5, 0, 0.5], [NAN] * 3, [1, 0, 0]]),
    ("log-softmax", [f32([1e4, 0.0])], op("log-softmax"), [[0.0, -1e4]]),
    ("relu of NaN", [f32(NAN, -1.0, 2.0, -0.0)], op("relu"), [NAN, 0, 2, 0]),
    ("softplus far out", [f32(-200.0, 200.0, NAN)], op("softplus"), [0, 200, NAN]),
    ("gelu far out", [f32(-200.0, 200.0)], op("gelu"), [0, 200]),
    ("the mean of ones is 1", [np.ones((1, 41), "float32")], op("mean"), 1.0),
    ("variance beside a large mean", [f32([4096.0, 4097.0, 4098.0, 4099.0])], op("variance"), 1.25),
    ("normalize beside a large mean", [f32([4096.0, 4098.0])], op("normalize", eps=0.0), [[-1, 1]]),
    ("normalize of equal elements", [f32([3.0, 3.0])], op("normalize"), [[0, 0]]),
    ("gather reads the nearest row", [TABLE, i64(-FAR, -1, 0, 3, FAR)], op("gather"),
     [[1, 2], [1, 2], [1, 2], [5, 6], [5, 6]]),
    ("gather of u32 ids", [TABLE, np.array([2**32 - 1, 1], "uint32")], op("gather"), [[5, 6], [3, 4]]),
    ("take-along reads the nearest", [TABLE, i64([-FAR, 1], [FAR, 0], [2, -1])], op("take-along"),
     [[1, 2], [4, 3], [6, 5]]),
    ("scatter-add drops and adds in order",
     [f32([1.0], [1e8]), i32(1, -1, 1, 2, 1), f32([1.0], [5.0], [-1e8], [7.0], [1.0])],
     op("scatter-add"), [[1.0], [1.0]]),  # (1e8 + 1) - 1e8 + 1: the first 1 is lost to rounding, the last is not
    ("scatter-add wraps", [i32([2**31 - 1]), i64(0, 0), i32([1], [1])], op("scatter-add"), [[-(2**31) + 1]]),
    ("cumsum wraps", [i32(2**31 - 1, 1, -1)], op("cumsum"), [2**31 - 1, -(2**31), 2**31 - 1]),
    ("update-slice is clamped", [f32(1, 2, 3), f32(8, 9), i64(FAR).reshape(())], op("update-slice", starts=(0,)),
     [1, 8, 9]),
    ("any and all", [np.array([[True, False]])], lambda b, x: b("/=", b("any", x), b("all", x)), True),
    ("a query that sees nothing", [Q, Q, V, np.array([[False, False], [True, False]])], op("attention"),
     [[0, 0], [1, 2]]),
    ("causal attention", [Q * 0, Q, V], op("attention", causal=True), [[1, 2], [2.5, 5]]),
)  # fmt: skip


def graph_of(edge: Edge) -> tuple[tuple[Value, ...], Value]:
    b = Builder()
    xs = tuple(b.input(f"x{i}", TensorType(x.shape, NAMES[x.dtype.name])) for i, x in enumerate(edge[1]))
    return xs, edge[2](b, *xs)


def check(got: np.ndarray, want: Any) -> None:
    """Integers and zeros exactly, signs of zero too where they are stated; other floats to a few roundings."""
    expected = np.array(want, got.dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0)
    if got.dtype.kind == "f":
        stated = (expected == 0) & np.signbit(expected)
        assert np.signbit(got[stated]).all()


@pytest.mark.parametrize("edge", [pytest.param(e, id=e[0]) for e in EDGES])
def test_the_reference_says_so(edge: Edge) -> None:
    xs, y = graph_of(edge)
    (got,) = evaluate([y], {x.name: a for x, a in zip(xs, edge[1], strict=True)})
    check(got, edge[3])


@pytest.fixture(scope="module", params=[plain, scheduled])
def machine(request: Any) -> Any:
    graphs = []
    for i, edge in enumerate(EDGES):
        xs, y = graph_of(edge)
        graphs.append(Graph(f"edge_{i}", xs, (("y", y),)))
    return compiled(graphs, request.param)


@pytest.mark.build
@pytest.mark.parametrize("number", [pytest.param(i, id=e[0]) for i, e in enumerate(EDGES)])
def test_the_compiled_code_does_so(machine: Any, number: int) -> None:
    import tvm

    (got,) = machine[f"edge_{number}"](*map(tvm.runtime.tensor, EDGES[number][1]))
    check(got.numpy(), EDGES[number][3])


# where a derivative has a choice, or its formula a division by zero: what it says; the input; the row; the gradient
CHOICES: tuple[tuple[str, np.ndarray, Make, Any], ...] = (
    ("relu at 0", f32(-1, 0, 2), op("relu"), [0, 0, 1]),
    ("softplus at 0", f32(0, 0), op("softplus"), [0.5, 0.5]),
    ("equal maxima share", f32(3, 1, 3, 3), op("reduce-max"), [1 / 3, 0, 1 / 3, 1 / 3]),
    ("equal minima share", f32([1, 1], [0, 2]), op("reduce-min", axes=(1,)), [[0.5, 0.5], [1, 0]]),
    ("prod beside one zero", f32(2, 0, 5), op("prod"), [0, 10, 0]),
    ("prod beside two zeros", f32(0, 3, 0), op("prod"), [0, 0, 0]),
    ("prod that is too small for f32", f32(1e-30, 1e-30, 3), op("prod"), [3e-30, 3e-30, 0]),
    ("prod beside a zero and small ones", f32(1e-30, 0, 1e-30, 2e30), op("prod"), [0, 2e-30, 0, 0]),
    ("prod that is too large for f32", f32(1e30, 1e30, 3), op("prod"), [3e30, 3e30, INF]),
    ("prod of one", f32(7), op("prod"), [1]),
    ("prod over the middle axis", f32([[1, 2], [0, 3], [5, 4]]), op("prod", axes=(1,)), [[[0, 12], [5, 8], [0, 6]]]),
    ("prod over the outer axes", f32([[2, 3], [0, 4]], [[5, 6], [7, 8]]), op("prod", axes=(0, 1)),
     [[[0, 6 * 4 * 8], [2 * 5 * 7, 3 * 6 * 8]], [[0, 3 * 4 * 8], [0, 3 * 4 * 6]]]),
    ("logsumexp of one finite element", f32(-INF, 2), op("logsumexp"), [0, 1]),
    ("what a clamped index reads", f32(1, 2, 3), lambda b, x: b("gather", x, b.const(9, "i32")), [0, 0, 1]),
)


@pytest.mark.parametrize("choice", [pytest.param(c, id=c[0]) for c in CHOICES])
def test_the_gradient_where_it_has_a_choice(choice: tuple[str, np.ndarray, Make, Any]) -> None:
    _, given, make, want = choice
    b = Builder()
    x = b.input("x", TensorType(given.shape, "f32"))
    (got,) = evaluate(gradients(b, b("sum", make(b, x)), [x]), {"x": given})
    np.testing.assert_allclose(got, np.array(want, "float32"), rtol=1e-6, atol=0)


@pytest.mark.build
def test_large_sums_have_the_bits_of_their_order() -> None:
    """Enough columns and updates that several threads share them: each element is still added up in order."""
    import tvm

    rng = np.random.default_rng(0)
    base, updates = (rng.normal(size=(n, 192)).astype("float32") for n in (50, 700))
    ids = rng.integers(-2, 52, 700)
    want = base.copy()
    for i, row in zip(ids, updates, strict=True):
        if 0 <= i < 50:
            want[i] += row
    b = Builder()
    shapes = (TensorType((50, 192), "f32"), TensorType((700,), "i64"), TensorType((700, 192), "f32"))
    xs = tuple(b.input(f"x{i}", t) for i, t in enumerate(shapes))
    vm = compiled([Graph("f", xs, (("y", b("scatter-add", *xs)),))], scheduled)
    (got,) = vm["f"](*map(tvm.runtime.tensor, (base, ids, updates)))
    assert got.numpy().tobytes() == want.tobytes()


@pytest.mark.build
def test_running_sums_of_millions_keep_their_digits() -> None:
    """5,000,000 times 0.0005, from both ends and down a column: carried in f32 the last one would be 2448.70."""
    import tvm

    given = np.full(5_000_000, 0.0005, "float32")
    b = Builder()
    x = b.input("x", TensorType(given.shape, "f32"))
    column = b("reshape", x, shape=(1_000_000, 5))
    made = (b("cumsum", x), b("cumsum", x, reverse=True), b("cumsum", column, axis=0))
    vm = compiled([Graph("sums", (x,), tuple((f"y{i}", y) for i, y in enumerate(made)))], scheduled)
    forth, back, down = (y.numpy() for y in vm["sums"](tvm.runtime.tensor(given)))
    want = np.cumsum(given.astype("float64"))
    np.testing.assert_allclose(forth, want, rtol=1e-7)
    np.testing.assert_allclose(back[::-1], want, rtol=1e-7)
    np.testing.assert_allclose(down, np.cumsum(given.astype("float64").reshape(-1, 5), 0), rtol=1e-7)
    for y, got in zip(made, (forth, back, down), strict=True):
        assert evaluate([y], {"x": given})[0].tobytes() == got.tobytes()
