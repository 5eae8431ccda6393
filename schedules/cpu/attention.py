"""Attention on a CPU: a task per head; scores, softmax and weighted values of a head stay in L2.

Taken: matrix products and the row stages around them, if all have the same leading axes (batch, head) and something
between them is read by nothing else. No score matrix of all heads reaches memory. Each stage runs for its head as it
would alone, with the same order of sums, so this fusion changes no bit (an online softmax would).
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

# Bytes of a head's own buffers: they are to stay in L2, 512 KiB or more. Chosen, not measured. Above, the stages are
# nests of their own, whose matmuls have k blocks and tasks within a head.
MAX_HEAD_BYTES = 512 * 1024


def find_attention(
    ctx: NestContext, stages: Sequence[Stage], contractions: Mapping[Any, Contraction]
) -> RowGroup | None:
    """The longest prefix of ``stages`` that can share loops over heads and has a matrix product.

    None unless it is more than a product and its epilogue, and some buffer of it need not reach memory."""

    def accept(stage: Stage, lead: int) -> bool:
        product = contractions.get(stage)
        return product is None or (lead > 0 and product.batch == stage.space[:lead])

    group = row_group(ctx, stages, accept)
    if group is None or not group.lead or not any(s in contractions for s in group.stages):
        return None
    head_buffers = dict.fromkeys(_head_buffers(ctx, group).values())
    if len(_with_epilogues(ctx, group, contractions)) < 2 or not head_buffers:
        return None
    return group if sum(map(_bytes, head_buffers)) <= MAX_HEAD_BYTES else None


def _head_buffers(ctx: NestContext, group: RowGroup) -> dict[Any, Any]:
    """Buffer that nothing outside the group reads -> the buffer for its part of a head.

    An elementwise stage writes in place over an operand that it reads last: scores and probs are one buffer."""
    local = local_buffers(ctx, group)
    head_buffers: dict[Any, Any] = {}
    for position, stage in enumerate(group.stages):
        for buffer in (b for b in stage.writes if b in local):
            reusable = (b for b in head_buffers if stage.is_elementwise and is_last_read(ctx, group, position, b))
            reused = next(reusable, None)
            head_buffers[buffer] = row_buffer(buffer, group) if reused is None else head_buffers[reused]
    return head_buffers


def _bytes(buffer: Any) -> int:
    return prod(shape_of(buffer)) * DataType(str(buffer.dtype)).itemsize


def _with_epilogues(
    ctx: NestContext, group: RowGroup, contractions: Mapping[Any, Contraction]
) -> list[tuple[Stage, list[Stage]]]:
    """The group's stages in order, each product with the elementwise stages that are done on its tiles."""
    rest, steps = list(group.stages), []
    while rest:
        stage = rest.pop(0)
        epilogue = epilogue_stages(ctx, stage, rest) if stage in contractions else []
        rest = rest[len(epilogue) :]
        steps.append((stage, epilogue))
    return steps


def attention_nest(ctx: NestContext, group: RowGroup, contractions: Mapping[Any, Contraction]) -> Stmt:
    """The loop over heads, parallel if that pays."""
    extents = [a.extent for a in group.stages[0].space[: group.lead]]
    steps = _with_epilogues(ctx, group, contractions)

    def step(stage: Stage, epilogue: list[Stage], head_indices: list[Expr]) -> Stmt:
        if stage in contractions:
            return product_body(ctx, contractions[stage], epilogue, head_indices)
        return stage_body(ctx, stage, head_indices)

    def head(flat: Expr) -> Stmt:
        head_buffers = _head_buffers(ctx, group)
        head_indices = unravel(flat, extents)
        statements = seq([step(stage, epilogue, head_indices) for stage, epilogue in steps])
        return block([localize(statements, head_buffers, group)], list(dict.fromkeys(head_buffers.values())))

    nanoseconds = stages_nanoseconds(ctx.virtual, group.stages, contractions, ctx.lanes)
    return parallel_loop(ctx, prod(extents), head, nanoseconds)
