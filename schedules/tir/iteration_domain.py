"""Straight parts of a space: boxes inside which every condition on the axes is settled.

Padding, concatenation and slices written back are conditions on places: ``if j < 128 then x[i, j] else y[i, j - 128]``.
A lane cannot branch, so the space is cut where a condition changes; each box is then a plain copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

import attrs
from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer, detect_linear_equation

from .builder import Expr, i64, is_int, value_of
from .context import NestContext
from .inline import ScalarWriter
from .rewrite import collect
from .stages import Axis, Stage, loads, substitute, variables

MAX_BOXES = 64  # boxes: each is code of its own
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


@attrs.frozen
class Box:
    """``extents`` places from ``lows`` on, an axis each. ``whole``: all of the space."""

    lows: tuple[int, ...]
    extents: tuple[int, ...]
    is_whole: bool

    def analyzer(self, axis_vars: Sequence[Any]) -> Any:
        """Knows that the variables ``names``, one an axis, lie in the box."""
        analyzer = Analyzer()
        for var, low, extent in zip(axis_vars, self.lows, self.extents, strict=True):
            dtype = str(var.ty.dtype)
            analyzer.bind(var, Range.from_min_extent(tirx.IntImm(dtype, low), tirx.IntImm(dtype, extent)))
        return analyzer


def boxes(ctx: NestContext, stages: Sequence[Stage]) -> list[Box]:
    """The space of map stages, all of one space, in straight parts; one whole box if there would be too many."""
    axes = stages[0].space
    whole_space = Box((0,) * len(axes), tuple(a.extent for a in axes), True)
    cuts: dict[Any, set[int]] = {axis.var: {0, axis.extent} for axis in axes}
    for stage in stages:
        axis_map = {a.var: b.var for a, b in zip(stage.space, axes, strict=True)}
        for condition in conditions(ctx, stage, whole_space):
            _add_cuts(substitute(condition, axis_map), cuts, axes)
    segments = [list(pairwise(sorted(cuts[axis.var]))) for axis in axes]
    count = prod(map(len, segments))
    if not 1 < count <= MAX_BOXES:
        return [whole_space]
    return [Box(tuple(a for a, _ in box), tuple(b - a for a, b in box), False) for box in product(*segments)]


def conditions(ctx: NestContext, stage: Stage, whole_space: Box) -> list[Expr]:
    """Every condition that the stage's value takes, in its own axes."""
    writer = ScalarWriter(ctx.virtual, analyzer=whole_space.analyzer([axis.var for axis in stage.space]))
    writer.write(stage.value, {})
    return writer.conditions


def _add_cuts(condition: Expr, cuts: Mapping[Any, set[int]], axes: Sequence[Axis]) -> None:
    """Adds the places at which a comparison with a number changes."""
    extents = {axis.var: axis.extent for axis in axes}
    for comparison in collect(condition, _COMPARISONS):
        used = variables(comparison)
        if len(used) == 1 and used <= set(extents) and not loads(comparison):
            (var,) = used
            cuts[var].update(point for point in _changes(comparison, var) if 0 < point < extents[var])


def _changes(comparison: Any, var: Any) -> list[int]:
    """First places of the pieces of ``node``, which compares ``c * var + d`` with 0; none if it is not linear."""
    if str(comparison.a.ty.dtype) not in ("int32", "int64"):
        return []
    linear = list(detect_linear_equation(comparison.a - comparison.b, [var]))
    if len(linear) != 2 or not all(is_int(x) for x in linear) or value_of(linear[0]) == 0:
        return []
    c, d = map(value_of, linear)
    at_least, above = -(d // c), -d // c + 1  # the least v with v >= -d/c, and with v > -d/c
    if isinstance(comparison, tirx.EQ | tirx.NE):
        return [at_least, above]
    strict = isinstance(comparison, tirx.LT | tirx.GE)  # changes where the sum leaves or reaches 0
    return [at_least if strict == (c > 0) else above]


def in_space(box: Box, point: Sequence[Expr]) -> list[Expr]:
    """Places within the box as places of the whole space."""
    return [index if low == 0 else index + i64(low) for index, low in zip(point, box.lows, strict=True)]
