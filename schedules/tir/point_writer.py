"""Elementwise fusion: which stages share a loop nest over one space, and the statements for one of its points.

At a point all values are computed first, in variables, and all stores follow: an update in place reads before it
writes, and a fused intermediate is stored only if something outside the nest reads it. Any order of the points gives
the same bits. Nests that transpose are tiled by ``cpu/transpose.py`` and ``gpu/transpose.py``.
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
    """Coordinates: axis variable -> index, cast to the variable's own integer type."""
    coords = {}
    for axis, index in zip(axes, indices, strict=True):
        dtype = str(axis.var.ty.dtype)
        coords[axis.var] = index if dtype == "int64" else index.astype(dtype)
    return coords


def elementwise_group(ctx: NestContext, stages: Sequence[Stage]) -> list[Stage]:
    """The longest prefix of ``stages`` that can be fused into an elementwise nest."""
    group = [stages[0]]
    for stage in stages[1:]:
        if not stage.is_elementwise or not _can_fuse(ctx, group, stage):
            break
        group.append(stage)
    return group


def _can_fuse(ctx: NestContext, group: Sequence[Stage], stage: Stage) -> bool:
    """Does the stage have the group's space, read the group's results at its own point only, and write nothing that the
    group reads?"""
    if [a.extent for a in stage.space] != [a.extent for a in group[0].space]:
        return False
    reads = reads_of(ctx, stage)
    for other in group:
        expected = [substitute(index, _axis_map(other, stage)) for index in other.indices]
        if any(r.buffer.same_as(other.buffer) and not same_indices(r.indices, expected) for r in reads):
            return False
        # Point by point, a store of this stage would come before another stage's load for a later point.
        if any(x.source.same_as(stage.buffer) for x in other.reads):
            return False
    return True


def _axis_map(source: Stage, target: Stage) -> dict[Any, Expr]:
    return {a.var: b.var for a, b in zip(source.space, target.space, strict=True)}


def is_materialized(ctx: NestContext, stage: Stage, group: Sequence[Stage]) -> bool:
    """Must the stage's buffer be in memory: is it a parameter, or read by a stage outside ``group``?"""
    if not ctx.program.owns(stage.buffer):
        return True
    # Inside the group the value is in a variable: only a reader in another nest needs it in memory.
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
    """All stages at a ``point`` (an index an axis): values first, then stores of what is ``materialized``, so that an
    update in place reads before it writes. ``analyzer``: knows the ranges of the point's variables."""
    writer = ScalarWriter(ctx.virtual, dict(provided), analyzer)
    stores = []
    for stage in stages:
        coords = index_of(stage.space, point)
        value = writer.bind(writer.write(stage.value, coords))
        # Later stages read the variable: the buffer has its old element until the stores below.
        writer.provided[stage.buffer] = lambda _, value=value: value
        if stage in materialized:
            stores.append(store(stage.buffer, value, *writer.indices(stage.indices, coords)))
    return seq([*writer.binds, *stores])


def store_result(
    ctx: NestContext, reduction: Stage, coords: dict[Any, Expr], value: Expr, epilogue: Sequence[Stage]
) -> Stmt:
    """A finished element of a reduction at ``coords``: stored if it is materialized, then its ``epilogue`` is done."""
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
    """All accesses of a group of stages inside ``box``, in the axes of the first stage."""
    accesses = []
    for stage in stages:
        axis_map = _axis_map(stage, stages[0])
        analyzer = box.analyzer([a.var for a in stage.space])
        for access in [*reads_of(ctx, stage, analyzer=analyzer), write_of(stage)]:
            accesses.append(Access(access.buffer, tuple(substitute(i, axis_map) for i in access.indices)))
    return accesses
