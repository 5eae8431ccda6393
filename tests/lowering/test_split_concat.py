"""Hundreds of parts: few kernels, and the numbers of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lowering import pipeline
from lowering.emit import emit
from lowering.kernels.split_concat import MAX_PARTS, MAX_SEPARATE_SLICES, cuts
from lowering.scalar_operands import as_data
from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.graph.simplify import simplify
from sexpgpu.ops.types import TensorType
from tests.sexpgpu.ops.row_cases import compiled, scheduled

COUNT = 300
Made = Callable[[Builder, Value, int], Value]  # (builder, x [count 4], count) -> a value


def split(b: Builder, x: Value, count: int) -> Sequence[Value]:
    return b("split", x, parts=(count,))  # type: ignore[return-value]


def summed(b: Builder, x: Value, count: int) -> Value:
    total = b.full(0.0, TensorType((1, 4), "f32"))
    for n, part in enumerate(split(b, x, count)):
        total = b("+", total, b("sin", b("*", part, b.const(n + 0.5, "f32"))))
    return total


def one_by_one(b: Builder, x: Value, count: int) -> Value:
    """Joined to what there is so far."""
    parts = [b("sin", part) for part in split(b, x, count)]
    made = parts[0]
    for part in parts[1:]:
        made = b("concat", made, part)
    return made


CASES: dict[str, Made] = {
    "split and concat": lambda b, x, count: b("concat", *(b("sin", part) for part in split(b, x, count))),
    "concat of the same": lambda b, x, count: b("concat", *[x] * count, axis=1),
    "concat one by one": one_by_one,
    "stack": lambda b, x, count: b("stack", *(b("tanh", part) for part in split(b, x, count)), axis=1),
    "sum of terms": summed,
    "uneven parts": lambda b, x, count: b(
        "concat", *(b("sin", b("slice", x, start=n, stop=min(count, n + 1 + n % 3))) for n in range(count))
    ),
}


def graph(made: Made, count: int) -> Graph:
    """The value and the gradient of the sum of its squares."""
    b = Builder()
    x = b.input("x", TensorType((count, 4), "f32"))
    y = made(b, x, count)
    loss = b("sum", b("square", y), axes=tuple(range(y.type.rank)))
    (dx,) = gradients(b, loss, [x])
    return simplify(Graph("main", (x,), (("y", y), ("dx", dx))))


@pytest.mark.parametrize("name", CASES)
def test_few_kernels_make_hundreds_of_parts(name: str) -> None:
    lowered = pipeline.lower(emit([graph(CASES[name], COUNT)]), {})
    assert len(lowered.programs) <= 60  # 54 of 700 uneven parts


@pytest.mark.parametrize("name", ["split and concat", "sum of terms"])
def test_the_numbers_are_those_of_the_graph(name: str) -> None:
    """Of more parts than a program has, the last program with fewer of them."""
    made = graph(CASES[name], MAX_PARTS + 9)
    x = np.random.default_rng(2).standard_normal((MAX_PARTS + 9, 4)).astype("float32")
    results = compiled([made], scheduled)["main"](*map(tensor, [x]))
    for got, want in zip(results, evaluate(tuple(v for _, v in made.outputs), {"x": x}), strict=True):
        # Sums of 73 terms of size 1, in f32, and sin of a library that is off by 1.5 units.
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)


def tensor(x: np.ndarray):
    import tvm

    return tvm.runtime.tensor(x)


def test_a_few_slices_stay_with_what_is_made_of_them() -> None:
    b = Builder()
    x = b.input("x", TensorType((MAX_SEPARATE_SLICES, 4), "f32"))
    few = Graph("main", (x,), tuple((f"y{n}", b("sin", p)) for n, p in enumerate(split(b, x, MAX_SEPARATE_SLICES))))
    assert not cuts(few)


def test_equal_slices_share_a_program() -> None:
    """Whatever their place is: what is cut beforehand differs, and is a plain copy."""
    lowered = pipeline.lower(emit([graph(CASES["split and concat"], 4 * MAX_PARTS)]), {})
    assert len([name for name in lowered.programs if name.startswith("parts")]) == 1


def test_numbers_that_shape_a_program_stay_in_it() -> None:
    """Those of a power, say; and a few are no data at all."""
    b = Builder()
    x = b.input("x", TensorType((4,), "f32"))
    powers = [b("pow", x, b.const(n + 0.5, "f32")) for n in range(100)]
    terms = [b("*", x, b.const(n + 0.5, "f32")) for n in range(100)]
    named = lambda values: tuple((f"y{n}", v) for n, v in enumerate(values))  # noqa: E731
    assert not as_data(Graph("main", (x,), named(powers)))
    assert len(as_data(Graph("main", (x,), named(terms)))) == 100
    assert not as_data(Graph("main", (x,), named(terms[:20])))
