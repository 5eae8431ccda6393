"""A CPU program as a list of loop nests: each stage that is stored belongs to exactly one nest.

Stages are prepared first (axes aligned, argmax fused, long reductions split, half-precision operands widened), then the
nests take them greedily in program order. Which nest takes a stage follows from shapes, so the order of sums does too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ..tir.argmax import fuse_argmax
from ..tir.axis_order import align_axes
from ..tir.bfloat16 import as_bits
from ..tir.buffer_reuse import share_storage
from ..tir.builder import Stmt, seq
from ..tir.context import NestContext, nest_buffers
from ..tir.contraction import Contraction, contractions_of
from ..tir.epilogue import epilogue_stages
from ..tir.inline import InlinedStages
from ..tir.let_buffers import bind_in_buffers
from ..tir.philox import draw_group
from ..tir.point_writer import elementwise_group
from ..tir.reduction import reduces_along_memory
from ..tir.row_group import RowGroup, row_group, single_row_group
from ..tir.split_reduction import split_reductions
from ..tir.stages import NotStaged, Program, Stage, intermediate_buffers, read_program
from .attention import attention_nest, find_attention
from .column_reduction import column_reduction_nest
from .elementwise import elementwise_nest
from .matmul import matmul_nest
from .philox import philox_nest
from .row_reduction import row_reduction_nest
from .widen_operands import widen_operands


@attrs.frozen(eq=False)
class Plan:
    """The nests of a program in order, and the kind of each."""

    ctx: NestContext
    contractions: dict[Any, Contraction]
    kinds: tuple[str, ...]
    nests: tuple[Stmt, ...]


def make_plan(func: Any, target: Any) -> Plan:
    """Raises NotStaged."""
    program = align_axes(read_program(func))
    # Of several outputs that may share memory with inputs, a nest could overwrite what a later nest reads.
    if program.pairs and len({b for s in program.stages for b in s.writes if not program.owns(b)}) > 1:
        raise NotStaged("several outputs, of which some are in place: multi-tensor, or block by block")
    program = split_reductions(fuse_argmax(program))
    program = widen_operands(program, contractions_of(program))
    contractions = contractions_of(program)
    inlined = InlinedStages(program, list(contractions), target.functions)
    ctx = NestContext(program, inlined, target.lanes, target.registers)
    remaining = [s for s in program.stages if s.buffer is None or s.buffer not in inlined.stages]
    kinds, nests = [], []
    while remaining:
        kind, count, nest = _first_nest(ctx, remaining, contractions)
        kinds.append(kind)
        nests.append(nest)
        remaining = remaining[count:]
    # A single elementwise nest loads each element before it stores it; any other could read what it overwrote.
    if program.aliased and kinds != ["elementwise"]:
        raise NotStaged("an update in place that is more than one elementwise nest")
    return Plan(ctx, contractions, tuple(kinds), tuple(nests))


def _first_nest(
    ctx: NestContext, stages: Sequence[Stage], contractions: dict[Any, Contraction]
) -> tuple[str, int, Stmt]:
    """The nest that begins with the first stage: its kind, how many stages it takes, its statements.

    The nests are tried from the most special to the most general."""
    first = stages[0]
    draws = draw_group(ctx, stages)
    if draws is not None:
        return "philox", len(draws), philox_nest(ctx, draws)
    attention = find_attention(ctx, stages, contractions)
    if attention is not None:
        return "attention", len(attention.stages), attention_nest(ctx, attention, contractions)
    if first in contractions:
        epilogue = epilogue_stages(ctx, first, stages[1:])
        return "matmul", 1 + len(epilogue), matmul_nest(ctx, contractions[first], epilogue)
    rows = row_group(ctx, stages, lambda stage, _: stage not in contractions)
    if rows is not None and _is_worth_row_loop(ctx, rows):
        return "row-reduction", len(rows.stages), row_reduction_nest(ctx, rows)
    if first.is_elementwise:
        group = elementwise_group(ctx, stages)
        return "elementwise", len(group), elementwise_nest(ctx, group)
    if first.serial is not None or reduces_along_memory(ctx, first):
        return "row-reduction", 1, row_reduction_nest(ctx, single_row_group(first))
    epilogue = epilogue_stages(ctx, first, stages[1:])
    return "column-reduction", 1 + len(epilogue), column_reduction_nest(ctx, first, epilogue)


def _is_worth_row_loop(ctx: NestContext, group: RowGroup) -> bool:
    """Is it more than elementwise stages, and would no column reduction lose its vectors to the loop over rows?"""
    if all(s.is_elementwise for s in group.stages):
        return False
    reductions = [s for s in group.stages if s.reduction is not None]
    return all(reduces_along_memory(ctx, s) or len(s.space) > group.lead for s in reductions)


def build(plan: Plan) -> Any:
    """The scheduled function."""
    nests, intermediates = share_storage(plan.ctx.program, plan.nests)
    return make_function(plan.ctx.program, nests, intermediates)


def make_function(program: Program, nests: Sequence[Stmt], intermediates: Sequence[Any] | None = None) -> Any:
    """A function with the parameters of ``program`` that runs ``nests``. ``intermediates``: the buffers between the
    nests, by default all that they use and none of them allocates."""
    allocated = intermediate_buffers(program, nests) if intermediates is None else intermediates
    body = seq([*(tirx.AllocBuffer(b) for b in allocated), *nests])
    body = bind_in_buffers(body)
    body = as_bits(body, nest_buffers(body))
    func = tirx.PrimFunc(list(program.params), body)
    return func.with_attrs({str(k): v for k, v in program.func.attrs.items()})
