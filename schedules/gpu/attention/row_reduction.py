"""Folds along the rows of attention: neighbouring threads of one warp have the lanes of a row's tree, which meet from
thread to thread, in the CPU's order."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from tvm import tirx

from ...tir.accumulators import Partial, partial_type
from ...tir.builder import Expr, Stmt, i64, loop, seq, unravel
from ...tir.context import TREE_WIDTH, NestContext, block
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of
from ...tir.reduction import LONG_ROW, reduces_along_memory
from ...tir.stages import Stage
from ..threads.launch import WARP, barrier, registers, unrolled
from ..threads.warp_reduce import ThreadGroup, tree_reduce
from .row_stages import Rows, result
from .shared_memory import THREADS


def fold_width(ctx: NestContext, stage: Stage) -> int:
    """The lanes of the fold's tree, as on a CPU (``cpu/folds.py``)."""
    if stage.depth < TREE_WIDTH or stage.in_order or not reduces_along_memory(ctx, stage):
        return 1
    return TREE_WIDTH if stage.depth < LONG_ROW else 4 * TREE_WIDTH


@attrs.frozen(eq=False)
class Fold:
    """``size`` threads have a row, ``slots`` lanes of ``width`` each: lane ``slot * size`` plus the thread's number. A
    thread takes ``turns`` rows, one after the other; ``acc`` has what it sums up, and a place for another's."""

    rows: Rows
    stage: Stage
    width: int
    acc: Partial

    @classmethod
    def make(cls, rows: Rows, stage: Stage) -> Fold:
        width = fold_width(rows.ctx, stage)
        turns, slots = -(-rows.memory.rows * min(width, WARP) // THREADS), -(-width // WARP)
        return cls(rows, stage, width, Partial(stage, registers([turns * slots + 1], partial_type(stage), "acc")))

    @property
    def size(self) -> int:
        return min(self.width, WARP)

    @property
    def slots(self) -> int:
        return self.width // self.size

    @property
    def turns(self) -> int:
        return -(-self.rows.memory.rows * self.size // THREADS)

    def start(self) -> Stmt:
        return unrolled(self.turns * self.slots, lambda p: self.acc.start(p, i64(0)), "p")

    def add(self, rows: Rows, first: Expr, count: int, asked: bool = False) -> Stmt:
        """``count`` columns from ``first`` on, ``asked``: as far as there are so many. All turns of ``width`` columns
        are whole but the last."""
        full, rest = divmod(count, self.width)
        (axis,) = self.stage.reduce

        def element(p: Expr, slot: Expr, column: Expr, s: Expr, asked: bool) -> Stmt:
            here = index_of(self.stage.space, rows.places(slot)) | index_of([axis], [column])
            added = rows.local(bind_in_buffers(self.acc.add(rows.ctx, here, p * self.slots + s)), slot)
            return tirx.IfThenElse(column < i64(axis.extent), added, None) if asked else added

        def one(p: Expr, slot: Expr, lane: Expr) -> Stmt:
            def turn(o: Expr, asked: bool) -> Stmt:
                start = first + o * self.width + lane
                return unrolled(self.slots, lambda s: element(p, slot, start + s * self.size, s, asked), "s")

            parts = [loop(full, lambda o: turn(o, asked), name="k")] if full else []
            return seq([*parts, *([turn(i64(full), True)] if rest else [])])

        return self._each(one)

    def end(self) -> list[Stmt]:
        """The lanes of a row meet, and one of its threads has the result."""

        def one(p: Expr, slot: Expr, lane: Expr) -> Stmt:
            mine = p * self.slots
            value, here = self.acc.result(mine), index_of(self.stage.space, self.rows.places(slot))
            if self.size == 1:
                return result(self.rows, self.stage, here, value, slot)
            met = tree_reduce(self.acc, self.slots, ThreadGroup(self.size, lane), mine, i64(self.turns * self.slots))
            inside = [tirx.EQ(lane, i64(0)), *([self._flat(p) < i64(self._threads)] if self._idle else [])]
            return seq([*met, result(self.rows, self.stage, here, value, slot, *inside)])

        return [self._each(one), barrier()]

    @property
    def _threads(self) -> int:
        return self.rows.memory.rows * self.size

    @property
    def _idle(self) -> bool:
        """Is a warp more threads than there are lanes? Then the others do the same: all take part where some meet."""
        return self.size > 1 and self._threads < WARP

    def _flat(self, p: Expr) -> Expr:
        return p * THREADS + self.rows.thread

    def _each(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """``body(which of a thread's, slot, lane)`` for every row, in whole warps."""
        count = WARP if self._idle else self._threads

        def one(p: Expr) -> Stmt:
            slot, lane = unravel(self._flat(p), [self.rows.memory.rows, self.size])
            lane = tirx.floormod(lane, i64(self.size)) if self._idle else lane
            done = bind_in_buffers(body(p, slot, lane))
            return done if count % THREADS == 0 else tirx.IfThenElse(self._flat(p) < i64(count), done, None)

        return unrolled(self.turns, one, "p")


def fold_rows(rows: Rows, stage: Stage) -> list[Stmt]:
    fold = Fold.make(rows, stage)
    return [block([fold.start(), fold.add(rows, i64(0), stage.depth), *fold.end()], fold.acc.buffers)]
