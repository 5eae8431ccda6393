"""Where the extremum stands, in one walk: two folds, the largest key and the first index that has it, become one.

The fused stage is a fold of kind ``first-max`` or ``first-min``: ``value`` is the key, the result its index. Keys are
integers, so equal means equal, and no order of comparisons changes the answer: the smallest index of the extreme key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import tvm_ffi
from tvm import tirx

from .access import same_indices
from .builder import Expr, Load, is_int
from .stages import Program, Reduction, Stage, substitute

ARGMAX_KINDS = {"max": "first-max", "min": "first-min"}


def fuse_argmax(program: Program) -> Program:
    """The program with every such pair of stages as one."""
    stages: list[Stage] = []
    for stage in program.stages:
        fused = _fuse_pair(program, stages[-1], stage) if stages else None
        if fused is not None:
            stages[-1] = fused
        else:
            stages.append(stage)
    return attrs.evolve(program, stages=tuple(stages))


def _fuse_pair(program: Program, best: Stage, index: Stage) -> Stage | None:
    """Both as one stage, or None: ``index`` is the least k at which best's value equals best's result."""
    if (
        best.reduction is None
        or best.reduction.kind not in ARGMAX_KINDS
        or len(best.reduce) != 1
        or len(index.reduce) != 1
    ):
        return None
    match = _match_argmax(best, index)
    if match is None or _extents(best) != _extents(index) or not program.owns(best.buffer):
        return None
    if any(x.source.same_as(best.buffer) for s in program.stages if s is not index for x in s.reads):
        return None
    axis_map = {a.var: b.var for a, b in zip((*index.space, *index.reduce), (*best.space, *best.reduce), strict=True)}
    read_indices, key = match
    if not tvm_ffi.structural_equal(substitute(key, axis_map), best.value):
        return None
    if not same_indices([substitute(i, axis_map) for i in read_indices], best.indices):
        return None
    return attrs.evolve(index, value=key, reduction=Reduction(ARGMAX_KINDS[best.reduction.kind], best.reduction.init))


def _extents(stage: Stage) -> list[int]:
    return [axis.extent for axis in (*stage.space, *stage.reduce)]


def _match_argmax(best: Stage, index: Stage) -> tuple[Sequence[Expr], Expr] | None:
    """Of ``min over k of Select(best[here] == key, k, extent of k)``: here and key."""
    select = index.value
    if index.reduction is None or index.reduction.kind != "min" or not isinstance(select, tirx.Select):
        return None
    test, axis = select.condition, index.reduce[0]
    k = select.true_value.value if isinstance(select.true_value, tirx.Cast) else select.true_value
    if not k.same_as(axis.var) or not is_int(select.false_value, axis.extent) or not isinstance(test, tirx.EQ):
        return None
    for read, key in ((test.a, test.b), (test.b, test.a)):
        if isinstance(read, Load) and read.source.same_as(best.buffer) and "int" in str(key.ty.dtype):
            return list(read.indices), key
    return None


def is_argmax(stage: Stage) -> bool:
    """Is the stage a fused fold of a key and its index?"""
    return stage.reduction is not None and stage.reduction.kind in ARGMAX_KINDS.values()


def beats(stage: Stage, a: Any, b: Any) -> Expr:
    """Is key ``a`` more extreme than key ``b``?"""
    assert stage.reduction is not None
    return tirx.GT(a, b) if stage.reduction.kind == ARGMAX_KINDS["max"] else tirx.LT(a, b)


def extreme(stage: Stage, a: Any, b: Any) -> Expr:
    """The more extreme of two keys."""
    assert stage.reduction is not None
    return tirx.Max(a, b) if stage.reduction.kind == ARGMAX_KINDS["max"] else tirx.Min(a, b)
