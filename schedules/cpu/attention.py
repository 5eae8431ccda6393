"""Head nests: products and row stages that agree on their batch axes run inside one loop over those axes.

Attention: the scores of one head, their softmax and the weighed values stay in the first caches, and no score matrix is
written. A task is one head; inside it each stage runs as it would on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import DataType

from ..tir.buffer_reuse import is_last_read
from ..tir.builder import Expr, Stmt, seq, shape_of, unravel
from ..tir.context import NestContext, block, parallel_loop
from ..tir.contraction import Contraction
from ..tir.epilogue import epilogue_stages
from ..tir.reduction import stage_body
from ..tir.row_group import RowGroup, local_buffers, localize, row_buffer, row_group
from ..tir.stages import Stage
from ..tir.thread_cost import stages_nanoseconds
from .matmul import product_body

LARGEST = 1 << 19  # bytes of a head's own buffers that a second cache holds


def head_group(ctx: NestContext, stages: Sequence[Stage], products: Mapping[Any, Contraction]) -> RowGroup | None:
    """The longest start of ``stages`` with a product, and more than the product and what follows on it, some of which
    need not reach memory."""

    def accept(stage: Stage, lead: int) -> bool:
        one = products.get(stage)
        return one is None or (lead > 0 and one.batch == stage.space[:lead])

    found = row_group(ctx, stages, accept)
    if found is None or not found.lead or not any(s in products for s in found.stages):
        return None
    mine = dict.fromkeys(_buffers(ctx, found).values())
    alone = len(_parts(ctx, found, products)) < 2 or not mine
    return None if alone or sum(map(_bytes, mine)) > LARGEST else found


def _buffers(ctx: NestContext, found: RowGroup) -> dict[Any, Any]:
    """What nothing outside needs -> a head's part of it. A map writes over what it alone reads, at its own point."""
    local, mine = local_buffers(ctx, found), {}
    for place, stage in enumerate(found.stages):
        for buffer in (b for b in stage.writes if b in local):
            over = next((b for b in mine if stage.is_elementwise and is_last_read(ctx, found, place, b)), None)
            mine[buffer] = row_buffer(buffer, found) if over is None else mine[over]
    return mine


def _bytes(buffer: Any) -> int:
    return prod(shape_of(buffer)) * DataType(str(buffer.dtype)).itemsize


def _parts(ctx: NestContext, found: RowGroup, products: Mapping[Any, Contraction]) -> list[tuple[Stage, list[Stage]]]:
    """Each stage, a product with the map stages that are done on its tiles."""
    rest, parts = list(found.stages), []
    while rest:
        head = rest.pop(0)
        after = epilogue_stages(ctx, head, rest) if head in products else []
        rest = rest[len(after) :]
        parts.append((head, after))
    return parts


def head_nest(ctx: NestContext, found: RowGroup, products: Mapping[Any, Contraction]) -> Stmt:
    """The loop over heads, parallel where it pays."""
    extents = [a.extent for a in found.stages[0].space[: found.lead]]
    parts = _parts(ctx, found, products)

    def part(stage: Stage, after: list[Stage], places: list[Expr]) -> Stmt:
        if stage in products:
            return product_body(ctx, products[stage], after, places)
        return stage_body(ctx, stage, places)

    def head(p: Expr) -> Stmt:
        mine = _buffers(ctx, found)
        places = unravel(p, extents)
        body = localize(seq([part(stage, after, places) for stage, after in parts]), mine, found)
        return block([body], list(dict.fromkeys(mine.values())))

    return parallel_loop(ctx, prod(extents), head, stages_nanoseconds(ctx.virtual, found.stages, products, ctx.lanes))
