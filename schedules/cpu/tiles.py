"""Transposes: tiles of a cache line each way, so that every line read is used up while it is in the first cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx

from .access import Access
from .emit import Expr, Stmt, i64, loop, seq, unravel
from .nests import Context, chunks, vectors
from .stages import Axis, variables

TILE = 16  # elements of 4 bytes in a cache line
LEAST = 8  # places along an axis from which a tile pays


def turned_axis(axes: Sequence[Axis], accesses: Sequence[Access]) -> int | None:
    """The axis (not the last, along which stores walk) along which some read walks, None if there is none."""
    if len(axes) < 2 or axes[-1].extent < LEAST:
        return None
    last = axes[-1].var
    for access in accesses:
        places = access.places()
        if not places or not variables([index for index, _ in places[:-1]]) & {last}:
            continue
        for n, axis in enumerate(axes[:-1]):
            if places[-1][0].same_as(axis.var) and axis.extent >= LEAST:
                return n
    return None


def tile_nest(ctx: Context, axes: Sequence[Axis], turned: int, stores: Callable[[Sequence[Expr]], Stmt]) -> Stmt:
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

            return seq(vectors(columns, ctx.lanes, at))

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

    return chunks(ctx, prod(extents) * count, 1, task)
