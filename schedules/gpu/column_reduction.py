"""Folds whose memory runs along the results: a thread a result, neighbours side by side, each in the order of its rows.

Where results are few and rows many, all threads of a block read, and a few of them add what was read.
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
from .threads.launch import THREADS, UNROLL, WARP, barrier, launch, launch_per_point, shared
from .threads.warp_reduce import accumulate, fully_unrolled, load_operands, operand_count, partially_unrolled

BLOCKS = 256  # blocks from which they are of THREADS threads
MANY = 16_384  # results from which a thread each is enough to keep memory busy
DEEP = 64  # rows from which it pays to read ahead
LEAST = 64, 8  # blocks for which a block has fewer results, and the fewest: a piece of a memory line
ROOM = 32 * 1024  # bytes of shared memory for what is read ahead


def column_reduction_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if no such fold comes first."""
    fold = stages[0]
    if fold.reduction is None or reduces_along_memory(ctx, fold) or read_contraction(ctx.program, fold) is not None:
        return None
    after = epilogue_stages(ctx, fold, stages[1:])
    ahead = fold.points < MANY and fold.depth >= DEEP and not is_argmax(fold)
    one = _Columns(ctx, fold, after, _side_by_side(ctx, fold))
    return 1 + len(after), one.ahead() if ahead else one.each()


def _side_by_side(ctx: NestContext, fold: Stage) -> tuple[Axis, ...]:
    """The axes of the results, that along which memory runs last."""
    last = contiguous_axis(reads_of(ctx, fold), [*fold.space, *fold.reduce])
    return (*(a for a in fold.space if a is not last), *(a for a in fold.space if a is last))


@attrs.frozen(eq=False)
class _Columns:
    """``fold`` and the maps ``after`` it. ``axes``: of its results, as neighbouring threads take them."""

    ctx: NestContext
    reduction: Stage
    after: Sequence[Stage]
    axes: Sequence[Axis]

    def _here(self, flat: Expr) -> dict[Any, Expr]:
        return index_of(self.axes, unravel(flat, [a.extent for a in self.axes]))

    def _row(self, r: Expr) -> dict[Any, Expr]:
        return index_of(self.reduction.reduce, unravel(r, [a.extent for a in self.reduction.reduce]))

    def each(self) -> Stmt:
        """A thread reads and adds its column."""
        threads = THREADS
        while threads > WARP and self.reduction.points < threads * BLOCKS:
            threads //= 2

        def column(flat: Expr) -> Stmt:
            acc, here = accumulator(self.reduction, 1), self._here(flat)
            walk = partially_unrolled(
                self.reduction.depth, lambda r: acc.add(self.ctx, here | self._row(r), i64(0)), UNROLL
            )
            done = store_result(self.ctx, self.reduction, here, acc.result(i64(0)), self.after)
            return block([acc.start(i64(0), i64(0)), walk, done], acc.buffers)

        return launch_per_point(self.reduction.points, column, threads)

    def ahead(self) -> Stmt:
        """Pieces of some rows: every thread reads a few elements of the next piece while the first ones add up this."""
        width = self._width()
        lines = THREADS // width
        parts, dtype = operand_count(self.ctx, self.reduction), partial_type(self.reduction)
        each = ROOM // (THREADS * parts * tvm.DataType(dtype).itemsize)
        each = max(1, min(UNROLL, each, -(-self.reduction.depth // lines)))
        held = [scratch([each], dtype, "held") for _ in range(parts)]
        rows = [shared([lines * each * width], dtype, "rows") for _ in range(parts)]
        acc = scratch([1], dtype, "acc")
        assert self.reduction.reduction is not None
        start = store(acc, tirx.const(self.reduction.reduction.init.value, dtype), i64(0))

        def body(b: Expr, t: Expr) -> Stmt:
            column, line = b * width + tirx.floormod(t, i64(width)), tirx.floordiv(t, i64(width))
            whole = self.reduction.points % width == 0
            here = self._here(column if whole else tirx.Min(column, i64(self.reduction.points - 1)))
            one = _Piece(self, here, line, t, lines, each, held, rows)
            last = store_result(
                self.ctx, self.reduction, here, in_type(load(acc, i64(0)), str(self.reduction.buffer.dtype)), self.after
            )
            mine = t < width if whole else tirx.And(t < width, column < i64(self.reduction.points))
            piece = lambda p: seq([one.fetch(p + 1), tirx.IfThenElse(t < width, one.add(p, acc, width), None),  # noqa: E731
                                   barrier(), one.put(), barrier()])  # fmt: skip
            count = -(-self.reduction.depth // (lines * each))
            parts = [start, one.fetch(i64(0)), one.put(), barrier(), loop(count, piece, name="p")]
            return block([*parts, tirx.IfThenElse(mine, last, None)], [acc, *held, *rows])

        return launch(-(-self.reduction.points // width), THREADS, body)

    def _width(self) -> int:
        """Results of a block, a power of two."""
        width, (blocks, least) = WARP, LEAST
        while width > least and self.reduction.points < width * blocks:
            width //= 2
        return width


@attrs.frozen(eq=False)
class _Piece:
    """``lines`` times ``each`` rows of a block's columns: what the thread at ``line`` reads of them (``held``), what
    lies in shared memory (``rows``), and what the first threads make of it."""

    of: _Columns
    here: dict[Any, Expr]
    line: Expr
    thread: Expr
    lines: int
    each: int
    held: Sequence[Any]
    rows: Sequence[Any]

    def fetch(self, piece: Expr) -> Stmt:
        def one(u: Expr) -> Stmt:
            row = piece * (self.lines * self.each) + (u * self.lines + self.line)
            read = load_operands(self.of.ctx, self.of.reduction, self.here | self.of._row(row), self.held, u)
            return tirx.IfThenElse(row < i64(self.of.reduction.depth), read, None)

        return fully_unrolled(self.each, one)

    def put(self) -> Stmt:
        def one(u: Expr) -> Stmt:
            slot = u * THREADS + self.thread
            return seq([store(r, load(h, u), slot) for h, r in zip(self.held, self.rows, strict=True)])

        return fully_unrolled(self.each, one)

    def add(self, piece: Expr, acc: Any, width: int) -> Stmt:
        size = self.lines * self.each
        count = tirx.Min(i64(self.of.reduction.depth) - piece * size, i64(size))

        def one(r: Expr) -> Stmt:
            parts = [load(b, r * width + self.thread) for b in self.rows]
            return store(acc, accumulate(self.of.reduction, load(acc, i64(0)), parts), i64(0))

        return dynamic_loop(count, one, "r")
