"""Code of an attention pass on tensor cores, in the manner of FlashAttention-2 (arXiv 2307.08691, algorithm 1).

It takes a ``TensorCorePlan``. A warp has 16 rows, a thread 2 of them, 16 score columns at a time in registers. K and V
tiles are double-buffered in shared memory by ``cp.async``. Sums go over the columns in ascending order; the 4 threads
of a row combine their partial results by a tree of shuffles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import Partial
from ...tir.builder import Expr, Stmt, i64, load, loop, seq, store, unravel
from ...tir.context import block, dynamic_loop
from ...tir.inline import ScalarWriter
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of, point_stores, store_result
from ...tir.stages import Stage
from ..threads import ptx
from ..threads.async_pipeline import BlockTile, copy_tile_async, write_tile
from ..threads.launch import barrier, registers, unrolled
from ..threads.mma_fragments import MMA_TILE, SharedOperand, accumulator_coords, clear
from ..threads.warp_reduce import ThreadGroup, tree_reduce, warp_any
from .causal_mask import EARLIER, LATER
from .pass_plan import Pass
from .warp_state import WARP_ROWS, WarpState, _a_tile

ELEMENTS_PER_THREAD = 8  # of a 16 x 16 accumulator tile: 2 rows of 4 (mma.m16n8k16)
# Of a row of a 16 x 16 accumulator tile: terms in a thread, and threads that share it. Both follow from the mma layout,
# and fix the order of sums.
TERMS_PER_THREAD, THREADS_PER_ROW = 4, 4
SHUFFLE_SLOT, TERMS = 2, 3  # registers of a reduction: 0-1 its two rows, 2 for a shuffle, from 3 on the new terms
# K/V tiles in shared memory: the tile that is read and the next. Chosen, not measured; more take shared memory, and so
# columns of a tile or blocks of a multiprocessor.
NUM_BUFFERS = 2


def write_pass(state: WarpState, kv_pass: Pass) -> Stmt:
    b_operands = state.plan.b_operands
    reductions = {
        s: Partial(s, registers([TERMS + ELEMENTS_PER_THREAD], "float32", "acc"))
        for s in kv_pass.results
        if s not in b_operands
    }
    sums = {s: registers([b_operands[s].inner // 2], "float32", "acc") for s in kv_pass.results if s in b_operands}
    return _PassWriter(state, kv_pass, reductions, sums, registers([2], "float32", "rescale")).statement()


@attrs.frozen(eq=False)
class _PassWriter:
    """``reductions``: registers as SHUFFLE_SLOT and TERMS say. ``sums``: accumulators of the output products.
    ``scale``: by which both are rescaled, a factor a row."""

    state: WarpState
    kv_pass: Pass
    reductions: Mapping[Any, Partial]
    sums: Mapping[Any, Any]
    scale: Any

    @property
    def extent(self) -> int:
        return self.state.plan.kv_plan.extent

    def statement(self) -> Stmt:
        plan, row_max = self.state.plan, self.kv_pass.row_max
        starts = [*(_start(p) for p in self.reductions.values()), *map(clear, self.sums.values())]
        starts += [] if row_max is None else [_start(Partial(row_max, self.state.row_values[row_max.buffer]))]

        def column_group(tile: Expr, g: Expr) -> Stmt:
            start = tile * plan.columns + g * MMA_TILE
            parts = seq([self._stage(s, tile, g, start) for s in self.kv_pass.steps])
            guards = self._guards(start)
            # Warps skip different groups, so nothing in a group may wait for the block: barriers are in the loop over
            # tiles.
            return tirx.IfThenElse(tirx.all(*guards), parts, None) if guards else parts

        kv_loop = self._kv_loop(
            lambda tile: loop(plan.columns // MMA_TILE, lambda g: column_group(tile, g), name="column_group")
        )
        results = [part for s in self.reductions for part in self._finish(s)]
        # The barrier: the next output goes through the same shared memory.
        results += [part for s in self.sums for part in (self._write_output(s), barrier())]
        return block(
            [*starts, *kv_loop, *results], [*(p.acc for p in self.reductions.values()), *self.sums.values(), self.scale]
        )

    # -- K/V tiles ---------------------------------------------------------------------------------------------------

    def _kv_loop(self, body: Any) -> list[Stmt]:
        """``body`` for each K/V tile, while the next is prefetched by ``cp.async``."""
        plan, state = self.state.plan, self.state
        first_tile, end = self._tile_range()

        def prefetch(tile: Expr) -> Stmt:
            copies, threads = [], plan.tile(16).threads
            for start, b_tile in {
                start: plan.b_operands[s] for s, start in plan.tile_offsets(self.kv_pass).items()
            }.items():
                layout, origin = b_tile.layout(plan.columns), b_tile.tile_origin(state.batch, tile * plan.columns)
                begin = self._buffer_offset(tile) + start
                copies.append(
                    copy_tile_async(state.memory, begin, layout, b_tile.operand, origin, state.thread, threads)
                )
            return seq([tirx.IfThenElse(tile < end, seq(copies), None), ptx.commit_group()])

        def iteration(n: Expr) -> Stmt:
            tile = first_tile + n
            # A single barrier: what arrived is seen by all, and all are done with the buffer that is filled next.
            return seq([ptx.wait_group(0), barrier(), prefetch(tile + 1), body(tile)])

        tiles = end - first_tile
        tile_loop = (
            dynamic_loop(tiles, iteration, "kv_tile")
            if plan.masked
            else loop(int(tiles.value), iteration, name="kv_tile")
        )
        # The last barrier: the next pass, or the epilogue, overwrites the tiles that slower warps still read.
        return [prefetch(first_tile), tile_loop, ptx.wait_group(0), barrier()]

    def _tile_range(self) -> tuple[Expr, Expr]:
        """First and end of the column tiles that the block needs: causal tiles that are masked in full are skipped."""
        state, columns = self.state, self.state.plan.columns
        count = i64(-(-self.extent // columns))
        if state.plan.masked == LATER:
            return i64(0), tirx.Min(count, tirx.floordiv(state.first_row + state.plan.rows - 1, i64(columns)) + 1)
        if state.plan.masked == EARLIER:
            return tirx.Min(count, tirx.floordiv(state.first_row, i64(columns))), count
        return i64(0), count

    def _guards(self, start: Expr) -> list[Expr]:
        """Conditions under which the warp needs the 16 columns from ``start`` on; others are masked in full."""
        plan, warp_first_row = self.state.plan, self.state.first_row + self.state.warp.row
        guards = [start < i64(self.extent)] if self.extent % plan.columns else []
        if plan.masked == LATER:
            guards.append(start < warp_first_row + WARP_ROWS)
        if plan.masked == EARLIER:
            guards.append(warp_first_row < start + MMA_TILE)
        return guards

    def _buffer_offset(self, tile: Expr) -> Expr:
        """Where in shared memory the buffer of a K/V tile begins: tile t is in buffer t % NUM_BUFFERS."""
        plan = self.state.plan
        return tirx.floormod(tile, i64(NUM_BUFFERS)) * plan.buffer_elements + plan.a_elements

    def _b_tile(self, stage: Stage, tile: Expr) -> SharedOperand:
        plan = self.state.plan
        start = self._buffer_offset(tile) + plan.tile_offsets(self.kv_pass)[stage]
        return SharedOperand(self.state.memory, start, plan.b_operands[stage].layout(plan.columns), False)

    # -- scores and what is made of them ---------------------------------------------------------------------------

    def _stage(self, stage: Stage, tile: Expr, g: Expr, start: Expr) -> Stmt:
        if stage in self.sums:
            return self._accumulate(stage, tile, g)
        if stage in self.state.plan.b_operands:
            return self._scores(stage, tile, g)
        if stage in self.reductions:
            return (
                self._update_row_max(stage, start)
                if stage is self.kv_pass.row_max
                else self._reduce_columns(stage, start)
            )
        return unrolled(ELEMENTS_PER_THREAD, lambda e: self._elementwise(stage, start, e), "e")

    def _scores(self, stage: Stage, tile: Expr, g: Expr) -> Stmt:
        state, sums = self.state, self.state.fragments[stage.buffer]
        a, b, a_tile, b_tile = (
            state.operands["a"],
            state.operands["b"],
            _a_tile(state, stage),
            self._b_tile(stage, tile),
        )

        def step(k: Expr) -> Stmt:
            a_fragment = (state.a_fragments[stage], k * 4) if stage in state.a_fragments else (a, i64(0))
            fragment_loads = [b_tile.load((b, i64(0)), state.warp, g * MMA_TILE, k)]
            fragment_loads += (
                [] if stage in state.a_fragments else [a_tile.load(a_fragment, state.warp, state.warp.row, k)]
            )

            def mma(j: Expr) -> Stmt:
                return ptx.mma((sums, j * 4), a_fragment, (b, j * 2), state.plan.dtype)

            return seq([*fragment_loads, unrolled(2, mma, "j")])

        return seq([clear(sums), unrolled(stage.depth // MMA_TILE, step, "k")])

    def _coords(self, start: Expr, element: Expr) -> tuple[Expr, Expr, Expr]:
        """Of an accumulator element: row of the thread (0 or 1), column, and number among the row's terms."""
        j, e = tirx.floordiv(element, i64(4)), tirx.floormod(element, i64(4))
        _, column = accumulator_coords(self.state.warp.lane, e)
        thread_row, lane = tirx.floordiv(e, i64(2)), j * 2 + tirx.floormod(e, i64(2))
        return thread_row, start + j * 8 + column, lane

    def _guarded(self, column: Expr, stmt: Stmt, blank: Stmt | None = None) -> Stmt:
        return tirx.IfThenElse(column < i64(self.extent), stmt, blank) if self.extent % MMA_TILE else stmt

    def _elementwise(self, stage: Stage, start: Expr, element: Expr) -> Stmt:
        thread_row, column, _ = self._coords(start, element)
        row_indices = [*self.state.row_indices(thread_row), column]
        stmt = point_stores(self.state.ctx, [stage], row_indices, {}, [stage])
        # Past the last column a score stage gives 0: P @ V multiplies all 16 columns, and V's are zeros there.
        blank = store(self.state.fragments[stage.buffer], tirx.const(0, "float32"), element)
        return self._guarded(column, self.state.to_registers(stmt, thread_row, element), blank)

    # -- reductions ------------------------------------------------------------------------------------------------

    @property
    def _row_threads(self) -> ThreadGroup:
        """The 4 neighbouring threads that share a row."""
        return ThreadGroup(THREADS_PER_ROW, tirx.floormod(self.state.warp.lane, i64(THREADS_PER_ROW)))

    def _reduce_columns(self, stage: Stage, start: Expr) -> Stmt:
        """Adds 16 columns: the thread's 4 terms of a row are combined by a tree, then added to its partial result."""
        reduction = self.reductions[stage]

        # Past the last column the term is the neutral element, so that the tree has the same form in every group.
        def load_term(element: Expr) -> Stmt:
            thread_row, column, lane = self._coords(start, element)
            slot, point = TERMS + thread_row * TERMS_PER_THREAD + lane, ScalarWriter(self.state.ctx.virtual)
            value = point.write(
                stage.value,
                index_of(stage.space, self.state.row_indices(thread_row)) | index_of(stage.reduce, [column]),
            )
            term = bind_in_buffers(seq([*point.binds, store(reduction.acc, value, slot)]))
            return self._guarded(
                column, self.state.to_registers(term, thread_row, element), reduction.start(slot, i64(0))
            )

        def row(thread_row: Expr) -> Stmt:
            first = TERMS + thread_row * TERMS_PER_THREAD
            combined = [reduction.combine(first + k, first + (k + n)) for n in (2, 1) for k in range(n)]
            return seq([*combined, reduction.combine(thread_row, first)])

        return seq([unrolled(ELEMENTS_PER_THREAD, load_term, "e"), unrolled(2, row, "thread_row")])

    def _combine_row(self, stage: Stage, thread_row: Expr) -> list[Stmt]:
        """Combines a row's partial results by a shuffle tree of fixed order; all 4 threads get the result."""
        reduction, value = self.reductions[stage], self.state.row_values[stage.buffer]
        return [
            *tree_reduce(reduction, 1, self._row_threads, thread_row, i64(SHUFFLE_SLOT)),
            store(value, load(reduction.acc, thread_row), thread_row),
        ]

    def _update_row_max(self, stage: Stage, start: Expr) -> Stmt:
        """Online softmax (FlashAttention-2, alg. 1): if a row's max m grows, its sum and its output accumulators are
        multiplied by exp(m_old - m_new). ``__any_sync`` keeps the warp together; other rows get a factor of 1."""
        acc, row_max = self.reductions[stage].acc, self.state.row_values[stage.buffer]

        def row(thread_row: Expr) -> Stmt:
            save_old_max = store(self.scale, load(row_max, thread_row), thread_row)
            # In the first group the old max is the start value, far below: exp is 0, and so is what it multiplies.
            rescale = tirx.exp(load(self.scale, thread_row) - load(row_max, thread_row))
            return seq([save_old_max, *self._combine_row(stage, thread_row), store(self.scale, rescale, thread_row)])

        grown = [load(acc, i64(thread_row)) > load(row_max, i64(thread_row)) for thread_row in range(2)]
        update = seq([unrolled(2, row, "thread_row"), *self._rescale()])
        return seq([self._reduce_columns(stage, start), tirx.IfThenElse(warp_any(tirx.any(*grown)), update, None)])

    def _rescale(self) -> list[Stmt]:
        """Multiplies row sums and output accumulators by their rows' ``scale``."""

        def multiply(acc: Any, i: Expr, thread_row: Expr) -> Stmt:
            return store(acc, load(acc, i) * load(self.scale, thread_row), i)

        def row_of(i: Expr) -> Expr:
            return tirx.floormod(tirx.floordiv(i, i64(2)), i64(2))

        # The row max is no sum: it has the new value already.
        reductions = [p.acc for s, p in self.reductions.items() if s is not self.kv_pass.row_max]
        parts = [unrolled(2, lambda i, acc=acc: multiply(acc, i, i), "thread_row") for acc in reductions]
        return [
            *parts,
            *(unrolled(int(b.shape[0]), lambda i, b=b: multiply(b, i, row_of(i)), "i") for b in self.sums.values()),
        ]

    def _finish(self, stage: Stage) -> list[Stmt]:
        combined = [
            unrolled(2, lambda thread_row: seq(self._combine_row(stage, thread_row)), "thread_row"),
            *self._store_row_value(stage),
        ]
        if stage is not self.kv_pass.row_sum:
            return combined

        def store_inverse(thread_row: Expr) -> Stmt:
            inverse = tirx.const(1, "float32") / load(self.state.row_values[stage.buffer], thread_row)
            return store(self.scale, inverse, thread_row)

        # A division a row and a product an element: a division of each element of O would take many times as long.
        return [*combined, unrolled(2, store_inverse, "thread_row"), *self._rescale()]

    def _store_row_value(self, stage: Stage) -> list[Stmt]:
        """Stores a row value that is needed after the launch: by the first of the 4 threads."""
        state = self.state
        if stage.buffer in state.plan.kv_plan.memory.regions:
            return []

        def row(thread_row: Expr) -> Stmt:
            point = ScalarWriter(state.ctx.virtual)
            indices = point.indices(stage.indices, index_of(stage.space, [*state.heads, state.row(thread_row)]))
            write = store(stage.buffer, load(state.row_values[stage.buffer], thread_row), *indices)
            guards = tirx.all(tirx.EQ(self._row_threads.lane, i64(0)), state.row(thread_row) < i64(state.total_rows))
            return tirx.IfThenElse(guards, bind_in_buffers(seq([*point.binds, write])), None)

        return [unrolled(2, row, "thread_row")]

    # -- output products -----------------------------------------------------------------------------------------------

    def _accumulate(self, stage: Stage, tile: Expr, g: Expr) -> Stmt:
        """Adds P @ V of 16 columns. P is split into high + low halves: a single half would round away float32 bits."""
        state, sums = self.state, self.sums[stage]
        p_high, p_low, b = (state.operands["a"], state.operands["p_low"], state.operands["b"])
        b_tile, probs = (self._b_tile(stage, tile), state.fragments[state.plan.kv_plan.products[stage].a.source])

        def step(n: Expr) -> Stmt:
            def mma(p_part: Any, j: Expr) -> Stmt:
                return ptx.mma((sums, (n * 2 + j) * 4), (p_part, i64(0)), (b, j * 2), state.plan.dtype)

            parts = [unrolled(2, lambda j, p_part=p_part: mma(p_part, j), "j") for p_part in (p_high, p_low)]
            return seq([b_tile.load((b, i64(0)), state.warp, n * MMA_TILE, g), *parts])

        split = ptx.split((probs, i64(0)), (p_high, i64(0)), (p_low, i64(0)), state.plan.dtype)
        return seq([split, unrolled(state.plan.b_operands[stage].inner // MMA_TILE, step, "n")])

    def _write_output(self, stage: Stage) -> Stmt:
        """Stores the output tile, with its epilogue."""
        state, product = self.state, self.state.plan.kv_plan.products[stage]
        part = BlockTile(state.plan.tile(product.n), state.memory, state.thread, state.warp, state.first_row, i64(0))

        def element(row: Expr, column: Expr, value: Expr) -> Stmt:
            indices = index_of(stage.space[: len(state.heads) + 1], [*state.heads, row])
            indices |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
            return bind_in_buffers(store_result(state.ctx, stage, indices, value, state.plan.kv_plan.epilogues[stage]))

        return write_tile(part, self.sums[stage], state.total_rows, product.n, element)


def _start(reduction: Partial) -> Stmt:
    return unrolled(2, lambda thread_row: reduction.start(thread_row, i64(0)), "thread_row")
