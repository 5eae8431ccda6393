"""A nest of map stages over one space: every value of a point in registers, then all stores of that point.

A box in which something is read along another axis than it is written is done in tiles (``tiles.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from .access import Access, reads_of, same_indices, write_of
from .boxes import Box, boxes, in_space
from .emit import Expr, Stmt, grid, seq, store, unravel
from .inline import Known, Point
from .loops import DIVIDED, Loops, cut, joined, straight, undivided
from .nests import Context, chunks, vectors, worth_it
from .stages import Axis, Stage, substitute
from .tiles import tile_nest, turned_axis
from .tree import rewrite

PIECE = 2048  # elements of one task where the last axis is shared out
BYTES = 4  # elements of a byte in the place of one of f32
FEW = 16  # tasks that are enough for any machine to share out evenly


def at(axes: Sequence[Axis], places: Sequence[Expr]) -> dict[Any, Expr]:
    """Axis variables and where they stand, in the variables' own integer type."""
    found = {}
    for axis, place in zip(axes, places, strict=True):
        dtype = str(axis.var.ty.dtype)
        found[axis.var] = place if dtype == "int64" else place.astype(dtype)
    return found


def group(ctx: Context, stages: Sequence[Stage]) -> list[Stage]:
    """The longest start of ``stages`` that one map nest can hold."""
    taken = [stages[0]]
    for stage in stages[1:]:
        if not stage.is_map or not _joins(ctx, taken, stage):
            break
        taken.append(stage)
    return taken


def _joins(ctx: Context, taken: Sequence[Stage], stage: Stage) -> bool:
    """Same space, and what it reads of the nest lies at its own point."""
    if [a.extent for a in stage.space] != [a.extent for a in taken[0].space]:
        return False
    reads = reads_of(ctx, stage)
    for other in taken:
        here = [substitute(index, _rename(other, stage)) for index in other.indices]
        if any(r.buffer.same_as(other.buffer) and not same_indices(r.indices, here) for r in reads):
            return False
        if any(x.source.same_as(stage.buffer) for x in other.reads):
            return False
    return True


def _rename(source: Stage, target: Stage) -> dict[Any, Expr]:
    return {a.var: b.var for a, b in zip(source.space, target.space, strict=True)}


def kept(ctx: Context, stage: Stage, inside: Sequence[Stage]) -> bool:
    """Does anything outside ``inside`` need the stage's buffer in memory?"""
    if not ctx.program.owns(stage.buffer):
        return True
    outside = [s for s in ctx.program.stages if s not in inside]
    return any(x.source.same_as(stage.buffer) for s in outside for x in s.reads)


def point_stores(
    ctx: Context, stages: Sequence[Stage], places: Sequence[Expr], known: dict[Any, Known], keep: Sequence[Stage],
    analyzer: Any = None,
) -> Stmt:  # fmt: skip
    """All stages at one point: values first, stores last, so that an update in place reads before it writes.
    ``analyzer``: what is known of the places."""
    point = Point(ctx.virtual, dict(known), analyzer)
    stores = []
    for stage in stages:
        here = at(stage.space, places)
        value = point.bind(point.write(stage.value, here))
        point.known[stage.buffer] = lambda _, value=value: value
        if stage in keep:
            stores.append(store(stage.buffer, value, *point.indices(stage.indices, here)))
    return seq([*point.binds, *stores])


def finish(ctx: Context, fold: Stage, mine: dict[Any, Expr], value: Expr, after: Sequence[Stage]) -> Stmt:
    """A finished element of a fold at ``mine`` (its axes): stored if needed, and the stages ``after`` done on it."""
    point = Point(ctx.virtual)
    value = point.bind(point.write(value, {}))
    stores = []
    if kept(ctx, fold, [fold, *after]):
        stores.append(store(fold.buffer, value, *point.indices(fold.indices, mine)))
    if after:
        keep = [s for s in after if kept(ctx, s, [fold, *after])]
        known: dict[Any, Known] = {fold.buffer: lambda _: value}
        stores.append(point_stores(ctx, after, [mine[a.var] for a in fold.space], known, keep))
    return seq([*point.binds, *stores])


def map_nest(ctx: Context, stages: Sequence[Stage]) -> Stmt:
    """The nest of a group, a loop nest for each straight part of its space."""
    return seq([_box_nest(ctx, stages, box) for box in boxes(ctx, stages)])


def _box_nest(ctx: Context, stages: Sequence[Stage], box: Box) -> Stmt:
    """The last axes joined as far as memory allows, vectors along them, tasks over the rest; or tiles."""
    accesses = common_accesses(ctx, stages, box)
    axes = [Axis(axis.var, extent) for axis, extent in zip(stages[0].space, box.extents, strict=True)]
    loops = straight(axes, accesses)
    loops = cut(loops) if box.whole else loops
    turned = turned_axis(loops.axes, loops.accesses)
    if turned is not None:
        return tile_nest(ctx, loops.axes, turned, _stores(ctx, stages, box, loops))
    loops = joined(loops)
    stores = _stores(ctx, stages, box, loops)
    *heads, inner = [a.extent for a in loops.axes] or [1]

    wide = ctx.lanes * (BYTES if all(_is_byte(access.buffer) for access in loops.accesses) else 1)

    def piece(outer: list[Expr], start: Expr | None, length: int) -> Stmt:
        place = lambda f: [*outer, f if start is None else start + f] if loops.axes else []  # noqa: E731
        whole = length // wide * wide
        first = vectors(whole, wide, lambda f: stores(place(f)))
        return seq([*first, *vectors(length - whole, ctx.lanes, lambda f: stores(place(f + whole if whole else f)))])

    return share(ctx, heads, inner, piece)


def _is_byte(buffer: Any) -> bool:
    return str(buffer.dtype) in ("bool", "int8", "uint8")


def _stores(ctx: Context, stages: Sequence[Stage], box: Box, loops: Loops) -> Callable[[Sequence[Expr]], Stmt]:
    """Places along the loops, within the box -> the statements there, with the conditions settled that the box settles,
    and indices as short as the loops' extents allow."""
    keep = [s for s in stages if kept(ctx, s, stages)]

    def stores(places: Sequence[Expr]) -> Stmt:
        names = [tirx.Var("p", "int64") for _ in loops.axes]
        values = at(loops.axes, names)
        here = in_space(box, [substitute(place, values) for place in loops.places])
        stmt = point_stores(ctx, stages, here, {}, keep, loops.analyzer(names))
        stmt = undivided(stmt, loops.analyzer(names), lambda b: not ctx.program.owns(b))
        stmt = substitute(stmt, dict(zip(names, places, strict=True)))
        known = Analyzer()
        return rewrite(stmt, [(DIVIDED, known.simplify)])

    return stores


def share(ctx: Context, heads: Sequence[int], inner: int, piece: Any) -> Stmt:
    """Tasks over the first outer axes, as many as it takes, or over pieces of the inner one where these are few."""
    outer = prod(heads)
    if outer >= FEW or inner <= PIECE:
        plain = grid(heads, lambda places: piece(places, None, inner))
        if not worth_it(ctx, plain):
            return plain
        n = next((n for n in range(len(heads)) if prod(heads[:n]) >= FEW), len(heads))
        first = lambda p: unravel(p, heads[:n])  # noqa: E731
        task = lambda p, _: grid(heads[n:], lambda places: piece([*first(p), *places], None, inner))  # noqa: E731
        return chunks(ctx, prod(heads[:n]), 1, task)
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

    return chunks(ctx, outer * count, 1, task)


def _either(c: Expr, full: int, whole: Stmt, last: Stmt) -> Stmt:
    return tirx.IfThenElse(c < full, whole, last)


def common_accesses(ctx: Context, stages: Sequence[Stage], box: Box) -> list[Access]:
    """All accesses of a group inside ``box``, in the first stage's axes."""
    found = []
    for stage in stages:
        names = _rename(stage, stages[0])
        known = box.analyzer([a.var for a in stage.space])
        for access in [*reads_of(ctx, stage, analyzer=known), write_of(stage)]:
            found.append(Access(access.buffer, tuple(substitute(i, names) for i in access.indices)))
    return found
