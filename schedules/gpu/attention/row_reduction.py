"""Row reductions of attention by warp shuffles (``__shfl_down_sync``), in the order of the CPU's reduction tree.

Neighbouring threads of a warp have the lanes of a row's tree: lane = slot * group size + thread. Each lane adds its
columns in ascending order; then a tree combines the lanes, first in a thread, then between threads. So the bits are the
CPU's.
"""

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
from .row_stages import RowBlock, store_element
from .shared_memory import THREADS


def tree_width(ctx: NestContext, stage: Stage) -> int:
    """The lanes of the reduction tree, as on a CPU (``tir/reduction.py``)."""
    # The same rule as ``reduction_order``: if they differ, attention's bits leave the CPU's.
    if stage.depth < TREE_WIDTH or stage.in_order or not reduces_along_memory(ctx, stage):
        return 1
    return TREE_WIDTH if stage.depth < LONG_ROW else 4 * TREE_WIDTH


@attrs.frozen(eq=False)
class RowReduction:
    """``size`` threads have a row, ``slots`` lanes of ``width`` each: lane ``slot * size`` plus the thread's number. A
    thread takes ``rows_per_thread`` rows in turn; ``acc`` has its partial results, and a slot for another thread's."""

    rows: RowBlock
    stage: Stage
    width: int
    acc: Partial

    @classmethod
    def make(cls, rows: RowBlock, stage: Stage) -> RowReduction:
        width = tree_width(rows.ctx, stage)
        rows_per_thread, lanes_per_thread = -(-rows.memory.rows * min(width, WARP) // THREADS), -(-width // WARP)
        return cls(
            rows,
            stage,
            width,
            Partial(stage, registers([rows_per_thread * lanes_per_thread + 1], partial_type(stage), "acc")),
        )

    @property
    def group_size(self) -> int:
        return min(self.width, WARP)

    @property
    def lanes_per_thread(self) -> int:
        return self.width // self.group_size

    @property
    def rows_per_thread(self) -> int:
        return -(-self.rows.memory.rows * self.group_size // THREADS)

    def start(self) -> Stmt:
        return unrolled(self.rows_per_thread * self.lanes_per_thread, lambda p: self.acc.start(p, i64(0)), "p")

    def add(self, rows: RowBlock, first: Expr, count: int, bounds_checked: bool = False) -> Stmt:
        """Adds ``count`` columns from ``first`` on; ``bounds_checked``: columns past the row's end are left out. Only
        the last iteration may have less than ``width`` columns."""
        full, rest = divmod(count, self.width)
        (axis,) = self.stage.reduce

        def element(p: Expr, slot: Expr, column: Expr, s: Expr, bounds_checked: bool) -> Stmt:
            indices = index_of(self.stage.space, rows.row_indices(slot)) | index_of([axis], [column])
            added = rows.to_shared(
                bind_in_buffers(self.acc.add(rows.ctx, indices, p * self.lanes_per_thread + s)), slot
            )
            return tirx.IfThenElse(column < i64(axis.extent), added, None) if bounds_checked else added

        def row(p: Expr, slot: Expr, lane: Expr) -> Stmt:
            def iteration(o: Expr, bounds_checked: bool) -> Stmt:
                start = first + o * self.width + lane
                return unrolled(
                    self.lanes_per_thread,
                    lambda s: element(p, slot, start + s * self.group_size, s, bounds_checked),
                    "s",
                )

            parts = [loop(full, lambda o: iteration(o, bounds_checked), name="k")] if full else []
            return seq([*parts, *([iteration(i64(full), True)] if rest else [])])

        return self._for_each_row(row)

    def finish(self) -> list[Stmt]:
        """Combines the lanes of a row; its first thread stores the result."""

        def row(p: Expr, slot: Expr, lane: Expr) -> Stmt:
            first = p * self.lanes_per_thread
            value, indices = self.acc.result(first), index_of(self.stage.space, self.rows.row_indices(slot))
            if self.group_size == 1:
                return store_element(self.rows, self.stage, indices, value, slot)
            combined = tree_reduce(
                self.acc,
                self.lanes_per_thread,
                ThreadGroup(self.group_size, lane),
                first,
                i64(self.rows_per_thread * self.lanes_per_thread),
            )
            # All threads of the group have the result; its first stores it, and threads that repeat a row do not.
            guards = [
                tirx.EQ(lane, i64(0)),
                *([self._flat_index(p) < i64(self._threads)] if self._has_idle_threads else []),
            ]
            return seq([*combined, store_element(self.rows, self.stage, indices, value, slot, *guards)])

        return [self._for_each_row(row), barrier()]

    @property
    def _threads(self) -> int:
        return self.rows.memory.rows * self.group_size

    @property
    def _has_idle_threads(self) -> bool:
        """Are there fewer lanes than threads of a warp? The others repeat the work: a shuffle needs the full warp."""
        return self.group_size > 1 and self._threads < WARP

    def _flat_index(self, p: Expr) -> Expr:
        return p * THREADS + self.rows.thread

    def _for_each_row(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """``body(which of a thread's, slot, lane)`` for every row, in whole warps."""
        # A whole warp in any case: a shuffle with threads missing is undefined.
        count = WARP if self._has_idle_threads else self._threads

        def row(p: Expr) -> Stmt:
            slot, lane = unravel(self._flat_index(p), [self.rows.memory.rows, self.group_size])
            lane = tirx.floormod(lane, i64(self.group_size)) if self._has_idle_threads else lane
            stmt = bind_in_buffers(body(p, slot, lane))
            return stmt if count % THREADS == 0 else tirx.IfThenElse(self._flat_index(p) < i64(count), stmt, None)

        return unrolled(self.rows_per_thread, row, "p")


def reduce_rows(rows: RowBlock, stage: Stage) -> list[Stmt]:
    reduction = RowReduction.make(rows, stage)
    return [
        block([reduction.start(), reduction.add(rows, i64(0), stage.depth), *reduction.finish()], reduction.acc.buffers)
    ]
