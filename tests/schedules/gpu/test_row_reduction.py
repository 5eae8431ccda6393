"""Row nests of a GPU: a team of threads a row, with the bits of the CPU's lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import relax, te, tirx

from schedules.gpu.audit.launch_audit import audit

from ..tensor_programs import V3, graph, numbers, operator, program, runs_here
from .cpu_and_cuda import same_bits, scheduled
from .reductions import REDUCTIONS, reduction

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

R, F = relax.op, "float32"


def single_program(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """The one program of a Relax expression of f32 tensors."""
    (func,) = graph(function, *((shape, F) for shape in shapes))
    return func


# whole teams; several rows a warp, and a last block with rows too few; rows added one by one; rows in shared memory;
# rows too long for it; one row
@pytest.mark.parametrize(
    "shape", [(64, 40), (3, 5, 20), (33, 8), (1000, 3), (9, 300), (700, 129), (3, 13_001), (1, 50)], ids=str
)
def test_softmax_is_one_launch(shape: tuple[int, ...]) -> None:
    func = single_program(lambda emit, x: R.nn.softmax(x, -1), shape)
    same_bits(func, numbers(*shape), rule="row-reduction")
    assert len(audit(scheduled(func))) == 1 or shape[0] < 32


@pytest.mark.parametrize("shape", [(40, 100), (9, 17)], ids=str)
def test_layer_norm(shape: tuple[int, ...]) -> None:
    n = shape[-1]
    func = single_program(lambda emit, x, g, b: R.nn.layer_norm(x, g, b, axes=[-1]), shape, (n,), (n,))
    same_bits(func, numbers(*shape), numbers(n, seed=1), numbers(n, seed=2), rule="row-reduction")


def test_a_gradient_of_sums_of_products() -> None:
    same_bits(operator("softmax-grad", ("f32", (70, 45)), ("f32", (70, 45)), axis=-1), numbers(70, 45), numbers(70, 45))
    same_bits(operator("softmax-grad", ("f32", (70, 9)), ("f32", (70, 9)), axis=-1), numbers(70, 9), numbers(70, 9))


KINDS = [(k, d) for k in REDUCTIONS for d in ("float32", "int64")]
KINDS += [("sum", "float64"), ("max", "int32"), ("sum", "uint8")]


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_folds_of_every_kind(kind: str, dtype: str) -> None:
    x = numbers(9, 300) * 4
    x = (np.abs(x) if dtype == "uint8" else x).astype(dtype)
    same_bits(reduction(kind, x.shape, (1,), dtype), x, rule="row-reduction")


@pytest.mark.parametrize("shape", [(9, 300), (20, 7)], ids=str)
def test_halves_are_summed_in_float32(shape: tuple[int, ...]) -> None:
    x = numbers(*shape).astype(ml_dtypes.bfloat16)
    same_bits(reduction("sum", shape, (1,), "bfloat16"), x, rule="row-reduction")


@pytest.mark.parametrize("axes", [(1, 2), (0, 2), (0, 1, 2)], ids=str)
def test_axes_that_are_no_neighbours_in_memory_are_taken_in_turn(axes: tuple[int, ...]) -> None:
    same_bits(reduction("sum", (5, 3, 70), axes), numbers(5, 3, 70), rule="row-reduction")
    same_bits(reduction("sum", (5, 3, 7), axes), numbers(5, 3, 7))


@pytest.mark.parametrize("shape", [(40, 33), (7, 500), (90, 5), (1, 2000)], ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_equals(name: str, shape: tuple[int, ...]) -> None:
    x = np.round(numbers(*shape))
    (got,) = same_bits(operator(name, ("f32", shape), axis=1), x)
    assert (got == getattr(x, name)(1)).all()


@pytest.mark.parametrize("depth", [16, 100, 3000])
def test_a_sum_that_promises_its_order(depth: int) -> None:
    """One row by one column."""
    func = operator("matmul", ("f32", (1, depth)), ("f32", (depth, 1)))
    same_bits(func, numbers(1, depth), numbers(depth, 1, seed=1), rule="row-reduction")


def test_neighbouring_threads_read_neighbouring_elements() -> None:
    for shape in [(4096, 128), (65536, 8), (8192, 20)]:
        (only,) = audit(scheduled(single_program(lambda emit, x: R.nn.softmax(x, -1), shape)))
        assert not only.faults and [o.stride for o in only.operands] == [1, 1]
        assert only.blocks >= 256 and only.threads >= 64


def test_short_rows_leave_few_threads_idle() -> None:
    (only,) = audit(scheduled(reduction("sum", (4096, 5), (1,))))
    assert only.threads * only.blocks == 8 * 4096


def test_rows_that_do_not_fit_are_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (single_program(lambda emit, x: R.nn.softmax(x, -1), (512, n)) for n in (1000, 20_000))
    (kept,), (again,) = audit(scheduled(short)), audit(scheduled(long))
    assert kept.shared == kept.threads // 32 * 4000 and again.shared == 0
    assert again.flops / 20_000 > kept.flops / 1000
    monkeypatch.setattr("schedules.gpu.row_reduction.MAX_SHARED_BYTES", 1000)
    func = single_program(lambda emit, x: R.nn.softmax(x, -1), (40, 300))
    same_bits(func, numbers(40, 300), rule="row-reduction")
    assert audit(scheduled(func))[0].shared == 0


def test_an_element_that_another_thread_of_the_team_made() -> None:
    """Weights of a row from its end: what one thread puts into shared memory another one takes."""

    def turned(x: te.Tensor) -> Any:
        rows, n = x.shape
        k = te.reduce_axis((0, n), "k")
        power: Any = te.compute((rows, n), lambda i, j: tirx.exp(x[i, j]), "power")
        whole: Any = te.compute((rows,), lambda i: te.sum(power[i, k], axis=k), "whole")
        return te.compute((rows, n), lambda i, j: power[i, n - 1 - j] / whole[i], "turned")

    for shape in ((40, 100), (40, 13)):
        func = program(turned, (shape, F))
        assert audit(scheduled(func, "row-reduction"))[0].shared
        same_bits(func, numbers(*shape), rule="row-reduction")
