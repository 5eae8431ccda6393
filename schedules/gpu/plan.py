"""A program as a list of launches: each stage of the program in exactly one nest, each nest one launch or several.

Stages, what of them never reaches memory, and where long sums are cut are those of the CPU rules; so is the order of
every sum: a GPU's bits are the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ..tir.argmax import fuse_argmax
from ..tir.axis_order import align_axes, inline_materialized
from ..tir.bfloat16 import as_bits
from ..tir.builder import Stmt, seq
from ..tir.context import NestContext, nest_buffers
from ..tir.contraction import contractions_of
from ..tir.inline import InlinedStages
from ..tir.split_reduction import split_reductions
from ..tir.stages import Program, Stage, intermediate_buffers, read_program
from .attention.backward import gradient_nests
from .attention.resident import heads_nest
from .attention.tensor_core_plan import unit_nest
from .column_reduction import columns_nest
from .elementwise import map_nest
from .matmul.simt import matmul_nest
from .matmul.tensor_core import mma_nest
from .philox import draw_nest
from .row_reduction import rows_nest
from .split_argmax import cut_picks
from .thread_per_result import single_nest
from .threads.launch import for_device


@attrs.frozen(eq=False)
class Nest:
    """``launches`` that do the first ``taken`` stages; ``kind``: what they are, for the rule's name."""

    kind: str
    taken: int
    launches: Stmt


@attrs.frozen(eq=False)
class Plan:
    """The nests of a program in order."""

    ctx: NestContext
    nests: tuple[Nest, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(nest.kind for nest in self.nests)


# (context, the stages that are left) -> the nest that starts at the first of them, or None
Finder = Callable[[NestContext, Sequence[Stage]], Nest | None]


def _heads(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = heads_nest(ctx, stages)
    return found and Nest("heads", *found)


def _unit_heads(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = unit_nest(ctx, stages)
    return found and Nest("mma", *found)


def _maps(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = map_nest(ctx, stages)
    return found and Nest("map", *found)


def _draws(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = draw_nest(ctx, stages)
    return found and Nest("draws", *found)


def _matmul(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = matmul_nest(ctx, stages)
    return found and Nest("matmul", *found)


def _mma(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = mma_nest(ctx, stages)
    return found and Nest("mma", *found)


def _rows(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = rows_nest(ctx, stages)
    return found and Nest("rows", *found)


def _columns(ctx: NestContext, stages: Sequence[Stage]) -> Nest | None:
    found = columns_nest(ctx, stages)
    return found and Nest("columns", *found)


def _single(ctx: NestContext, stages: Sequence[Stage]) -> Nest:
    return Nest("single", *single_nest(ctx, stages))


FINDERS: tuple[Finder, ...] = (
    _draws, _unit_heads, _heads, _mma, _matmul, _rows, _columns, _maps, _single,
)  # fmt: skip  # the first that answers
ON_MATRIX_UNITS = (_unit_heads, _mma)
WITHOUT_MATRIX_UNITS = ("cuda-sm_75",)  # for halves of both dtypes: schedule sets that have none


def make_plan(func: Any, target: Any) -> Plan:
    """Raises NotStaged."""
    program = inline_materialized(align_axes(read_program(func)))
    without = ON_MATRIX_UNITS if target.gpu.level in WITHOUT_MATRIX_UNITS else ()
    finders = [f for f in FINDERS if f not in without]
    if program.pairs and len({b for s in program.stages for b in s.writes if not program.owns(b)}) > 1:
        return _plan(_as_it_stands(program), finders)
    shared = cut_picks(split_reductions(fuse_argmax(program)))
    gradients = gradient_nests(shared, (heads_nest,) if without else (unit_nest, heads_nest))
    if gradients is not None and not program.aliased:
        ctx, nests = gradients
        return Plan(ctx, tuple(Nest("mma" if find is unit_nest else "heads", *nest) for find, *nest in nests))
    products = contractions_of(shared)
    plan = _plan(NestContext(shared, InlinedStages(shared, list(products)), 1, 0), finders)
    safe = not program.aliased or plan.kinds == ("map",)
    return plan if safe else _plan(_as_it_stands(program), finders)


def _plan(ctx: NestContext, finders: Sequence[Finder]) -> Plan:
    left = [s for s in ctx.program.stages if s.buffer is None or s.buffer not in ctx.virtual.stages]
    nests: list[Nest] = []
    while left:
        nest = next(n for n in (find(ctx, left) for find in finders) if n is not None)
        nests.append(nest)
        left = left[nest.taken :]
    return Plan(ctx, tuple(nests))


def _as_it_stands(program: Program) -> NestContext:
    """Every stage makes its buffer, in the program's own order: where outputs may lie in the memory of inputs, or are
    read again, nothing may be worked out later than it stands there."""
    return NestContext(program, InlinedStages(attrs.evolve(program, stages=()), ()), 1, 0)


def build(plan: Plan) -> Any:
    """The scheduled function."""
    return function(plan.ctx.program, [nest.launches for nest in plan.nests])


def function(program: Program, nests: Sequence[Stmt]) -> Any:
    """A function of the parameters of ``program`` that runs ``nests``, with memory of its own for what one hands to
    another."""
    nests = [for_device(nest) for nest in nests]
    nests = [as_bits(nest, nest_buffers(nest)) for nest in nests]
    body = seq([*(tirx.AllocBuffer(b) for b in intermediate_buffers(program, nests)), *nests])
    func = tirx.PrimFunc(list(program.params), body)
    return func.with_attrs({str(k): v for k, v in program.func.attrs.items()})
