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

MOST = 64  # boxes: each is code of its own
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


@attrs.frozen
class Box:
    """``extents`` places from ``lows`` on, an axis each. ``whole``: all of the space."""

    lows: tuple[int, ...]
    extents: tuple[int, ...]
    whole: bool

    def analyzer(self, names: Sequence[Any]) -> Any:
        """Knows that the variables ``names``, one an axis, lie in the box."""
        known = Analyzer()
        for var, low, extent in zip(names, self.lows, self.extents, strict=True):
            dtype = str(var.ty.dtype)
            known.bind(var, Range.from_min_extent(tirx.IntImm(dtype, low), tirx.IntImm(dtype, extent)))
        return known


def boxes(ctx: NestContext, stages: Sequence[Stage]) -> list[Box]:
    """The space of map stages, all of one space, in straight parts; one whole box if there would be too many."""
    axes = stages[0].space
    whole = Box((0,) * len(axes), tuple(a.extent for a in axes), True)
    cuts: dict[Any, set[int]] = {axis.var: {0, axis.extent} for axis in axes}
    for stage in stages:
        names = {a.var: b.var for a, b in zip(stage.space, axes, strict=True)}
        for test in conditions(ctx, stage, whole):
            _cut(substitute(test, names), cuts, axes)
    parts = [list(pairwise(sorted(cuts[axis.var]))) for axis in axes]
    count = prod(map(len, parts))
    if not 1 < count <= MOST:
        return [whole]
    return [Box(tuple(a for a, _ in box), tuple(b - a for a, b in box), False) for box in product(*parts)]


def conditions(ctx: NestContext, stage: Stage, whole: Box) -> list[Expr]:
    """Every condition that the stage's value takes, in its own axes."""
    point = ScalarWriter(ctx.virtual, analyzer=whole.analyzer([axis.var for axis in stage.space]))
    point.write(stage.value, {})
    return point.tests


def _cut(test: Expr, cuts: Mapping[Any, set[int]], axes: Sequence[Axis]) -> None:
    """Adds the places at which a comparison with a number changes."""
    extents = {axis.var: axis.extent for axis in axes}
    for node in collect(test, _COMPARISONS):
        used = variables(node)
        if len(used) == 1 and used <= set(extents) and not loads(node):
            (var,) = used
            cuts[var].update(p for p in _changes(node, var) if 0 < p < extents[var])


def _changes(node: Any, var: Any) -> list[int]:
    """First places of the pieces of ``node``, which compares ``c * var + d`` with 0; none if it is not linear."""
    if str(node.a.ty.dtype) not in ("int32", "int64"):
        return []
    linear = list(detect_linear_equation(node.a - node.b, [var]))
    if len(linear) != 2 or not all(is_int(x) for x in linear) or value_of(linear[0]) == 0:
        return []
    c, d = map(value_of, linear)
    at_least, above = -(d // c), -d // c + 1  # the least v with v >= -d/c, and with v > -d/c
    if isinstance(node, tirx.EQ | tirx.NE):
        return [at_least, above]
    strict = isinstance(node, tirx.LT | tirx.GE)  # changes where the sum leaves or reaches 0
    return [at_least if strict == (c > 0) else above]


def in_space(box: Box, places: Sequence[Expr]) -> list[Expr]:
    """Places within the box as places of the whole space."""
    return [place if low == 0 else place + i64(low) for place, low in zip(places, box.lows, strict=True)]
