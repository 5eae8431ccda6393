"""Fused attention with resident scores: one launch keeps all scores of a block's rows in shared memory.

It takes matmuls, reductions and elementwise stages that agree on batch axes and rows. A block has some rows of a
head; K and V come through shared tiles, and no score matrix is written. Every stage is done as it would be alone,
so sums keep their order. Longer rows go to ``kv_tiled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
import tvm
from tvm import tirx

from ...tir.argmax import is_argmax
from ...tir.builder import Expr, Stmt, seq, store, unravel
from ...tir.context import NestContext
from ...tir.contraction import read_contraction
from ...tir.row_group import RowGroup, local_buffers, row_group, row_length
from ...tir.stages import Stage
from ..threads.launch import launch, shared
from .kv_tiled import kv_tiled_launch
from .pass_plan import KvTiledPlan, plan_kv_tiled
from .row_reduction import reduce_rows
from .row_stages import RowBlock, elementwise_rows, matmul_rows
from .shared_memory import (
    THREADS,
    TILE_PADDING,
    Memory,
    Product,
    as_product,
    copied_elements,
    padded_length,
    plan_memory,
)

# Multiply-adds in the time of an element's load. Chosen, not measured. Larger numbers prefer more rows a block, and so
# passes that recompute scores; no bit depends on it.
LOAD_COST = 16


@attrs.frozen(eq=False)
class AttentionGroup:
    """``rows`` of each of ``batch``; or, not ``is_tiled``, each row of ``batch`` for itself."""

    fused: RowGroup
    products: dict[Any, Product]
    batch: Sequence[int]
    rows: int
    is_tiled: bool


def attention_nest(ctx: NestContext, stages: Sequence[Stage], needs_reduction: bool = True) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if no product comes first, or too little is done on its rows: with
    ``needs_reduction`` there must be a reduction."""
    group = read_group(ctx, stages, needs_reduction)
    if group is None:
        return None
    fused, products, heads, rows = group.fused, group.products, prod(group.batch), group.rows
    memory = plan_memory(ctx, fused, products, heads, rows)
    tiled = plan_kv_tiled(ctx, fused, products, heads, rows) if group.is_tiled else None
    if tiled is not None and (memory is None or _recompute_pays(tiled, memory)):
        return len(fused.stages), kv_tiled_launch(tiled, group.batch, rows)
    if memory is None:
        return None
    return len(fused.stages), _launch(ctx, fused, products, memory, group.batch, rows)


def read_group(ctx: NestContext, stages: Sequence[Stage], needs_reduction: bool) -> AttentionGroup | None:
    """The stages from the first on that are attention's, as ``attention_nest`` takes them."""
    if read_contraction(ctx.program, stages[0]) is None:
        return None
    fused = row_group(ctx, stages, lambda stage, lead: _accepts(ctx, stage, lead))
    if fused is None or not fused.lead or not _fits(ctx, fused):
        return None
    products = _products(ctx, fused)
    # A single product has no score matrix between itself and another that could be kept out of memory.
    if (needs_reduction and all(s.is_elementwise for s in fused.stages if s not in products)) or len(products) < 2:
        return None
    # Rows of a head read the same K and V only if some product has the last lead axis as its rows, not in its batch.
    is_tiled = any(len(p.contraction.batch) < fused.lead for p in products.values())
    lead = [a.extent for a in fused.stages[0].space[: fused.lead]]
    return (
        AttentionGroup(fused, products, lead[:-1], lead[-1], True)
        if is_tiled
        else AttentionGroup(fused, products, lead, 1, False)
    )


def _recompute_pays(tiled: KvTiledPlan, memory: Memory) -> bool:
    """Is it cheaper to recompute scores in each pass, for more rows a block? Both costs are multiply-adds a row; loads
    of K and V are shared by a block's rows, so each costs LOAD_COST / rows."""
    resident_cost = sum(p.n * s.depth for s, p in tiled.products.items())
    return tiled.cost * (1 + LOAD_COST / tiled.memory.rows) < resident_cost * (1 + LOAD_COST / memory.rows)


def _products(ctx: NestContext, fused: RowGroup) -> dict[Any, Product]:
    pairs = [(s, read_contraction(ctx.program, s)) for s in fused.stages]
    candidates = {s: as_product(c, s, fused.lead) for s, c in pairs if c is not None}
    return {s: p for s, p in candidates.items() if p is not None}


def _accepts(ctx: NestContext, stage: Stage, lead: int) -> bool:
    contraction = read_contraction(ctx.program, stage)
    if contraction is not None:
        return as_product(contraction, stage, lead) is not None
    if stage.reduction is not None:
        # No argmax: it has an index beside its key, and RowReduction keeps a single value a lane.
        reduces_a_row = len(stage.space) == lead and len(stage.reduce) == 1
        return reduces_a_row and not is_argmax(stage) and str(stage.buffer.dtype) == "float32"
    return stage.is_elementwise and not isinstance(stage.value, tirx.Let)


def _fits(ctx: NestContext, fused: RowGroup) -> bool:
    """Do all intermediates have elements of at most 4 bytes? Shared memory is reckoned with ELEMENT_BYTES of each."""
    return all(tvm.DataType(str(b.dtype)).itemsize <= 4 for b in local_buffers(ctx, fused))


def _launch(
    ctx: NestContext,
    fused: RowGroup,
    products: dict[Any, Product],
    memory: Memory,
    batch: Sequence[int],
    total_rows: int,
) -> Stmt:
    first_users = {region: b for b, (region, _) in reversed([*memory.regions.items()])}
    region_buffers = {
        r: shared([memory.rows * memory.regions[b][1]], str(b.dtype), b.name) for r, b in first_users.items()
    }
    shared_buffers = {b: region_buffers[region] for b, (region, _) in memory.regions.items()}
    widths = [memory.tile_n(p.n) for p in products.values()]
    size = max(memory.tile_k(w) * (w + TILE_PADDING) for w in widths)
    tiles = shared([size], "float32", "tile"), shared([size], "float32", "tile")
    a_copy = shared([memory.rows * copied_elements(fused, memory.regions, products)], "float32", "a_shared")
    groups = -(-total_rows // memory.rows)

    def body(index: Expr, thread: Expr) -> Stmt:
        *heads, group = unravel(index, [*batch, groups])
        rows = RowBlock(
            ctx, fused, memory, shared_buffers, heads, group * memory.rows, total_rows, thread, tiles, a_copy
        )
        parts = [part for s in fused.stages for part in _stage(rows, s, products)]
        allocations = [tirx.AllocBuffer(b) for b in (*region_buffers.values(), *tiles, a_copy)]
        return seq([*allocations, *_zero_padding(rows), *parts])

    return launch(prod(batch) * groups, THREADS, body)


def _stage(rows: RowBlock, stage: Stage, products: dict[Any, Product]) -> list[Stmt]:
    if stage in products:
        return matmul_rows(rows, stage, products[stage])
    return elementwise_rows(rows, stage) if stage.is_elementwise else reduce_rows(rows, stage)


def _zero_padding(rows: RowBlock) -> list[Stmt]:
    """Zeros behind each row, for matmuls that read full k tiles. No stage writes there, and the first reader comes
    after the barrier of the stage that makes the row."""
    zero, cleared = tirx.const(0, "float32"), {}
    for buffer, target in rows.shared_buffers.items():
        length, pitch = row_length(buffer, rows.fused), rows.pitch(buffer)
        padded = padded_length(length)
        if length < padded and pitch > 1 and str(buffer.dtype) == "float32":

            def clear(slot: Expr, i: Expr, b: Any = target, n: int = length, pitch: int = pitch) -> Stmt:
                return store(b, zero, slot * pitch + n + i)

            cleared[target] = rows.for_each(padded - length, clear)
    return [*cleared.values()]
