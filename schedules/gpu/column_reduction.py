"""Column reductions: a thread a result, neighbouring threads on neighbouring columns, so that loads are coalesced.

Taken: reductions over any axis but the contiguous (bias gradients, sums over a batch), with their epilogue.
Many results: each thread walks down its own column. Few results and many rows: all threads of a block load a tile of
rows into shared memory, double-buffered through registers, and the first ``width`` threads add it. Either way a
thread adds a column from its first row to its last, which is the CPU's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import tvm
from tvm import tirx

from ..tir.access import contiguous_axis, reads_of
from ..tir.accumulators import accumulator, in_type, partial_type
from ..tir.argmax import is_argmax
from ..tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ..tir.context import NestContext, block, dynamic_loop
from ..tir.contraction import read_contraction
from ..tir.epilogue import epilogue_stages
from ..tir.point_writer import index_of, store_result
from ..tir.reduction import reduces_along_memory
from ..tir.stages import Axis, Stage
from .threads.launch import THREADS, UNROLL, WARP, barrier, launch, launch_per_point, shared, unrolled
from .threads.warp_reduce import accumulate, load_operands, operand_count, partially_unrolled

# The constants are chosen, not measured. None of them changes bits, only speed.
# Blocks wanted, about two a multiprocessor. With fewer results than fill so many, blocks have fewer threads. If it is
# too small, multiprocessors idle; if too large, blocks are a single warp.
BLOCKS = 256
# Results. With as many or more, a thread each has enough loads in flight to hide their latency. If it is too large, the
# barriers of staging are paid for nothing.
MAX_STAGED_RESULTS = 16_384
# Rows of a column. Below, the barriers of staging cost more than its prefetch gains.
MIN_STAGED_DEPTH = 64
# (blocks that are wanted, fewest results a block): fewer blocks than that halve the width, down to 8 float32, which are
# a sector of 32 bytes: narrower rows would load bytes that nobody adds.
WIDTH_LIMITS = 64, 8
# Bytes of shared memory of a block for the tiles, within the 48 KiB that sm_75 allows. If it is smaller, fewer rows are
# prefetched at once.
STAGING_BYTES = 32 * 1024


def column_reduction_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is no such reduction."""
    stage = stages[0]
    if stage.reduction is None or reduces_along_memory(ctx, stage) or read_contraction(ctx.program, stage) is not None:
        return None
    epilogue = epilogue_stages(ctx, stage, stages[1:])
    # An argmax is not staged: a tile holds values, and its accumulator needs the row of each value too.
    staged = stage.points < MAX_STAGED_RESULTS and stage.depth >= MIN_STAGED_DEPTH and not is_argmax(stage)
    nest = _ColumnReduction(ctx, stage, epilogue, _coalesced_axes(ctx, stage))
    return 1 + len(epilogue), nest.staged() if staged else nest.unstaged()


def _coalesced_axes(ctx: NestContext, stage: Stage) -> tuple[Axis, ...]:
    """The result axes with the contiguous axis last, so that neighbouring threads load neighbouring addresses."""
    contiguous = contiguous_axis(reads_of(ctx, stage), [*stage.space, *stage.reduce])
    return (*(a for a in stage.space if a is not contiguous), *(a for a in stage.space if a is contiguous))


@attrs.frozen(eq=False)
class _ColumnReduction:
    """``reduction`` and its ``epilogue``; ``axes``: result axes, the last along neighbouring threads."""

    ctx: NestContext
    reduction: Stage
    epilogue: Sequence[Stage]
    axes: Sequence[Axis]

    def _result_index(self, flat: Expr) -> dict[Any, Expr]:
        return index_of(self.axes, unravel(flat, [a.extent for a in self.axes]))

    def _row_index(self, r: Expr) -> dict[Any, Expr]:
        return index_of(self.reduction.reduce, unravel(r, [a.extent for a in self.reduction.reduce]))

    def unstaged(self) -> Stmt:
        """A thread loads and adds a column."""
        threads = THREADS
        while threads > WARP and self.reduction.points < threads * BLOCKS:
            threads //= 2

        def column(flat: Expr) -> Stmt:
            acc, result_index = accumulator(self.reduction, 1), self._result_index(flat)

            def add(r: Expr) -> Stmt:
                return acc.add(self.ctx, result_index | self._row_index(r), i64(0))

            # Unrolled, so that UNROLL loads are in flight while the additions wait for each other. Their order stays.
            k_loop = partially_unrolled(self.reduction.depth, add, UNROLL)
            write = store_result(self.ctx, self.reduction, result_index, acc.result(i64(0)), self.epilogue)
            return block([acc.start(i64(0), i64(0)), k_loop, write], acc.buffers)

        return launch_per_point(self.reduction.points, column, threads)

    def staged(self) -> Stmt:
        """Software pipeline: all threads prefetch tile p + 1 into registers, the first ``width`` threads add tile p."""
        width = self._width()
        rows_at_once = THREADS // width
        parts, dtype = operand_count(self.ctx, self.reduction), partial_type(self.reduction)
        rows_per_thread = STAGING_BYTES // (THREADS * parts * tvm.DataType(dtype).itemsize)
        # Rows a thread prefetches at once: UNROLL, or as many as shared memory or the column has.
        rows_per_thread = max(1, min(UNROLL, rows_per_thread, -(-self.reduction.depth // rows_at_once)))
        staged_registers = [scratch([rows_per_thread], dtype, "staged") for _ in range(parts)]
        tiles = [shared([rows_at_once * rows_per_thread * width], dtype, "tile") for _ in range(parts)]
        acc = scratch([1], dtype, "acc")
        assert self.reduction.reduction is not None
        init = store(acc, tirx.const(self.reduction.reduction.init.value, dtype), i64(0))

        def body(b: Expr, t: Expr) -> Stmt:
            column, row_lane = b * width + tirx.floormod(t, i64(width)), tirx.floordiv(t, i64(width))
            is_exact = self.reduction.points % width == 0
            # Threads past the last column repeat it instead of leaving: a barrier needs every thread of the block, and
            # their loads must stay inside the tensor.
            result_index = self._result_index(column if is_exact else tirx.Min(column, i64(self.reduction.points - 1)))
            tile = _StagedTile(self, result_index, row_lane, t, rows_at_once, rows_per_thread, staged_registers, tiles)
            result = in_type(load(acc, i64(0)), str(self.reduction.buffer.dtype))
            write = store_result(self.ctx, self.reduction, result_index, result, self.epilogue)
            has_result = t < width if is_exact else tirx.And(t < width, column < i64(self.reduction.points))

            def iteration(p: Expr) -> Stmt:
                add = tirx.IfThenElse(t < width, tile.add(p, acc, width), None)
                # The first barrier: every adder has read the tile. The second: the next tile is complete.
                return seq([tile.prefetch(p + 1), add, barrier(), tile.store_shared(), barrier()])

            count = -(-self.reduction.depth // (rows_at_once * rows_per_thread))
            parts = [init, tile.prefetch(i64(0)), tile.store_shared(), barrier(), loop(count, iteration, name="p")]
            return block([*parts, tirx.IfThenElse(has_result, write, None)], [acc, *staged_registers, *tiles])

        return launch(-(-self.reduction.points // width), THREADS, body)

    def _width(self) -> int:
        """Results of a block, a power of two."""
        width, (min_blocks, min_width) = WARP, WIDTH_LIMITS
        while width > min_width and self.reduction.points < width * min_blocks:
            width //= 2
        return width


@attrs.frozen(eq=False)
class _StagedTile:
    """``rows_at_once * rows_per_thread`` rows of a block's columns. The threads of row ``row_lane`` load elements into
    ``staged_registers``, then store them to the shared ``tiles`` (a tile for each factor of a product)."""

    nest: _ColumnReduction
    result_index: dict[Any, Expr]
    row_lane: Expr
    thread: Expr
    rows_at_once: int
    rows_per_thread: int
    staged_registers: Sequence[Any]
    tiles: Sequence[Any]

    def prefetch(self, number: Expr) -> Stmt:
        def load_row(u: Expr) -> Stmt:
            row = number * (self.rows_at_once * self.rows_per_thread) + (u * self.rows_at_once + self.row_lane)
            index = self.result_index | self.nest._row_index(row)
            read = load_operands(self.nest.ctx, self.nest.reduction, index, self.staged_registers, u)
            return tirx.IfThenElse(row < i64(self.nest.reduction.depth), read, None)

        return unrolled(self.rows_per_thread, load_row)

    def store_shared(self) -> Stmt:
        def store_row(u: Expr) -> Stmt:
            slot = u * THREADS + self.thread
            return seq([store(r, load(h, u), slot) for h, r in zip(self.staged_registers, self.tiles, strict=True)])

        return unrolled(self.rows_per_thread, store_row)

    def add(self, number: Expr, acc: Any, width: int) -> Stmt:
        rows = self.rows_at_once * self.rows_per_thread
        # The last tile may be shorter. Past the column's end the registers, and so the tile, still hold older rows:
        # they must not be added.
        count = tirx.Min(i64(self.nest.reduction.depth) - number * rows, i64(rows))

        def add_row(r: Expr) -> Stmt:
            parts = [load(b, r * width + self.thread) for b in self.tiles]
            return store(acc, accumulate(self.nest.reduction, load(acc, i64(0)), parts), i64(0))

        return dynamic_loop(count, add_row, "r")
