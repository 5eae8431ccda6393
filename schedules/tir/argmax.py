"""Argmax fusion: a max reduction and the reduction that finds its first index become one pass over the data.

The fused stage is a reduction of kind ``first-max`` or ``first-min``: ``value`` is the key, the result its smallest
index. Keys are integers (``lowering`` maps floats to ordered integers), so equality is exact and any order of
comparisons gives the same index.
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
    """The program with every such pair of neighbouring stages fused."""
    stages: list[Stage] = []
    for stage in program.stages:
        fused = _fuse_pair(program, stages[-1], stage) if stages else None
        if fused is not None:
            stages[-1] = fused
        else:
            stages.append(stage)
    return attrs.evolve(program, stages=tuple(stages))


def _fuse_pair(program: Program, best: Stage, index: Stage) -> Stage | None:
    """The fused stage, or None. ``index`` must be the least k at which the value of ``best`` equals its result."""
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
    # Another reader needs the extremum itself, which the fused stage does not store.
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
    """The indices i and the key of ``min over k of Select(best[i] == key, k, extent of k)``, else None."""
    select = index.value
    if index.reduction is None or index.reduction.kind != "min" or not isinstance(select, tirx.Select):
        return None
    test, axis = select.condition, index.reduce[0]
    k = select.true_value.value if isinstance(select.true_value, tirx.Cast) else select.true_value
    # Elsewhere k is the extent, more than any index: so the minimum is the first index of the extremum.
    if not k.same_as(axis.var) or not is_int(select.false_value, axis.extent) or not isinstance(test, tirx.EQ):
        return None
    for read, key in ((test.a, test.b), (test.b, test.a)):
        # Integer keys only: a float NaN equals nothing, and its index would be the extent.
        if isinstance(read, Load) and read.source.same_as(best.buffer) and "int" in str(key.ty.dtype):
            return list(read.indices), key
    return None


def is_argmax(stage: Stage) -> bool:
    """Is the stage a fused argmax or argmin?"""
    return stage.reduction is not None and stage.reduction.kind in ARGMAX_KINDS.values()


def beats(stage: Stage, a: Any, b: Any) -> Expr:
    """Is key ``a`` more extreme than key ``b``?"""
    assert stage.reduction is not None
    return tirx.GT(a, b) if stage.reduction.kind == ARGMAX_KINDS["max"] else tirx.LT(a, b)


def extreme(stage: Stage, a: Any, b: Any) -> Expr:
    """The more extreme of two keys."""
    assert stage.reduction is not None
    return tirx.Max(a, b) if stage.reduction.kind == ARGMAX_KINDS["max"] else tirx.Min(a, b)
