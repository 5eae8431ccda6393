"""What an operator makes of a record has the same bits whatever the batch it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_cases import compiled, scheduled

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.ops import OPS
from sexpgpu.ops.types import TensorType

pytestmark = pytest.mark.build

BATCHES = (1, 2, 7, 16)
GIVEN = {
    "row": (72,), "table": (9, 40), "wide": (600,), "one": (), "heads": (2, 9, 16), "q": (1, 9, 16), "seq": (9, 48),
}  # fmt: skip
NUMBERS = {"ids": (9,), "length": ()}
SHARED = {"w": (72, 24), "v": (600, 5), "tall": (24, 48), "words": (30, 24), "keys": (9, 16)}
Make = Callable[[Builder, dict[str, Value], int], Value]  # (builder, inputs, batch) -> [batch ...]


def last(op: str, of: str = "table", **attrs: Any) -> Make:
    return lambda b, x, n: b(op, x[of], **attrs)


def attention(heads: int, causal: bool = False, masked: bool = False, queries: int = 9) -> Make:
    """Of ``seq`` [batch 9 48] as q, k and v, as a model makes its heads."""

    def make(b: Builder, x: dict[str, Value], n: int) -> Value:
        cut = lambda at: b("slice", x["seq"], axis=2, start=16 * at, stop=16 * at + 16)  # noqa: E731
        split = lambda t: b("transpose", b("reshape", t, shape=(n, 9, heads, 16 // heads)), perm=(0, 2, 1, 3))  # noqa: E731
        q, k, v = (split(cut(at)) for at in range(3))
        q = b("slice", q, axis=2, start=9 - queries, stop=9)
        mask = b("<", b("iota", shape=(9,), axis=0, dtype="i32"), b("reshape", x["length"], shape=(n, 1, 1, 1)))
        return b("attention", q, k, v, *([mask] if masked else []), causal=causal)

    return make


def without_heads(b: Builder, x: dict[str, Value], n: int) -> Value:
    """Keys and values that all records share."""
    keys = b("reshape", x["keys"], shape=(1, 9, 16))
    return b("attention", b("reshape", x["q"], shape=(n, 9, 16)), keys, keys)


def few_heads(b: Builder, x: dict[str, Value], n: int) -> Value:
    """One head of keys and values for several of queries."""
    return b("attention", x["heads"], x["q"], x["q"])


PROGRAMS: dict[str, Make] = {
    "variance of a row": last("variance", axes=(2,)),
    "mean of everything": last("mean", axes=(1, 2)),
    "sum of a long row": last("sum", "wide", axes=(1,)),
    "softmax": last("softmax", axis=2),
    "log-softmax of columns": last("log-softmax", axis=1),
    "cumsum": last("cumsum", axis=1),
    "normalize": last("normalize", "row", axes=(1,)),
    "rms-normalize": last("rms-normalize", axes=(2,)),
    "argmax": lambda b, x, n: b("argmax", x["table"], axis=2, keepdims=False),
    "a number": last("tanh", "one"),
    "product of a row": lambda b, x, n: b("matmul", x["row"], x["w"]),
    "product, few columns": lambda b, x, n: b("matmul", x["wide"], x["v"]),
    "product of rows, transposed": lambda b, x, n: b("matmul", x["seq"], x["tall"], tb=True),
    "product of a record's own": lambda b, x, n: b("matmul", x["table"], x["table"], tb=True),
    "embedding": lambda b, x, n: b("gather", x["words"], x["ids"]),
    "cross-entropy": lambda b, x, n: b("cross-entropy", x["table"], x["ids"]),
    "attention, 1 head": attention(1),
    "attention, 2 heads": attention(2, causal=True, masked=True),
    "attention of the last query": attention(1, queries=1),
    "attention, shared keys": without_heads,
    "attention, few heads of keys": few_heads,
}


def gradient_of(make: Make, name: str) -> Make:
    """d (sum of the squares) / d input ``name``, a record's part of which is the record's own."""

    def made(b: Builder, x: dict[str, Value], n: int) -> Value:
        y = b("cast", make(b, x, n), dtype="f32")
        return gradients(b, b("sum", b("square", y)), [x[name]])[0]

    return made


GRADIENTS = {
    "normalize": "row", "product of a row": "row", "cross-entropy": "table", "attention, 1 head": "seq",
}  # fmt: skip


def programs() -> Iterator[tuple[str, Make]]:
    yield from PROGRAMS.items()
    yield from ((f"gradient of {name}", gradient_of(PROGRAMS[name], of)) for name, of in GRADIENTS.items())


def graph(dtype: str, batch: int) -> Graph:
    b = Builder()
    own = {name: b.input(name, TensorType((batch, *shape), dtype)) for name, shape in GIVEN.items()}
    own |= {name: b.input(name, TensorType((batch, *shape), "i32")) for name, shape in NUMBERS.items()}
    given = own | {name: b.input(name, TensorType(shape, dtype)) for name, shape in SHARED.items()}
    outputs = tuple((name, make(b, given, batch)) for name, make in programs())
    return Graph(f"{dtype}_{batch}", tuple(given.values()), outputs)


def feeds(dtype: str, batch: int) -> list[np.ndarray]:
    """The first ``batch`` records of the largest batch, and what all share."""
    rng, kind = np.random.default_rng(3), ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype("float32")
    whole = max(BATCHES)
    drawn = [rng.standard_normal((whole, *shape)).astype(kind)[:batch] for shape in GIVEN.values()]
    drawn += [rng.integers(1, 9, (whole, *shape)).astype("int32")[:batch] for shape in NUMBERS.values()]
    return [*drawn, *(rng.standard_normal(shape).astype(kind) for shape in SHARED.values())]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_record_has_the_same_bits_in_every_batch(dtype: str) -> None:
    tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
    graphs = [graph(dtype, batch) for batch in BATCHES]
    machine = compiled(graphs, scheduled)
    results = [
        [y.numpy() for y in machine[g.name](*map(tvm.runtime.tensor, feeds(dtype, n)))]
        for g, n in zip(graphs, BATCHES, strict=True)
    ]
    faults = []
    for at, (name, _) in enumerate(programs()):
        whole = results[-1][at]
        assert len(whole) == max(BATCHES) and len({x.tobytes() for x in whole}) > 1, name
        faults += [
            f"{name}: batch of {n}"
            for y, n in zip(results, BATCHES, strict=True)
            if y[at].tobytes() != whole[:n].tobytes()
        ]
    assert not faults, "\n".join(faults)


def test_the_operators_of_models_are_among_those_that_are_tried() -> None:
    """Each row that sums over a part of its argument, so that a schedule could take the batch into account."""
    made = {v.op for v in graph("f32", 2).values()}
    assert {"attend", "softmax", "log-softmax", "normalize", "rms-normalize", "matmul", "sum", "cumsum"} <= made
    assert made <= {"", *OPS}
