"""A nest of map stages over one space: every value of a point in registers, then all stores of that point.

A box in which something is read along another axis than it is written is done in tiles (``tiles.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .access import Access, reads_of, same_indices, write_of
from .builder import Expr, Stmt, seq, store
from .context import NestContext
from .inline import Provided, ScalarWriter
from .iteration_domain import Box
from .stages import Axis, Stage, substitute


def index_of(axes: Sequence[Axis], places: Sequence[Expr]) -> dict[Any, Expr]:
    """Axis variables and where they stand, in the variables' own integer type."""
    found = {}
    for axis, place in zip(axes, places, strict=True):
        dtype = str(axis.var.ty.dtype)
        found[axis.var] = place if dtype == "int64" else place.astype(dtype)
    return found


def elementwise_group(ctx: NestContext, stages: Sequence[Stage]) -> list[Stage]:
    """The longest start of ``stages`` that one map nest can hold."""
    taken = [stages[0]]
    for stage in stages[1:]:
        if not stage.is_map or not _joins(ctx, taken, stage):
            break
        taken.append(stage)
    return taken


def _joins(ctx: NestContext, taken: Sequence[Stage], stage: Stage) -> bool:
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


def is_materialized(ctx: NestContext, stage: Stage, inside: Sequence[Stage]) -> bool:
    """Does anything outside ``inside`` need the stage's buffer in memory?"""
    if not ctx.program.owns(stage.buffer):
        return True
    outside = [s for s in ctx.program.stages if s not in inside]
    return any(x.source.same_as(stage.buffer) for s in outside for x in s.reads)


def point_stores(
    ctx: NestContext,
    stages: Sequence[Stage],
    places: Sequence[Expr],
    known: dict[Any, Provided],
    keep: Sequence[Stage],
    analyzer: Any = None,
) -> Stmt:
    """All stages at one point: values first, stores last, so that an update in place reads before it writes.
    ``analyzer``: what is known of the places."""
    point = ScalarWriter(ctx.virtual, dict(known), analyzer)
    stores = []
    for stage in stages:
        here = index_of(stage.space, places)
        value = point.bind(point.write(stage.value, here))
        point.known[stage.buffer] = lambda _, value=value: value
        if stage in keep:
            stores.append(store(stage.buffer, value, *point.indices(stage.indices, here)))
    return seq([*point.binds, *stores])


def store_result(ctx: NestContext, fold: Stage, mine: dict[Any, Expr], value: Expr, after: Sequence[Stage]) -> Stmt:
    """A finished element of a fold at ``mine`` (its axes): stored if needed, and the stages ``after`` done on it."""
    point = ScalarWriter(ctx.virtual)
    value = point.bind(point.write(value, {}))
    stores = []
    if is_materialized(ctx, fold, [fold, *after]):
        stores.append(store(fold.buffer, value, *point.indices(fold.indices, mine)))
    if after:
        keep = [s for s in after if is_materialized(ctx, s, [fold, *after])]
        known: dict[Any, Provided] = {fold.buffer: lambda _: value}
        stores.append(point_stores(ctx, after, [mine[a.var] for a in fold.space], known, keep))
    return seq([*point.binds, *stores])


def common_accesses(ctx: NestContext, stages: Sequence[Stage], box: Box) -> list[Access]:
    """All accesses of a group inside ``box``, in the first stage's axes."""
    found = []
    for stage in stages:
        names = _rename(stage, stages[0])
        known = box.analyzer([a.var for a in stage.space])
        for access in [*reads_of(ctx, stage, analyzer=known), write_of(stage)]:
            found.append(Access(access.buffer, tuple(substitute(i, names) for i in access.indices)))
    return found
