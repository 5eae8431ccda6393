"""Iteration domain splitting: a space is cut into boxes inside which every condition on the axes is decided.

Padding, concatenation and slice updates are conditions on indices: ``if j < 128 then x[i, j] else y[i, j - 128]``.
A vector lane cannot branch, so the space is cut where an affine condition changes, and each box is then a plain copy
(index set splitting). Elements are computed in another order, each from the same values: no bit changes.
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

# Boxes of a nest, each with its own code: with more, conditions stay, and vectors with them fall back to scalars.
# Chosen, not measured; a larger number is a longer text and compile.
MAX_BOXES = 64
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


@attrs.frozen
class Box:
    """Indices from ``lows`` on, ``extents`` of them, an entry an axis. ``is_whole``: it is the whole space, uncut."""

    lows: tuple[int, ...]
    extents: tuple[int, ...]
    is_whole: bool

    def analyzer(self, axis_vars: Sequence[Any]) -> Any:
        """An analyzer that knows ``axis_vars``, a variable an axis, to lie in the box."""
        analyzer = Analyzer()
        for var, low, extent in zip(axis_vars, self.lows, self.extents, strict=True):
            dtype = str(var.ty.dtype)
            analyzer.bind(var, Range.from_min_extent(tirx.IntImm(dtype, low), tirx.IntImm(dtype, extent)))
        return analyzer


def boxes(ctx: NestContext, stages: Sequence[Stage]) -> list[Box]:
    """The common space of elementwise stages, cut into boxes; uncut if it would be more than MAX_BOXES."""
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
    # The product of all cuts, though a condition may hold for a part of them only: a few boxes more, but each simple.
    return [Box(tuple(a for a, _ in box), tuple(b - a for a, b in box), False) for box in product(*segments)]


def conditions(ctx: NestContext, stage: Stage, whole_space: Box) -> list[Expr]:
    """Every undecided condition in the stage's value, in its own axes."""
    writer = ScalarWriter(ctx.virtual, analyzer=whole_space.analyzer([axis.var for axis in stage.space]))
    writer.write(stage.value, {})
    return writer.conditions


def _add_cuts(condition: Expr, cuts: Mapping[Any, set[int]], axes: Sequence[Axis]) -> None:
    """Adds the indices at which a comparison of an axis with a number changes."""
    extents = {axis.var: axis.extent for axis in axes}
    for comparison in collect(condition, _COMPARISONS):
        used = variables(comparison)
        # Boxes can follow a comparison of a single axis only: i <= j cuts along a diagonal, and stays a condition.
        if len(used) == 1 and used <= set(extents) and not loads(comparison):
            (var,) = used
            cuts[var].update(point for point in _changes(comparison, var) if 0 < point < extents[var])


def _changes(comparison: Any, var: Any) -> list[int]:
    """The indices at which ``comparison``, of ``c * var + d`` with 0, may change; none if it is not affine."""
    if str(comparison.a.ty.dtype) not in ("int32", "int64"):
        return []
    linear = list(detect_linear_equation(comparison.a - comparison.b, [var]))
    if len(linear) != 2 or not all(is_int(x) for x in linear) or value_of(linear[0]) == 0:
        return []
    c, d = map(value_of, linear)
    at_least, above = -(d // c), -d // c + 1  # the least v with v >= -d/c, and with v > -d/c
    if isinstance(comparison, tirx.EQ | tirx.NE):
        return [at_least, above]
    strict = isinstance(comparison, tirx.LT | tirx.GE)  # it changes at 0 itself, not after it
    return [at_least if strict == (c > 0) else above]


def in_space(box: Box, point: Sequence[Expr]) -> list[Expr]:
    """Indices within the box as indices of the whole space."""
    return [index if low == 0 else index + i64(low) for index, low in zip(point, box.lows, strict=True)]
