"""Row fusion on a CPU: stages that agree on their first axes share a loop over rows, a task a few rows.

Taken: softmax, normalization, cross-entropy, argmax, and single reductions along memory. What only the group reads is
kept for one row, in L1. Each stage reduces a row in the order that it has alone (``tir/reduction.py``), so neither
fusion nor threads change a bit.
"""

from __future__ import annotations

from math import prod

from ..tir.builder import Expr, Stmt, loop, seq, unravel
from ..tir.context import NestContext, block, parallel_chunks
from ..tir.reduction import stage_body
from ..tir.row_group import ROWS, RowGroup, local_buffers, localize, row_buffer


def row_reduction_nest(ctx: NestContext, group: RowGroup) -> Stmt:
    """The loop over rows, in parallel tasks of ROWS if that pays."""
    extents = [a.extent for a in group.stages[0].space[: group.lead]]
    local = local_buffers(ctx, group)

    def task(start: Expr, length: int) -> Stmt:
        row_buffers = {b: row_buffer(b, group) for b in local}

        def row(r: Expr) -> Stmt:
            row_indices = unravel(start + r, extents)
            return localize(seq([stage_body(ctx, s, row_indices) for s in group.stages]), row_buffers, group)

        return block([loop(length, row, name="row")], list(row_buffers.values()))

    return parallel_chunks(ctx, prod(extents), ROWS, task)
