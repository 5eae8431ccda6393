"""Transposes, batched or not, fused with elementwise stages: tiles of a cache line by a cache line.

Taken: elementwise stages that read some tensor along another axis than the last, along which they write. Inside a tile
vectors run along the last axis, and each line that is read is used up while it is in L1. Elementwise stages have no
sums, so no bit depends on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, loop, seq, unravel
from ..tir.context import NestContext, parallel_chunks, vector_loop
from ..tir.stages import Axis

TILE = 16  # elements of 4 bytes in a cache line of 64 bytes; of smaller ones a tile uses part of its lines


def transpose_nest(
    ctx: NestContext, axes: Sequence[Axis], read_axis: int, stores_at: Callable[[Sequence[Expr]], Stmt]
) -> Stmt:
    """Tasks over the other axes and TILE indices of ``read_axis``; inside, tiles along the last axis.

    ``stores_at``: writes the stages at a point, an index an axis."""
    batch_axes = [n for n in range(len(axes) - 1) if n != read_axis]
    extents = [axes[n].extent for n in batch_axes]
    height, width = axes[read_axis].extent, axes[-1].extent
    tile_rows = -(-height // TILE)

    def tile(batch: Sequence[Expr], first_row: Expr, rows: int, first_column: Expr, columns: int) -> Stmt:
        def row(r: Expr) -> Stmt:
            def point(c: Expr) -> Stmt:
                indices: list[Any] = [None] * len(axes)
                for n, index in zip(batch_axes, batch, strict=True):
                    indices[n] = index
                indices[read_axis], indices[-1] = first_row + r, first_column + c
                return stores_at(indices)

            return seq(vector_loop(columns, ctx.lanes, point))

        return loop(rows, row, name="r")

    def tile_row(batch: Sequence[Expr], first_row: Expr, rows: int) -> Stmt:
        full, rest = divmod(width, TILE)
        tiles = [loop(full, lambda t: tile(batch, first_row, rows, t * TILE, TILE), name="tile")] if full else []
        return seq([*tiles, *([tile(batch, first_row, rows, i64(full * TILE), rest)] if rest else [])])

    def task(flat: Expr, _: int) -> Stmt:
        *batch, t = unravel(flat, [*extents, tile_rows])
        full, rest = divmod(height, TILE)
        if not rest:
            return tile_row(batch, t * TILE, TILE)
        last = tile_row(batch, i64(full * TILE), rest)
        return tirx.IfThenElse(t < i64(full), tile_row(batch, t * TILE, TILE), last) if full else last

    return parallel_chunks(ctx, prod(extents) * tile_rows, 1, task)
