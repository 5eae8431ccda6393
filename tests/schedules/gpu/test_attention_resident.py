"""Attention on a GPU: one launch whose scores stay in a block, with the bits of the CPU's."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx

from lowering.kernels.registry import KERNELS
from schedules.gpu.attention import shared_memory
from schedules.tir.rewrite import collect
from sexpgpu.ops.types import TensorType
from tests.schedules.cpu.test_attention_cpu import attend

from ..tensor_programs import V3, numbers, program, random_inputs, runs_here
from .cpu_and_cuda import same_bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# heads, queries, keys, width of a key, width of a value: rows and columns past the edges of tiles, folds of 1, 16 and
# 64 lanes, one query, keys of one number, whole fours and not
SIZES = [
    ((2, 4), 32, 32, 32, 32), ((9,), 7, 13, 5, 8), ((8,), 1, 40, 16, 16), ((3, 5), 35, 65, 8, 9), ((16,), 4, 9, 1, 8),
    ((2,), 5, 300, 20, 36),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_of_any_size(size: tuple[Any, ...]) -> None:
    func = attend(*size, causal=False)
    same_bits(func, *random_inputs(func, 3), rule="attention")


@pytest.mark.parametrize("rows", shared_memory.ROWS)
def test_any_number_of_rows_in_a_block(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the last block has fewer."""
    monkeypatch.setattr(shared_memory, "ROWS", (rows,))
    monkeypatch.setattr(shared_memory, "MIN_BLOCKS", 1)
    func = attend((2,), 37, 37, 12, 40, causal=True)
    same_bits(func, *random_inputs(func, 3), rule="attention")


@pytest.mark.parametrize("columns", shared_memory.COLUMNS)
def test_any_number_of_columns_side_by_side(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "COLUMNS", (columns,))
    monkeypatch.setattr(shared_memory, "MIN_BLOCKS", 1)
    func = attend((2,), 9, 270, 12, 20, causal=False)
    same_bits(func, *random_inputs(func, 3), rule="attention")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_and_a_mask(dtype: str) -> None:
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    shapes = [(3, 2, 6, 8), (3, 2, 20, 8), (3, 2, 20, 5)]
    made = partial(KERNELS["attend"], out=TensorType((3, 2, 6, 5), short), causal=False)
    func = program(made, *((shape, dtype) for shape in shapes), ((3, 1, 6, 20), "bool"))
    half = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    mask = np.random.default_rng(3).random((3, 1, 6, 20)) < 0.5
    mask[0, 0, 2] = False
    same_bits(func, *(numbers(*shape, seed=s).astype(half) for s, shape in enumerate(shapes)), mask, rule="attention")


def test_what_is_read_again_is_not_written_over() -> None:
    """Powers of the scores could take their place, but for the scores' being read once more."""

    def function(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> Any:
        d, i, j = (te.reduce_axis((0, n), name) for n, name in ((16, "d"), (24, "i"), (24, "j")))
        scores: Any = te.compute((3, 10, 24), lambda h, r, c: te.sum(q[h, r, d] * k[h, c, d], axis=d), "scores")
        power: Any = te.compute((3, 10, 24), lambda h, r, c: tirx.exp(scores[h, r, c]), "power")
        whole: Any = te.compute((3, 10), lambda h, r: te.sum(power[h, r, i], axis=i), "whole")
        both: Any = te.compute((3, 10, 24), lambda h, r, c: power[h, r, c] / whole[h, r] + scores[h, r, c], "both")
        return te.compute((3, 10, 12), lambda h, r, c: te.sum(both[h, r, j] * v[h, j, c], axis=j), "out")

    func = program(function, *((shape, "float32") for shape in ((3, 10, 16), (3, 24, 16), (3, 24, 12))))
    same_bits(func, *random_inputs(func, 3), rule="attention")


def test_no_score_is_written_to_memory() -> None:
    """GPT-2's heads: the launch's own memory is shared by a block, and what it stores elsewhere is the result. Before
    it, a launch says of each value whether it is finite."""
    func = scheduled(attend((12,), 1024, 1024, 64, 64, True), "attention")
    own = [a.buffer for a in collect(func.body, tirx.AllocBuffer)]
    (values,) = (b for b in own if b.scope() not in ("shared", "local"))
    assert int(np.prod([int(n) for n in values.shape])) == 12 * 1024
    outside = {s.buffer for s in collect(func.body, tirx.BufferStore)} - set(own)
    assert outside == {func.params[-1]}
    assert sum(int(np.prod([int(n) for n in b.shape])) * 4 for b in own if b.scope() == "shared") <= 48 << 10


def test_no_row_is_too_long() -> None:
    """Nor a head too narrow; a head that is too wide for a block is products and row nests."""
    scheduled(attend((2,), 64, 13000, 8, 8, False), "attention")
    scheduled(attend((2,), 64, 64, 13000, 8, False), "mixed")
