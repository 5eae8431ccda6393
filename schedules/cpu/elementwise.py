"""Elementwise stages over a common iteration domain, fused: vectors along the last axis, tasks over the others.

The domain is cut into boxes inside which no condition depends on the point (``iteration_domain.py``), axes are split
and merged (``loop_axes.py``), and a nest that transposes goes to ``transpose.py``. At a point all loads come before its
stores, so an output may share memory with an input. There are no sums, so no bit depends on loops or threads.
"""

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
from .loop_axes import DIVISIONS, Loops, flatten_divided_indices, merge_axes, plain_loops, split_axes
from .transpose import transpose_nest

TASK_ELEMENTS = 2048  # of a task that has a part of the last axis; chosen, not measured
BYTES_PER_FLOAT = 4  # elements of a byte in the space of a float32: nests of bytes only have vectors so much wider
ENOUGH_TASKS = 16  # that any usual machine shares evenly; with fewer the last axis is cut. Chosen, not measured


def elementwise_nest(ctx: NestContext, stages: Sequence[Stage]) -> Stmt:
    """The loops of a group: a loop nest for each box of its domain."""
    return seq([_box_nest(ctx, stages, box) for box in boxes(ctx, stages)])


def _box_nest(ctx: NestContext, stages: Sequence[Stage], box: Box) -> Stmt:
    """A box in vectors along the last axes, merged as far as memory is contiguous; or in tiles, if it transposes."""
    accesses = common_accesses(ctx, stages, box)
    axes = [Axis(axis.var, extent) for axis, extent in zip(stages[0].space, box.extents, strict=True)]
    loops = plain_loops(axes, accesses)
    # In a part of the domain indices count from the box's first, which need not be a multiple of a divisor: no split.
    loops = split_axes(loops) if box.is_whole else loops
    read_axis = transposed_axis(loops.axes, loops.accesses)
    if read_axis is not None:
        return transpose_nest(ctx, loops.axes, read_axis, _point_writer(ctx, stages, box, loops))
    loops = merge_axes(loops)
    stores_at = _point_writer(ctx, stages, box, loops)
    *outer_extents, inner_extent = [a.extent for a in loops.axes] or [1]

    only_bytes = all(_is_byte(access.buffer) for access in loops.accesses)
    wide = ctx.lanes * (BYTES_PER_FLOAT if only_bytes else 1)

    def span(outer: list[Expr], start: Expr | None, length: int) -> Stmt:
        """``length`` elements along the last axis from ``start`` on (None: from 0)."""

        def point(f: Expr) -> list[Expr]:
            if not loops.axes:
                return []
            return [*outer, f if start is None else start + f]

        covered = length // wide * wide
        wide_vectors = vector_loop(covered, wide, lambda f: stores_at(point(f)))
        rest = vector_loop(length - covered, ctx.lanes, lambda f: stores_at(point(f + covered if covered else f)))
        return seq([*wide_vectors, *rest])

    return share_tasks(ctx, outer_extents, inner_extent, span)


def _is_byte(buffer: Any) -> bool:
    return str(buffer.dtype) in ("bool", "int8", "uint8")


def _point_writer(
    ctx: NestContext, stages: Sequence[Stage], box: Box, loops: Loops
) -> Callable[[Sequence[Expr]], Stmt]:
    """A function from the indices of the loops to the stages at that point of the box.

    Conditions that the box decides are gone, and indices are simplified by the ranges of the loops. Both need plain
    variables, for which the indices are substituted last."""
    materialized = [s for s in stages if is_materialized(ctx, s, stages)]

    def stores_at(indices: Sequence[Expr]) -> Stmt:
        index_vars = [tirx.Var("point", "int64") for _ in loops.axes]
        coords = index_of(loops.axes, index_vars)
        point = in_space(box, [substitute(index, coords) for index in loops.indices])
        stmt = point_stores(ctx, stages, point, {}, materialized, loops.analyzer(index_vars))
        stmt = flatten_divided_indices(stmt, loops.analyzer(index_vars), lambda b: not ctx.program.owns(b))
        stmt = substitute(stmt, dict(zip(index_vars, indices, strict=True)))
        analyzer = Analyzer()
        return rewrite(stmt, [(DIVISIONS, analyzer.simplify)])

    return stores_at


def share_tasks(
    ctx: NestContext,
    outer_extents: Sequence[int],
    inner_extent: int,
    span: Callable[[list[Expr], Expr | None, int], Stmt],
) -> Stmt:
    """Tasks over the first outer axes, as many axes as give ENOUGH_TASKS; over parts of the inner axis too, if all
    outer axes give fewer and it is long."""
    outer_points = prod(outer_extents)
    if outer_points >= ENOUGH_TASKS or inner_extent <= TASK_ELEMENTS:
        return _outer_tasks(ctx, outer_extents, inner_extent, span)
    full, rest = divmod(inner_extent, TASK_ELEMENTS)
    spans = full + (1 if rest else 0)

    def task(flat: Expr, _: int) -> Stmt:
        *outer, c = unravel(flat, [*outer_extents, spans])
        if not full:
            return span(outer, None, rest)
        full_span = span(outer, c * TASK_ELEMENTS, TASK_ELEMENTS)
        if not rest:
            return full_span
        return tirx.IfThenElse(c < full, full_span, span(outer, c * TASK_ELEMENTS, rest))

    return parallel_chunks(ctx, outer_points * spans, 1, task)


def _outer_tasks(ctx: NestContext, outer_extents: Sequence[int], inner_extent: int, span: Any) -> Stmt:
    serial = grid(outer_extents, lambda outer: span(outer, None, inner_extent))
    if not pays_in_parallel(ctx, serial):
        return serial
    counts = [prod(outer_extents[:n]) for n in range(len(outer_extents))]
    n = next((n for n, count in enumerate(counts) if count >= ENOUGH_TASKS), len(outer_extents))

    def task(flat: Expr, _: int) -> Stmt:
        task_indices = unravel(flat, outer_extents[:n])
        return grid(outer_extents[n:], lambda rest: span([*task_indices, *rest], None, inner_extent))

    return parallel_chunks(ctx, prod(outer_extents[:n]), 1, task)
