"""A program as a list of nests: contractions, row nests, column sums and map nests, each stage in exactly one."""

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
from ..tir.row_group import row_group, single_row_group
from ..tir.split_reduction import split_reductions
from ..tir.stages import NotStaged, Program, Stage, intermediate_buffers, read_program
from .attention import head_group, head_nest
from .column_reduction import column_nest
from .elementwise import map_nest
from .matmul import matmul_nest
from .philox import draw_nest
from .row_reduction import row_nest
from .widen_operands import widen_factors


@attrs.frozen(eq=False)
class Plan:
    """The nests of a program in order and what each of them is."""

    ctx: NestContext
    contractions: dict[Any, Contraction]
    kinds: tuple[str, ...]
    nests: tuple[Stmt, ...]


def make_plan(func: Any, target: Any) -> Plan:
    """Raises NotStaged."""
    program = align_axes(read_program(func))
    if program.pairs and len({b for s in program.stages for b in s.writes if not program.owns(b)}) > 1:
        raise NotStaged("several outputs, of which some are in place: pieces, or block by block")
    program = split_reductions(fuse_argmax(program))
    program = widen_factors(program, contractions_of(program))
    products = contractions_of(program)
    virtual = InlinedStages(program, list(products), target.functions)
    ctx = NestContext(program, virtual, target.lanes, target.registers)
    real = [s for s in program.stages if s.buffer is None or s.buffer not in ctx.virtual.stages]
    kinds, nests = [], []
    while real:
        kind, taken, nest = _next(ctx, real, products)
        kinds.append(kind)
        nests.append(nest)
        real = real[taken:]
    if program.aliased and kinds != ["map"]:
        raise NotStaged("an update in place that is more than one map nest")
    return Plan(ctx, products, tuple(kinds), tuple(nests))


def _next(ctx: NestContext, real: Sequence[Stage], products: dict[Any, Contraction]) -> tuple[str, int, Stmt]:
    """The nest that starts at the first stage: its kind, how many stages it takes, its statements."""
    head = real[0]
    draws = draw_group(ctx, real)
    if draws is not None:
        return "draws", len(draws), draw_nest(ctx, draws)
    heads = head_group(ctx, real, products)
    if heads is not None:
        return "heads", len(heads.stages), head_nest(ctx, heads, products)
    if head in products:
        after = epilogue_stages(ctx, head, real[1:])
        return "matmul", 1 + len(after), matmul_nest(ctx, products[head], after)
    rows = row_group(ctx, real, lambda stage, _: stage not in products)
    if rows is not None and any(not s.is_elementwise for s in rows.stages) and _keeps_rows(ctx, rows.stages, rows.lead):
        return "rows", len(rows.stages), row_nest(ctx, rows)
    if head.is_elementwise:
        maps = elementwise_group(ctx, real)
        return "map", len(maps), map_nest(ctx, maps)
    if head.serial is not None or reduces_along_memory(ctx, head):
        return "rows", 1, row_nest(ctx, single_row_group(head))
    after = epilogue_stages(ctx, head, real[1:])
    return "columns", 1 + len(after), column_nest(ctx, head, after)


def _keeps_rows(ctx: NestContext, stages: Sequence[Stage], lead: int) -> bool:
    """No fold that walks down columns would lose its vectors to the row loop."""
    folds = [s for s in stages if s.reduction is not None]
    return all(reduces_along_memory(ctx, s) or len(s.space) > lead for s in folds)


def build(plan: Plan) -> Any:
    """The scheduled function."""
    nests, taken = share_storage(plan.ctx.program, plan.nests)
    return function(plan.ctx.program, nests, taken)


def function(program: Program, nests: Sequence[Stmt], given: Sequence[Any] | None = None) -> Any:
    """A function of the parameters of ``program`` that runs ``nests``; ``given``: what they hand to each other, if that
    is known."""
    temps = intermediate_buffers(program, nests) if given is None else given
    body = seq([*(tirx.AllocBuffer(b) for b in temps), *nests])
    body = bind_in_buffers(body)
    body = as_bits(body, nest_buffers(body))
    func = tirx.PrimFunc(list(program.params), body)
    return func.with_attrs({str(k): v for k, v in program.func.attrs.items()})
