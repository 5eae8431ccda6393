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


def index_of(axes: Sequence[Axis], indices: Sequence[Expr]) -> dict[Any, Expr]:
    """Axis variables and where they stand, in the variables' own integer type."""
    coords = {}
    for axis, index in zip(axes, indices, strict=True):
        dtype = str(axis.var.ty.dtype)
        coords[axis.var] = index if dtype == "int64" else index.astype(dtype)
    return coords


def elementwise_group(ctx: NestContext, stages: Sequence[Stage]) -> list[Stage]:
    """The longest start of ``stages`` that one map nest can hold."""
    group = [stages[0]]
    for stage in stages[1:]:
        if not stage.is_elementwise or not _can_fuse(ctx, group, stage):
            break
        group.append(stage)
    return group


def _can_fuse(ctx: NestContext, group: Sequence[Stage], stage: Stage) -> bool:
    """Same space, and what it reads of the nest lies at its own point."""
    if [a.extent for a in stage.space] != [a.extent for a in group[0].space]:
        return False
    reads = reads_of(ctx, stage)
    for other in group:
        expected = [substitute(index, _axis_map(other, stage)) for index in other.indices]
        if any(r.buffer.same_as(other.buffer) and not same_indices(r.indices, expected) for r in reads):
            return False
        if any(x.source.same_as(stage.buffer) for x in other.reads):
            return False
    return True


def _axis_map(source: Stage, target: Stage) -> dict[Any, Expr]:
    return {a.var: b.var for a, b in zip(source.space, target.space, strict=True)}


def is_materialized(ctx: NestContext, stage: Stage, group: Sequence[Stage]) -> bool:
    """Does anything outside ``inside`` need the stage's buffer in memory?"""
    if not ctx.program.owns(stage.buffer):
        return True
    others = [s for s in ctx.program.stages if s not in group]
    return any(x.source.same_as(stage.buffer) for s in others for x in s.reads)


def point_stores(
    ctx: NestContext,
    stages: Sequence[Stage],
    point: Sequence[Expr],
    provided: dict[Any, Provided],
    materialized: Sequence[Stage],
    analyzer: Any = None,
) -> Stmt:
    """All stages at one point: values first, stores last, so that an update in place reads before it writes.
    ``analyzer``: what is known of the places."""
    writer = ScalarWriter(ctx.virtual, dict(provided), analyzer)
    stores = []
    for stage in stages:
        coords = index_of(stage.space, point)
        value = writer.bind(writer.write(stage.value, coords))
        writer.provided[stage.buffer] = lambda _, value=value: value
        if stage in materialized:
            stores.append(store(stage.buffer, value, *writer.indices(stage.indices, coords)))
    return seq([*writer.binds, *stores])


def store_result(
    ctx: NestContext, reduction: Stage, coords: dict[Any, Expr], value: Expr, epilogue: Sequence[Stage]
) -> Stmt:
    """A finished element of a fold at ``mine`` (its axes): stored if needed, and the stages ``after`` done on it."""
    writer = ScalarWriter(ctx.virtual)
    value = writer.bind(writer.write(value, {}))
    stores = []
    if is_materialized(ctx, reduction, [reduction, *epilogue]):
        stores.append(store(reduction.buffer, value, *writer.indices(reduction.indices, coords)))
    if epilogue:
        materialized = [s for s in epilogue if is_materialized(ctx, s, [reduction, *epilogue])]
        provided: dict[Any, Provided] = {reduction.buffer: lambda _: value}
        stores.append(point_stores(ctx, epilogue, [coords[a.var] for a in reduction.space], provided, materialized))
    return seq([*writer.binds, *stores])


def common_accesses(ctx: NestContext, stages: Sequence[Stage], box: Box) -> list[Access]:
    """All accesses of a group inside ``box``, in the first stage's axes."""
    accesses = []
    for stage in stages:
        axis_map = _axis_map(stage, stages[0])
        analyzer = box.analyzer([a.var for a in stage.space])
        for access in [*reads_of(ctx, stage, analyzer=analyzer), write_of(stage)]:
            accesses.append(Access(access.buffer, tuple(substitute(i, axis_map) for i in access.indices)))
    return accesses
