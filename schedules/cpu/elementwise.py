"""A nest of elementwise stages over one space: every value of a point in registers, then all stores of that point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from ..tir.access import transposed_axis
from ..tir.builder import Expr, Stmt, grid, seq, unravel
from ..tir.context import NestContext, parallel_chunks, pays_in_parallel, vector_loop
from ..tir.iteration_domain import Box, boxes, in_space
from ..tir.point_writer import common_accesses, index_of, is_materialized, point_stores
from ..tir.rewrite import rewrite
from ..tir.stages import Axis, Stage, substitute
from .loop_axes import DIVIDED, Loops, cut, joined, straight, undivided
from .transpose import tile_nest

PIECE = 2048  # elements of one task where the last axis is shared out
BYTES = 4  # elements of a byte in the place of one of f32
FEW = 16  # tasks that are enough for any machine to share out evenly


def map_nest(ctx: NestContext, stages: Sequence[Stage]) -> Stmt:
    """The nest of a group, a loop nest for each straight part of its space."""
    return seq([_box_nest(ctx, stages, box) for box in boxes(ctx, stages)])


def _box_nest(ctx: NestContext, stages: Sequence[Stage], box: Box) -> Stmt:
    """The last axes joined as far as memory allows, vectors along them, tasks over the rest; or tiles."""
    accesses = common_accesses(ctx, stages, box)
    axes = [Axis(axis.var, extent) for axis, extent in zip(stages[0].space, box.extents, strict=True)]
    loops = straight(axes, accesses)
    loops = cut(loops) if box.is_whole else loops
    turned = transposed_axis(loops.axes, loops.accesses)
    if turned is not None:
        return tile_nest(ctx, loops.axes, turned, _stores(ctx, stages, box, loops))
    loops = joined(loops)
    stores = _stores(ctx, stages, box, loops)
    *heads, inner = [a.extent for a in loops.axes] or [1]

    wide = ctx.lanes * (BYTES if all(_is_byte(access.buffer) for access in loops.accesses) else 1)

    def piece(outer: list[Expr], start: Expr | None, length: int) -> Stmt:
        place = lambda f: [*outer, f if start is None else start + f] if loops.axes else []  # noqa: E731
        whole = length // wide * wide
        first = vector_loop(whole, wide, lambda f: stores(place(f)))
        return seq(
            [*first, *vector_loop(length - whole, ctx.lanes, lambda f: stores(place(f + whole if whole else f)))]
        )

    return share(ctx, heads, inner, piece)


def _is_byte(buffer: Any) -> bool:
    return str(buffer.dtype) in ("bool", "int8", "uint8")


def _stores(ctx: NestContext, stages: Sequence[Stage], box: Box, loops: Loops) -> Callable[[Sequence[Expr]], Stmt]:
    """Places along the loops, within the box -> the statements there, with the conditions settled that the box settles,
    and indices as short as the loops' extents allow."""
    keep = [s for s in stages if is_materialized(ctx, s, stages)]

    def stores(places: Sequence[Expr]) -> Stmt:
        names = [tirx.Var("p", "int64") for _ in loops.axes]
        values = index_of(loops.axes, names)
        here = in_space(box, [substitute(place, values) for place in loops.places])
        stmt = point_stores(ctx, stages, here, {}, keep, loops.analyzer(names))
        stmt = undivided(stmt, loops.analyzer(names), lambda b: not ctx.program.owns(b))
        stmt = substitute(stmt, dict(zip(names, places, strict=True)))
        known = Analyzer()
        return rewrite(stmt, [(DIVIDED, known.simplify)])

    return stores


def share(ctx: NestContext, heads: Sequence[int], inner: int, piece: Any) -> Stmt:
    """Tasks over the first outer axes, as many as it takes, or over pieces of the inner one where these are few."""
    outer = prod(heads)
    if outer >= FEW or inner <= PIECE:
        plain = grid(heads, lambda places: piece(places, None, inner))
        if not pays_in_parallel(ctx, plain):
            return plain
        n = next((n for n in range(len(heads)) if prod(heads[:n]) >= FEW), len(heads))
        first = lambda p: unravel(p, heads[:n])  # noqa: E731
        task = lambda p, _: grid(heads[n:], lambda places: piece([*first(p), *places], None, inner))  # noqa: E731
        return parallel_chunks(ctx, prod(heads[:n]), 1, task)
    full, rest = divmod(inner, PIECE)
    count = full + (1 if rest else 0)

    def task(p: Expr, _: int) -> Stmt:
        *head, c = unravel(p, [*heads, count])
        whole = lambda: piece(head, c * PIECE, PIECE)  # noqa: E731
        if not rest:
            return whole()
        if not full:
            return piece(head, None, rest)
        return _either(c, full, whole(), piece(head, c * PIECE, rest))

    return parallel_chunks(ctx, outer * count, 1, task)


def _either(c: Expr, full: int, whole: Stmt, last: Stmt) -> Stmt:
    return tirx.IfThenElse(c < full, whole, last)
