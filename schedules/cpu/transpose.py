"""Transposes: tiles of a cache line each way, so that every line read is used up while it is in the first cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, loop, seq, unravel
from ..tir.context import NestContext, parallel_chunks, vector_loop
from ..tir.stages import Axis

TILE = 16  # elements of 4 bytes in a cache line


def tile_nest(ctx: NestContext, axes: Sequence[Axis], turned: int, stores: Callable[[Sequence[Expr]], Stmt]) -> Stmt:
    """Tasks over the other axes and TILE places of the turned one; inside, tiles along the last axis."""
    others = [n for n in range(len(axes) - 1) if n != turned]
    extents = [axes[n].extent for n in others]
    deep, wide = axes[turned].extent, axes[-1].extent
    count = -(-deep // TILE)

    def tile(head: Sequence[Expr], first: Expr, rows: int, start: Expr, columns: int) -> Stmt:
        def row(r: Expr) -> Stmt:
            def at(c: Expr) -> Stmt:
                places: list[Any] = [None] * len(axes)
                for n, place in zip(others, head, strict=True):
                    places[n] = place
                places[turned], places[-1] = first + r, start + c
                return stores(places)

            return seq(vector_loop(columns, ctx.lanes, at))

        return loop(rows, row, name="r")

    def strip(head: Sequence[Expr], first: Expr, rows: int) -> Stmt:
        full, rest = divmod(wide, TILE)
        done = [loop(full, lambda t: tile(head, first, rows, t * TILE, TILE), name="tile")] if full else []
        return seq([*done, *([tile(head, first, rows, i64(full * TILE), rest)] if rest else [])])

    def task(p: Expr, _: int) -> Stmt:
        *head, t = unravel(p, [*extents, count])
        full, rest = divmod(deep, TILE)
        if not rest:
            return strip(head, t * TILE, TILE)
        last = strip(head, i64(full * TILE), rest)
        return tirx.IfThenElse(t < i64(full), strip(head, t * TILE, TILE), last) if full else last

    return parallel_chunks(ctx, prod(extents) * count, 1, task)
