"""Attention whose rows do not lie in a block: its columns come some at a time, and every bit is the CPU's."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx

from lowering.kernels.registry import KERNELS
from schedules.gpu.attention import resident, shared_memory
from sexpgpu.ops.types import TensorType
from tests.schedules.cpu.test_attention_cpu import attend, attend_grad

from ..tensor_programs import V3, numbers, program, random_inputs, runs_here
from .cpu_and_cuda import same_bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# heads, queries, keys, width of a key, width of a value: columns of one piece, of whole pieces and of a part more;
# folds of 1, 16 and 64 lanes; values of more than one strip's width; a batch of one
SIZES = [
    ((2,), 37, 9, 12, 40), ((2,), 8, 128, 16, 32), ((1, 2), 9, 150, 16, 72),
]  # fmt: skip


@pytest.fixture(autouse=True)
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row may lie in a block; and a block has as many as fit."""
    monkeypatch.setattr(resident, "plan_memory", lambda *_: None)
    monkeypatch.setattr(shared_memory, "MIN_BLOCKS", 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_of_any_size(size: tuple[Any, ...]) -> None:
    func = attend(*size, causal=False)
    same_bits(func, *random_inputs(func, 3), rule="attention")


def test_gradients() -> None:
    func = attend_grad((1, 2), 37, 70, 20, 36, causal=False)
    same_bits(func, *random_inputs(func, 4), rule="attention")


def test_causal_with_few_rows_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "ROWS", (2,))
    func = attend_grad((2,), 23, 23, 12, 40, causal=True)
    same_bits(func, *random_inputs(func, 4), rule="attention")


@pytest.mark.parametrize(("dtype", "gradient"), [("bfloat16", True), ("float16", False)])
def test_half_precision_and_a_mask(dtype: str, gradient: bool) -> None:
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    q, k, v, y = (3, 1, 16, 8), (3, 1, 80, 8), (3, 1, 80, 9), (3, 1, 16, 9)
    shapes = [y, q, k, v] if gradient else [q, k, v]
    name, told = ("attend-grad", {}) if gradient else ("attend", {"out": TensorType(y, short)})
    func = program(
        partial(KERNELS[name], causal=False, **told), *((s, dtype) for s in shapes), ((3, 1, 16, 80), "bool")
    )
    half = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    mask = np.random.default_rng(3).random((3, 1, 16, 80)) < 0.5
    mask[0, 0, 2] = False
    same_bits(func, *(numbers(*shape, seed=s).astype(half) for s, shape in enumerate(shapes)), mask, rule="attention")


def test_a_score_that_another_column_needs_is_not_streamed() -> None:
    def function(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> Any:
        d, i, j = (te.reduce_axis((0, n), name) for n, name in ((16, "d"), (96, "i"), (96, "j")))
        scores: Any = te.compute((3, 10, 96), lambda h, r, c: te.sum(q[h, r, d] * k[h, c, d], axis=d), "scores")
        power: Any = te.compute((3, 10, 96), lambda h, r, c: tirx.exp(scores[h, r, 95 - c]), "power")
        whole: Any = te.compute((3, 10), lambda h, r: te.sum(power[h, r, i], axis=i), "whole")
        part: Any = te.compute((3, 10, 96), lambda h, r, c: power[h, r, c] / whole[h, r], "part")
        return te.compute((3, 10, 12), lambda h, r, c: te.sum(part[h, r, j] * v[h, j, c], axis=j), "out")

    func = program(function, *((shape, "float32") for shape in ((3, 10, 16), (3, 96, 16), (3, 96, 12))))
    same_bits(func, *random_inputs(func, 3), rule="mixed")


def test_a_block_has_no_more_memory_than_there_is() -> None:
    """Wide heads have fewer rows in a block; very wide ones are products and row nests."""
    from schedules.gpu.audit.launch_audit import audit

    for width, rows in ((64, 32), (128, 32), (256, 16)):
        *_, one = audit(
            scheduled(attend((4,), 4096, 4096, width, width, True), "attention")
        )  # before it, a row of values each
        assert one.shared <= shared_memory.MAX_SHARED_BYTES and one.blocks == 4 * 4096 // rows
    assert scheduled(attend((4,), 64, 64, 13000, 8, True), "mixed") is not None
