"""Split argmax and argmin of long rows: first within pieces, then among the winners of the pieces.

Taken: rows of at least two pieces, where there are few rows, so that a warp a row would leave the GPU idle. The
result, the first index of the extremum, does not depend on the order of comparisons; so unlike a split sum this split
needs no counterpart on the CPU, which walks a row once.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs
from tvm import tirx

from ..tir.argmax import is_argmax
from ..tir.builder import Expr, load, scratch
from ..tir.context import NestContext
from ..tir.inline import InlinedStages
from ..tir.reduction import reduces_along_memory
from ..tir.stages import Axis, Program, Stage, substitute

# Elements of a piece: of a contiguous row, which a warp reads together (64 a thread), and of a column, which a single
# thread walks down. Chosen, not measured: longer pieces leave multiprocessors idle, shorter make more winners to
# compare. No bit depends on them.
ROW_PIECE, COLUMN_PIECE = 2048, 256
# Rows; as many or more fill the GPU without splitting. Chosen, not measured.
MAX_SPLIT_RESULTS = 1024


def split_long_argmax(program: Program) -> Program:
    """``program`` with every argmax over long rows split, where there are few rows."""
    ctx, stages = NestContext(program, InlinedStages(program, ()), 1, 1), []
    for stage in program.stages:
        size = ROW_PIECE if not is_argmax(stage) or reduces_along_memory(ctx, stage) else COLUMN_PIECE
        is_long = is_argmax(stage) and stage.depth >= 2 * size and stage.points < MAX_SPLIT_RESULTS
        stages += _split(stage, size) if is_long else [stage]
    return attrs.evolve(program, stages=tuple(stages))


def _split(stage: Stage, size: int) -> list[Stage]:
    """Three stages: the argmax within each piece, the piece with the best element, and its index in the whole row."""
    (axis,), extents = stage.reduce, [a.extent for a in stage.space]
    dtype, pieces = str(axis.var.ty.dtype), -(-axis.extent // size)
    local_argmax = scratch([*extents, pieces], "int32", f"{stage.name}_local_argmax")
    best_piece = scratch(extents or [1], "int32", f"{stage.name}_best_piece")
    piece_var, within_var, best_var = (tirx.Var(name, dtype) for name in ("c", "k", "d"))
    constant = functools.partial(tirx.IntImm, dtype)
    # Past the end the last element is repeated: of equal elements the first wins, so a repetition never does.
    space, renamed, axis_vars = _fresh_axes(stage)
    clamped = tirx.Min(piece_var * constant(size) + within_var, constant(axis.extent - 1))
    within_pieces = Stage(
        stage.name,
        (*space, Axis(piece_var, pieces)),
        (Axis(within_var, size),),
        local_argmax,
        (*axis_vars, piece_var),
        substitute(stage.value, renamed | {axis.var: clamped}),
        stage.reduction,
    )
    space, renamed, axis_vars = _fresh_axes(stage)
    candidate = best_var * constant(size) + tirx.Cast(dtype, load(local_argmax, *axis_vars, best_var))
    across_pieces = Stage(
        f"{stage.name}_across_pieces",
        space,
        (Axis(best_var, pieces),),
        best_piece,
        tuple(axis_vars) or (tirx.IntImm("int64", 0),),
        substitute(stage.value, renamed | {axis.var: candidate}),
        stage.reduction,
    )
    axis_vars = [a.var for a in stage.space]
    piece = load(best_piece, *(axis_vars or [tirx.IntImm("int64", 0)]))
    argmax_index = piece * size + load(local_argmax, *axis_vars, piece)
    value = argmax_index if str(stage.buffer.dtype) == "int32" else tirx.Cast(str(stage.buffer.dtype), argmax_index)
    winner = Stage(f"{stage.name}_argmax", stage.space, (), stage.buffer, stage.indices, value)
    return [within_pieces, across_pieces, winner]


def _fresh_axes(stage: Stage) -> tuple[tuple[Axis, ...], dict[Any, Expr], list[Any]]:
    """New axes for a stage, the given stage's variables -> theirs, and their variables.

    New, since the loops of three stages with the same axes would bind a variable three times."""
    space = tuple(Axis(tirx.Var(a.var.name, str(a.var.ty.dtype)), a.extent) for a in stage.space)
    axis_vars = [a.var for a in space]
    return space, dict(zip([a.var for a in stage.space], axis_vars, strict=True)), axis_vars
