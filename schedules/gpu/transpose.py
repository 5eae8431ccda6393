"""Maps that read along another axis than they write (transposes, batched or not): through tiles of shared memory.

A block brings in a tile of what is read that way with neighbouring threads along the axis that is read, and writes with
neighbouring threads along the last one. A tile's lines are a word of 4 bytes longer than a warp's elements, so that no
two threads of one meet in a bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from ..tir.access import Access, same_indices, transposed_axis
from ..tir.bfloat16 import BF16, bits16, from_bits16, is_bf16
from ..tir.builder import Expr, Stmt, i64, load, seq, store, unravel
from ..tir.context import NestContext
from ..tir.inline import ScalarWriter
from ..tir.iteration_domain import Box, conditions
from ..tir.point_writer import common_accesses, is_materialized, point_stores
from ..tir.stages import Axis, Stage, variables
from .threads.launch import WARP, barrier, launch, shared, unrolled

LINES = 8  # lines of a tile that a block takes at once, a warp each
WORD = 4  # bytes that a bank gives at once
LEAST = 16  # places along both axes from which a tile pays
MOST = 40 * 1024  # bytes of shared memory


@attrs.frozen(eq=False)
class Turned:
    """``reads`` walk along the axis number ``axis`` of ``axes``; what is written walks along the last."""

    axes: tuple[Axis, ...]
    axis: int
    reads: tuple[Access, ...]


def find_turned(ctx: NestContext, stages: Sequence[Stage]) -> Turned | None:
    """None for maps that read as they write, take conditions (what is brought in may then not be there), or read a
    tensor in several ways."""
    axes = stages[0].space
    box = Box((0,) * len(axes), tuple(a.extent for a in axes), True)
    if any(conditions(ctx, stage, box) for stage in stages):
        return None
    accesses = common_accesses(ctx, stages, box)
    axis = transposed_axis(axes, accesses)
    if axis is None or min(axes[axis].extent, axes[-1].extent) < LEAST:
        return None
    reads: dict[Any, Access] = {}
    for access in accesses:
        alike = reads.setdefault(access.buffer, access)
        if not same_indices(alike.indices, access.indices):
            return None
    written = [stage.buffer for stage in stages]
    found = tuple(a for b, a in reads.items() if b not in written and _is_turned(a, axes, axis))
    most = MOST // max((WARP * _pitch(a.buffer) * _width(a.buffer) for a in found), default=1)
    return Turned(tuple(axes), axis, found) if 0 < len(found) <= most else None


def _is_turned(access: Access, axes: Sequence[Axis], axis: int) -> bool:
    places = access.dimensions()
    if not places or not places[-1][0].same_as(axes[axis].var):
        return False
    return axes[-1].var in variables([index for index, _ in places[:-1]])


def _width(buffer: Any) -> int:
    """Bytes of an element."""
    bits = "".join(c for c in str(buffer.dtype) if c.isdigit())
    return int(bits or 8) // 8


def _pitch(buffer: Any) -> int:
    """Elements from line to line of a tile: an axis of its own TVM would shorten to what is used."""
    return WARP + max(1, WORD // _width(buffer))


def _kept_as(buffer: Any) -> str:
    return "uint16" if str(buffer.dtype) == BF16 else str(buffer.dtype)


def turned_launch(ctx: NestContext, stages: Sequence[Stage], turned: Turned) -> Stmt:
    """The launch: a block a tile of WARP by WARP places."""
    axes, deep = turned.axes, turned.axis
    others = [n for n in range(len(axes) - 1) if n != deep]
    down, across = (-(-axes[n].extent // WARP) for n in (deep, -1))
    grid = [*(axes[n].extent for n in others), down, across]
    keep = [s for s in stages if is_materialized(ctx, s, stages)]
    tiles = {a.buffer: shared([WARP * _pitch(a.buffer)], _kept_as(a.buffer), "tile") for a in turned.reads}

    def block(b: Expr, t: Expr) -> Stmt:
        *head, i, j = unravel(b, grid)
        line, lane = t // WARP, t % WARP

        def at(d: Expr, w: Expr) -> tuple[list[Expr], Expr]:
            """The place of row ``d`` and column ``w`` of the tile, and whether it is there."""
            places: list[Any] = [None] * len(axes)
            for n, place in zip(others, head, strict=True):
                places[n] = place
            places[deep], places[-1] = i * WARP + d, j * WARP + w
            return places, tirx.all(places[deep] < i64(axes[deep].extent), places[-1] < i64(axes[-1].extent))

        def bring(u: Expr) -> Stmt:
            w = u * LINES + line
            places, there = at(lane, w)
            to = lambda buffer: (tiles[buffer], w * _pitch(buffer) + lane)  # noqa: E731
            brought = [_bring(ctx, a, axes, places, *to(a.buffer)) for a in turned.reads]
            return tirx.IfThenElse(there, seq(brought), None)

        def write(u: Expr) -> Stmt:
            d = u * LINES + line
            places, there = at(d, lane)
            known = {
                b: (lambda _, tile=tile, b=b: _taken(b, load(tile, lane * _pitch(b) + d))) for b, tile in tiles.items()
            }
            return tirx.IfThenElse(there, point_stores(ctx, stages, places, known, keep), None)

        lines = WARP // LINES
        made = [tirx.AllocBuffer(tile) for tile in tiles.values()]
        return seq([*made, unrolled(lines, bring), barrier(), unrolled(lines, write)])

    return launch(prod(grid), WARP * LINES, block)


def _bring(
    ctx: NestContext, access: Access, axes: Sequence[Axis], places: Sequence[Expr], tile: Any, at: Expr
) -> Stmt:  # fmt: skip
    point = ScalarWriter(ctx.virtual)
    here = {axis.var: place.astype(str(axis.var.ty.dtype)) for axis, place in zip(axes, places, strict=True)}
    value = load(access.buffer, *point.indices(access.indices, here))
    return store(tile, bits16(value) if is_bf16(value) else value, at)


def _taken(buffer: Any, value: Expr) -> Expr:
    return from_bits16(value) if str(buffer.dtype) == BF16 else value
