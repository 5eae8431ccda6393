"""Gradients of many parts of one tensor: as many elements are written for T parts as T times those of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.graph.simplify import simplify
from sexpgpu.graph.slice_cotangents import together
from sexpgpu.graph.verify import verify
from sexpgpu.ops.types import TensorType

WIDTH = 3
Parts = Callable[[Builder, Value, int], list[Value]]  # (builder, x [T WIDTH], T) -> parts of x


def cut(b: Builder, x: Value, t: int, axis: int = 0, size: int = 1) -> Value:
    return b("slice", x, axis=axis, start=t, stop=t + size)


def index(b: Builder, t: int, shape: tuple[int, ...] = ()) -> Value:
    return b("full", shape=shape, value=t, dtype="i32")


def tables(b: Builder, x: Value, count: int) -> list[Value]:
    return [b("gather", x, index(b, t)) for t in range(count)]


def elements(b: Builder, x: Value, count: int) -> list[Value]:
    turned = b("transpose", x, perm=(1, 0))
    return [b("take-along", turned, index(b, t, (1, 1)), axis=1) for t in range(count)]


def rounded(b: Builder, x: Value, count: int) -> list[Value]:
    """As model code of bf16 has its parameters: each use rounds anew."""
    return [b("cast", cut(b, b("cast", x, dtype="bf16"), t), dtype="f32") for t in range(count)]


CASES: dict[str, Parts] = {
    "slices": lambda b, x, count: [cut(b, x, t) for t in range(count)],
    "every other one": lambda b, x, count: [cut(b, x, t) for t in range(0, count, 2)],
    "twice": lambda b, x, count: [cut(b, x, t) for t in (*range(count), *reversed(range(count)))],
    "windows": lambda b, x, count: [cut(b, x, t, size=2) for t in range(count - 1)],
    "split": lambda b, x, count: list(b("split", x, parts=(count,))),
    "slices of slices": lambda b, x, count: [cut(b, cut(b, x, t), n, 1) for t in range(count) for n in range(WIDTH)],
    "reshaped each time": lambda b, x, count: [
        cut(b, b("reshape", x, shape=(count, 1, WIDTH)), t) for t in range(count)
    ],
    "transposed each time": lambda b, x, count: [
        cut(b, b("transpose", x, perm=(1, 0)), t, 1) for t in range(count)
    ],
    "repeated each time": lambda b, x, count: [
        cut(b, b("broadcast", x, shape=(2, count, WIDTH)), t, 1) for t in range(count)
    ],
    "rounded each time": rounded,
    "rows by number": tables,
    "elements by number": elements,
}  # fmt: skip


def gradient(parts: Parts, count: int) -> tuple[Graph, Value]:
    """d/dx of a recurrence over the parts of x [count WIDTH], and x."""
    b = Builder()
    x = b.input("x", TensorType((count, WIDTH), "f32"))
    loss = b.const(0.0, "f32")
    for n, part in enumerate(parts(b, x, count)):
        loss = b("+", b("tanh", loss), b("sum", b("*", b("sin", part), b.const(1.0 + n % 7, "f32"))))
    (dx,) = gradients(b, loss, [x])
    return verify(simplify(Graph("main", (x,), (("dx", dx),))), "simplify"), loss


def written(graph: Graph) -> int:
    """Elements that all values of the graph have, but for constants and views."""
    return sum(v.type.size for v in graph.values() if v.op not in ("", "full", "reshape", "transpose", "broadcast"))


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_grows_with_the_parts(name: str) -> None:
    few, many = (written(gradient(CASES[name], count)[0]) for count in (24, 96))
    assert many <= 4.2 * few


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_differences(name: str) -> None:
    count, eps = 4, 1e-6
    graph, loss = gradient(CASES[name], count)
    start = np.random.default_rng(1).standard_normal((count, WIDTH)).astype("float32")
    want = np.zeros_like(start, "float64")
    for at in np.ndindex(*start.shape):
        ends = []
        for sign in (1, -1):
            x = start.astype("float64")
            x[at] += sign * eps
            ends.append(float(evaluate((loss,), {"x": x}, wide=True)[0]))
        want[at] = (ends[0] - ends[1]) / (2 * eps)
    (got,) = evaluate(tuple(v for _, v in graph.outputs), {"x": start}, wide=True)
    # Central differences in float64 with this step are off by about 1e-9; the wide interpreter rounds nothing.
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def box_of(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    starts = [int(rng.integers(0, n)) for n in shape]
    return tuple((a, int(rng.integers(a + 1, n + 1))) for a, n in zip(starts, shape, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_random_boxes_are_added_where_they_overlap(seed: int) -> None:
    """Of whole numbers, so that no order of additions shows."""
    rng, b = np.random.default_rng(seed), Builder()
    shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(1, 4)))
    want, feeds, parts = np.zeros(shape, "float32"), {}, []
    for n in range(int(rng.integers(2, 9))):
        box = box_of(rng, shape)
        size = tuple(z - a for a, z in box)
        feeds[f"p{n}"] = rng.integers(-9, 9, size).astype("float32")
        want[tuple(slice(a, z) for a, z in box)] += feeds[f"p{n}"]
        part = b.input(f"p{n}", TensorType(size, "f32"))
        widths = tuple((a, m - z) for (a, z), m in zip(box, shape, strict=True))
        parts.append(b("pad", part, widths=widths, value=0))
    (got,) = evaluate((together(b, parts),), feeds)
    np.testing.assert_array_equal(got, want)


def test_slices_that_tile_a_tensor_are_joined_and_nothing_is_added() -> None:
    graph, _ = gradient(CASES["slices"], 5)
    (dx,) = [v for _, v in graph.outputs]
    assert dx.op == "concat" and len(dx.args) == 5


def test_large_updates_are_not_copied_to_be_scattered_at_once() -> None:
    """Of a table of 2 rows, looked up twice by 100 numbers: two scatters and a sum write less."""
    b = Builder()
    updates = [b.input(f"u{n}", TensorType((100, 3), "f32")) for n in range(2)]
    ids = b.input("ids", TensorType((100,), "i32"))
    assert together(b, [b("scatter-rows", u, ids, n=2) for u in updates]).op == "+"
    assert together(b, [b("scatter-rows", u, ids, n=200) for u in updates]).op == "scatter-rows"


def test_lists_of_numbers_of_different_dtypes_are_one() -> None:
    b = Builder()
    feeds: dict[str, Any] = {}
    parts, want = [], np.zeros((50, 2), "float32")
    for n, dtype in enumerate(("u8", "i64", "i32")):
        ids = np.array([n, 3], {"u8": "uint8", "i64": "int64", "i32": "int32"}[dtype])
        feeds |= {f"u{n}": np.full((2, 2), n + 1, "float32"), f"i{n}": ids}
        np.add.at(want, ids, feeds[f"u{n}"])
        value = b.input(f"u{n}", TensorType((2, 2), "f32")), b.input(f"i{n}", TensorType((2,), dtype))
        parts.append(b("scatter-rows", *value, n=50))
    made = together(b, parts)
    assert made.op == "scatter-rows"
    np.testing.assert_array_equal(evaluate((made,), feeds)[0], want)
