"""What a warp of a tensor-core attention launch holds: its rows, its fragments, and the registers of its row values.

A warp has 16 rows. A thread has two of them, 8 apart, and a quarter of their columns, as mma.m16n8k16 lays accumulators
out. Stages are written for memory; ``to_registers`` redirects their accesses to registers. It orders no sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Load, Stmt, i64, load, store
from ...tir.let_buffers import bind_in_buffers
from ...tir.rewrite import rewrite
from ...tir.stages import Stage
from ..threads import ptx
from ..threads.async_pipeline import copy_tile_async
from ..threads.launch import barrier, unrolled
from ..threads.mma_fragments import MMA_TILE, SharedOperand, Warp

WARP_ROWS = 16  # rows of a warp: those of mma.m16n8k16


@attrs.frozen(eq=False)
class WarpState:
    """A thread's coordinates and registers. ``first_row``: the block's first of ``total_rows``. ``fragments``: score
    tiles. ``row_values``: row max and row sums, of 2 rows. ``a_fragments``: row operands that stay in registers."""

    plan: Any
    memory: Any
    thread: Expr
    warp: Warp
    heads: Sequence[Expr]
    batch: Expr
    first_row: Expr
    total_rows: int
    fragments: Mapping[Any, Any]
    row_values: Mapping[Any, Any]
    a_fragments: Mapping[Any, Any]
    operands: Mapping[str, Any]

    @property
    def ctx(self) -> Any:
        return self.plan.kv_plan.ctx

    def row(self, thread_row: Expr) -> Expr:
        """The row number; ``thread_row`` is 0 or 1: the mma layout gives a thread two rows, 8 apart."""
        return self.first_row + self.warp.row + tirx.floordiv(self.warp.lane, i64(4)) + thread_row * 8

    def row_indices(self, thread_row: Expr) -> list[Expr]:
        """Batch and row. Past the last row it is the last: it is read again, but its store is guarded."""
        row = self.row(thread_row)
        return [*self.heads, tirx.Min(row, i64(self.total_rows - 1)) if self.total_rows % self.plan.rows else row]

    def to_registers(self, stmt: Stmt, thread_row: Expr, element: Expr | None = None) -> Stmt:
        """Replaces accesses to score tiles and row values by accesses to the thread's registers."""

        def register_of(buffer: Any) -> tuple[Any, Expr] | None:
            if buffer in self.fragments and element is not None:
                return self.fragments[buffer], element
            return (self.row_values[buffer], thread_row) if buffer in self.row_values else None

        def read(node: Any) -> Expr:
            register = register_of(node.source)
            return node if register is None else load(*register)

        def write(node: Any) -> Stmt:
            register = register_of(node.buffer)
            return node if register is None else store(register[0], node.value, register[1])

        return rewrite(bind_in_buffers(stmt), [(Load, read), (tirx.BufferStore, write)])


def load_a_operands(state: WarpState) -> list[Stmt]:
    """Copies the row operands (Q) to shared memory, and from there to registers if they fit."""
    plan = state.plan
    copies, loads = [], []
    for stage, operand in plan.a_operands.items():
        start, layout = i64(plan.a_offsets[stage]), plan.a_layout(stage)
        origin = state.batch, state.first_row, i64(0)
        copies.append(
            copy_tile_async(state.memory, start, layout, operand, origin, state.thread, plan.tile(16).threads)
        )
        # Loaded once: Q is the same for every tile, so its fragments stay if there are registers for them.
        if stage in state.a_fragments:

            def load_fragment(k: Expr, s: Stage = stage) -> Stmt:
                return _a_tile(state, s).load((state.a_fragments[s], k * 4), state.warp, state.warp.row, k)

            loads.append(unrolled(stage.depth // MMA_TILE, load_fragment, "k"))
    return [*copies, ptx.commit_group(), ptx.wait_group(0), barrier(), *loads]


def _a_tile(state: WarpState, stage: Stage) -> SharedOperand:
    return SharedOperand(state.memory, i64(state.plan.a_offsets[stage]), state.plan.a_layout(stage), True)
