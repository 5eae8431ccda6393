"""Matmul with a blocked k loop, as in BLIS: a task's block of B stays in L2 for all its rows, a row tile's A in L1.

A task has several panels and a group of row tiles. Between two blocks of k its sums lie in memory, in the type of the
accumulators; each tile loads them and goes on. So every sum is the same chain of fused multiply-adds in the order of k,
with the same bits, as without blocks.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ..tir.context import block, dynamic_loop, parallel_loop, vector_loop
from .matmul_microkernel import (
    LoadB,
    Spans,
    accumulators_of,
    for_each_accumulator,
    k_loop,
    outer_product,
    spans_of,
    store_row,
)
from .matmul_packing import pack_panel
from .matmul_tiling import KBlocks, MatmulPlan, clipped_count, read_b


def k_blocked_nest(plan: MatmulPlan, nanoseconds: float) -> Stmt:
    """Tasks of some panels and a group of row tiles each. ``nanoseconds``: of all of it on a single thread."""
    assert plan.k_blocks is not None
    blocks = plan.k_blocks
    extents = [plan.product.count, -(-plan.panels // blocks.panels), plan.row_groups]

    def task(flat: Expr) -> Stmt:
        return _make_task(plan, blocks, *unravel(flat, extents)).statements()

    return parallel_loop(plan.ctx, extents[0] * extents[1] * extents[2], task, nanoseconds)


@attrs.frozen(eq=False)
class _Task:
    """A group of row tiles against a group of panels.

    panels, tiles: how many the task has, from ``first_panel`` and ``first_tile`` on
    sums:          the task's part of the result, between blocks of k
    packed:        B's block as [panel][k][column]; None: B is read in place
    """

    plan: MatmulPlan
    blocks: KBlocks
    batch: Expr
    first_panel: Expr
    panels: Expr
    first_tile: Expr
    tiles: Expr
    sums: Any
    packed: Any

    @property
    def first_row(self) -> Expr:
        return self.first_tile * self.plan.tile.mr

    def statements(self) -> Stmt:
        full, rest = divmod(self.plan.product.k, self.blocks.k)
        k_blocks = [loop(full, lambda o: self.k_block(o * self.blocks.k, self.blocks.k), name="k_block")]
        k_blocks += [self.k_block(i64(full * self.blocks.k), rest)] if rest else []
        max_rows = self.plan.row_partition.max_tiles * self.plan.tile.mr
        initialize = loop(max_rows, self.initialize_row, name="row")
        stores = dynamic_loop(self.row_count(), self.store_row, "row")
        buffers = [self.sums, *([self.packed] if self.packed is not None else [])]
        return block([initialize, *k_blocks, stores], buffers)

    def initialize_row(self, row: Expr) -> Stmt:
        columns = self.blocks.panels * self.plan.tile.panel
        init = self.plan.init
        return seq(vector_loop(columns, self.plan.tile.lanes, lambda c: store(self.sums, init, row, c)))

    def k_block(self, first_k: Expr, count: int) -> Stmt:
        """B's block stays in L2 for all row tiles; a row tile's A stays in L1 for all panels."""

        def row_tile(t: Expr) -> Stmt:
            return dynamic_loop(self.panels, lambda j: self.tile(t, j, first_k, count), "panel")

        packs = self.packed is not None
        pack = [dynamic_loop(self.panels, lambda j: self.pack(j, first_k, count), "panel")] if packs else []
        return seq([*pack, dynamic_loop(self.tiles, row_tile, "tile")])

    def pack(self, j: Expr, first_k: Expr, count: int) -> Stmt:
        """The block of panel ``first_panel + j``."""

        def store_packed(value: Expr, k: Expr, c: Expr) -> Stmt:
            return store(self.packed, value, j, k, c)

        def pack_width(panel: Expr, width: int) -> Stmt:
            start = panel * self.plan.tile.panel
            return pack_panel(self.plan, self.batch, start, width, store_packed, first_k, count)

        return self.plan.for_panel(self.first_panel + j, pack_width)

    def tile(self, t: Expr, j: Expr, first_k: Expr, count: int) -> Stmt:
        """A tile goes on with a block of k: row tile ``first_tile + t`` against panel ``first_panel + j``."""

        def tile_of_width(panel: Expr, width: int) -> Stmt:
            def load_b(k: Expr, lane: Expr, first: int) -> tuple[list[Stmt], Expr]:
                if self.packed is None:
                    start = panel * self.plan.tile.panel
                    return read_b(self.plan, self.batch, first_k + k, start + (lane + first))
                return [], load(self.packed, j, k, lane + first)

            return self.add_block(t, j, spans_of(self.plan, width), (first_k, count), load_b)

        return self.plan.for_panel(self.first_panel + j, tile_of_width)

    def add_block(self, t: Expr, j: Expr, spans: Spans, k_range: tuple[Expr, int], load_b: LoadB) -> Stmt:
        """Loads a tile's sums into registers, adds a block of k, and stores them. ``k_range``: first k, how many."""
        plan, (first_k, count) = self.plan, k_range
        accumulators = accumulators_of(plan, spans)

        def position(r: int, first: int, lane: Expr) -> tuple[Expr, Expr]:
            return t * plan.tile.mr + r, j * plan.tile.panel + (lane + first)

        def load_sum(acc: Any, r: int, first: int, lane: Expr) -> Stmt:
            return store(acc, load(self.sums, *position(r, first, lane)), lane)

        def store_sum(acc: Any, r: int, first: int, lane: Expr) -> Stmt:
            return store(self.sums, load(acc, lane), *position(r, first, lane))

        def iteration(k: Expr) -> Stmt:
            return outer_product(plan, self.batch, self.first_tile + t, accumulators, spans, k, load_b, first_k)

        loads = for_each_accumulator(accumulators, spans, load_sum)
        stores = for_each_accumulator(accumulators, spans, store_sum)
        statements = [*loads, *k_loop(plan, count, iteration), *stores]
        return block(statements, [acc for row in accumulators for acc in row])

    def row_count(self) -> Expr:
        """The rows of the task's tiles; the last tile of all may have fewer than ``mr``."""
        max_rows, rows = self.plan.row_partition.max_tiles * self.plan.tile.mr, self.plan.product.m
        if self.plan.row_partition.is_balanced:
            return tirx.min(self.tiles * self.plan.tile.mr, i64(rows) - self.first_row)
        return clipped_count(max_rows, rows, self.first_row)

    def store_row(self, r: Expr) -> Stmt:
        """Row ``r`` of the sums stored as part of the result, with its epilogue."""

        def store_panel(j: Expr, panel: Expr, width: int) -> Stmt:
            def value(first: int, lane: Expr) -> Expr:
                return load(self.sums, r, j * self.plan.tile.panel + (lane + first))

            start, spans = panel * self.plan.tile.panel, spans_of(self.plan, width)
            return store_row(self.plan, self.batch, self.first_row + r, start, spans, value)

        def store_panel_number(j: Expr) -> Stmt:
            return self.plan.for_panel(self.first_panel + j, lambda panel, width: store_panel(j, panel, width))

        return dynamic_loop(self.panels, store_panel_number, "panel")


def _make_task(plan: MatmulPlan, blocks: KBlocks, batch: Expr, panel_group: Expr, row_group: Expr) -> _Task:
    max_rows = plan.row_partition.max_tiles * plan.tile.mr
    sums = scratch([max_rows, blocks.panels * plan.tile.panel], plan.dtype, "sums")
    packed = None
    if plan.b_packing != "none":
        packed = scratch([blocks.panels, blocks.k, plan.tile.panel], plan.dtype, "packed_b")
    first_panel, first_tile = panel_group * blocks.panels, plan.row_partition.first(row_group)
    panels = clipped_count(blocks.panels, plan.panels, first_panel)
    tiles = plan.row_partition.count(row_group)
    return _Task(plan, blocks, batch, first_panel, panels, first_tile, tiles, sums, packed)
