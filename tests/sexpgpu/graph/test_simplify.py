"""The simplifier changes no bit and no input, finds what it promises, and has nothing left to do after once."""

import math
import random
from typing import Any

import numpy as np
import pytest

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import evaluate, run
from sexpgpu.graph.simplify import simplify
from sexpgpu.graph.verify import verify
from sexpgpu.language.source import Source, Span
from sexpgpu.ops.types import TensorType

F = TensorType((2, 3), "f32")


def graph_of(make, *types: TensorType) -> Graph:
    b = Builder()
    xs = tuple(b.input(f"x{i}", t) for i, t in enumerate(types))
    return Graph("g", xs, (("y", make(b, *xs)),))


def simplified(make, *types: TensorType) -> Graph:
    graph = graph_of(make, *types)
    out = verify(simplify(graph), "simplify")
    assert out.inputs is graph.inputs
    return out


def ops(graph: Graph) -> list[str]:
    return [v.op for v in graph.values() if v.op]


GONE = {
    "x * 1": lambda b, x: b("*", x, b.const(1.0, "f32")),
    "1 * x": lambda b, x: b("*", b.const(1.0, "f32"), x),
    "x / 1": lambda b, x: b("/", x, b.const(1.0, "f32")),
    "x - 0": lambda b, x: b("-", x, b.const(0.0, "f32")),
    "neg neg": lambda b, x: b("neg", b("neg", x)),
    "cast to its own dtype": lambda b, x: b("cast", x, dtype="f32"),
    "broadcast to its own shape": lambda b, x: b("broadcast", x, shape=(2, 3)),
    "reshape there and back": lambda b, x: b("reshape", b("reshape", x, shape=(6,)), shape=(2, 3)),
    "transpose twice": lambda b, x: b("transpose", b("transpose", x, perm=(1, 0)), perm=(1, 0)),
    "sum over no axes": lambda b, x: b("sum", x, axes=()),
    "where of equals": lambda b, x: b("where", b(">", x, b.const(0.0, "f32")), x, x),
    "where of true": lambda b, x: b("where", b.const(True, "bool"), x, b("neg", x)),
    "strong-zero of a number": lambda b, x: b("strong-zero", b.full(0.5, x.type), x),
    "strong-product of 1": lambda b, x: b("strong-product", b.full(1.0, x.type), x),
    "strong-product by 1": lambda b, x: b("strong-product", x, b.const(1.0, "f32")),
}

STAYS = {
    "x + 0": lambda b, x: b("+", x, b.const(0.0, "f32")),
    "x - -0": lambda b, x: b("-", x, b.const(-0.0, "f32")),
    "x * 0": lambda b, x: b("*", x, b.const(0.0, "f32")),
    "x - x": lambda b, x: b("-", x, x),
    "strong-zero of a tensor": lambda b, x: b("strong-zero", x, b("neg", x)),
    "strong-product of tensors": lambda b, x: b("strong-product", x, b("neg", x)),
    "strong-product by 0": lambda b, x: b("strong-product", x, b.const(0.0, "f32")),
    "1 / x": lambda b, x: b("/", b.const(1.0, "f32"), x),
    "0 - x": lambda b, x: b("-", b.const(0.0, "f32"), x),
    "a number that broadcasts x": lambda b, x: b("*", x, b.full(1.0, TensorType((2, 2, 3), "f32"))),
    "stop-gradient": lambda b, x: b("stop-gradient", x),
    "barrier": lambda b, x: b("barrier", x, x),
}


@pytest.mark.parametrize("name", GONE)
def test_identities_that_hold_for_every_float(name):
    out = simplified(GONE[name], F)
    assert out.outputs[0][1] is out.inputs[0]


@pytest.mark.parametrize("name", STAYS)
def test_what_looks_like_an_identity_but_is_not(name):
    out = simplified(STAYS[name], F)
    assert out.outputs[0][1].op == graph_of(STAYS[name], F).outputs[0][1].op


def test_equal_values_become_one_but_equal_looking_numbers_do_not():
    out = simplified(lambda b, x: b("+", b("tanh", x), b("tanh", x)), F)
    assert ops(out) == ["tanh", "+"]
    zeros = simplified(lambda b, x: b("*", b("*", x, b.const(0.0, "f32")), b.const(-0.0, "f32")), F)
    assert ops(zeros).count("full") == 2


def test_a_value_keeps_the_span_of_its_first_writing():
    b = Builder()
    x = b.input("x", F)
    spans = [Span(Source("run.sx", "(tanh x) (tanh x)"), i, i + 8) for i in (0, 9)]
    made = []
    for b.span in spans:
        made.append(b("tanh", x))
    (same, again) = (v for _, v in simplify(Graph("g", (x,), (("a", made[0]), ("b", made[1])))).outputs)
    assert same is again and same.span == spans[0]


def test_constants_are_folded_as_f32_computes_them():
    def make(b: Builder) -> Value:
        tenth, fifth, seven, three = (b.const(x, "f32") for x in (0.1, 0.2, 7.0, 3.0))
        return b("/", b("-", b("+", tenth, fifth), seven), three)

    out = simplified(make)
    assert ops(out) == ["full"]
    f = np.float32
    assert f(out.outputs[0][1].attrs["value"]).tobytes() == ((f(0.1) + f(0.2) - f(7)) / f(3)).tobytes()


@pytest.mark.parametrize("make", [
    lambda b: b("/", b.const(1.0, "f32"), b.const(0.0, "f32")),
    lambda b: b("*", b.const(3e38, "f32"), b.const(3e38, "f32")),
    lambda b: b("+", b.const(2**31 - 1, "i32"), b.const(1, "i32")),
    lambda b: b("+", b.const(0.1, "bf16"), b.const(0.2, "bf16")),
    lambda b: b("exp", b.const(1.0, "f32")),
])  # fmt: skip
def test_constants_that_are_left_to_the_target(make):
    assert ops(simplified(make))[-1] == ops(graph_of(make))[-1] != "full"


def test_transposed_matrices_are_read_as_they_lie():
    def make(b: Builder, x: Value, y: Value) -> Value:
        return b("matmul", b("transpose", x, perm=(0, 2, 1)), b("transpose", y, perm=(0, 2, 1)))

    types = TensorType((2, 4, 3), "f32"), TensorType((2, 5, 4), "f32")
    out = simplified(make, *types)
    assert ops(out) == ["matmul"] and out.outputs[0][1].attrs == {"ta": True, "tb": True}
    heads = simplified(lambda b, x, y: b("matmul", x, b("transpose", y, perm=(1, 0, 2))), TensorType((4, 2, 3), "f32"),
                       TensorType((3, 4, 5), "f32"))
    assert ops(heads) == ["transpose", "matmul"]


def test_parts_of_parts_are_joined_at_once():
    x = np.arange(6.0, dtype="float32").reshape(2, 3)

    def make(b, x):
        pair = b("concat", x, b("neg", x), axis=0)
        return b("concat", pair, x, pair, axis=0)

    out = simplified(make, F)
    assert ops(out) == ["neg", "concat"]
    np.testing.assert_array_equal(run(out, [x])[0], np.concatenate([x, -x, x, x, -x]))
    across = simplified(lambda b, x: b("concat", b("concat", x, x, axis=1), b("concat", x, x, axis=1), axis=0), F)
    assert ops(across) == ["concat", "concat"]


def test_transposes_in_a_row_become_one():
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    make = lambda b, x: b("transpose", b("transpose", x, perm=(1, 2, 0)), perm=(0, 2, 1))  # noqa: E731
    out = simplified(make, TensorType((2, 3, 4), "f32"))
    assert ops(out) == ["transpose"]
    np.testing.assert_array_equal(run(out, [x])[0], x.transpose(1, 2, 0).transpose(0, 2, 1))


def test_constants_change_shape_freely():
    def make(b: Builder) -> Value:
        return b("transpose", b("broadcast", b("reshape", b.const(2.0, "f32"), shape=(1,)), shape=(4, 3)))

    out = simplified(make)
    assert ops(out) == ["full"] and out.outputs[0][1].type == TensorType((3, 4), "f32")


SQUARE = TensorType((3, 3), "f32")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.1, 1e30, math.inf)
UNARY = {"neg": {}, "tanh": {}, "square": {}, "transpose": {"perm": (1, 0)}, "stop-gradient": {},
         "cast": {"dtype": "f32"}}


def random_graph(seed: int) -> Graph:
    """60 values over 3x3 matrices, with constants and repetitions."""
    pick, b = random.Random(seed), Builder()
    xs = tuple(b.input(f"x{i}", SQUARE) for i in range(2))
    pool: list[Value] = list(xs)
    for _ in range(60):
        kind = pick.randrange(8)
        x, y = pick.choice(pool), pick.choice(pool)
        if kind < 2:
            op = pick.choice(list(UNARY))
            pool.append(b(op, x, **UNARY[op]))
        elif kind == 2:
            pool.append(b.full(pick.choice(NUMBERS), SQUARE))
        elif kind == 3:
            pool.append(b("matmul", x, y, ta=pick.random() < 0.5, tb=pick.random() < 0.5))
        elif kind == 4 and pick.random() < 0.3:
            pool.append(b("barrier", x, y))
        elif kind == 4:
            pool.append(b("where", b("<", x, y), x, pick.choice(pool)))
        elif kind == 5:
            flat = b("reshape", x, shape=pick.choice(((9,), (3, 3), (1, 9))))
            pool.append(b("reshape", b("broadcast", flat, shape=flat.type.shape), shape=(3, 3)))
        else:
            y = b.const(pick.choice(NUMBERS), "f32") if kind == 6 else y
            pool.append(b(pick.choice("+-*/"), x, y))
    return Graph("random", xs, tuple((f"y{i}", v) for i, v in enumerate(pool[-12:])))


@pytest.mark.parametrize("seed", range(40))
def test_a_random_graph_keeps_every_bit(seed):
    graph = random_graph(seed)
    small = verify(simplify(graph), "simplify")
    assert len(small.values()) <= len(graph.values())
    rng = np.random.default_rng(seed)
    xs = [rng.choice(np.array([0.0, -0.0, 1.5, -2.25, 1e-40, np.inf, np.nan], "float32"), (3, 3)) for _ in range(2)]
    for before, after in zip(run(graph, xs), run(small, xs), strict=True):
        number = ~np.isnan(before)
        np.testing.assert_array_equal(np.isnan(before), np.isnan(after))  # which NaN it is, IEEE leaves open
        assert before[number].tobytes() == after[number].tobytes()


def shape_of(graph: Graph) -> list[Any]:
    """The graph as data: two graphs of one shape are the same but for the identity of their values."""
    number = {v: i for i, v in enumerate(graph.values())}
    made = [(v.op, [number[a] for a in v.args], repr(v.attrs), v.type, v.span, v.region) for v in number]
    return [*made, [(name, number[v]) for name, v in graph.outputs]]


@pytest.mark.parametrize("seed", range(40))
def test_simplifying_twice_is_simplifying_once(seed):
    once = simplify(random_graph(seed))
    assert shape_of(simplify(once)) == shape_of(once)


SLICES = {
    "of all": (lambda b, x, y: b("slice", x, axis=0, start=0, stop=6), ""),
    "of a part of it": (
        lambda b, x, y: b("slice", b("slice", x, axis=0, start=1, stop=5), axis=0, start=2, stop=3),
        "slice",
    ),
    "of a part": (lambda b, x, y: b("slice", b("concat", x, y, axis=0), axis=0, start=6, stop=12), ""),
    "in a part": (lambda b, x, y: b("slice", b("concat", x, y, axis=0), axis=0, start=7, stop=9), "slice"),
    "of two parts": (lambda b, x, y: b("slice", b("concat", x, y, x, axis=0), axis=0, start=0, stop=12), "concat"),
    "across parts": (lambda b, x, y: b("slice", b("concat", x, y, axis=0), axis=0, start=5, stop=8), "slice"),
    "neighbours joined": (
        lambda b, x, y: b("concat", *(b("slice", x, axis=0, start=n, stop=n + 2) for n in (0, 2, 4)), axis=0),
        "",
    ),
    "neighbours of one and another": (
        lambda b, x, y: b(
            "concat", *(b("slice", v, axis=0, start=n, stop=n + 1) for v in (x, y) for n in (1, 2)), axis=0
        ),
        "concat",
    ),
    "no padding": (lambda b, x, y: b("pad", x, widths=((0, 0), (0, 0)), value=1), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_slices_and_what_they_are_taken_of(name: str) -> None:
    make, op = SLICES[name]
    b = Builder()
    x, y = (b.input(n, TensorType((6, 2), "f32")) for n in "xy")
    before = make(b, x, y)
    after = simplify(Graph("main", (x, y), (("v", before),)))
    ((_, v),) = after.outputs
    assert v.op == op and sum(bool(u.op) for u in after.values()) <= 3
    feeds = {n: np.arange(12, dtype="float32").reshape(6, 2) + k for k, n in enumerate("xy")}
    np.testing.assert_array_equal(evaluate((v,), feeds)[0], evaluate((before,), feeds)[0])
    assert simplify(after).outputs[0][1].op == op
