"""Attention as one loop over heads: right for any size, the same bits for any threads, and without a score matrix."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import tirx

import schedules
from lowering.kernels.registry import KERNELS
from lowering.math import elementary
from schedules.tir.rewrite import collect
from sexpgpu.ops.backward import attend_grads
from sexpgpu.ops.types import TensorType
from tests.schedules.tensor_programs import V3, assert_close, build, numbers, program, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# heads, queries, keys, width of a key, width of a value
SIZES = [
    ((2, 4), 32, 32, 32, 32), ((9,), 7, 13, 5, 3), ((8,), 1, 40, 16, 16), ((3, 5), 65, 65, 8, 9), ((16,), 4, 9, 1, 1),
]  # fmt: skip


def attend(heads: tuple[int, ...], q: int, k: int, d: int, e: int, causal: bool) -> Any:
    shapes = [(*heads, q, d), (*heads, k, d), (*heads, k, e)]
    made = partial(KERNELS["attend"], out=TensorType((*heads, q, e), "f32"), causal=causal)
    return program(made, *((shape, "float32") for shape in shapes))


def attend_grad(heads: tuple[int, ...], q: int, k: int, d: int, e: int, causal: bool) -> Any:
    shapes = [(*heads, q, e), (*heads, q, d), (*heads, k, d), (*heads, k, e)]
    return program(partial(KERNELS["attend-grad"], causal=causal), *((shape, "float32") for shape in shapes))


def want(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    q, k, v = (x.astype("float64") for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf) if causal else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_of_any_size(size: tuple[Any, ...]) -> None:
    heads, q, k, _, _ = size
    causal = q == k
    built = build(attend(*size, causal))
    given = [numbers(*shape, seed=s) for s, (shape, _) in enumerate(built.params[:3])]
    assert_close(on_any_threads(built, given)[0], want(*given, causal), k)


def on_any_threads(built: Any, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What it makes of ``given``, which must be the same bits with one thread and with several."""
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(built.run(*given))
    threads(1)
    assert len({tuple(r.tobytes() for r in made) for made in results}) == 1
    return results[0]


@pytest.mark.parametrize("size", [*SIZES, ((2, 2), 150, 150, 16, 24)], ids=str)
def test_gradients_of_any_size(size: tuple[Any, ...]) -> None:
    """The last has heads too large for a cache, and is several nests."""
    heads, q, k, _, _ = size
    built = build(attend_grad(*size, q == k))
    assert built.rule == ("attention" if q * k < 10_000 else "matmul")
    given = [numbers(*shape, seed=s) for s, (shape, _) in enumerate(built.params[:4])]
    wide = [x.astype("float64") for x in given]
    for got, exact in zip(on_any_threads(built, given), attend_grads(np, *wide, causal=q == k), strict=True):
        assert_close(got, exact, max(q, k))


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "cpu-x86-64-v4"])
def test_what_is_kept_of_the_scores_is_one_head(target: str) -> None:
    aimed = attrs.evolve(schedules.TARGETS[target], functions=elementary.STEPS)
    done = schedules.first(attend((16, 4), 32, 32, 32, 32, True), aimed)
    assert done.rule == "attention"
    sizes = [int(np.prod([int(n) for n in a.buffer.shape])) for a in collect(done.func.body, tirx.AllocBuffer)]
    assert max(sizes) == 32 * 32


def test_nests_use_the_memory_of_what_is_done_with() -> None:
    """Of heads too large for a cache: scores, then gradients of weights; weights; gradients of scores; and a turned
    copy of these, then of weights. Each alone would be six."""
    aimed = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)
    done = schedules.first(attend_grad((2, 8), 512, 512, 64, 64, True), aimed)
    assert done.func is not None
    sizes = [int(np.prod([int(n) for n in a.buffer.shape])) for a in collect(done.func.body, tirx.AllocBuffer)]
    assert sum(size >= 16 * 512 * 512 for size in sizes) == 4
