"""Row fusion: consecutive stages that agree on their leading axes run inside one loop over these, the row axes.

Softmax, normalization, cross-entropy, argmax: what a stage computes for a row stays in the first cache (on a GPU: in
shared memory or registers) for the next, and only results that something else reads are stored. Each stage does for a
row what it would do alone, so fusion changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from .access import reads_of, same_indices
from .builder import Expr, Load, Stmt, i64, load, scratch, shape_of, store
from .context import MIN_PARALLEL_WORK, NestContext
from .point_writer import is_materialized
from .rewrite import collect, rewrite
from .stages import Stage, variables

# Rows of a task, which allocates its scratch once. Chosen, not measured: fewer are more tasks to start, more leave
# threads idle where rows are few. It changes no bit.
ROWS = 8


@attrs.frozen(eq=False)
class RowGroup:
    """``stages`` inside loops over their first ``lead`` axes, the row axes.

    ``row_dims``: buffer that a stage stores -> its dimensions that are indexed by the row axes."""

    stages: tuple[Stage, ...]
    lead: int
    row_dims: dict[Any, tuple[int, ...]]


def row_group(ctx: NestContext, stages: Sequence[Stage], accept: Any, is_profitable: Any = None) -> RowGroup | None:
    """The longest prefix of ``stages`` that can share loops over some leading axes; of equals, with the most axes.

    ``accept(stage, lead)``: may the stage be in it? ``is_profitable(ctx, group)``: is it worth a nest?"""
    max_lead = max((len(s.space) for s in stages[:1]), default=0)
    best: RowGroup | None = None
    for lead in range(max_lead, -1, -1):
        group = _collect(ctx, stages, lead, accept)
        if group is None or not (is_profitable or _has_enough_rows)(ctx, group):
            continue
        # Of equals the first, with the most row axes: these give the most tasks, and the shortest rows to keep.
        if best is None or len(group.stages) > len(best.stages):
            best = group
    return best


def single_row_group(stage: Stage) -> RowGroup:
    """A stage alone, with every axis of its space a row axis."""
    return RowGroup((stage,), len(stage.space), {})


def row_work(ctx: NestContext, stages: Sequence[Stage]) -> int:
    """Rough cost of the stages in additions, to be compared with MIN_PARALLEL_WORK."""
    return sum(s.points * s.depth * (ctx.virtual.cost(s) + 1) for s in stages)


def _has_enough_rows(ctx: NestContext, group: RowGroup) -> bool:
    """Are there enough rows to parallelize, or so little work that it would not pay anyway?"""
    rows = prod(a.extent for a in group.stages[0].space[: group.lead])
    return rows >= ROWS or row_work(ctx, group.stages) < MIN_PARALLEL_WORK


def _collect(ctx: NestContext, stages: Sequence[Stage], lead: int, accept: Any) -> RowGroup | None:
    grouped: list[Stage] = []
    row_dims: dict[Any, tuple[int, ...]] = {}
    for stage in stages:
        if not accept(stage, lead) or not _same_rows(stage, stages[0], lead):
            break
        stage_dims = _stored_row_dims(stage, lead)
        if stage_dims is None or not _reads_own_row(ctx, stage, lead, row_dims) or not _writes_fresh(stage, grouped):
            break
        grouped.append(stage)
        row_dims |= dict.fromkeys(stage.writes, stage_dims)
    return RowGroup(tuple(grouped), lead, row_dims) if grouped else None


def _same_rows(stage: Stage, head: Stage, lead: int) -> bool:
    extents = [a.extent for a in stage.space[:lead]]
    return len(extents) == lead and extents == [a.extent for a in head.space[:lead]]


def _writes_fresh(stage: Stage, grouped: Sequence[Stage]) -> bool:
    """Is what the stage writes neither read nor written by the stages before it in the group?"""
    touched = [x.source for s in grouped for x in s.reads] + [b for s in grouped for b in s.writes]
    return not any(b in touched for b in stage.writes)


def _store_indices(stage: Stage) -> list[tuple[Expr, ...]]:
    if stage.serial is None:
        return [stage.indices]
    return [tuple(s.indices) for s in collect(stage.serial[1], tirx.BufferStore)]


def _stored_row_dims(stage: Stage, lead: int) -> tuple[int, ...] | None:
    """The dimensions of the stored buffer that the row axes index, each axis alone in a dimension; else None."""
    rows = [a.var for a in stage.space[:lead]]
    candidates = []
    for indices in _store_indices(stage):
        dims = [[d for d, index in enumerate(indices) if var in variables(index)] for var in rows]
        if any(len(s) != 1 or not indices[s[0]].same_as(var) for s, var in zip(dims, rows, strict=True)):
            return None
        candidates.append(tuple(s[0] for s in dims))
    return candidates[0] if all(a == candidates[0] for a in candidates) else None


def _reads_own_row(ctx: NestContext, stage: Stage, lead: int, row_dims: dict[Any, tuple[int, ...]]) -> bool:
    rows = [a.var for a in stage.space[:lead]]
    for read in reads_of(ctx, stage):
        dims = row_dims.get(read.buffer)
        # Another row may not be computed yet, or by another thread.
        if dims is not None and not same_indices([read.indices[d] for d in dims], rows):
            return False
    return True


def local_buffers(ctx: NestContext, group: RowGroup) -> list[Any]:
    """The buffers that nothing outside the group reads: a row of them is enough."""
    return [b for b in group.row_dims if _is_local(ctx, b, group)]


def _is_local(ctx: NestContext, buffer: Any, group: RowGroup) -> bool:
    writers = [s for s in group.stages if buffer in s.writes]
    others = [s for s in ctx.program.stages if s not in group.stages]
    # A buffer that another nest writes too (a part of a joined tensor) must exist as a whole.
    no_other_writer = not any(buffer in s.writes for s in others)
    return no_other_writer and not any(_needs_memory(ctx, s, buffer, group) for s in writers)


def _needs_memory(ctx: NestContext, stage: Stage, buffer: Any, group: RowGroup) -> bool:
    if stage.serial is None:
        return is_materialized(ctx, stage, group.stages)
    others = [s for s in ctx.program.stages if s not in group.stages]
    return not ctx.program.owns(buffer) or any(x.source.same_as(buffer) for s in others for x in s.reads)


def row_length(buffer: Any, group: RowGroup) -> int:
    """The number of elements of ``buffer`` in a row."""
    return prod(e for d, e in enumerate(shape_of(buffer)) if d not in group.row_dims[buffer])


def row_buffer(buffer: Any, group: RowGroup) -> Any:
    """A scratch buffer for a row of ``buffer``: its shape without the row dimensions."""
    rest = [e for d, e in enumerate(shape_of(buffer)) if d not in group.row_dims[buffer]]
    return scratch(rest or [1], str(buffer.dtype), buffer.name)


def localize(stmt: Stmt, local: dict[Any, Any], group: RowGroup) -> Stmt:
    """``stmt`` with accesses of the buffers in ``local`` to their row buffers, without the row dimensions."""

    def inner(buffer: Any, indices: Sequence[Expr]) -> list[Expr]:
        rest = [i for d, i in enumerate(indices) if d not in group.row_dims[buffer]]
        return rest or [i64(0)]

    def read(node: Any) -> Expr:
        return load(local[node.source], *inner(node.source, node.indices)) if node.source in local else node

    def write(node: Any) -> Stmt:
        return (
            store(local[node.buffer], node.value, *inner(node.buffer, node.indices)) if node.buffer in local else node
        )

    return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)])
