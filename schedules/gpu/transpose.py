"""Transposes, batched or not, fused with elementwise stages: through 32 x 32 tiles in shared memory.

Taken: elementwise stages that read some tensor along another axis than the last, along which they write. A block loads
a tile with neighbouring threads along the axis that is read, then writes with neighbouring threads along the last axis:
both are coalesced. Rows of a tile are padded by a 4-byte word, so that a warp reads a column without bank conflicts.
It has no sums, so nothing depends on an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from ..tir.access import Access, same_indices, transposed_axis
from ..tir.bfloat16 import BF16, bits16, from_bits16, is_bf16
from ..tir.builder import Expr, Stmt, i64, load, seq, store, unravel
from ..tir.context import NestContext
from ..tir.inline import ScalarWriter
from ..tir.iteration_domain import Box, conditions
from ..tir.point_writer import common_accesses, is_materialized, point_stores
from ..tir.stages import Axis, Stage, variables
from .threads.launch import WARP, barrier, launch, shared, unrolled

# Warps of a block: each takes a row of the tile, so 32 rows are 4 iterations, whose loads are in flight together.
# Chosen, as in CUDA's sample (32 x 8 threads); only speed depends on it.
WARPS = 8
BANK_BYTES = 4  # width of a bank of shared memory
# Extent of both axes; below half a tile most threads would idle. Chosen, not measured.
MIN_EXTENT = 16
# Bytes of a block's 48 KiB, for the tiles of all tensors that are read transposed: with more, the stages go without
# tiles and their loads are not coalesced. Chosen, not measured.
MAX_SHARED_BYTES = 40 * 1024


@attrs.frozen(eq=False)
class Transpose:
    """``reads`` are contiguous along ``axes[axis]``; the stores are contiguous along the last axis."""

    axes: tuple[Axis, ...]
    axis: int
    reads: tuple[Access, ...]

    @property
    def batch_axes(self) -> list[int]:
        """Positions of the axes that are neither read nor written along."""
        return [n for n in range(len(self.axes) - 1) if n != self.axis]

    def point(self, batch: Sequence[Expr], read_index: Expr, last_index: Expr) -> tuple[list[Expr], Expr]:
        """The point at ``read_index`` on the axis that is read along, ``last_index`` on the last; is it in bounds?"""
        index: list[Any] = [None] * len(self.axes)
        for n, batch_index in zip(self.batch_axes, batch, strict=True):
            index[n] = batch_index
        index[self.axis], index[-1] = read_index, last_index
        extents = self.axes[self.axis].extent, self.axes[-1].extent
        return index, tirx.all(read_index < i64(extents[0]), last_index < i64(extents[1]))


def find_transpose(ctx: NestContext, stages: Sequence[Stage]) -> Transpose | None:
    """None for stages that read as they write, that read under a condition (a tile is loaded without it, and could
    leave the tensor), or that read a tensor at several indices (a tile holds an element a point)."""
    axes = stages[0].space
    box = Box((0,) * len(axes), tuple(a.extent for a in axes), True)
    if any(conditions(ctx, stage, box) for stage in stages):
        return None
    accesses = common_accesses(ctx, stages, box)
    axis = transposed_axis(axes, accesses)
    if axis is None or min(axes[axis].extent, axes[-1].extent) < MIN_EXTENT:
        return None
    reads: dict[Any, Access] = {}
    for access in accesses:
        first = reads.setdefault(access.buffer, access)
        if not same_indices(first.indices, access.indices):
            return None
    # What the stages write themselves is not loaded in advance: a tile would hold what was there before.
    written = [stage.buffer for stage in stages]
    transposed = tuple(a for b, a in reads.items() if b not in written and _is_transposed(a, axes, axis))
    tile_bytes = max((WARP * _pitch(a.buffer) * _element_bytes(a.buffer) for a in transposed), default=1)
    max_tiles = MAX_SHARED_BYTES // tile_bytes
    return Transpose(tuple(axes), axis, transposed) if 0 < len(transposed) <= max_tiles else None


def _is_transposed(access: Access, axes: Sequence[Axis], axis: int) -> bool:
    dimensions = access.dimensions()
    if not dimensions or not dimensions[-1][0].same_as(axes[axis].var):
        return False
    return axes[-1].var in variables([index for index, _ in dimensions[:-1]])


def _element_bytes(buffer: Any) -> int:
    """Bytes of an element."""
    bits = "".join(c for c in str(buffer.dtype) if c.isdigit())
    return int(bits or 8) // 8


def _pitch(buffer: Any) -> int:
    """Elements from row to row of a tile. Flat, because TVM would shrink a padded axis to the extent that is used."""
    return WARP + max(1, BANK_BYTES // _element_bytes(buffer))


def _storage_dtype(buffer: Any) -> str:
    # The bits of a bfloat16, since TVM would widen a kernel's own buffer of it (``tir/bfloat16.py``).
    return "uint16" if str(buffer.dtype) == BF16 else str(buffer.dtype)


def transpose_launch(ctx: NestContext, stages: Sequence[Stage], transpose: Transpose) -> Stmt:
    """The launch: a block a tile of WARP by WARP points."""
    axes = transpose.axes
    tile_rows, tile_columns = (-(-axes[n].extent // WARP) for n in (transpose.axis, -1))
    grid = [*(axes[n].extent for n in transpose.batch_axes), tile_rows, tile_columns]
    materialized = [s for s in stages if is_materialized(ctx, s, stages)]
    tiles = {a.buffer: shared([WARP * _pitch(a.buffer)], _storage_dtype(a.buffer), "tile") for a in transpose.reads}

    def block(b: Expr, t: Expr) -> Stmt:
        *batch, i, j = unravel(b, grid)
        warp, lane = t // WARP, t % WARP

        # Loads have the lane along the read axis, stores along the last axis: each is coalesced, and the tile exchanges
        # the two.
        def load_tile(u: Expr) -> Stmt:
            column = u * WARPS + warp
            index, in_bounds = transpose.point(batch, i * WARP + lane, j * WARP + column)
            slots = [(a, tiles[a.buffer], column * _pitch(a.buffer) + lane) for a in transpose.reads]
            loads = [_store_shared(ctx, a, axes, index, tile, slot) for a, tile, slot in slots]
            return tirx.IfThenElse(in_bounds, seq(loads), None)

        def write_tile(u: Expr) -> Stmt:
            row = u * WARPS + warp
            index, in_bounds = transpose.point(batch, i * WARP + row, j * WARP + lane)
            provided = {
                b: (lambda _, tile=tile, b=b: _load_shared(b, load(tile, lane * _pitch(b) + row)))
                for b, tile in tiles.items()
            }
            return tirx.IfThenElse(in_bounds, point_stores(ctx, stages, index, provided, materialized), None)

        iterations = WARP // WARPS
        allocations = [tirx.AllocBuffer(tile) for tile in tiles.values()]
        return seq([*allocations, unrolled(iterations, load_tile), barrier(), unrolled(iterations, write_tile)])

    return launch(prod(grid), WARP * WARPS, block)


def _store_shared(
    ctx: NestContext, access: Access, axes: Sequence[Axis], index: Sequence[Expr], tile: Any, slot: Expr
) -> Stmt:
    writer = ScalarWriter(ctx.virtual)
    index_of_axis = {a.var: position.astype(str(a.var.ty.dtype)) for a, position in zip(axes, index, strict=True)}
    value = load(access.buffer, *writer.indices(access.indices, index_of_axis))
    return store(tile, bits16(value) if is_bf16(value) else value, slot)


def _load_shared(buffer: Any, value: Expr) -> Expr:
    return from_bits16(value) if str(buffer.dtype) == BF16 else value
