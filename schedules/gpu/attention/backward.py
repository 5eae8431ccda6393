"""The gradients of attention as two launches: one by queries, one by keys, neither of which writes a score.

A program that makes dq, dk and dv of one score matrix needs its rows (softmax, and dq) and its columns (dk and dv). So
what dk and dv read of scores is made a second time, turned: a row is then a key's, and every stage is one of ``heads``
or ``head_units``. Only what a query has of its own, the largest score and two sums, goes from one launch to the other
through memory. In ``heads`` each element is worked out from the same numbers in the same order both times.
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

# (context, stages, must there be a fold?) -> how many stages it takes, and the launch
Finder = Callable[[NestContext, Sequence[Stage], bool], tuple[int, Stmt] | None]


def gradient_nests(
    program: Program, finders: Sequence[Finder]
) -> tuple[NestContext, list[tuple[Finder, int, Stmt]]] | None:
    """The launches of a program of attention's gradients, each by the first of ``finders`` that answers; None if it is
    none, or does not fit into a block."""
    groups = _groups(program)
    if groups is None:
        return None
    whole = attrs.evolve(program, stages=tuple(s for group in groups for s in group))
    products = contractions_of(whole)
    factors = {x.source for s in products for x in loads(s.value)}
    real = {*factors, *(s.buffer for s in groups[1] if program.owns(s.buffer))}  # in a block they cost nothing
    ctx = NestContext(whole, InlinedStages(whole, list(products), real=real), 1, 0)
    nests = []
    for group in groups:
        left = [s for s in group if s.buffer not in ctx.virtual.stages]
        answers = ((find, find(ctx, left, group is groups[0])) for find in finders)
        nest = next(((find, *found) for find, found in answers if found is not None and found[0] == len(left)), None)
        if nest is None:
            return None
        nests.append(nest)
    return ctx, nests


def _groups(program: Program) -> tuple[list[Stage], list[Stage]] | None:
    """The stages by queries, and those by keys."""
    if any(s.buffer is None for s in program.stages):
        return None
    makers = {s.buffer: s for s in program.stages if program.owns(s.buffer)}
    down = [s for s in program.stages if _goes_down(program, makers, s)]
    needed = _needed(program, makers, down)
    if not any(read_contraction(program, s) is not None for s in needed):
        return None
    turned = {s.buffer: _swapped(s.buffer) for s in needed}
    last = _with_followers(program, down)
    again = [_turned(s, turned) for s in needed]
    ends = [attrs.evolve(s, value=_reading(s.value, turned)) for s in last]
    return [s for s in program.stages if s not in last], [*again, *ends]


def _goes_down(program: Program, makers: dict[Any, Stage], stage: Stage) -> bool:
    """Is it a product that sums over the rows of a matrix that the program makes?"""
    if read_contraction(program, stage) is None or len(stage.reduce) != 1:
        return False
    var = stage.reduce[0].var
    read = [x for x in loads(stage.value) if x.source in makers]
    return bool(read) and all(_is_matrix(makers[x.source]) and x.indices[-2].same_as(var) for x in read)


def _is_matrix(stage: Stage) -> bool:
    """Is its last axis but one a row, its last a column, of more than one element each?"""
    axes = [a.var for a in stage.space[-2:]]
    return len(axes) == 2 and len(stage.indices) > 1 and all(map(_same, stage.indices[-2:], axes))


def _same(a: Expr, b: Expr) -> bool:
    return a.same_as(b)


def _needed(program: Program, makers: dict[Any, Stage], last: Sequence[Stage]) -> list[Stage]:
    """The stages of the matrices that ``last`` are made of, in order."""
    todo, found = [*last], set()
    shapes = {shape_of(x.source) for s in last for x in loads(s.value) if x.source in makers}
    while todo:
        for read in loads(todo.pop().value):
            maker = makers.get(read.source) if shape_of(read.source) in shapes else None
            if maker is not None and _repeats(program, maker) and maker not in found:
                found.add(maker)
                todo.append(maker)
    return [s for s in program.stages if s in found] if len(shapes) == 1 and all(map(_is_matrix, found)) else []


def _repeats(program: Program, stage: Stage) -> bool:
    return stage.is_elementwise or read_contraction(program, stage) is not None


def _with_followers(program: Program, stages: Iterable[Stage]) -> list[Stage]:
    """``stages`` and all that reads what they make."""
    taken = list(stages)
    for stage in program.stages:
        if stage not in taken and any(x.source.same_as(s.buffer) for x in loads(stage.value) for s in taken):
            taken.append(stage)
    return [s for s in program.stages if s in taken]


def _swapped(buffer: Any) -> Any:
    *lead, rows, columns = shape_of(buffer)
    return scratch([*lead, columns, rows], str(buffer.dtype), f"{buffer.name}_turned")


def _turned(stage: Stage, turned: dict[Any, Any]) -> Stage:
    """The stage with its rows and columns in each other's place."""
    buffer, value = turned[stage.buffer], _reading(stage.value, turned)
    space, indices = _swap(stage.space), _swap(stage.indices)
    return attrs.evolve(stage, name=buffer.name, space=space, buffer=buffer, indices=indices, value=value)


def _reading(value: Expr, turned: dict[Any, Any]) -> Expr:
    def read(x: Any) -> Expr:
        return load(turned[x.source], *_swap(x.indices)) if x.source in turned else x

    return rewrite(value, [(Load, read)])


def _swap(last: Sequence[Any]) -> tuple[Any, ...]:
    *lead, a, b = last
    return (*lead, b, a)
