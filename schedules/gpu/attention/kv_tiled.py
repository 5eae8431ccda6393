"""Attention by K/V tiles, for rows that do not fit into shared memory: scores are recomputed once a pass.

A block has some rows of a head and 64 score columns at a time in shared memory (a FlashAttention without the online
softmax). A reduction that needs another, as a softmax's sum needs the row max, is a pass of its own. Columns are
added in ascending order, in the lanes of the CPU's reduction tree: the bits are the CPU's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Stmt, i64, loop, seq, store, unravel
from ...tir.context import block
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of, point_stores, store_result
from ...tir.stages import Stage
from ..threads.launch import barrier, launch, shared
from .pass_plan import TILE_COLUMNS, TRANSPOSED_WIDTH, KvTiledPlan, Pass
from .row_matmul import RowMatmul
from .row_reduction import RowReduction
from .row_stages import RowBlock, copy_a_to_shared, store_element
from .shared_memory import THREADS, TILE_PADDING, padded_length


def kv_tiled_launch(kv_plan: KvTiledPlan, batch: Sequence[int], total_rows: int) -> Stmt:
    """The launch: ``total_rows`` rows of each of ``batch``."""
    memory, fused = kv_plan.memory, kv_plan.fused
    count, groups = memory.rows, -(-total_rows // memory.rows)
    # Buffers of a region share memory, allocated under the name and dtype of its first user (reversed: the first wins).
    first_users = {region: b for b, (region, _) in reversed([*memory.regions.items()])}
    region_buffers = {
        region: shared([count * memory.regions[b][1]], str(b.dtype), b.name) for region, b in first_users.items()
    }
    shared_buffers = {b: region_buffers[region] for b, (region, _) in memory.regions.items()}
    products = [s for s in kv_plan.score_stages if s in kv_plan.products]
    a_copies = {
        s: shared([count * padded_length(kv_plan.products[s].contraction.k)], "float32", "a_shared") for s in products
    }
    # All products use the same two tiles in turn, so these are as large as the largest needs.
    widths = [kv_plan.tile_n(p) for p in kv_plan.products.values()]
    size = max(memory.tile_k(w) * (w + TILE_PADDING) for w in widths)
    tiles = shared([size], "float32", "tile"), shared([size], "float32", "tile")

    def body(index: Expr, thread: Expr) -> Stmt:
        *heads, group = unravel(index, [*batch, groups])
        first_row = group * count
        rows = RowBlock(kv_plan.ctx, fused, memory, shared_buffers, heads, first_row, total_rows, thread, tiles, None)
        copies = [part for s in products for part in copy_a_to_shared(rows, kv_plan.products[s], a_copies[s])]
        parts = [_PassWriter(kv_plan, rows, a_copies, kv_pass).statement() for kv_pass in kv_plan.passes]
        allocations = [tirx.AllocBuffer(b) for b in (*region_buffers.values(), *a_copies.values(), *tiles)]
        return seq([*allocations, *copies, *parts])

    return launch(prod(batch) * groups, THREADS, body)


@attrs.frozen(eq=False)
class _PassWriter:
    """Writes a pass."""

    kv_plan: KvTiledPlan
    rows: RowBlock
    a_copies: Mapping[Any, Any]
    kv_pass: Pass

    def statement(self) -> Stmt:
        reductions = {
            s: RowReduction.make(self.rows, s) for s in self.kv_pass.results if s not in self.kv_plan.products
        }
        matmuls = {s: self._matmul(s) for s in self.kv_pass.results if s in self.kv_plan.products}
        starts = [*(reduction.start() for reduction in reductions.values()), *(s.clear() for s in matmuls.values())]

        def column_tile(c: Expr) -> Stmt:
            rows = attrs.evolve(self.rows, column_offset=c * TILE_COLUMNS)
            parts = [part for s in self.kv_pass.score_stages for part in self._score_stage(rows, s)]
            ragged = self.kv_plan.extent % TILE_COLUMNS != 0
            # A barrier after each: the scores that it reads are overwritten by the next tile's.
            parts += [
                x
                for f in reductions.values()
                for x in (f.add(rows, rows.column_offset, TILE_COLUMNS, ragged), barrier())
            ]
            parts += [
                m.k_loop(i64(0), c * TILE_COLUMNS, i64(0), TILE_COLUMNS // m.tile_k, TILE_COLUMNS)
                for m in matmuls.values()
            ]
            return seq(parts)

        k_v_loop = loop(-(-self.kv_plan.extent // TILE_COLUMNS), column_tile, name="kv_tile")
        results = [part for reduction in reductions.values() for part in reduction.finish()]
        results += [matmul.for_each_element(lambda *e, s=s: self._store_output(s, *e)) for s, matmul in matmuls.items()]
        registers = [
            *(f.acc.acc for f in reductions.values()),
            *(b for s in matmuls.values() for b in (s.b_loader.staging, s.sums)),
        ]
        return block([*starts, k_v_loop, *results], registers)

    # -- scores and what is made of them ---------------------------------------------------------------------------

    def _score_stage(self, rows: RowBlock, stage: Stage) -> list[Stmt]:
        """A tile of scores, TILE_COLUMNS wide."""
        if stage in self.kv_plan.products:
            matmul = self._matmul(stage)
            k_loop = matmul.k_loop(rows.column_offset, i64(0), i64(0), -(-stage.depth // matmul.tile_k))
            stores = matmul.for_each_element(
                lambda slot, column, value: self._store_score(rows, stage, slot, column, value)
            )
            return [block([matmul.clear(), k_loop, stores], [matmul.b_loader.staging, matmul.sums]), barrier()]
        # Where memory runs along rows (the mask of transposed scores), neighbouring threads take a few columns of
        # several rows: a compromise between coalesced loads and bank conflicts.
        across = TRANSPOSED_WIDTH if self.kv_plan.reads_transposed(stage) else TILE_COLUMNS
        return [rows.for_each(TILE_COLUMNS, lambda slot, f: self._elementwise(rows, stage, slot, f), across), barrier()]

    def _store_score(
        self, rows: RowBlock, stage: Stage, slot: Expr, column: Expr, value: tuple[Expr, Sequence[Expr]]
    ) -> Stmt:
        result, guards = value
        indices = index_of(stage.space, [*rows.row_indices(slot), rows.column_offset + column])
        return store_element(rows, stage, indices, result, slot, *guards)

    def _elementwise(self, rows: RowBlock, stage: Stage, slot: Expr, f: Expr) -> Stmt:
        column = rows.column_offset + f
        coords = [*rows.row_indices(slot), column]
        stmt = rows.store_guarded(stage, point_stores(rows.ctx, [stage], coords, {}, [stage]), slot)
        if self.kv_plan.extent % TILE_COLUMNS == 0:
            return stmt
        # An output product reads whole tiles: past the last column its A is 0 and meets B's fill of -0, which changes
        # no sum.
        zero = tirx.const(0, str(stage.buffer.dtype))
        zeroed = store(rows.shared_buffers[stage.buffer], zero, slot * rows.pitch(stage.buffer) + f)
        return tirx.IfThenElse(column < i64(self.kv_plan.extent), bind_in_buffers(stmt), zeroed)

    # -- output products -----------------------------------------------------------------------------------------------

    def _matmul(self, stage: Stage) -> RowMatmul:
        product = self.kv_plan.products[stage]
        a_shared, a_pitch = self.a_copies.get(stage), padded_length(product.contraction.k)
        if a_shared is None:
            a_shared, a_pitch = self.rows.shared_buffers[product.a.source], self.rows.pitch(product.a.source)
        return RowMatmul.make(self.rows, product, self.kv_plan.tile_n(product), a_shared, a_pitch)

    def _store_output(self, stage: Stage, slot: Expr, column: Expr, value: tuple[Expr, Sequence[Expr]]) -> Stmt:
        """Stores an output element, with its epilogue."""
        rows, product = self.rows, self.kv_plan.products[stage]
        result, guards = value
        indices = index_of(stage.space[: rows.fused.lead], rows.row_indices(slot))
        indices |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
        guards = [
            *guards,
            *([rows.first_row + slot < i64(rows.total_rows)] if rows.total_rows % rows.memory.rows else []),
        ]
        guards += [column < i64(product.n)] if product.n % self.kv_plan.tile_n(product) else []
        stmt = rows.to_shared(
            bind_in_buffers(store_result(rows.ctx, stage, indices, result, self.kv_plan.epilogues[stage])), slot
        )
        return tirx.IfThenElse(tirx.all(*guards), stmt, None) if guards else stmt
