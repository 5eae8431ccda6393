"""What attention hides may be infinite or NaN: results and gradients are those without, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_cases import compiled, scheduled

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import evaluate, numpy_dtype
from sexpgpu.graph.simplify import simplify
from sexpgpu.ops.types import TensorType

NAN, INF = float("nan"), float("inf")
RNG = np.random.default_rng(5)
QUERIES, KEYS, DEEP = 6, 6, 8
Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def random_mask(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.6


# leading axes, the mask, is it causal: 4 heads and more are one kernel, fewer are its parts
FORMS: dict[str, tuple[tuple[int, ...], np.ndarray | None, bool]] = {
    "causal": ((2, 2), None, True),
    "keys of a record": ((2, 2), random_mask(2, 1, 1, KEYS), False),
    "keys": ((4,), random_mask(KEYS), False),
    "every pair": ((2, 2), random_mask(2, 1, QUERIES, KEYS), False),
    "causal, keys of a record": ((2, 2), random_mask(2, 1, 1, KEYS), True),
    "few heads, causal": ((2,), None, True),
    "few heads, keys of a record": ((2,), random_mask(2, 1, KEYS), False),
    "few heads, every pair": ((), random_mask(QUERIES, KEYS), False),
    "few heads, causal, every pair": ((1,), random_mask(1, QUERIES, KEYS), True),
    "keys that heads share": ((3,), random_mask(3, 1, KEYS), False),
}  # fmt: skip


def graph_and_inputs(form: str, dtype: str) -> tuple[Graph, np.ndarray, dict[str, np.ndarray]]:
    """The result and the gradients of q, k and v; which query sees which key; and the inputs."""
    lead, mask, causal = FORMS[form]
    b = Builder()
    of_keys = () if form == "keys that heads share" else lead
    shapes = {"q": (*lead, QUERIES, DEEP), "k": (*of_keys, KEYS, DEEP), "v": (*of_keys, KEYS, DEEP)}
    q, k, v = (b.input(n, TensorType(s, dtype)) for n, s in shapes.items())
    ins = [q, k, v] + ([] if mask is None else [b.input("mask", TensorType(mask.shape, "bool"))])
    y = b("attention", *ins, causal=causal)
    dy = b.input("dy", y.type)
    loss = b("sum", b("*", b("cast", y, dtype="f32"), b("cast", dy, dtype="f32")), axes=tuple(range(y.type.rank)))
    outputs = [y, *gradients(b, loss, [q, k, v])]
    graph = simplify(Graph("f", (*ins, dy), tuple((f"y{i}", x) for i, x in enumerate(outputs))))
    seen = np.ones((QUERIES, KEYS), bool) if mask is None else np.broadcast_to(mask, (*mask.shape[:-2], QUERIES, KEYS))
    feeds = {v.name: np.random.default_rng(i).standard_normal(v.type.shape).astype(numpy_dtype(v.type))
             for i, v in enumerate(graph.inputs) if v.name != "mask"}  # fmt: skip
    seen = np.broadcast_to(seen & np.tri(QUERIES, dtype=bool) if causal else seen, (*y.type.shape[:-1], KEYS))
    return graph, seen, feeds if mask is None else {**feeds, "mask": mask}


def check(graph: Graph, seen: np.ndarray, feeds: dict[str, np.ndarray], run: Run) -> None:
    for key in range(KEYS):
        hidden = ~seen[..., key]  # [.. q]
        dy = np.where(hidden[..., None], feeds["dy"], 0).astype(feeds["dy"].dtype)
        want = run({**feeds, "dy": dy})
        assert all(np.isfinite(x.astype("float32")).all() for x in want)
        for name, value in (("v", NAN), ("v", INF), ("k", NAN), ("k", -INF)):
            poisoned = feeds[name].copy()
            poisoned[(..., key, slice(None, None, 2))] = value
            y, *grads = run({**feeds, "dy": dy, name: poisoned})
            np.testing.assert_array_equal(y[hidden], want[0][hidden], err_msg=f"{name} {value} at key {key}")
            if name == "v" or value != value:  # a key that is infinite may have a score of -infinity, and weigh 0
                assert not np.isfinite(y[~hidden].astype("float32"))[..., ::2].any(), "what is seen shows"
            for of, g, w in zip("qkv", grads, want[1:], strict=True):
                np.testing.assert_array_equal(g, w, err_msg=f"gradient of {of}, {name} {value} at key {key}")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_hidden_does_not_count(form: str, dtype: str) -> None:
    graph, seen, feeds = graph_and_inputs(form, dtype)
    check(graph, seen, feeds, lambda given: evaluate([y for _, y in graph.outputs], given))


@pytest.mark.build
def test_nor_does_it_in_compiled_code() -> None:
    import attrs

    tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
    cases = [graph_and_inputs(form, "f32") for form in FORMS]
    cases += [graph_and_inputs(form, "bf16") for form in ("causal", "every pair")]
    vm = compiled([attrs.evolve(graph, name=f"f{i}") for i, (graph, _, _) in enumerate(cases)], scheduled)
    for i, (graph, seen, feeds) in enumerate(cases):

        def run(given: dict[str, np.ndarray], i: int = i, inputs: tuple[Value, ...] = graph.inputs) -> list[Any]:
            return [y.numpy() for y in vm[f"f{i}"](*(tvm.runtime.tensor(given[v.name]) for v in inputs))]

        check(graph, seen, feeds, run)
