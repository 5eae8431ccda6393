"""A nest of map stages over one space: a thread a point, several where there are many, every value in registers, then
all stores of a point. Neighbouring threads have neighbouring points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, unravel
from ..tir.context import NestContext
from ..tir.point_writer import elementwise_group, is_materialized, point_stores
from ..tir.stages import Stage
from .threads.launch import THREADS, launch, launch_per_point, unrolled
from .transpose import find_turned, turned_launch

MANY = 2**20  # points from which on a thread takes EACH: one load each would not keep the memory busy
EACH = 4


def elementwise_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is no map."""
    if not stages[0].is_elementwise:
        return None
    taken = elementwise_group(ctx, stages)
    turned = find_turned(ctx, taken)
    if turned is not None:
        return len(taken), turned_launch(ctx, taken, turned)
    keep = [s for s in taken if is_materialized(ctx, s, taken)]
    extents = [a.extent for a in taken[0].space]

    def point(flat: Expr) -> Stmt:
        return point_stores(ctx, taken, unravel(flat, extents), {}, keep)

    return len(taken), _over(prod(extents), point)


def _over(points: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """As ``launch_per_point``. The points of a thread are a block's threads apart, and their conditions are settled but
    in the last block, so that their loads need not wait for each other."""
    if points < MANY:
        return launch_per_point(points, body)
    per = EACH * THREADS
    full, rest = divmod(points, per)

    def block(b: Expr, t: Expr) -> Stmt:
        at = lambda u: b * per + u * THREADS + t  # noqa: E731
        whole = unrolled(EACH, lambda u: body(at(u)))
        if not rest:
            return whole
        last = unrolled(EACH, lambda u: tirx.IfThenElse(at(u) < i64(points), body(at(u)), None))
        return tirx.IfThenElse(b < i64(full), whole, last)

    return launch(full + (1 if rest else 0), THREADS, block)
