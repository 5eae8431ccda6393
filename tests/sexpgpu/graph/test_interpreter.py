"""The interpreter's own promises; what an operator means is tested row by row in tests/sexpgpu/ops."""

import warnings
import weakref

import numpy as np
import pytest
from attrs import evolve

from sexpgpu.graph.core import Builder, Graph
from sexpgpu.graph.interpreter import evaluate, run
from sexpgpu.ops import OPS
from sexpgpu.ops.types import TensorType

F = TensorType((3,), "f32")
X = np.array([1.0, 2.0, 4.0], "float32")


def test_results_have_the_graphs_dtype_and_come_in_order():
    b = Builder()
    x = b.input("x", F)
    whole, third = b("cast", x, dtype="i32"), b("/", x, b.const(3.0, "f32"))
    graph = Graph("g", (x, b.input("unused", F)), (("a", whole), ("b", third)))
    a, c = run(graph, [X, X])
    assert (a.dtype, c.dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(c, X / np.float32(3))


def test_an_output_that_is_an_input_or_stands_twice():
    b = Builder()
    x = b.input("x", F)
    y = b("neg", x)
    out = run(Graph("g", (x,), (("a", x), ("b", y), ("c", y))), [X])
    np.testing.assert_array_equal(out, [X, -X, -X])


def test_wide_computes_in_float64_and_leaves_integers():
    b = Builder()
    x = b.input("x", F)
    third = b("/", x, b.const(3.0, "f32"))
    half = b("cast", third, dtype="bf16")
    out = evaluate([third, half, b("cast", x, dtype="i32")], {"x": X}, wide=True)
    assert [v.dtype for v in out] == [np.float64, np.float64, np.int32]
    np.testing.assert_array_equal(out[0], X.astype("float64") / 3)
    np.testing.assert_array_equal(out[1], out[0])


def test_bf16_rounds_after_every_operator():
    b = Builder()
    x = b.input("x", TensorType((3,), "bf16"))
    (y,) = evaluate([b("/", x, b.const(3.0, "bf16"))], {"x": X})
    assert y.dtype.name == "bfloat16"
    np.testing.assert_array_equal(y.astype("float32"), [0.333984375, 0.66796875, 1.3359375])


def test_overflow_and_division_by_zero_are_silent_and_ieee():
    b = Builder()
    x = b.input("x", F)
    zero = b.const(0.0, "f32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        up, bad = evaluate([b("exp", b("*", x, b.const(1e3, "f32"))), b("/", zero, zero)], {"x": X})
    assert np.isposinf(up).all() and np.isnan(bad)


def test_an_intermediate_is_dropped_after_its_last_use(monkeypatch):
    alive: list[weakref.ref] = []

    class Array(np.ndarray):
        """An array that can be watched."""

    def watched(np_, x):
        assert sum(r() is not None for r in alive) <= 2, "the chain is kept"
        y = np.negative(x).view(Array)
        alive.append(weakref.ref(y))
        return y

    monkeypatch.setitem(OPS, "neg", evolve(OPS["neg"], ref=watched))
    monkeypatch.setattr(np, "asarray", np.asanyarray)
    b = Builder()
    v = b.input("x", F)
    for _ in range(10):
        v = b("neg", v)
    evaluate([v], {"x": X})


def test_a_row_whose_reference_gives_another_shape_is_our_bug(monkeypatch):
    monkeypatch.setitem(OPS, "neg", evolve(OPS["neg"], ref=lambda np, x: x[:1]))
    b = Builder()
    with pytest.raises(AssertionError, match=r"neg gave \(1,\), not f32\[3\]"):
        evaluate([b("neg", b.input("x", F))], {"x": X})
