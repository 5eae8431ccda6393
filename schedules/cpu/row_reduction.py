"""Row nests: consecutive stages that agree on their first axes run inside one loop over those axes."""

from __future__ import annotations

from math import prod

from ..tir.builder import Expr, Stmt, loop, seq, unravel
from ..tir.context import NestContext, block, parallel_chunks
from ..tir.reduction import stage_body
from ..tir.row_group import ROWS, RowGroup, local_buffers, localize, row_buffer


def row_nest(ctx: NestContext, found: RowGroup) -> Stmt:
    """The loop over rows, parallel in tasks of ROWS where it pays."""
    extents = [a.extent for a in found.stages[0].space[: found.lead]]
    local = local_buffers(ctx, found)

    def task(start: Expr, length: int) -> Stmt:
        mine = {b: row_buffer(b, found) for b in local}

        def row(r: Expr) -> Stmt:
            places = unravel(start + r, extents)
            return localize(seq([stage_body(ctx, s, places) for s in found.stages]), mine, found)

        return block([loop(length, row, name="row")], list(mine.values()))

    return parallel_chunks(ctx, prod(extents), ROWS, task)
