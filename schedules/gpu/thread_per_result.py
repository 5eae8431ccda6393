"""The nest of last resort: a thread a result, for stages that no other nest takes.

Each thread computes its result in the CPU's order. Correct for every stage, and slow where results are few (idle
multiprocessors) or neighbouring threads read addresses far apart (loads that are not coalesced).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tir.builder import Expr, Stmt, unravel
from ..tir.context import NestContext
from ..tir.reduction import stage_body
from ..tir.stages import Stage
from .threads.launch import launch_per_point


def thread_per_result_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt]:
    """1, since it takes a single stage, and the launch."""
    stage = stages[0]
    extents = [a.extent for a in stage.space]

    def result(flat: Expr) -> Stmt:
        return stage_body(ctx, stage, unravel(flat, extents))

    return 1, launch_per_point(stage.points, result)
