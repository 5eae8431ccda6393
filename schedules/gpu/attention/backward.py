"""Gradients of attention as two launches, by queries (dq) and by keys (dk, dv); no score matrix is written.

As in FlashAttention-2, scores are recomputed: dq sums over columns of the score matrix, dk and dv over its rows; for
these the scores are made a second time, transposed: a row is then a key, and each launch is that of ``resident``,
``kv_tiled`` or ``tensor_core_plan``. Only row max and row sums go from the first launch to the second, through memory.
No atomics: the order of sums is that of the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from ...tir.builder import Expr, Load, Stmt, load, scratch, shape_of
from ...tir.context import NestContext
from ...tir.contraction import contractions_of, read_contraction
from ...tir.inline import InlinedStages
from ...tir.rewrite import rewrite
from ...tir.stages import Program, Stage, loads

# (context, stages, must there be a reduction?) -> how many stages it takes, and the launch
Matcher = Callable[[NestContext, Sequence[Stage], bool], tuple[int, Stmt] | None]


def gradient_nests(
    program: Program, matchers: Sequence[Matcher]
) -> tuple[NestContext, list[tuple[Matcher, int, Stmt]]] | None:
    """The launches of a program of attention's gradients, each by the first of ``matchers`` that answers; None if it is
    no such program, or does not fit into a block."""
    groups = _groups(program)
    if groups is None:
        return None
    evolved = attrs.evolve(program, stages=tuple(s for group in groups for s in group))
    products = contractions_of(evolved)
    factors = {x.source for s in products for x in loads(s.value)}
    # These stay in shared memory or registers of their launch. Inlined into a product, an operand would be evaluated
    # for each result that it enters.
    materialized = {*factors, *(s.buffer for s in groups[1] if program.owns(s.buffer))}
    ctx = NestContext(evolved, InlinedStages(evolved, list(products), real=materialized), 1, 0)
    nests = []
    for group in groups:
        remaining = [s for s in group if s.buffer not in ctx.virtual.stages]
        # The launch by keys has no reduction: it reads the row max and sums that the launch by queries has stored.
        answers = ((matcher, matcher(ctx, remaining, group is groups[0])) for matcher in matchers)
        nest = next(((m, *answer) for m, answer in answers if answer is not None and answer[0] == len(remaining)), None)
        # A launch for only some of the stages would leave a score matrix in memory for the others.
        if nest is None:
            return None
        nests.append(nest)
    return ctx, nests


def _groups(program: Program) -> tuple[list[Stage], list[Stage]] | None:
    """The stages by queries, and those by keys."""
    # A serial stage has statements instead of a value: it cannot be made transposed.
    if any(s.buffer is None for s in program.stages):
        return None
    makers = {s.buffer: s for s in program.stages if program.owns(s.buffer)}
    over_rows = [s for s in program.stages if _sums_over_rows(program, makers, s)]
    needed = _needed(program, makers, over_rows)
    if not any(read_contraction(program, s) is not None for s in needed):
        return None
    transposed = {s.buffer: _transposed_buffer(s.buffer) for s in needed}
    by_keys = _with_consumers(program, over_rows)
    recomputed = [_transpose_stage(s, transposed) for s in needed]
    results = [attrs.evolve(s, value=_read_transposed(s.value, transposed)) for s in by_keys]
    return [s for s in program.stages if s not in by_keys], [*recomputed, *results]


def _sums_over_rows(program: Program, makers: dict[Any, Stage], stage: Stage) -> bool:
    """Is it a product that sums over the rows of a matrix that the program makes?"""
    if read_contraction(program, stage) is None or len(stage.reduce) != 1:
        return False
    var = stage.reduce[0].var
    read = [x for x in loads(stage.value) if x.source in makers]
    return bool(read) and all(_is_matrix(makers[x.source]) and x.indices[-2].same_as(var) for x in read)


def _is_matrix(stage: Stage) -> bool:
    """Is its last axis but one a row, its last a column, of several elements each?"""
    axes = [a.var for a in stage.space[-2:]]
    return len(axes) == 2 and len(stage.indices) > 1 and all(map(_same, stage.indices[-2:], axes))


def _same(a: Expr, b: Expr) -> bool:
    return a.same_as(b)


def _needed(program: Program, makers: dict[Any, Stage], products: Sequence[Stage]) -> list[Stage]:
    """The stages of the matrices that ``products`` are made of, in order."""
    todo, needed = [*products], set()
    shapes = {shape_of(x.source) for s in products for x in loads(s.value) if x.source in makers}
    while todo:
        for read in loads(todo.pop().value):
            maker = makers.get(read.source) if shape_of(read.source) in shapes else None
            if maker is not None and _is_recomputable(program, maker) and maker not in needed:
                needed.add(maker)
                todo.append(maker)
    return [s for s in program.stages if s in needed] if len(shapes) == 1 and all(map(_is_matrix, needed)) else []


def _is_recomputable(program: Program, stage: Stage) -> bool:
    # A row's max and sum are not recomputed: transposed, they would go across the rows of a block. They are read
    # instead.
    return stage.is_elementwise or read_contraction(program, stage) is not None


def _with_consumers(program: Program, stages: Iterable[Stage]) -> list[Stage]:
    """``stages`` and all stages that read their results."""
    consumers = list(stages)
    for stage in program.stages:
        if stage not in consumers and any(x.source.same_as(s.buffer) for x in loads(stage.value) for s in consumers):
            consumers.append(stage)
    return [s for s in program.stages if s in consumers]


def _transposed_buffer(buffer: Any) -> Any:
    *lead, rows, columns = shape_of(buffer)
    return scratch([*lead, columns, rows], str(buffer.dtype), f"{buffer.name}_transposed")


def _transpose_stage(stage: Stage, transposed: dict[Any, Any]) -> Stage:
    """The stage that makes the transposed matrix."""
    buffer, value = transposed[stage.buffer], _read_transposed(stage.value, transposed)
    space, indices = _swap_last_two(stage.space), _swap_last_two(stage.indices)
    return attrs.evolve(stage, name=buffer.name, space=space, buffer=buffer, indices=indices, value=value)


def _read_transposed(value: Expr, transposed: dict[Any, Any]) -> Expr:
    def read(x: Any) -> Expr:
        return load(transposed[x.source], *_swap_last_two(x.indices)) if x.source in transposed else x

    return rewrite(value, [(Load, read)])


def _swap_last_two(axes: Sequence[Any]) -> tuple[Any, ...]:
    *lead, a, b = axes
    return (*lead, b, a)
