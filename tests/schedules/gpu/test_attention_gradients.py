"""The gradients of attention on a GPU: two launches with the bits of the CPU's, and no matrix of scores in memory."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import tirx

import schedules
from lowering import emit, pipeline
from lowering.codegen import objects
from lowering.kernels.registry import KERNELS
from schedules.gpu.attention import shared_memory
from schedules.tir.builder import shape_of
from schedules.tir.rewrite import collect
from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph
from sexpgpu.ops.types import TensorType
from tests.schedules.cpu.test_attention_cpu import attend_grad

from ..tensor_programs import V3, numbers, program, random_inputs, runs_here
from .cpu_and_cuda import GPU, same_bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# heads, queries, keys, width of a key, width of a value: rows and columns past the edges of tiles, more queries than
# keys and fewer, folds of 1, 16 and 64 lanes, whole fours and not
SIZES = [((9,), 9, 13, 8, 12), ((1, 2), 35, 65, 8, 9), ((2,), 40, 20, 20, 36), ((2,), 9, 300, 16, 8)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients_of_any_size(size: tuple[Any, ...]) -> None:
    func = attend_grad(*size, causal=False)
    same_bits(func, *random_inputs(func, 4), rule="attention")


def test_causal_with_few_rows_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the last block has fewer."""
    monkeypatch.setattr(shared_memory, "ROWS", (4,))
    monkeypatch.setattr(shared_memory, "MIN_BLOCKS", 1)
    func = attend_grad((2,), 23, 23, 12, 40, causal=True)
    same_bits(func, *random_inputs(func, 4), rule="attention")


def test_half_precision_and_a_mask() -> None:
    shapes = [(3, 2, 16, 9), (3, 2, 16, 8), (3, 2, 20, 8), (3, 2, 20, 9)]
    made = partial(KERNELS["attend-grad"], causal=False)
    func = program(made, *((shape, "bfloat16") for shape in shapes), ((3, 1, 16, 20), "bool"))
    mask = np.random.default_rng(3).random((3, 1, 16, 20)) < 0.5
    mask[0, 0, 2] = False
    half = [numbers(*shape, seed=s).astype(ml_dtypes.bfloat16) for s, shape in enumerate(shapes)]
    same_bits(func, *half, mask, rule="attention")


def training(length: int, dtype: str = "f32") -> dict[str, Any]:
    """The programs of attention, causal, and its gradients, by name."""
    b, shape = Builder(), (2, 4, length, 16)
    q, k, v, w = (b.input(name, TensorType(shape, dtype)) for name in "qkvw")
    y = b("attention", q, k, v, causal=True)
    loss = b("sum", b("cast", b("*", y, w), dtype="f32"), axes=(0, 1, 2, 3), keepdims=False)
    found = gradients(b, loss, [q, k, v])
    graph = Graph("train", (q, k, v, w), tuple(zip("yabc", (y, *found), strict=True)))
    return dict(pipeline.lower(emit.emit([graph])).programs)


@pytest.mark.parametrize(("length", "dtype"), [(90, "f32"), (700, "f32"), (700, "bf16")])
def test_no_matrix_of_scores_is_in_memory(length: int, dtype: str) -> None:
    """Neither from kernel to kernel nor between the launches of one; the backward pass is one kernel."""
    made = training(length, dtype)
    assert sum(name.startswith("attend_grad") for name in made) == 1
    for name, func in made.items():
        done = scheduled(func)
        between = [a.buffer for a in collect(done.body, tirx.AllocBuffer) if a.buffer.scope() in ("", "global")]
        for buffer in (*func.params, *between):
            assert prod(shape_of(buffer)) < 2 * 4 * length * length, (name, buffer.name)


def test_what_goes_from_launch_to_launch_is_three_numbers_a_query() -> None:
    func = scheduled(attend_grad((12,), 1024, 1024, 64, 64, True), "attention")
    made = [a.buffer for a in collect(func.body, tirx.AllocBuffer)]
    assert [shape_of(b) for b in made if b.scope() in ("", "global")] == [(12, 1024)] * 3


def test_what_launches_hand_on_is_reckoned_where_the_last_piece_of_the_queries_is_short() -> None:
    """route-planner's, with TVM's pass that bounds what of a buffer is used: it fails on some differences of equals."""
    b, heads, q, k = Builder(), 64, 152, 20
    ins = [b.input(n, TensorType((heads, 4, rows, 16), "f32")) for n, rows in (("q", q), ("k", k), ("v", k), ("w", q))]
    mask = b.input("mask", TensorType((heads, 1, q, k), "bool"))
    y = b("attention", *ins[:3], mask, causal=False)
    found = gradients(b, b("sum", b("*", y, ins[3]), axes=(0, 1, 2, 3), keepdims=False), ins[:3])
    graph = Graph("train", (*ins, mask), tuple(zip("yabc", (y, *found), strict=True)))
    func = pipeline.lower(emit.emit([graph])).programs["attend_grad"]
    part, aimed = tvm.ir.save_json(tvm.IRModule({"attend_grad": func})), schedules.TARGETS[GPU]
    made = objects.compile_part(part, aimed.tvm, lambda func, _: schedules.first(func, aimed))
    assert made.workspaces["attend_grad"].own == (heads * 4 * q * 4,) * 3


def test_no_row_is_too_long() -> None:
    """Nor a head too narrow; a head that is too wide for a block is products and row nests."""
    scheduled(attend_grad((2,), 64, 13000, 8, 8, False), "attention")
    scheduled(attend_grad((2,), 64, 64, 13000, 8, False), "mixed")
