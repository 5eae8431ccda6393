"""Attention in half precision on tensor cores (``mma.sync``), as in FlashAttention-2 (arXiv 2307.08691): the plan.

It takes the passes of ``kv_tiled`` if all operands are bfloat16 or all float16. A warp has 16 rows; scores are made 16
columns at a time in registers. Probs go to P @ V as two halves, high and low, so that no float32 value is rounded to a
half. K and V tiles come through shared memory, a tile ahead. The order of every sum follows from the columns and k
alone: neither the rows of a block nor the columns of a tile change a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx
from tvm_ffi import structural_equal

from ...tir.access import reads_of
from ...tir.builder import Expr, Stmt, i64, seq, unravel
from ...tir.context import NestContext
from ...tir.contraction import half_load
from ...tir.stages import Stage
from ..threads.async_pipeline import EPILOGUE_PADDING
from ..threads.half_operands import HalfOperand
from ..threads.launch import launch, registers, shared
from ..threads.mma_fragments import Layout, warp_of
from ..threads.mma_tiling import MAX_SHARED_HALVES, MmaTile
from .causal_mask import LATER, masked_columns
from .online_softmax import softmax_of, to_online_softmax
from .pass_plan import KvTiledPlan, Pass, read_kv_tiled
from .resident import read_group
from .shared_memory import MIN_BLOCKS
from .tensor_core import NUM_BUFFERS, write_pass
from .warp_state import WARP_ROWS, WarpState, load_a_operands

# Warps of a block, most first. Chosen, not measured: more of them share a K/V tile, fewer leave more blocks.
# Another most changes docs/gpu-schedules.md ("Attention on tensor cores": rows of a block, the tables), and the blocks
# and threads that tests/schedules/gpu/test_attention_tensor_core.py expects. WARP_ROWS is no such choice, but the
# mma's: with it go the literal 8, 2 and 4 registers in ``_launch``, the rows 8 apart in warp_state.py, and the guards
# and the numbers of elements in tensor_core.py.
WARPS = (4, 2, 1)
# Score columns of a K/V tile, most first. Chosen, not measured: more columns are fewer barriers and more shared memory.
# No order of sums depends on them: groups of 16 columns are summed in order.
COLUMNS = (64, 32, 16)
# Registers of a thread for accumulators and Q fragments, of 255. Chosen, not measured: if it is too large, registers
# spill to memory; if too small, Q is read again from shared memory for each group of columns.
MAX_HELD_REGISTERS = 96


@attrs.frozen(eq=False)
class StreamedOperand:
    """A K or V operand, streamed by score columns of ``inner`` elements: of a product that makes scores, or
    (``by_columns``) of a product that sums over them."""

    operand: HalfOperand
    by_columns: bool
    inner: int

    def layout(self, columns: int) -> Layout:
        return Layout(self.inner, True, columns) if self.by_columns else Layout(columns, False, self.inner)

    def tile_origin(self, batch: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """Batch, row and k of the tile that begins at ``column``."""
        return (batch, i64(0), column) if self.by_columns else (batch, column, i64(0))

    def reads_same(self, other: StreamedOperand) -> bool:
        """Are both the same elements of the same tensor?"""
        return self.inner == other.inner and structural_equal(self._element(), other._element())

    def _element(self) -> Expr:
        # Written in shared variables, by column and inner index: K of Q K^T and K of dS K are then the same expression.
        mn, k = (_INNER, _COLUMN) if self.by_columns else (_COLUMN, _INNER)
        return self.operand.element(_BATCH, mn, k)


_BATCH, _COLUMN, _INNER = (tirx.Var(name, "int64") for name in ("batch", "column", "inner"))


@attrs.frozen(eq=False)
class TensorCorePlan:
    """``a_operands``: row operands (Q) of the products that make scores. ``b_operands``: streamed operands of all
    products. ``masked``: LATER or EARLIER columns than the row's number add nothing; "" if none. ``warps`` of a block,
    ``columns`` of a K/V tile."""

    kv_plan: KvTiledPlan
    a_operands: Mapping[Any, HalfOperand]
    b_operands: Mapping[Any, StreamedOperand]
    masked: str
    warps: int = 1
    columns: int = COLUMNS[-1]

    @property
    def dtype(self) -> str:
        return next(iter(self.a_operands.values())).dtype

    @property
    def rows(self) -> int:
        return WARP_ROWS * self.warps

    def tile(self, columns: int) -> MmaTile:
        """A block's rows of a product of so many columns."""
        return MmaTile(self.rows, columns, self.warps, 1)

    def a_layout(self, stage: Stage) -> Layout:
        return Layout(self.rows, False, stage.depth)

    @property
    def a_offsets(self) -> dict[Any, int]:
        """Offsets of the row operands in shared memory, in elements of 2 bytes."""
        offsets, end = {}, 0
        for stage in self.a_operands:
            offsets[stage], end = end, end + self.rows * stage.depth
        return offsets

    @property
    def a_elements(self) -> int:
        return sum(self.rows * s.depth for s in self.a_operands)

    def tile_offsets(self, kv_pass: Pass) -> dict[Any, int]:
        """Where in a buffer the tile of each product of a pass lies: products of the same elements share it."""
        offsets, end = {}, 0
        for stage in (s for s in kv_pass.steps if s in self.b_operands):
            b = self.b_operands[stage]
            same = next((at for s, at in offsets.items() if b.reads_same(self.b_operands[s])), None)
            offsets[stage] = end if same is None else same
            end += self.columns * b.inner if same is None else 0
        return offsets

    @property
    def buffer_elements(self) -> int:
        """Elements of a buffer of the ring of K/V tiles: as many as the pass with the most tiles needs."""
        ends = [
            at + self.columns * self.b_operands[s].inner
            for p in self.kv_plan.passes
            for s, at in self.tile_offsets(p).items()
        ]
        return max(ends)

    @property
    def output_products(self) -> list[Any]:
        """The products that sum over scores."""
        return [s for s in self.b_operands if s not in self.a_operands]

    @property
    def shared_elements(self) -> int:
        """Shared memory of a block, in elements of 2 bytes. The output tile (float32) reuses the operands' memory."""
        # A float32 is two 16-bit elements. The output tile is laid out by write_tile.
        output_elements = max(
            self.rows * (self.b_operands[s].inner + EPILOGUE_PADDING) * 2 for s in self.output_products
        )
        return max(self.a_elements + NUM_BUFFERS * self.buffer_elements, output_elements)

    @property
    def holds_a(self) -> bool:
        """Do the row operands stay in registers? Else they are loaded from shared memory for each use."""
        # Of 16 rows a warp's thread has 1/32: inner / 2 float32 of O, and depth / 4 registers of two halves of Q.
        sums = sum(self.b_operands[s].inner // 2 for s in self.output_products)
        return sums + sum(s.depth // 4 for s in self.a_operands) <= MAX_HELD_REGISTERS


def tensor_core_nest(
    ctx: NestContext, stages: Sequence[Stage], needs_reduction: bool = True
) -> tuple[int, Stmt] | None:
    """As ``resident.attention_nest``, for operands of one 16-bit dtype, k and output columns multiples of 16, at least
    16 rows and columns. In float16 only probs are known not to overflow, so gradients are not taken."""
    group = read_group(ctx, stages, needs_reduction)
    kv_plan = read_kv_tiled(ctx, group.fused, group.products) if group is not None and group.is_tiled else None
    if group is None or kv_plan is None or min(group.rows, kv_plan.extent) < WARP_ROWS:
        return None
    untiled = _read_plan(kv_plan)
    plan = None if untiled is None else _choose_tile(untiled, prod(group.batch), group.rows)
    return None if plan is None else (len(group.fused.stages), _launch(plan, group.batch, group.rows))


def _read_plan(kv_plan: KvTiledPlan) -> TensorCorePlan | None:
    a_operands, b_operands = {}, {}
    for stage, product in kv_plan.products.items():
        is_output = stage not in kv_plan.score_stages
        b = _operand(kv_plan, stage, product.b, product.columns)
        # K must be contiguous along k and V along the output columns, as the tiles' layouts have them. Operands in
        # another order go to the float32 launches.
        if b is None or b.mn_major != is_output:
            return None
        b_operands[stage] = StreamedOperand(b, is_output, product.n if is_output else stage.depth)
        if not is_output:
            a = _operand(kv_plan, stage, product.a, stage.space[kv_plan.fused.lead - 1 : kv_plan.fused.lead])
            if a is None or a.mn_major:
                return None
            a_operands[stage] = a
    dtypes = [operand.dtype for operand in (*a_operands.values(), *(r.operand for r in b_operands.values()))]
    is_aligned = all(b.inner % 16 == 0 for b in b_operands.values())
    if not is_aligned or len({*dtypes}) > 1 or not _is_supported(kv_plan) or not _fits_range(kv_plan, dtypes[0]):
        return None
    return TensorCorePlan(to_online_softmax(kv_plan), a_operands, b_operands, masked_columns(kv_plan))


def _operand(kv_plan: KvTiledPlan, stage: Stage, value: Expr, axes: Any) -> HalfOperand | None:
    read = half_load(value)
    produced = {b for s in kv_plan.fused.stages for b in s.writes} | {*kv_plan.ctx.virtual.stages}
    if read is None or read.source in produced:
        return None
    return HalfOperand(read, kv_plan.products[stage].contraction.batch, tuple(axes), stage.reduce)


def _is_supported(kv_plan: KvTiledPlan) -> bool:
    """Are all intermediates float32, do output products end the last pass, and do epilogues read no reduction?"""
    *first, _ = kv_plan.passes
    # An output goes through the shared memory in which the row operands are, and a later pass would still need these.
    if any(s in kv_plan.products for p in first for s in p.results):
        return False
    reductions = {s.buffer for p in kv_plan.passes for s in p.results if s not in kv_plan.products}
    epilogues = [m for epilogue in kv_plan.epilogues.values() for m in epilogue]
    # Epilogues run on elements in another order of threads than that in which row values lie in registers.
    if any(r.buffer in reductions for m in epilogues for r in reads_of(kv_plan.ctx, m)):
        return False
    resident = [*(s.buffer for s in kv_plan.score_stages), *reductions]
    return bool(kv_plan.epilogues) and all(str(b.dtype) == "float32" for b in resident)


def _fits_range(kv_plan: KvTiledPlan, dtype: str) -> bool:
    """Does the row operand of the output products fit the range of ``dtype``? bfloat16: always. float16: probs do."""
    p_buffers = {kv_plan.products[s].a.source for s in kv_plan.epilogues}
    return dtype == "bfloat16" or all(softmax_of(kv_plan, s) for s in kv_plan.score_stages if s.buffer in p_buffers)


def _choose_tile(plan: TensorCorePlan, heads: int, rows: int) -> TensorCorePlan | None:
    """The most warps that leave enough blocks, and the most columns that then fit."""
    # Warps first: they share the loads of K and V. Fewer columns only cost barriers.
    for warps in WARPS:
        count = WARP_ROWS * warps
        if warps > 1 and (count >= 2 * rows or heads * -(-rows // count) < MIN_BLOCKS):
            continue
        for columns in COLUMNS:
            tiled = attrs.evolve(plan, warps=warps, columns=columns)
            if tiled.shared_elements <= MAX_SHARED_HALVES:
                return tiled
    return None


def _launch(plan: TensorCorePlan, batch: Sequence[int], total_rows: int) -> Stmt:
    groups, tile, kv_plan = -(-total_rows // plan.rows), plan.tile(16), plan.kv_plan
    memory = shared([plan.shared_elements], "uint16", "tile")
    first_users = {region: b for b, (region, _) in reversed([*kv_plan.memory.regions.items()])}
    region_registers = {region: registers([8], "float32", b.name) for region, b in first_users.items()}
    fragments = {
        s.buffer: region_registers[kv_plan.memory.regions[s.buffer][0]] for p in kv_plan.passes for s in p.score_stages
    }
    reductions = [s for p in kv_plan.passes for s in p.results if s not in kv_plan.products]
    row_values = {s.buffer: registers([2], "float32", s.buffer.name) for s in reductions}
    a_fragments = {s: registers([s.depth // 4], "uint32", "a_fragment") for s in plan.a_operands if plan.holds_a}
    operand_registers = {name: registers([4], "uint32", name) for name in ("a", "b", "p_low")}

    def body(index: Expr, thread: Expr) -> Stmt:
        *heads, group = unravel(index, [*batch, groups])
        # Blocks of the last queries have the most keys and begin first: begun last, they would run alone at the end.
        group = i64(groups - 1) - group if plan.masked == LATER else group
        batch_index = tirx.floordiv(index, i64(groups)) if groups > 1 else index
        warp, first_row = warp_of(tile, thread), group * plan.rows
        held = fragments, row_values, a_fragments, operand_registers
        state = WarpState(plan, memory, thread, warp, heads, batch_index, first_row, total_rows, *held)
        buffers = [memory, *dict.fromkeys(b for by_name in held for b in by_name.values())]
        allocations = [tirx.AllocBuffer(b) for b in buffers]
        return seq([*allocations, *load_a_operands(state), *(write_pass(state, kv_pass) for kv_pass in kv_plan.passes)])

    return launch(prod(batch) * groups, tile.threads, body)
