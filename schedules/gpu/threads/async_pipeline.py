"""The software pipeline of a tensor-core matmul: ``cp.async`` copies run ahead of the k loop (CUTLASS multistage).

Attention on tensor cores (``attention/tensor_core.py``) has a loop of its own, and takes ``copy_tile_async`` and
``write_tile`` from here.

Tiles of A and B come to a ring of ``stages`` buffers in shared memory, ``stages - 1`` tiles ahead of the ``mma`` that
use them, with a single barrier an iteration. The epilogue hands finished elements on by way of shared memory, so that
neighbouring threads have neighbouring columns. The sum of an element runs over k in order, instruction by
instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Stmt, i64, load, loop, seq, store
from ...tir.context import dynamic_loop
from . import ptx
from .half_operands import HalfOperand
from .launch import WARP, barrier, registers, unrolled
from .mma_fragments import CHUNK, MMA_TILE, Fragments, Layout, SharedOperand, Warp, accumulator_coords, warp_mma
from .mma_tiling import TILE_K, MmaTile

# Floats between the rows of sums in the epilogue's shared memory: the 4 rows that half a warp stores to at once then
# begin 8 banks apart. Without it rows of 32 columns would all begin in the same bank.
EPILOGUE_PADDING = 8
TileOrigin = tuple[Expr, Expr, Expr]  # of an operand's tile: its batch, its first row of A or column of B, its first k


@attrs.frozen(eq=False)
class BlockTile:
    """A block's tile of the result: the thread and its warp, and the tile's first row and column."""

    tile: MmaTile
    shared: Any
    thread: Expr
    warp: Warp
    row: Expr
    column: Expr


@attrs.frozen(eq=False)
class MatmulBlock(BlockTile):
    """A block's tile of a product of the batch, and the product's operands."""

    batch: Expr
    a: HalfOperand
    b: HalfOperand

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        return Layout(self.tile.rows, self.a.mn_major), Layout(self.tile.columns, self.b.mn_major)

    def stage_offsets(self, step: Expr) -> tuple[Expr, Expr]:
        """Where the tiles of A and B of an iteration lie in the ring of stages."""
        start = tirx.floormod(step, i64(self.tile.stages)) * self.tile.stage_halves
        return start, start + self.tile.rows * TILE_K


def k_loop(
    block: MatmulBlock,
    fragments: Fragments,
    first: Expr,
    steps: Expr,
    after_step: Callable[[Expr], Sequence[Stmt]],
) -> list[Stmt]:
    """``acc += A B`` over ``steps`` tiles of k from tile ``first`` on, and ``after_step(step)`` after each."""
    prefetch_distance = block.tile.stages - 1

    def prefetch(step: Expr) -> Stmt:
        copies = seq(_copies(block, step, first + step))
        # Past the end an empty group is committed, so that ``wait_group`` counts the same in every iteration.
        return seq([tirx.IfThenElse(step < steps, copies, None), ptx.commit_group()])

    def iteration(step: Expr) -> Stmt:
        # A single barrier does both: after it all see the tiles that have arrived, and all are done with the stage that
        # the next prefetch overwrites. The prefetch comes before the mma's, so that its copies run while these
        # multiply.
        arrive = [ptx.wait_group(prefetch_distance - 1), barrier(), prefetch(step + prefetch_distance)]
        operands = [
            SharedOperand(block.shared, start, layout, letter == "a")
            for start, layout, letter in zip(block.stage_offsets(step), block.layouts, "ab", strict=True)
        ]
        mma = warp_mma(block.tile, block.warp, fragments, operands, block.a.dtype)
        return seq([*arrive, mma, *after_step(step)])

    # The last barrier lets the epilogue reuse the shared memory.
    return [unrolled(prefetch_distance, prefetch, "stage"), dynamic_loop(steps, iteration, "k_tile"), barrier()]


def _copies(block: MatmulBlock, step: Expr, k_tile: Expr) -> list[Stmt]:
    tiles = zip((block.a, block.b), block.layouts, block.stage_offsets(step), (block.row, block.column), strict=True)
    return [_copy(block, *tile, k_tile * TILE_K) for tile in tiles]


def _copy(block: MatmulBlock, operand: HalfOperand, layout: Layout, start: Expr, mn: Expr, k: Expr) -> Stmt:
    origin = block.batch, mn, k
    return copy_tile_async(block.shared, start, layout, operand, origin, block.thread, block.tile.threads)


def copy_tile_async(
    memory: Any, start: Expr, layout: Layout, operand: HalfOperand, origin: TileOrigin, thread: Expr, threads: int
) -> Stmt:
    """Copies the tile at ``origin`` to shared memory from the half ``start`` on, by all ``threads`` of a block.

    What lies past the operand's edges is filled with zeros, which change no sum of the elements inside.
    """
    width, (batch, mn, k) = operand.copy_width, origin
    copies_per_row = layout.chunks * (CHUNK // width)
    total, (extent_mn, extent_k) = layout.rows * copies_per_row, operand.extents

    def copy(i: Expr) -> Stmt:
        flat = i * threads + thread
        row, column = tirx.floordiv(flat, i64(copies_per_row)), tirx.floormod(flat, i64(copies_per_row))
        chunk, in_chunk = tirx.floordiv(column, i64(CHUNK // width)), tirx.floormod(column, i64(CHUNK // width))
        source_mn, source_k = (mn + column * width, k + row) if layout.mn_major else (mn + row, k + column * width)
        guard = [source_mn < i64(extent_mn)] if extent_mn % layout.tile_mn else []
        guard += [source_k < i64(extent_k)] if extent_k % layout.tile_k else []
        # Past the edges the copy is done with 0 source bytes, which fills zeros; a branch around it would leave an
        # older tile.
        valid = tirx.all(*guard) if guard else tirx.const(True, "bool")
        source = tirx.address_of(operand.element(batch, source_mn, source_k))
        offset = start + layout.swizzled_offset(row, chunk) + in_chunk * width
        stmt = ptx.cp_async(memory, offset, source, width, valid)
        return stmt if total % threads == 0 else tirx.IfThenElse(flat < i64(total), stmt, None)

    return unrolled(-(-total // threads), copy)


def write_tile(block: BlockTile, acc: Any, m: int, n: int, element: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
    """The epilogue: ``element(row, column, sum)`` for all of the tile within m by n, 16 rows of a warp at a time.

    A thread's accumulators are pairs in rows 8 apart. Through shared memory they are handed to neighbouring threads
    column by column, so that stores to global memory coalesce. Each warp has its own slab: no barrier of the block.
    """
    tile, warp = block.tile, block.warp
    pitch = tile.warp_columns + EPILOGUE_PADDING
    slab = tirx.floordiv(block.thread, i64(WARP)) * (MMA_TILE * pitch)
    matrices_n = tile.warp_columns // 8

    def store_rows(i: Expr) -> Stmt:
        def store_pair(j: Expr, e: Expr) -> Stmt:
            """Two neighbours of a thread, as a float2: half a warp's, in four rows, fill all banks once."""
            row, column = accumulator_coords(warp.lane, e * 2)
            first = (i * matrices_n + j) * 4 + e * 2
            values = load(acc, first), load(acc, first + 1)
            return ptx.store_shared_pair(block.shared, slab + row * pitch + j * 8 + column, values)

        return unrolled(matrices_n, lambda j: unrolled(2, lambda e: store_pair(j, e)))

    def finish(i: Expr, step: Expr) -> Stmt:
        flat = step * WARP + warp.lane
        y, x = tirx.floordiv(flat, i64(tile.warp_columns)), tirx.floormod(flat, i64(tile.warp_columns))
        row, column = block.row + warp.row + i * MMA_TILE + y, block.column + warp.column + x
        value = registers([1], "float32", "sum")
        read = store(value, ptx.load_shared(block.shared, slab + y * pitch + x), i64(0))
        stmt = seq([tirx.AllocBuffer(value), read, element(row, column, load(value, i64(0)))])
        guard = [row < i64(m)] if m % tile.rows else []
        guard += [column < i64(n)] if n % tile.columns else []
        return tirx.IfThenElse(tirx.all(*guard), stmt, None) if guard else stmt

    def rows(i: Expr) -> Stmt:
        finished = loop(MMA_TILE * tile.warp_columns // WARP, lambda step: finish(i, step))
        # The second __syncwarp: the next 16 rows overwrite the slab.
        return seq([store_rows(i), ptx.syncwarp(), finished, ptx.syncwarp()])

    return unrolled(tile.warp_rows // MMA_TILE, rows)
