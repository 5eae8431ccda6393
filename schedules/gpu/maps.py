"""A nest of map stages over one space: a thread a point, every value in registers, then all stores of that point."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..cpu.emit import Expr, Stmt, unravel
from ..cpu.maps import group, kept, point_stores
from ..cpu.nests import Context
from ..cpu.stages import Stage
from .launch import over


def map_nest(ctx: Context, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is no map."""
    if not stages[0].is_map:
        return None
    taken = group(ctx, stages)
    keep = [s for s in taken if kept(ctx, s, taken)]
    extents = [a.extent for a in taken[0].space]

    def point(flat: Expr) -> Stmt:
        return point_stores(ctx, taken, unravel(flat, extents), {}, keep)

    return len(taken), over(prod(extents), point)
