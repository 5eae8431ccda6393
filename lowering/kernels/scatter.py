"""Deterministic scatter-add: the updates of one element are added in the order of their indices, by one thread.

Each task owns rows or columns of the result and goes through all indices. Whether rows or columns follows from the
shape, and changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from sexpgpu.ops.types import TensorType

from .indexing import clamp, sizes
from .loop_builder import build_statement, int64, parallel_pieces, vectorized_loop, wrapped_sum
from .reduction import dtype_of
from .registry import kernel

# No measurement on record. A wrong value costs time only: it changes who adds, never the order.
COLUMNS_PER_TASK = 64  # columns that one task owns
MAX_ROW_TASKS = 16  # tasks that own rows, at most: each goes through all indices
MIN_COLUMNS_PER_ROW_TASK = 8  # columns of a row for each row task, so that additions outweigh its tests of the indices
MIN_PARALLEL_WORK = 16_384  # elements stored and added, from which rows are split among tasks
MAX_CACHED_ELEMENTS = 65_536  # elements of a result that stays in the L2 cache


@kernel("scatter-add")
def scatter_add(base: te.Tensor, ids: te.Tensor, updates: te.Tensor, out: TensorType) -> Any:
    """base [rows, columns], ids [count], updates [count, columns] -> base with the updates added at the rows ``ids``;
    an id out of range is dropped. Of f32, f64 or integers."""
    rows, columns = sizes(base)
    row = lambda i: (tirx.all(i >= 0, i < rows), i)  # noqa: E731

    def body(x: Any, id_buffer: Any, dy: Any, y: Any) -> None:
        _scatter(y, lambda r, c: x[r, c], lambda t: row(id_buffer[t].astype("int64")), lambda t, c: dy[t, c], extents)

    extents = (rows, columns, sizes(ids)[0])
    return _program([base, ids, updates], base.shape, body, "scatter_add")


@kernel("scatter-rows")
def scatter_rows(updates: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    """updates [count, columns], ids [count] -> zeros of ``out`` [rows, columns] with the updates added at the rows
    ``ids``, clamped."""
    rows, columns = out.shape
    zero = tirx.const(0, dtype_of(updates))

    def body(dy: Any, id_buffer: Any, y: Any) -> None:
        _scatter(y, lambda r, c: zero, lambda t: (None, clamp(id_buffer[t], rows)), lambda t, c: dy[t, c], extents)

    extents = (rows, columns, sizes(ids)[0])
    return _program([updates, ids], out.shape, body, "scatter_rows")


@kernel("scatter-along")
def scatter_along(dy: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    """dy [outer, count, inner], ids of that shape or with an outer or inner of 1 -> zeros of ``out`` [outer, n, inner]
    with each element of dy added at its id, clamped, along the second axis."""
    (outer, count, inner), n = sizes(dy), out.shape[1]
    (id_outer, _, id_inner), zero = sizes(ids), tirx.const(0, dtype_of(dy))

    def body(dy: Any, id_buffer: Any, y: Any) -> None:
        def column(o: Any, first_column: Any, width: int) -> None:
            if inner == 1:
                vectorized_loop(n, lambda k: _store(y, (o, k, 0), zero))
            else:
                with T.serial(0, int64(n)) as k:
                    vectorized_loop(width, lambda c: _store(y, (o, k, first_column + c), zero))
            with T.serial(0, int64(count)) as j:

                def target(c: Any) -> Any:
                    return clamp(id_buffer[o if id_outer > 1 else 0, j, c if id_inner > 1 else 0], n)

                if id_inner > 1:
                    with T.serial(0, int64(width)) as lane:
                        c = first_column + lane
                        _accumulate(y, (o, target(c), c), dy[o, j, c])
                else:
                    i = target(0)
                    vectorized_loop(
                        width, lambda c: _accumulate(y, (o, i, first_column + c), dy[o, j, first_column + c])
                    )

        parallel_pieces(inner, COLUMNS_PER_TASK if outer < MAX_ROW_TASKS else inner, outer, column)

    return _program([dy, ids], out.shape, body, "scatter_along")


def _program(args: list[te.Tensor], shape: Any, body: Callable[..., None], name: str) -> Any:
    make = lambda ins, outs: build_statement(ins, outs, body)  # noqa: E731
    return te.extern([shape], args, make, name, dtype_of(args[0]), attrs={"by_hand": name})


def _scatter(y: Any, start: Any, row: Any, update: Any, extents: tuple[int, int, int]) -> None:
    """``y[r, c]`` starts as ``start(r, c)``; then ``update(t, c)`` is added at ``row(t)``: a pair of a condition (or
    None) and a row number. ``extents``: rows, columns, updates."""
    rows, columns, count = extents
    total_work = (rows + count) * columns

    def region(first: Any, height: int, first_column: Any, width: int) -> None:
        with T.serial(0, int64(height)) as r:
            i = first + r
            vectorized_loop(width, lambda c: _store(y, (i, first_column + c), start(i, first_column + c)))
        with T.serial(0, int64(count)) as t:
            test, i = row(t)
            owns_row = [] if height == rows else [i >= first, i < first + height]
            with _If(owns_row if test is None else [test, *owns_row]):
                vectorized_loop(width, lambda c: _accumulate(y, (i, first_column + c), update(t, first_column + c)))

    if columns >= 2 * COLUMNS_PER_TASK and rows * columns <= MAX_CACHED_ELEMENTS:
        parallel_pieces(columns, COLUMNS_PER_TASK, 1, lambda _, c, width: region(int64(0), rows, c, width))
    else:
        row_tasks = max(1, min(MAX_ROW_TASKS, columns // MIN_COLUMNS_PER_ROW_TASK))
        row_tasks = row_tasks if total_work >= MIN_PARALLEL_WORK else 1
        parallel_pieces(rows, -(-rows // row_tasks), 1, lambda _, r, height: region(r, height, int64(0), columns))


class _If:
    """A branch on all of ``tests``; no branch if there are none."""

    def __init__(self, tests: list[Any]) -> None:
        self.frames = [T.If(tirx.all(*tests)), T.Then()] if tests else []

    def __enter__(self) -> None:
        for frame in self.frames:
            frame.__enter__()

    def __exit__(self, *error: Any) -> None:
        for frame in reversed(self.frames):
            frame.__exit__(*error)


def _store(y: Any, index: tuple[Any, ...], value: Any) -> None:
    y[index] = value


def _accumulate(y: Any, index: tuple[Any, ...], value: Any) -> None:
    y[index] = wrapped_sum(y[index], value)
