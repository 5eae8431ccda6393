"""Matmul with a blocked k loop, as in BLIS: a task's block of B stays in L2 for all its rows, a row tile's A in L1.

A task has several panels and a group of row tiles. Between two blocks of k its sums lie in memory, in the type of the
accumulators; each tile loads them and goes on. So every sum is the same chain of fused multiply-adds in the order of k,
with the same bits, as without blocks.
"""

from __future__ import annotations

from typing import Any

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
    """Tasks of some panels and a group of row tiles each. ``nanoseconds``: of all of it on one thread."""
    assert plan.k_blocks is not None
    blocks = plan.k_blocks
    extents = [plan.product.count, -(-plan.panels // blocks.panels), plan.row_groups]

    def task(flat: Expr) -> Stmt:
        return _task(plan, blocks, *unravel(flat, extents))

    return parallel_loop(plan.ctx, extents[0] * extents[1] * extents[2], task, nanoseconds)


def _task(plan: MatmulPlan, blocks: KBlocks, batch: Expr, panel_group: Expr, row_group: Expr) -> Stmt:
    """A group of row tiles against ``blocks.panels`` panels."""
    max_rows = plan.row_partition.max_tiles * plan.tile.mr
    sums = scratch([max_rows, blocks.panels * plan.tile.panel], plan.dtype, "sums")
    first_panel, first_tile = panel_group * blocks.panels, plan.row_partition.first(row_group)
    panels = clipped_count(blocks.panels, plan.panels, first_panel)
    tiles = plan.row_partition.count(row_group)
    packed = scratch([blocks.panels, blocks.k, plan.tile.panel], plan.dtype, "panels")
    packs = plan.b_packing != "none"

    def initialize(row: Expr) -> Stmt:
        columns = blocks.panels * plan.tile.panel
        return seq(vector_loop(columns, plan.tile.lanes, lambda c: store(sums, plan.init, row, c)))

    def pack(j: Expr, first_k: Expr, count: int) -> Stmt:
        def store_packed(value: Expr, k: Expr, c: Expr) -> Stmt:
            return store(packed, value, j, k, c)

        def pack_width(panel: Expr, width: int) -> Stmt:
            return pack_panel(plan, batch, panel * plan.tile.panel, width, store_packed, first_k, count)

        return plan.for_panel(first_panel + j, pack_width)

    def tile(t: Expr, j: Expr, first_k: Expr, count: int) -> Stmt:
        def tile_of_width(panel: Expr, width: int) -> Stmt:
            start = panel * plan.tile.panel

            def load_b(k: Expr, lane: Expr, first: int) -> tuple[list[Stmt], Expr]:
                if not packs:
                    return read_b(plan, batch, first_k + k, start + (lane + first))
                return [], load(packed, j, k, lane + first)

            spans, column = spans_of(plan, width), j * plan.tile.panel
            return _tile(plan, batch, (first_tile + t, t), sums, column, spans, (first_k, count), load_b)

        return plan.for_panel(first_panel + j, tile_of_width)

    def k_block(first_k: Expr, count: int) -> Stmt:
        """B's block stays in L2 for all row tiles; a row tile's A stays in L1 for all panels."""

        def row_tile(t: Expr) -> Stmt:
            return dynamic_loop(panels, lambda j: tile(t, j, first_k, count), "panel")

        pack_all = [dynamic_loop(panels, lambda j: pack(j, first_k, count), "panel")] if packs else []
        return seq([*pack_all, dynamic_loop(tiles, row_tile, "tile")])

    full, rest = divmod(plan.product.k, blocks.k)
    k_blocks = [loop(full, lambda o: k_block(o * blocks.k, blocks.k), name="block")]
    k_blocks += [k_block(i64(full * blocks.k), rest)] if rest else []

    rows = _row_count(plan, tiles, first_tile)
    first_row = first_tile * plan.tile.mr
    stores = dynamic_loop(rows, lambda r: _store_row(plan, batch, sums, (first_row, r), first_panel, panels), "row")
    return block([loop(max_rows, initialize, name="row"), *k_blocks, stores], [sums, *([packed] if packs else [])])


def _row_count(plan: MatmulPlan, tiles: Expr, first_tile: Expr) -> Expr:
    """The rows of ``tiles`` tiles from ``first_tile`` on; the last tile of all may have fewer than ``mr``."""
    max_rows, first_row = plan.row_partition.max_tiles * plan.tile.mr, first_tile * plan.tile.mr
    if plan.row_partition.is_balanced:
        return tirx.min(tiles * plan.tile.mr, i64(plan.product.m) - first_row)
    return clipped_count(max_rows, plan.product.m, first_row)


def _store_row(
    plan: MatmulPlan, batch: Expr, sums: Any, row: tuple[Expr, Expr], first_panel: Expr, panels: Expr
) -> Stmt:
    """A row of a task's sums stored, with its epilogue. ``row``: the task's first row, and its number from there on."""
    first_row, r = row

    def store_panel(j: Expr, panel: Expr, width: int) -> Stmt:
        def value(first: int, lane: Expr) -> Expr:
            return load(sums, r, j * plan.tile.panel + (lane + first))

        return store_row(plan, batch, first_row + r, panel * plan.tile.panel, spans_of(plan, width), value)

    def store_panel_number(j: Expr) -> Stmt:
        return plan.for_panel(first_panel + j, lambda panel, width: store_panel(j, panel, width))

    return dynamic_loop(panels, store_panel_number, "panel")


def _tile(
    plan: MatmulPlan, batch: Expr, tile: tuple[Expr, Expr], sums: Any, first_column: Expr, spans: Spans,
    k_range: tuple[Expr, int], load_b: LoadB,
) -> Stmt:  # fmt: skip
    """A tile goes on with a block of k. ``tile``: its number among all, and in the task; ``first_column``: of the tile
    in ``sums``; ``k_range``: the block's first k, and how many."""
    (number, task_number), (first_k, count), mr = tile, k_range, plan.tile.mr
    accumulators = accumulators_of(plan, spans)

    def position(r: int, first: int, lane: Expr) -> tuple[Expr, Expr]:
        return task_number * mr + r, first_column + (lane + first)

    def load_sum(acc: Any, r: int, first: int, lane: Expr) -> Stmt:
        return store(acc, load(sums, *position(r, first, lane)), lane)

    def store_sum(acc: Any, r: int, first: int, lane: Expr) -> Stmt:
        return store(sums, load(acc, lane), *position(r, first, lane))

    def iteration(k: Expr) -> Stmt:
        return outer_product(plan, batch, number, accumulators, spans, k, load_b, first_k)

    loads = for_each_accumulator(accumulators, spans, load_sum)
    stores = for_each_accumulator(accumulators, spans, store_sum)
    statements = [*loads, *k_loop(plan, count, iteration), *stores]
    return block(statements, [acc for row in accumulators for acc in row])
