"""A thread a result: what no other nest takes. Right, and slow where results are few or their reads far apart."""

from __future__ import annotations

from collections.abc import Sequence

from ..tir.builder import Expr, Stmt, unravel
from ..tir.context import NestContext
from ..tir.reduction import stage_body
from ..tir.stages import Stage
from .threads.launch import launch_per_point


def thread_per_result_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt]:
    """One stage: its launch."""
    stage = stages[0]
    extents = [a.extent for a in stage.space]

    def result(flat: Expr) -> Stmt:
        return stage_body(ctx, stage, unravel(flat, extents))

    return 1, launch_per_point(stage.points, result)
