"""Programs written as loops: running sums, and sums at computed places. Each sum is taken in one order, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from lowering.kernels.registry import KERNELS
from sexpgpu.ops.types import TensorType
from tests.schedules.tensor_programs import V3, build, numbers, program, reference, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

NAMES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


def kernel(name: str, out: tuple[int, ...], *arrays: np.ndarray, **attrs: Any) -> Any:
    """The tensor program ``name`` for arguments of the types of ``arrays``, compiled."""
    made = TensorType(out, next(NAMES[str(x.dtype)] for x in arrays if str(x.dtype) in NAMES))
    kinds = [(x.shape, str(x.dtype)) for x in arrays]
    return build(program(lambda *xs: KERNELS[name](*xs, out=made, **attrs), *kinds))


def same_on_threads(built: Any, arrays: tuple[np.ndarray, ...], want: np.ndarray) -> None:
    for count in (1, 2, 3):
        threads(count)
        np.testing.assert_array_equal(built.run(*arrays)[0], want)
    threads(1)


def near_the_ends(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, shape).astype("int32")


SCANS = [
    (1, 9, 1),
    (20, 33, 1),
    (519, 70, 1),
    (3, 50, 3),
    (40, 31, 7),
    (5, 12, 8),
    (2, 300, 77),
    (2, 9, 200),
    (7, 1, 5),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("shape", SCANS, ids=str)
def test_a_running_sum_adds_in_order(shape: tuple[int, ...], dtype: str, reverse: bool) -> None:
    """NumPy adds in order too, so floats are equal. Integers wrap."""
    x = numbers(*shape) if dtype == "float32" else near_the_ends(*shape)
    want = reference("cumsum", x, axis=1, reverse=reverse)
    same_on_threads(kernel("cumsum", shape, x, reverse=reverse), (x,), want)


# rows, columns, updates: one task; tasks of columns, the last of them short; tasks of rows; fewer rows than tasks
TABLES = [(7, 3, 100), (64, 150, 700), (9, 1, 20_000), (300, 70, 900), (5, 17, 2000), (1, 20, 1000), (2000, 40, 3)]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("table", TABLES, ids=str)
def test_rows_are_added_in_the_order_of_their_ids(table: tuple[int, int, int], dtype: str) -> None:
    """As NumPy's add.at does; ids repeat, and some are out of range: clamped in a gradient, dropped in scatter-add."""
    rows, columns, count = table
    make = numbers if dtype == "float32" else near_the_ends
    base, updates = make(rows, columns), make(count, columns, seed=1)
    ids = np.random.default_rng(2).integers(-2, rows + 2, count).astype("int32")
    want = reference("scatter-rows", updates, ids, n=rows)
    same_on_threads(kernel("scatter-rows", (rows, columns), updates, ids), (updates, ids), want)
    want = reference("scatter-add", base, ids, updates)
    same_on_threads(kernel("scatter-add", (rows, columns), base, ids, updates), (base, ids, updates), want)


# dy, then the ids' shape and the places along the axis
ALONG = [
    ((300, 9, 1), (300, 9, 1), 40), ((3, 9, 1), (1, 9, 1), 5), ((2, 50, 200), (2, 50, 200), 7),
    ((2, 50, 200), (2, 50, 1), 30), ((40, 30, 70), (40, 30, 1), 11), ((30, 20, 5), (1, 20, 5), 3),
]  # fmt: skip


@pytest.mark.parametrize("case", ALONG, ids=str)
def test_elements_are_added_in_the_order_of_their_places(case: Any) -> None:
    shape, at, n = case
    dy, ids = numbers(*shape), np.random.default_rng(1).integers(-1, n + 1, at).astype("int64")
    want = reference("scatter-along", dy, ids, n=n, axis=1)
    same_on_threads(kernel("scatter-along", want.shape, dy, ids), (dy, ids), want)
