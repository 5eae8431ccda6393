"""Elementwise stages over one iteration domain, fused: a thread a point, all values in registers.

All loads of a point come before its stores, so an output may share memory with an input. Neighbouring threads have
neighbouring points, so accesses are coalesced; where loads run along another axis, ``transpose`` takes them.
There is no sum, so nothing depends on an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, unravel
from ..tir.context import NestContext
from ..tir.point_writer import elementwise_group, is_materialized, point_stores
from ..tir.stages import Stage
from .threads.launch import THREADS, launch, launch_per_point, unrolled
from .transpose import find_transpose, transpose_launch

# Points from which a thread takes several: a single load in flight in each thread does not fill the memory's bandwidth.
# Fewer points need all threads that they can have. Chosen, not measured; only speed depends on it.
MIN_POINTS_UNROLLED = 2**20
# Loads of a thread in flight. Chosen, not measured; more take registers, and with them threads from a multiprocessor.
POINTS_PER_THREAD = 4


def elementwise_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is not elementwise."""
    if not stages[0].is_elementwise:
        return None
    group = elementwise_group(ctx, stages)
    transpose = find_transpose(ctx, group)
    if transpose is not None:
        return len(group), transpose_launch(ctx, group, transpose)
    materialized = [s for s in group if is_materialized(ctx, s, group)]
    extents = [a.extent for a in group[0].space]

    def point(flat: Expr) -> Stmt:
        return point_stores(ctx, group, unravel(flat, extents), {}, materialized)

    return len(group), _over_points(prod(extents), point)


def _over_points(points: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """As ``launch_per_point``, with several points a thread, a block's threads apart. Only the last block tests
    bounds, so that in the others the loads of a thread do not wait for a condition and overlap."""
    if points < MIN_POINTS_UNROLLED:
        return launch_per_point(points, body)
    points_per_block = POINTS_PER_THREAD * THREADS
    full_blocks, rest = divmod(points, points_per_block)

    def block(b: Expr, t: Expr) -> Stmt:
        # A block's width apart, not neighbours: so the threads of a warp stay neighbours in each of their loads.
        def point(u: Expr) -> Expr:
            return b * points_per_block + u * THREADS + t

        all_points = unrolled(POINTS_PER_THREAD, lambda u: body(point(u)))
        if not rest:
            return all_points
        guarded = unrolled(POINTS_PER_THREAD, lambda u: tirx.IfThenElse(point(u) < i64(points), body(point(u)), None))
        return tirx.IfThenElse(b < i64(full_blocks), all_points, guarded)

    return launch(full_blocks + (1 if rest else 0), THREADS, block)
