"""Column reductions: vectors across columns, tasks over groups of columns, rows in order inside a task.

Taken: reductions along another axis than the contiguous (bias gradients, sums over a batch), with their epilogue.
COLUMNS neighbouring columns have accumulators in registers. A single task adds a column from its first row to its last,
on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, unravel
from ..tir.context import NestContext, parallel_chunks
from ..tir.point_writer import index_of
from ..tir.reduction import COLUMNS, reduce_columns
from ..tir.stages import Stage

ReduceGroup = Callable[[Sequence[Expr], Expr, int], Stmt]  # outer indices, first column, how many


def column_reduction_nest(ctx: NestContext, reduction: Stage, epilogue: Sequence[Stage]) -> Stmt:
    """Every result of the reduction, and the elementwise stages ``epilogue`` on it."""
    outer_axes, last_axis = reduction.space[:-1], reduction.space[-1]
    full, rest = divmod(last_axis.extent, COLUMNS)
    groups = full + (1 if rest else 0)

    def reduce_group(outer: Sequence[Expr], start: Expr, width: int) -> Stmt:
        return reduce_columns(ctx, reduction, index_of(outer_axes, outer), last_axis, start, width, epilogue)

    if rest and full:
        return _with_narrow_last(ctx, reduce_group, [a.extent for a in outer_axes], full, rest)
    width = COLUMNS if full else rest
    extents = [*(a.extent for a in outer_axes), groups]

    def task(flat: Expr, _: int) -> Stmt:
        *outer, c = unravel(flat, extents)
        return reduce_group(outer, c * COLUMNS, width)

    return parallel_chunks(ctx, prod(extents), 1, task)


def _with_narrow_last(
    ctx: NestContext, reduce_group: ReduceGroup, outer_extents: Sequence[int], full: int, rest: int
) -> Stmt:
    """``full`` groups of COLUMNS columns and a narrower last group, which needs code of its own: widths are static."""
    extents = [*outer_extents, full + 1]

    def task(flat: Expr, _: int) -> Stmt:
        *outer, c = unravel(flat, extents)
        group = reduce_group(outer, c * COLUMNS, COLUMNS)
        return tirx.IfThenElse(c < i64(full), group, reduce_group(outer, i64(full * COLUMNS), rest))

    return parallel_chunks(ctx, prod(extents), 1, task)
