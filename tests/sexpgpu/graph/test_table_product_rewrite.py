"""Products of looked-up rows are made of the whole table where that is less work, and nowhere else.

Numbers are small integers, of which every sum is exact in f32 and bf16: so results are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import run
from sexpgpu.graph.simplify import simplify
from sexpgpu.graph.table_products import looked_up, rewritten
from sexpgpu.graph.verify import verify
from sexpgpu.ops.types import TensorType

ROWS, DEPTH, COLUMNS, READ = 5, 16, 3, 20
TYPES = {
    "table": TensorType((ROWS, DEPTH), "f32"),
    "w": TensorType((DEPTH, COLUMNS), "f32"),
    "turned": TensorType((COLUMNS, DEPTH), "f32"),
    "bias": TensorType((COLUMNS,), "f32"),
    "ids": TensorType((READ,), "i32"),
    "pairs": TensorType((READ // 2, 2), "i64"),
    "few": TensorType((ROWS + 1,), "i32"),
    "own": TensorType((READ, COLUMNS), "f32"),
    "thin": TensorType((ROWS, 3), "f32"),
    "short": TensorType((3, COLUMNS), "f32"),
    "many": TensorType((2, DEPTH, COLUMNS), "f32"),
}
Made = Callable[..., Sequence[Value]]  # (builder, the inputs by name) -> outputs


def graph_of(make: Made) -> Graph:
    b = Builder()
    xs = {name: b.input(name, type) for name, type in TYPES.items()}
    return Graph("g", tuple(xs.values()), tuple((f"y{n}", y) for n, y in enumerate(make(b, **xs))))


def products(graph: Graph) -> list[int]:
    """The rows of each product."""
    return sorted(v.type.size // v.type.shape[-1] for v in graph.values() if v.op == "matmul")


def arrays(seed: int = 0) -> list[np.ndarray]:
    """Ids leave the table at both ends, where they are clamped."""
    rng = np.random.default_rng(seed)
    span = {"i32": (-2, ROWS + 2), "i64": (-2, ROWS + 2), "f32": (-4, 5)}
    return [rng.integers(*span[t.dtype], t.shape).astype({"f32": "float32", "i32": "int32", "i64": "int64"}[t.dtype])
            for t in TYPES.values()]  # fmt: skip


def bfloat16(b: Builder, x: Value) -> Value:
    return b("cast", x, dtype="bf16")


def doubled(b: Builder, x: Value) -> Value:
    return b("*", x, b.const(2.0, "f32"))


def ids_from(b: Builder, ids: Value, n: int) -> Value:
    """Five of the ids, from ``n`` on: fewer than the table has rows."""
    return b("slice", ids, axis=0, start=n, stop=n + ROWS)


TABLES: dict[str, Made] = {
    "rows": lambda b, table, w, ids, **_: [b("matmul", b("gather", table, ids), w)],
    "rows in pairs": lambda b, table, w, pairs, **_: [b("matmul", b("gather", table, pairs), w)],
    "turned factor": lambda b, table, turned, ids, **_: [b("matmul", b("gather", table, ids), turned, tb=True)],
    "bias": lambda b, table, w, bias, ids, **_: [b("+", b("matmul", b("gather", table, ids), w), bias)],
    "bias in front": lambda b, table, w, bias, ids, **_: [b("-", bias, b("matmul", b("gather", table, ids), w))],
    "of itself": lambda b, table, w, ids, **_: [b("*", y := b("matmul", b("gather", table, ids), w), y)],
    "scaled before": lambda b, table, w, ids, **_: [b("matmul", doubled(b, b("gather", table, ids)), w)],
    "rounded before": lambda b, table, w, ids, **_: [b("matmul", bfloat16(b, b("gather", table, ids)), bfloat16(b, w))],
    "rounded table": lambda b, table, w, ids, **_: [b("matmul", b("gather", bfloat16(b, table), ids), bfloat16(b, w))],
    "own after": lambda b, table, w, ids, own, **_: [b("+", b("matmul", b("gather", table, ids), w), own)],
    "rows too": lambda b, table, w, ids, **_: [x := b("gather", table, ids), b("matmul", x, w)],
    "a few at a time": lambda b, table, w, ids, **_: [
        b("matmul", b("gather", table, ids_from(b, ids, n)), w) for n in range(0, READ, ROWS)
    ],
    "rounded each time": lambda b, table, w, ids, **_: [
        b("matmul", bfloat16(b, b("gather", table, ids_from(b, ids, n))), bfloat16(b, w)) for n in range(0, READ, ROWS)
    ],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_product_is_made_of_the_table(name: str) -> None:
    before = graph_of(TABLES[name])
    after = simplify(verify(looked_up(before), "looked up"))
    assert products(after) == [ROWS], "all rows that are read, of one product"
    for old, new in zip(run(before, arrays()), run(after, arrays()), strict=True):
        assert old.dtype == new.dtype and old.tobytes() == new.tobytes()


STAYS: dict[str, Made] = {
    "few rows": lambda b, table, w, few, **_: [b("matmul", b("gather", table, few), w)],
    "little depth": lambda b, thin, short, ids, **_: [b("matmul", b("gather", thin, ids), short)],
    "a table that is worked out": lambda b, table, w, ids, **_: [b("matmul", b("gather", b("exp", table), ids), w)],
    "a factor that is worked out": lambda b, table, w, ids, **_: [b("matmul", b("gather", table, ids), b("exp", w))],
    "the rows as columns": lambda b, table, own, ids, **_: [b("matmul", b("gather", table, ids), own, ta=True)],
    "the rows on the right": lambda b, table, w, ids, **_: [b("matmul", w, b("gather", table, ids), ta=True, tb=True)],
    "a batch of factors": lambda b, table, many, ids, **_: [b("matmul", b("gather", table, ids), many)],
    "a sum of the row": lambda b, table, w, ids, **_: [
        b("matmul", b("-", x := b("gather", table, ids), b("sum", x, axes=(1,), keepdims=True)), w)
    ],
    "rows of two lists": lambda b, table, w, ids, few, **_: [
        b("matmul", b("+", b("gather", table, ids_from(b, ids, 0)), b("gather", table, ids_from(b, few, 1))), w)
    ],
}


@pytest.mark.parametrize("name", STAYS)
def test_other_products_stay(name: str) -> None:
    before = graph_of(STAYS[name])
    assert [v for _, v in looked_up(before).outputs] == [v for _, v in before.outputs]


def test_what_a_checkpoint_body_makes_stays_in_it() -> None:
    def make(b: Builder, table: Value, w: Value, ids: Value, **_: Value) -> list[Value]:
        b.region = 1
        return [b("matmul", b("gather", table, ids), w)]

    before = graph_of(make)
    assert looked_up(before).outputs[0][1] is before.outputs[0][1]


def loss(b: Builder, table: Value, w: Value, bias: Value, ids: Value, own: Value, **_: Value) -> Value:
    parts = [slice(n, n + READ // 2) for n in (0, READ // 2)]
    total = b.const(0.0, "f32")
    for part in parts:
        span = {"axis": 0, "start": part.start, "stop": part.stop}
        y = b("+", b("matmul", b("gather", table, b("slice", ids, **span)), w), bias)
        total = b("+", total, b("sum", b("*", b("*", y, y), b("slice", own, **span)), axes=(0, 1)))
    return total


def test_the_gradient_of_what_was_rewritten_is_that_of_the_loss() -> None:
    """Every product of the backward pass too is of as many rows as the table has, or columns of it."""

    def make(is_rewritten: bool) -> Graph:
        b = Builder()
        xs = {name: b.input(name, type) for name, type in TYPES.items()}
        total = loss(b, **xs)
        total = rewritten([total])[0] if is_rewritten else total
        grads = gradients(b, total, [xs[n] for n in ("table", "w", "bias")])
        return simplify(Graph("g", tuple(xs.values()), tuple((f"y{n}", y) for n, y in enumerate((total, *grads)))))

    before, after = make(False), verify(make(True), "gradient")
    assert len(products(before)) == 6 and products(after) == [ROWS, ROWS, DEPTH]
    for old, new in zip(run(before, arrays(1)), run(after, arrays(1)), strict=True):
        assert old.tobytes() == new.tobytes()


def test_halves_stay_where_a_gradient_is_to_be_taken() -> None:
    before = graph_of(TABLES["rounded before"])
    (y,) = [v for _, v in before.outputs]
    assert rewritten([y], halves=False) == [y] != rewritten([y])
