"""One stage inside a task: a map along vectors, a fold as a tree of fixed width, a fold down columns, a serial body.

The order of a sum follows from the shape alone: TREE lanes (four times as many for a long sum) collect every TREE-th
element in turn, then halve until one is left. Neither the machine's vectors nor its threads enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from .access import contiguous_axis, merged_tail, reads_of
from .accumulators import Accumulator, accumulator
from .argmax import is_argmax
from .builder import Expr, Stmt, grid, i64, loop, seq, store, unravel
from .context import TREE_WIDTH, NestContext, block, dynamic_loop, vector, vector_loop
from .inline import ScalarWriter
from .point_writer import index_of, point_stores, store_result
from .stages import Axis, Stage, binds, statements, substitute

LONG_ROW = 256  # elements from which four chains of partial sums hide the latency of an addition
COLUMNS = 64  # columns summed side by side


def reduces_along_memory(ctx: NestContext, stage: Stage) -> bool:
    """Does the fold's widest read walk through memory along a reduced axis (or along none)?"""
    axis = contiguous_axis(reads_of(ctx, stage), [*stage.space, *stage.reduce])
    return axis is None or axis in stage.reduce or not stage.space


def stage_body(ctx: NestContext, stage: Stage, rows: Sequence[Expr]) -> Stmt:
    """The stage at ``rows``, values of its first axes; its other axes are looped over here."""
    fixed, free = stage.space[: len(rows)], stage.space[len(rows) :]
    here = index_of(fixed, rows)
    if stage.serial is not None:
        return grid([a.extent for a in free], lambda rest: _serial(ctx, stage, here | index_of(free, rest)))
    if stage.is_map:
        return _map(ctx, stage, rows, free)
    if free and not reduces_along_memory(ctx, stage):
        return grid(
            [a.extent for a in free[:-1]],
            lambda rest: _columns(ctx, stage, here | index_of(free[:-1], rest), free[-1]),
        )
    return grid([a.extent for a in free], lambda rest: _tree(ctx, stage, here | index_of(free, rest)))


def _map(ctx: NestContext, stage: Stage, rows: Sequence[Expr], free: Sequence[Axis]) -> Stmt:
    if not free:
        return point_stores(ctx, [stage], list(rows), {}, [stage])
    last = free[-1].extent

    def line(outer: list[Expr]) -> Stmt:
        body = lambda f: point_stores(ctx, [stage], [*rows, *outer, f], {}, [stage])  # noqa: E731
        return seq(vector_loop(last, ctx.lanes, body))

    return grid([a.extent for a in free[:-1]], line)


def _serial(ctx: NestContext, stage: Stage, here: dict[Any, Expr]) -> Stmt:
    """The block's own statements in its own order."""
    assert stage.serial is not None
    init, body = stage.serial
    start = [] if init is None else [_rewrite(ctx, init, here)]
    extents = [a.extent for a in stage.reduce]
    turns = grid(extents, lambda ks: _rewrite(ctx, body, here | index_of(stage.reduce, ks)))
    return seq([*start, turns])


def _rewrite(ctx: NestContext, stmt: Stmt, here: dict[Any, Expr]) -> Stmt:
    """A statement at one point; variables it binds get fresh names, for it may be written out twice."""
    fresh: dict[Any, Expr] = {}
    for bound in binds(stmt):
        fresh[bound.var] = tirx.Var(bound.var.name, str(bound.value.ty.dtype))
    done = []
    for part in statements(stmt):
        point = ScalarWriter(ctx.virtual)
        value = point.write(part.value, here | fresh)
        if isinstance(part, tirx.Bind):
            done += [*point.binds, tirx.Bind(fresh[part.var], value)]
            continue
        indices = point.indices([substitute(i, fresh) for i in part.indices], here)
        done += [*point.binds, tirx.BufferStore(part.buffer, value, indices)]
    return seq(done)


def _finish(ctx: NestContext, stage: Stage, here: dict[Any, Expr], value: Expr) -> Stmt:
    point = ScalarWriter(ctx.virtual)
    indices = point.indices(stage.indices, here)
    value = point.write(value, {})
    return seq([*point.binds, store(stage.buffer, value, *indices)])


@attrs.frozen
class ReductionOrder:
    """How one element is reduced: for each turn of ``outer``, one after the other, lane n of ``width`` takes every
    width-th element of ``tail`` from the n-th on; then the lanes halve. A width of 1: one element after the other."""

    outer: tuple[Axis, ...]
    tail: tuple[Axis, ...]
    width: int

    @property
    def depth(self) -> int:
        return prod(axis.extent for axis in self.tail)


def reduction_order(ctx: NestContext, stage: Stage) -> ReductionOrder:
    """The order of a fold that walks along rows, or is part of a row nest. It follows from the shape alone."""
    inner = merged_tail(stage.reduce, reads_of(ctx, stage))
    outer, tail = stage.reduce[: len(stage.reduce) - inner], stage.reduce[len(stage.reduce) - inner :]
    depth = prod(a.extent for a in tail)
    in_order = (
        depth < TREE_WIDTH or stage.in_order or not reduces_along_memory(ctx, stage)
    )  # columns are, whatever nest they are in
    return ReductionOrder(
        outer, tail, 1 if in_order else TREE_WIDTH if depth < LONG_ROW or is_argmax(stage) else 4 * TREE_WIDTH
    )


def _tree(ctx: NestContext, stage: Stage, here: dict[Any, Expr]) -> Stmt:
    """One reduced element: lanes along the last reduced axes, the other reduced axes one after the other."""
    order = reduction_order(ctx, stage)
    outer, tail, width, depth = order.outer, order.tail, order.width, order.depth
    extents = [a.extent for a in tail]
    acc = accumulator(stage, width)

    def add(ks: list[Expr], f: Expr, slot: Expr) -> Stmt:
        return acc.add(ctx, here | index_of(outer, ks) | index_of(tail, unravel(f, extents)), slot)

    init = seq([_start(acc, p, min(TREE_WIDTH, width), True) for p in range(0, width, TREE_WIDTH)])
    turns = grid([a.extent for a in outer], lambda ks: seq(_strides(depth, width, lambda f, s: add(ks, f, s))))
    done = _finish(ctx, stage, here, acc.result(i64(0)))
    return block([init, turns, *_halve(acc, width), done], acc.buffers)


def _start(acc: Accumulator, first: int, width: int, along: bool) -> Stmt:
    """Slots from ``first`` on; ``along``: the first element that slot n sees is element n of the fold."""
    return vector(width, lambda lane: acc.start(lane + first, lane + first if along else i64(0)))


def _strides(depth: int, width: int, add: Any) -> list[Stmt]:
    """Every index below ``depth`` into slot ``index % width``, in rising order for each slot."""
    if width == 1:
        return [loop(depth, lambda f: add(f, i64(0)), name="k")]
    full, rest = divmod(depth, width)

    def turn(o: Expr) -> Stmt:
        return seq([_span(o * width, p, TREE_WIDTH, add) for p in range(0, width, TREE_WIDTH)])

    done = [loop(full, turn, name="k")] if full else []
    spans = [(p, min(TREE_WIDTH, rest - p)) for p in range(0, rest, TREE_WIDTH)]
    return [*done, *(_span(i64(full * width), p, size, add) for p, size in spans)]


def _span(base: Expr, first: int, size: int, add: Any) -> Stmt:
    return vector(size, lambda lane: add(base + (lane + first), lane + first))


def _halve(acc: Accumulator, width: int) -> list[Stmt]:
    done = []
    while width > 1:
        width //= 2
        for p in range(0, width, TREE_WIDTH):
            done.append(vector(min(TREE_WIDTH, width), lambda lane, p=p, w=width: acc.meet(lane + p, lane + (p + w))))
    return done


def lanes_fold(ctx: NestContext, stage: Stage, first: Expr, length: Expr, done: Any) -> Stmt:
    """A fold over one axis of ``length`` elements from ``first`` on, known only where it runs: four TREE of lanes
    take every element in turn, whatever the length. ``done(value)`` stores the result."""
    acc, width = accumulator(stage, 4 * TREE_WIDTH), 4 * TREE_WIDTH
    turns = tirx.floordiv(length, i64(width))

    def add(k: Expr, slot: Expr) -> Stmt:
        return acc.add(ctx, index_of(stage.reduce, [first + k]), slot)

    def turn(o: Expr) -> Stmt:
        return seq([_span(o * width, p, TREE_WIDTH, add) for p in range(0, width, TREE_WIDTH)])

    init = [_start(acc, p, TREE_WIDTH, False) for p in range(0, width, TREE_WIDTH)]
    rest = dynamic_loop(tirx.floormod(length, i64(width)), lambda r: add(turns * width + r, r), "k")
    end = done(acc.result(i64(0)))
    return block([*init, dynamic_loop(turns, turn, "k"), rest, *_halve(acc, width), end], acc.buffers)


def _columns(ctx: NestContext, stage: Stage, here: dict[Any, Expr], axis: Axis) -> Stmt:
    """Every column of ``axis``: up to COLUMNS side by side, each summed from the first row to the last."""
    full, rest = divmod(axis.extent, COLUMNS)
    strip = lambda start, width: column_strip(ctx, stage, here, axis, start, width, [])  # noqa: E731
    done = [loop(full, lambda c: strip(c * COLUMNS, COLUMNS), name="c")] if full else []
    return seq([*done, *([strip(i64(full * COLUMNS), rest)] if rest else [])])


def column_strip(
    ctx: NestContext, stage: Stage, here: dict[Any, Expr], axis: Axis, start: Expr, width: int,
    after: Sequence[Stage],
) -> Stmt:  # fmt: skip
    """``width`` columns from ``start``; ``after``: map stages over the fold's own space, done on the sums at hand."""
    acc = accumulator(stage, width)
    spans = [(p, min(TREE_WIDTH, width - p)) for p in range(0, width, TREE_WIDTH)]
    place = lambda c: here | index_of([axis], [start + c])  # noqa: E731

    def turn(ks: list[Expr]) -> Stmt:
        one = lambda slot: acc.add(ctx, place(slot) | index_of(stage.reduce, ks), slot)  # noqa: E731
        return seq([vector(size, lambda lane, p=p: one(lane + p)) for p, size in spans])

    def done(p: int, size: int) -> Stmt:
        end = lambda slot: store_result(ctx, stage, place(slot), acc.result(slot), after)  # noqa: E731
        return vector(size, lambda lane: end(lane + p))

    init = [_start(acc, p, size, False) for p, size in spans]
    turns = grid([a.extent for a in stage.reduce], turn)
    return block([*init, turns, *(done(p, size) for p, size in spans)], acc.buffers)
