"""The plan of a GPU kernel: stages grouped into nests, greedily, by a table of matchers.

A program is read as stages (an output buffer each). Every stage lands in exactly one nest, and a nest is a launch or
several. Which stages are inlined, where long sums are split and the order of every sum are decided by the passes in
``tir`` that the CPU uses too: that is why both give the same bits.
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
from .attention.resident import attention_nest
from .attention.tensor_core_plan import tensor_core_nest
from .column_reduction import column_reduction_nest
from .elementwise import elementwise_nest
from .matmul.simt import matmul_nest
from .matmul.tensor_core import mma_nest
from .philox import philox_nest
from .row_reduction import row_reduction_nest
from .split_argmax import split_long_argmax
from .thread_per_result import thread_per_result_nest
from .threads.launch import for_device


@attrs.frozen(eq=False)
class Nest:
    """``launches`` compute the first ``taken`` stages; ``kind`` goes into the rule's name."""

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


# (context, remaining stages) -> (how many of them from the first on it takes, their launches), or None
NestMatcher = Callable[[NestContext, Sequence[Stage]], tuple[int, Stmt] | None]

# (kind, matcher), the most particular first: the first that answers takes the stages. A kind may have several matchers;
# the last row takes any stage. A new nest is a row, and its kind a name in rules.py.
NESTS: tuple[tuple[str, NestMatcher], ...] = (
    ("philox", philox_nest),
    ("tensor-core", tensor_core_nest),
    ("attention", attention_nest),
    ("tensor-core", mma_nest),
    ("matmul", matmul_nest),
    ("row-reduction", row_reduction_nest),
    ("column-reduction", column_reduction_nest),
    ("elementwise", elementwise_nest),
    ("thread-per-result", thread_per_result_nest),
)
TENSOR_CORE_KIND = "tensor-core"  # what uses mma.sync
# Schedule sets without it. sm_75 has mma.sync for f16 but not for bf16, and 16-bit floats of both are scheduled alike.
LEVELS_WITHOUT_TENSOR_CORES = ("cuda-sm_75",)


def make_plan(func: Any, target: Any) -> Plan:
    """The nests of ``func`` for ``target``. Raises NotStaged."""
    program = inline_materialized(align_axes(read_program(func)))
    tensor_cores = target.gpu.level not in LEVELS_WITHOUT_TENSOR_CORES
    matchers = [row for row in NESTS if tensor_cores or row[0] != TENSOR_CORE_KIND]
    # Several outputs, some of them in place: an output may be overwritten while another stage still needs what was
    # there, so every stage stays where it is and stores its result.
    if program.pairs and len({b for s in program.stages for b in s.writes if not program.owns(b)}) > 1:
        return _plan(_without_inlining(program), matchers)
    # Pairs of maximum and index become an argmax first: split, the maximum would no longer match its index.
    split = split_long_argmax(split_reductions(fuse_argmax(program)))
    gradients = gradient_nests(split, (tensor_core_nest, attention_nest) if tensor_cores else (attention_nest,))
    # The second launch reads the inputs again, so the first must not have overwritten any.
    if gradients is not None and not program.aliased:
        ctx, nests = gradients
        kinds = (TENSOR_CORE_KIND if matcher is tensor_core_nest else "attention" for matcher, *_ in nests)
        return Plan(ctx, tuple(Nest(kind, *nest) for kind, (_, *nest) in zip(kinds, nests, strict=True)))
    contractions = contractions_of(split)
    # One lane, since a GPU's threads are its lanes; the number of vector registers is the CPU's alone.
    plan = _plan(NestContext(split, InlinedStages(split, list(contractions)), 1, 0), matchers)
    # A single elementwise nest loads all of a point before it stores it, so aliased buffers are safe there.
    is_safe = not program.aliased or plan.kinds == ("elementwise",)
    return plan if is_safe else _plan(_without_inlining(program), matchers)


def _plan(ctx: NestContext, matchers: Sequence[tuple[str, NestMatcher]]) -> Plan:
    remaining = [s for s in ctx.program.stages if s.buffer is None or s.buffer not in ctx.virtual.stages]
    nests: list[Nest] = []
    while remaining:
        nest = _first_nest(ctx, remaining, matchers)
        nests.append(nest)
        remaining = remaining[nest.taken :]
    return Plan(ctx, tuple(nests))


def _first_nest(ctx: NestContext, stages: Sequence[Stage], matchers: Sequence[tuple[str, NestMatcher]]) -> Nest:
    for kind, matcher in matchers:
        match = matcher(ctx, stages)
        if match is not None:
            return Nest(kind, *match)
    raise LookupError("no nest takes the stage")


def _without_inlining(program: Program) -> NestContext:
    """Every stage writes its buffer, in the program's order. Where an output may share memory with an input, or is read
    again, a recomputed value could read what was already overwritten."""
    return NestContext(program, InlinedStages(attrs.evolve(program, stages=()), ()), 1, 0)


def build(plan: Plan) -> Any:
    """The scheduled function."""
    return function(plan.ctx.program, [nest.launches for nest in plan.nests])


def function(program: Program, nests: Sequence[Stmt]) -> Any:
    """A function with the parameters of ``program`` that runs ``nests`` and allocates the buffers between them."""
    nests = [for_device(nest) for nest in nests]
    # For each nest alone: the buffers between nests are in global memory and keep bfloat16, as parameters do.
    nests = [as_bits(nest, nest_buffers(nest)) for nest in nests]
    body = seq([*(tirx.AllocBuffer(b) for b in intermediate_buffers(program, nests)), *nests])
    func = tirx.PrimFunc(list(program.params), body)
    return func.with_attrs({str(k): v for k, v in program.func.attrs.items()})
