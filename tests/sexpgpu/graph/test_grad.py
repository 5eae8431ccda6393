"""Reverse mode: what flows, in which order it is added, and what stops it. (Rows' gradients: tests/sexpgpu/ops.)"""

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value, order
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.graph.simplify import simplify
from sexpgpu.language.diagnostics import UserError
from sexpgpu.language.source import Source, Span
from sexpgpu.ops.types import TensorType

F32 = TensorType((3,), "f32")
FEEDS = {"x": np.array([0.5, -1.25, 2.0], "float32"), "y": np.array([1.5, 0.25, -3.0], "float32")}


def inputs(b: Builder) -> tuple[Value, Value]:
    return b.input("x", F32), b.input("y", F32)


def total(b: Builder, v: Value) -> Value:
    return b("sum", v, axes=tuple(range(v.type.rank)))


def test_a_value_used_twice_gets_both_cotangents():
    b = Builder()
    x, y = inputs(b)
    loss = total(b, b("+", b("*", x, y), b("square", x)))
    (dx,) = evaluate(gradients(b, loss, [x]), FEEDS)
    np.testing.assert_array_equal(dx, FEEDS["y"] + 2 * FEEDS["x"])


def test_the_gradient_of_expm1_keeps_its_digits_where_the_value_is_near_minus_1():
    b = Builder()
    x, _ = inputs(b)
    feeds = {"x": np.array([-20.0, -8.0, 1.0], "float32")}
    (dx,) = evaluate(gradients(b, total(b, b("expm1", x)), [x]), feeds)
    np.testing.assert_allclose(dx, np.exp(feeds["x"].astype("float64")), rtol=3e-7)  # exp of NumPy: 2 units


def test_the_same_argument_twice():
    b = Builder()
    x, _ = inputs(b)
    (dx,) = evaluate(gradients(b, total(b, b("*", x, x)), [x]), FEEDS)
    np.testing.assert_array_equal(dx, 2 * FEEDS["x"])


def test_cotangents_are_added_from_the_last_use_to_the_first():
    """(last + middle) + first, told apart by f32 rounding: (1e8 - 1e8) + 1 is 1, 1e8 + (-1e8 + 1) is 0."""
    b = Builder()
    x = b.input("x", TensorType((), "f32"))
    first, middle, last = (b("*", x, b.const(k, "f32")) for k in (1.0, -1e8, 1e8))
    loss = b("+", b("+", first, middle), last)
    (dx,) = evaluate(gradients(b, loss, [x]), {"x": np.array(1, "float32")})
    assert dx == 1.0


def test_an_unused_parameter_gets_zeros_of_its_type():
    b = Builder()
    x, y = inputs(b)
    dx, dy = gradients(b, total(b, x), [x, y])
    assert dy.type == F32
    np.testing.assert_array_equal(evaluate([dx, dy], FEEDS), [np.ones(3), np.zeros(3)])


def test_a_gradient_with_respect_to_the_loss_and_to_a_value_between():
    b = Builder()
    x, _ = inputs(b)
    middle = b("square", x)
    loss = total(b, b("*", middle, b.const(3.0, "f32")))
    of_loss, of_middle, of_x = evaluate(gradients(b, loss, [loss, middle, x]), FEEDS)
    assert of_loss == 1.0
    np.testing.assert_array_equal(of_middle, [3, 3, 3])
    np.testing.assert_array_equal(of_x, 6 * FEEDS["x"])


def test_integers_comparisons_and_stop_gradient_pass_nothing_on():
    b = Builder()
    x, y = inputs(b)
    whole = b("cast", b("cast", x, dtype="i32"), dtype="f32")
    held = b("stop-gradient", b("*", x, y))
    choice = b("where", b(">", x, y), x, y)
    loss = total(b, b("+", b("+", whole, held), choice))
    dx, dy = evaluate(gradients(b, loss, [x, y]), FEEDS)
    np.testing.assert_array_equal(dx, FEEDS["x"] > FEEDS["y"])
    np.testing.assert_array_equal(dy, FEEDS["x"] <= FEEDS["y"])


def test_values_in_stop_are_constants():
    b = Builder()
    x, _ = inputs(b)
    middle = b("square", x)
    loss = total(b, b("*", middle, x))
    dx, dmiddle = evaluate(gradients(b, loss, [x, middle], stop=[middle]), FEEDS)
    np.testing.assert_array_equal(dx, FEEDS["x"] ** 2)
    np.testing.assert_array_equal(dmiddle, FEEDS["x"])


def test_an_operator_without_a_gradient_on_a_path_is_named_with_the_parameter(monkeypatch):
    from attrs import evolve

    from sexpgpu.ops import OPS

    monkeypatch.setitem(OPS, "sin", evolve(OPS["sin"], vjp=None))
    b = Builder()
    x, y = inputs(b)
    b.span = Span(Source("run.sx", "(sin x)"), 0, 7)
    bent = b("sin", x)
    b.span = None
    loss = total(b, b("+", bent, y))
    with pytest.raises(UserError) as caught:
        gradients(b, loss, [y, x])
    assert caught.value.line() == (
        "error[E-GRAD-001]: run.sx:1:1: sin has no gradient, and it lies between parameter x and the loss "
        "(wrap its input in stop-gradient, or use another operator)"
    )
    gradients(b, loss, [y])  # no path from y goes through it
    for inert in (b("sin", b("stop-gradient", x)), b("stop-gradient", bent)):
        gradients(b, total(b, b("+", inert, y)), [x, y])
    halted = b("square", x)
    gradients(b, total(b, b("+", b("sin", halted), y)), [x, y], stop=[halted])


def test_the_gradient_has_the_span_of_what_it_is_the_gradient_of():
    b = Builder()
    x, _ = inputs(b)
    b.span = span = Span(Source("run.sx", "(tanh x)"), 0, 8)
    y = b("tanh", x)
    b.span = None
    loss = total(b, y)
    made = [v for v in order(gradients(b, loss, [x])) if v not in order((loss,))]
    assert any(v.span == span for v in made)
    assert b.span is None


@pytest.fixture
def limit() -> Iterator[int]:
    """Python's own limit of calls; tracing a run, as tests before this one may have done, raises it tenfold."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield 1000
    sys.setrecursionlimit(before)


def test_a_chain_of_more_values_than_python_calls_may_stand_in_one_another(limit):
    b = Builder()
    x = v = b.input("x", TensorType((), "f32"))
    for _ in range(6 * limit):
        v = b("neg", v)
    (dx,) = gradients(b, v, [x])
    graph = simplify(Graph("chain", (x,), (("y", b("*", v, v)), ("dx", dx))))
    assert evaluate([dx], {"x": np.array(2, "float32")})[0] == 1.0
    assert len(graph.values()) < 10


def body(b: Builder, x: Value, w: Value) -> Value:
    return b("tanh", b("matmul", b("tanh", b("matmul", x, w)), w))


def recomputing(region: bool) -> tuple[Graph, Builder]:
    b = Builder()
    t = TensorType((4, 4), "f32")
    x, w = b.input("x", t), b.input("w", t)
    v = x
    for layer in (1, 2):
        b.region = layer if region else 0
        v = body(b, v, w)
    b.region = 0
    loss = total(b, b("square", v))
    dx, dw = gradients(b, loss, [x, w])
    return Graph("train", (x, w), (("loss", loss), ("dx", dx), ("dw", dw))), b


def test_checkpoint_gives_the_same_bits_and_computes_its_body_again():
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=(4, 4)).astype("float32") for n in ("x", "w")}
    plain, again = recomputing(False)[0], recomputing(True)[0]
    for graph in (again, simplify(again)):
        for a, c in zip(*(evaluate([v for _, v in g.outputs], feeds) for g in (plain, graph)), strict=True):
            assert a.tobytes() == c.tobytes()
    assert [v.op for v in plain.values()].count("tanh") == 4
    assert [v.op for v in again.values()].count("tanh") == 8
    assert [v.op for v in simplify(again).values()].count("tanh") == 8


def test_a_body_is_computed_again_only_when_the_backward_pass_comes_to_it():
    """The last body first: else the copies of all bodies would be alive at once, and nothing saved."""
    b = Builder()
    x, *weights = (b.input(n, TensorType((4, 4), "f32")) for n in ("x", "w1", "w2", "w3"))
    v = x
    for b.region, bend in enumerate(("tanh", "sin", "cos"), 1):
        v = b("softmax", b(bend, b("matmul", v, weights[b.region - 1])), axis=1)
    b.region = 0
    loss = total(b, b("square", v))
    found = gradients(b, loss, weights)
    outputs = (("loss", loss), *((f"d{w.name}", g) for w, g in zip(weights, found, strict=True)))
    graph = simplify(Graph("train", (x, *weights), outputs))
    softmaxes = [v for v in graph.values() if v.op == "softmax"]
    assert [v.args[0].op for v in softmaxes] == ["tanh", "sin", "cos", "cos", "sin", "tanh"]


def test_the_backward_pass_of_a_checkpoint_reads_no_value_of_its_body():
    """All it may keep is what entered the body and what left it."""
    graph, _ = recomputing(True)
    forward = order([graph.outputs[0][1]])
    inside = {v for v in forward if v.region}
    left = {a for v in forward for a in v.args if v.region != a.region}
    backward = [v for v in graph.values() if v not in forward]
    assert all(v.region == 0 for v in backward)
    assert not {a for v in backward for a in v.args if a in inside} - left
