"""Running sums and sums at computed places as kernels of a GPU: the CPU's bits, in any order of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

import lowering.emit  # noqa: F401  (all tensor programs)
from lowering.kernels.registry import KERNELS
from sexpgpu.ops.types import TensorType

from ..tensor_programs import V3, numbers, program, reference, runs_here
from .cpu_and_cuda import same_bits

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

NAMES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


def kernel(name: str, out: tuple[int, ...], *arrays: np.ndarray, **attrs: Any) -> Any:
    """The tensor program ``name`` for arguments of the types of ``arrays``."""
    made = TensorType(out, next(NAMES[str(x.dtype)] for x in arrays if str(x.dtype) in NAMES))
    kinds = [(x.shape, str(x.dtype)) for x in arrays]
    return program(lambda *xs: KERNELS[name](*xs, out=made, **attrs), *kinds)


def near_the_ends(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, shape).astype("int32")


# [outer, n, inner]: rows in tiles of both forms, ragged each way; columns
SCANS = [(1, 9, 1), (9, 257, 1), (4100, 65, 1), (3, 50, 3), (2, 9, 200), (7, 1, 5)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SCANS, ids=str)
def test_running_sums_add_in_order(shape: tuple[int, ...], reverse: bool) -> None:
    x = numbers(*shape) if shape[1] % 2 else near_the_ends(*shape)
    (got,) = same_bits(kernel("cumsum", shape, x, reverse=reverse), x, rule="cumsum")
    np.testing.assert_array_equal(got, reference("cumsum", x, axis=1, reverse=reverse))


# rows, columns, indices: one chunk; several, the last of them short; one place for all; a table hardly touched
TABLES = [(7, 3, 100), (300, 5, 2500), (1, 2, 1100), (5000, 7, 1024), (40, 33, 1)]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_rows_are_added_in_the_order_of_their_indices(table: tuple[int, int, int]) -> None:
    """Indices repeat, and some are out of range: clamped in a gradient, dropped in scatter-add."""
    rows, columns, count = table
    make = near_the_ends if rows == 7 else numbers
    base, updates = make(rows, columns), make(count, columns, seed=1)
    ids = np.random.default_rng(2).integers(-2, rows + 2, count).astype("int32" if rows % 2 else "int64")
    (got,) = same_bits(kernel("scatter-rows", (rows, columns), updates, ids), updates, ids, rule="scatter-add")
    np.testing.assert_array_equal(got, reference("scatter-rows", updates, ids, n=rows))
    func = kernel("scatter-add", (rows, columns), base, ids, updates)
    (got,) = same_bits(func, base, ids, updates, rule="scatter-add")
    np.testing.assert_array_equal(got, reference("scatter-add", base, ids, updates))


# [outer, many, inner] -> n; the indices' outer and inner
ALONG = [((2, 50, 3), 4, (1, 1)), ((1, 1300, 1), 9, (1, 1)), ((3, 20, 5), 6, (3, 5)), ((4, 9, 1), 5, (4, 1))]


@pytest.mark.parametrize(("shape", "n", "own"), ALONG, ids=str)
def test_sums_along_an_axis(shape: tuple[int, int, int], n: int, own: tuple[int, int]) -> None:
    outer, many, inner = shape
    dy = numbers(*shape)
    ids = np.random.default_rng(3).integers(-1, n + 1, (own[0], many, own[1])).astype("int32")
    rule = "scatter-add" if own == (1, 1) else "scatter-along"
    same_bits(kernel("scatter-along", (outer, n, inner), dy, ids), dy, ids, rule=rule)
