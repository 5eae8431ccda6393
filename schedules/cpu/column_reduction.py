"""Sums down columns: lanes along the output's last axis, tasks over strips of columns, rows in order inside a task."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, unravel
from ..tir.context import NestContext, parallel_chunks
from ..tir.point_writer import index_of
from ..tir.reduction import COLUMNS, reduce_columns
from ..tir.stages import Stage


def column_nest(ctx: NestContext, fold: Stage, after: Sequence[Stage]) -> Stmt:
    """Every output of the fold, and the map stages that follow on it."""
    heads, last = fold.space[:-1], fold.space[-1]
    full, rest = divmod(last.extent, COLUMNS)
    count = full + (1 if rest else 0)

    def strip(head: Sequence[Expr], start: Expr, width: int) -> Stmt:
        return reduce_columns(ctx, fold, index_of(heads, head), last, start, width, after)

    if not rest or not full:
        whole = COLUMNS if full else rest
        extents = [*(a.extent for a in heads), count]
        return parallel_chunks(ctx, prod(extents), 1, lambda p, _: _at(strip, unravel(p, extents), whole))
    return _ragged(ctx, strip, [a.extent for a in heads], full, rest)


def _at(strip, places: Sequence[Expr], width: int) -> Stmt:
    *head, c = places
    return strip(head, c * COLUMNS, width)


def _ragged(ctx: NestContext, strip, heads: Sequence[int], full: int, rest: int) -> Stmt:
    """Whole strips and a narrower last one."""
    extents = [*heads, full + 1]

    def task(p: Expr, _: int) -> Stmt:
        *head, c = unravel(p, extents)
        return tirx.IfThenElse(c < i64(full), strip(head, c * COLUMNS, COLUMNS), strip(head, i64(full * COLUMNS), rest))

    return parallel_chunks(ctx, prod(extents), 1, task)
