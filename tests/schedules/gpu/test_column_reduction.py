"""Folds down columns and over everything on a GPU, with the bits of a CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import relax, te

from schedules.gpu.audit.launch_audit import audit

from ..tensor_programs import V3, graph, numbers, operator, program, runs_here
from .cpu_and_cuda import same_bits, scheduled
from .reductions import reduction

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# read ahead: pieces and a shorter last one, columns too few for the last block, one piece; a thread a column; pieces
# of a long sum, and the fold of their results; columns in the middle; a single column of two
AHEAD = [(300, 70), (64, 8), (1000, 3), (97, 131)]
EACH = [(50, 70), (17, 1), (3, 2000)]
CUT = [(4099, 40), (1100, 64)]


@pytest.mark.parametrize("shape", [*AHEAD, *EACH, *CUT], ids=str)
def test_sums_down_columns(shape: tuple[int, ...]) -> None:
    same_bits(reduction("sum", shape, (0,)), numbers(*shape))


@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1)], ids=str)
def test_columns_between_other_axes(axes: tuple[int, ...]) -> None:
    same_bits(reduction("sum", (5, 90, 4, 9), axes), numbers(5, 90, 4, 9))


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("sum", "float64"), ("max", "float32"), ("prod", "int64"), ("min", "int32")]
)
def test_folds_of_every_kind(kind: str, dtype: str, squared: bool) -> None:
    x = (numbers(150, 37) * 3).astype(dtype)
    same_bits(reduction(kind, (150, 37), (0,), dtype, squared), x, rule="column-reduction")


@pytest.mark.parametrize("rows", [20, 200])
def test_halves_are_summed_in_float32(rows: int) -> None:
    x = numbers(rows, 40).astype(ml_dtypes.bfloat16)
    same_bits(reduction("sum", (rows, 40), (0,), "bfloat16"), x, rule="column-reduction")


@pytest.mark.parametrize("rows", [40, 300])
def test_what_follows_is_done_on_the_sums(rows: int) -> None:
    (func,) = graph(lambda emit, x, y: relax.op.add(emit(relax.op.mean(x, [0])), y), ((rows, 50), "float32"),
                    ((50,), "float32"))  # fmt: skip
    same_bits(func, numbers(rows, 50), numbers(50, seed=1), rule="column-reduction")
    assert len(audit(scheduled(func))) == 1


@pytest.mark.parametrize("shape", [(40, 33), (500, 3)], ids=str)
def test_the_first_of_equals(shape: tuple[int, ...]) -> None:
    x = np.round(numbers(*shape))
    (got,) = same_bits(operator("argmax", ("f32", shape), axis=0), x)
    assert (got == x.argmax(0)).all()


def test_memory_decides_which_threads_are_neighbours() -> None:
    """The result is written turned: a thread's elements of the operand lie side by side, its results do not."""

    def turned(a: te.Tensor) -> Any:
        k = te.reduce_axis((0, 40), "k")
        return te.compute((90, 70), lambda i, j: te.sum(a[j, k, i], axis=k), "turned")

    func = program(turned, ((70, 40, 90), "float32"))
    same_bits(func, numbers(70, 40, 90), rule="column-reduction")
    (only,) = audit(scheduled(func))
    assert {o.name: o.stride for o in only.operands} == {"a0": 1, "turned": 70}


@pytest.mark.parametrize("shape", [(300, 411), (70_000,), (33_000, 3)], ids=str)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_folds_over_everything(kind: str, shape: tuple[int, ...]) -> None:
    func = reduction(kind, shape, tuple(range(len(shape))), squared=kind == "sum")
    same_bits(func, numbers(*shape), rule="row-reduction")


def test_there_are_blocks_enough_and_neighbours_side_by_side() -> None:
    cases = [((8192, 512), (0,)), ((65_536, 64), (0,)), ((2048, 128), (0,)), ((1 << 22,), (0,)), ((2048, 2048), (0, 1))]
    for shape, axes in cases:
        found = audit(scheduled(reduction("sum", shape, axes)))
        assert not any(one.faults for one in found) and found[0].blocks >= 64, shape
        assert found[0].operands[0].stride == 1


@pytest.mark.parametrize(("shape", "axis"), [((70_000,), 0), ((3, 5000), 1), ((9001, 3), 0)], ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_equals_of_a_long_row(name: str, shape: tuple[int, ...], axis: int) -> None:
    """The last element is an extremum too, of a last piece that is filled up with it."""
    x = np.round(numbers(*shape))
    np.moveaxis(x, axis, -1)[..., -1] = 9 if name == "argmax" else -9
    if shape == (70_000,):
        x[4097], x[-1] = x[-1], 0
    func = operator(name, ("f32", shape), axis=axis)
    (got,) = same_bits(func, x)
    assert (got == getattr(x, name)(axis)).all()
    assert audit(scheduled(func))[0].serial <= 256
