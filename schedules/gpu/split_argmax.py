"""Where the extremum of a long row stands: first in pieces of it, then among the pieces' answers.

Which order keys are compared in changes no answer, so that this is for GPUs alone: a CPU walks the row once.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx

from ..tir.argmax import is_argmax
from ..tir.builder import Expr, load, scratch
from ..tir.context import NestContext
from ..tir.inline import InlinedStages
from ..tir.reduction import reduces_along_memory
from ..tir.stages import Axis, Program, Stage, substitute

PIECE, DOWN = 2048, 256  # elements of a piece: which a warp walks along, or a thread goes down
MANY = 1024  # results from which nothing is cut


def split_long_argmax(program: Program) -> Program:
    """The program with every long row cut that has few others beside it."""
    ctx, stages = NestContext(program, InlinedStages(program, ()), 1, 1), []
    for stage in program.stages:
        size = PIECE if not is_argmax(stage) or reduces_along_memory(ctx, stage) else DOWN
        long = is_argmax(stage) and stage.depth >= 2 * size and stage.points < MANY
        stages += _cut(stage, size) if long else [stage]
    return attrs.evolve(program, stages=tuple(stages))


def _cut(stage: Stage, size: int) -> list[Stage]:
    """Places within pieces, the piece whose answer is the answer, and that answer."""
    (axis,), extents = stage.reduce, [a.extent for a in stage.space]
    dtype, count = str(axis.var.ty.dtype), -(-axis.extent // size)
    places = scratch([*extents, count], "int32", f"{stage.name}_places")
    best = scratch(extents or [1], "int32", f"{stage.name}_piece")
    c, k, d = (tirx.Var(name, dtype) for name in ("c", "k", "d"))
    number = lambda value: tirx.IntImm(dtype, value)  # noqa: E731

    def axes() -> tuple[tuple[Axis, ...], dict[Any, Expr], list[Any]]:
        """A stage's own axes, which of the given one's they are, and their variables."""
        own = tuple(Axis(tirx.Var(a.var.name, str(a.var.ty.dtype)), a.extent) for a in stage.space)
        names = [a.var for a in own]
        return own, dict(zip([a.var for a in stage.space], names, strict=True)), names

    # past the end stands the last element again, which the first of equals never is
    space, at, names = axes()
    inside = tirx.Min(c * number(size) + k, number(axis.extent - 1))
    first = Stage(
        stage.name, (*space, Axis(c, count)), (Axis(k, size),), places, (*names, c),
        substitute(stage.value, at | {axis.var: inside}), stage.reduction,
    )  # fmt: skip
    space, at, names = axes()
    there = d * number(size) + tirx.Cast(dtype, load(places, *names, d))
    second = Stage(
        f"{stage.name}_best", space, (Axis(d, count),), best, tuple(names) or (tirx.IntImm("int64", 0),),
        substitute(stage.value, at | {axis.var: there}), stage.reduction,
    )  # fmt: skip
    names = [a.var for a in stage.space]
    piece = load(best, *(names or [tirx.IntImm("int64", 0)]))
    place = piece * size + load(places, *names, piece)
    value = place if str(stage.buffer.dtype) == "int32" else tirx.Cast(str(stage.buffer.dtype), place)
    return [first, second, Stage(f"{stage.name}_place", stage.space, (), stage.buffer, stage.indices, value)]
