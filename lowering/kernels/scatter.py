"""Sums at computed places: what is added at one place is added in the order of its index, by one thread.

Tasks own rows or columns of the result and go through all indices. Which of the two follows from the shape, and
changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from sexpgpu.ops.types import TensorType

from .indexing import clamp, sizes
from .loop_builder import lanes, number, share, wrapped_sum, written
from .reduction import dtype_of
from .registry import kernel

PANEL = 64  # columns that one task owns
BANDS = 16  # tasks that own rows, at most
LOOK = 8  # columns from which a task's look at an index costs less than what it adds: each looks at every index
SHARED = 16_384  # numbers from which rows are dealt out to tasks
SMALL = 65_536  # elements of a result that stays in the second cache


@kernel("scatter-add")
def scatter_add(base: te.Tensor, ids: te.Tensor, updates: te.Tensor, out: TensorType) -> Any:
    """base [rows, columns], ids [count], updates [count, columns] -> base with the updates added at the rows ``ids``;
    an id out of range is dropped. Of f32, f64 or integers."""
    rows, columns = sizes(base)
    row = lambda i: (tirx.all(i >= 0, i < rows), i)  # noqa: E731

    def body(x: Any, at: Any, dy: Any, y: Any) -> None:
        _scatter(y, lambda r, c: x[r, c], lambda t: row(at[t].astype("int64")), lambda t, c: dy[t, c], count)

    count = (rows, columns, sizes(ids)[0])
    return _program([base, ids, updates], base.shape, body, "scatter_add")


@kernel("scatter-rows")
def scatter_rows(updates: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    """updates [count, columns], ids [count] -> zeros of ``out`` [rows, columns] with the updates added at the rows
    ``ids``, clamped."""
    rows, columns = out.shape
    zero = tirx.const(0, dtype_of(updates))

    def body(dy: Any, at: Any, y: Any) -> None:
        _scatter(y, lambda r, c: zero, lambda t: (None, clamp(at[t], rows)), lambda t, c: dy[t, c], count)

    count = (rows, columns, sizes(ids)[0])
    return _program([updates, ids], out.shape, body, "scatter_rows")


@kernel("scatter-along")
def scatter_along(dy: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    """dy [outer, many, inner], ids of that shape or with an outer or inner of 1 -> zeros of ``out`` [outer, n, inner]
    with each element of dy added at the place that its id, clamped, says along the second axis."""
    (outer, many, inner), n = sizes(dy), out.shape[1]
    (id_outer, _, id_inner), zero = sizes(ids), tirx.const(0, dtype_of(dy))

    def body(dy: Any, at: Any, y: Any) -> None:
        def column(o: Any, left: Any, width: int) -> None:
            if inner == 1:
                lanes(n, lambda k: _put(y, (o, k, 0), zero))
            else:
                with T.serial(0, number(n)) as k:
                    lanes(width, lambda c: _put(y, (o, k, left + c), zero))
            with T.serial(0, number(many)) as j:
                place = lambda c: clamp(at[o if id_outer > 1 else 0, j, c if id_inner > 1 else 0], n)  # noqa: E731
                if id_inner > 1:
                    with T.serial(0, number(width)) as c:
                        _add(y, (o, place(left + c), left + c), dy[o, j, left + c])
                else:
                    i = place(0)
                    lanes(width, lambda c: _add(y, (o, i, left + c), dy[o, j, left + c]))

        share(inner, PANEL if outer < BANDS else inner, outer, column)

    return _program([dy, ids], out.shape, body, "scatter_along")


def _program(args: list[te.Tensor], shape: Any, body: Callable[..., None], name: str) -> Any:
    make = lambda ins, outs: written(ins, outs, body)  # noqa: E731
    return te.extern([shape], args, make, name, dtype_of(args[0]), attrs={"by_hand": name})


def _scatter(y: Any, start: Any, row: Any, update: Any, counts: tuple[int, int, int]) -> None:
    """``y[r, c]`` begins as ``start(r, c)``; then ``update(t, c)`` is added at the row of each ``row(t)``, which is its
    condition (or None) and its number. ``counts``: rows, columns, updates."""
    rows, columns, count = counts
    work = (rows + count) * columns

    def region(first: Any, height: int, left: Any, width: int) -> None:
        with T.serial(0, number(height)) as r:
            lanes(width, lambda c: _put(y, (first + r, left + c), start(first + r, left + c)))
        with T.serial(0, number(count)) as t:
            test, i = row(t)
            mine = [] if height == rows else [i >= first, i < first + height]
            with _If(mine if test is None else [test, *mine]):
                lanes(width, lambda c: _add(y, (i, left + c), update(t, left + c)))

    if columns >= 2 * PANEL and rows * columns <= SMALL:
        share(columns, PANEL, 1, lambda _, c, width: region(number(0), rows, c, width))
    else:
        bands = max(1, min(BANDS, columns // LOOK)) if work >= SHARED else 1
        share(rows, -(-rows // bands), 1, lambda _, r, height: region(r, height, number(0), columns))


class _If:
    """A branch on all of ``tests``, or none."""

    def __init__(self, tests: list[Any]) -> None:
        self.frames = [T.If(tirx.all(*tests)), T.Then()] if tests else []

    def __enter__(self) -> None:
        for frame in self.frames:
            frame.__enter__()

    def __exit__(self, *error: Any) -> None:
        for frame in reversed(self.frames):
            frame.__exit__(*error)


def _put(y: Any, place: tuple[Any, ...], value: Any) -> None:
    y[place] = value


def _add(y: Any, place: tuple[Any, ...], value: Any) -> None:
    y[place] = wrapped_sum(y[place], value)
