"""One stage inside a task: a map along vectors, a fold as a tree of fixed width, a fold down columns, a serial body.

The order of a sum follows from the shape alone: TREE lanes (four times as many for a long sum) collect every TREE-th
element in turn, then halve until one is left. Neither the machine's vectors nor its threads enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx

from .access import contiguous_axis, merged_tail, reads_of
from .emit import Expr, Stmt, grid, i64, load, loop, scratch, seq, store, unravel
from .inline import Point
from .maps import at, finish, point_stores
from .nests import TREE, Context, block, vector, vectors
from .stages import Axis, Stage, binds, statements, substitute

LONG = 256  # elements from which four chains of partial sums hide the latency of an addition
COLUMNS = 64  # columns summed side by side


def walks_rows(ctx: Context, stage: Stage) -> bool:
    """Does the fold's widest read walk through memory along a reduced axis (or along none)?"""
    axis = contiguous_axis(reads_of(ctx, stage), [*stage.space, *stage.reduce])
    return axis is None or axis in stage.reduce or not stage.space


def stage_body(ctx: Context, stage: Stage, rows: Sequence[Expr]) -> Stmt:
    """The stage at ``rows``, values of its first axes; its other axes are looped over here."""
    fixed, free = stage.space[: len(rows)], stage.space[len(rows) :]
    here = at(fixed, rows)
    if stage.serial is not None:
        return grid([a.extent for a in free], lambda rest: _serial(ctx, stage, here | at(free, rest)))
    if stage.is_map:
        return _map(ctx, stage, rows, free)
    if free and not walks_rows(ctx, stage):
        return grid(
            [a.extent for a in free[:-1]],
            lambda rest: _columns(ctx, stage, here | at(free[:-1], rest), free[-1]),
        )
    return grid([a.extent for a in free], lambda rest: _tree(ctx, stage, here | at(free, rest)))


def _map(ctx: Context, stage: Stage, rows: Sequence[Expr], free: Sequence[Axis]) -> Stmt:
    if not free:
        return point_stores(ctx, [stage], list(rows), {}, [stage])
    last = free[-1].extent

    def line(outer: list[Expr]) -> Stmt:
        body = lambda f: point_stores(ctx, [stage], [*rows, *outer, f], {}, [stage])  # noqa: E731
        return seq(vectors(last, ctx.lanes, body))

    return grid([a.extent for a in free[:-1]], line)


def _serial(ctx: Context, stage: Stage, here: dict[Any, Expr]) -> Stmt:
    """The block's own statements in its own order."""
    assert stage.serial is not None
    init, body = stage.serial
    start = [] if init is None else [_rewrite(ctx, init, here)]
    extents = [a.extent for a in stage.reduce]
    turns = grid(extents, lambda ks: _rewrite(ctx, body, here | at(stage.reduce, ks)))
    return seq([*start, turns])


def _rewrite(ctx: Context, stmt: Stmt, here: dict[Any, Expr]) -> Stmt:
    """A statement at one point; variables it binds get fresh names, for it may be written out twice."""
    fresh: dict[Any, Expr] = {}
    for bound in binds(stmt):
        fresh[bound.var] = tirx.Var(bound.var.name, str(bound.value.ty.dtype))
    done = []
    for part in statements(stmt):
        point = Point(ctx.virtual)
        value = point.write(part.value, here | fresh)
        if isinstance(part, tirx.Bind):
            done += [*point.binds, tirx.Bind(fresh[part.var], value)]
            continue
        indices = point.indices([substitute(i, fresh) for i in part.indices], here)
        done += [*point.binds, tirx.BufferStore(part.buffer, value, indices)]
    return seq(done)


def partial_type(stage: Stage) -> str:
    """Partial results of half precision are kept in float32."""
    dtype = str(stage.buffer.dtype)
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def _as(value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _start(stage: Stage) -> Expr:
    assert stage.fold is not None
    return tirx.const(stage.fold.init.value, partial_type(stage))


def _update(ctx: Context, stage: Stage, here: dict[Any, Expr], acc: Any, slot: Expr) -> Stmt:
    """``acc[slot] = acc[slot] (+) x`` at one point."""
    assert stage.fold is not None
    point = Point(ctx.virtual)
    value = point.write(_as(stage.value, partial_type(stage)), here)
    return seq([*point.binds, store(acc, stage.fold.combine(load(acc, slot), value), slot)])


def _finish(ctx: Context, stage: Stage, here: dict[Any, Expr], value: Expr) -> Stmt:
    point = Point(ctx.virtual)
    indices = point.indices(stage.indices, here)
    value = point.write(_as(value, str(stage.buffer.dtype)), {})
    return seq([*point.binds, store(stage.buffer, value, *indices)])


def _tree(ctx: Context, stage: Stage, here: dict[Any, Expr]) -> Stmt:
    """One reduced element: lanes along the last reduced axes, the other reduced axes one after the other."""
    assert stage.fold is not None
    inner = merged_tail(stage.reduce, reads_of(ctx, stage))
    outer, tail = stage.reduce[: len(stage.reduce) - inner], stage.reduce[len(stage.reduce) - inner :]
    extents = [a.extent for a in tail]
    depth = prod(extents)
    width = 1 if depth < TREE else TREE if depth < LONG else 4 * TREE
    acc = scratch([width], partial_type(stage), "acc")

    def add(ks: list[Expr], f: Expr, slot: Expr) -> Stmt:
        point = here | at(outer, ks) | at(tail, unravel(f, extents))
        return _update(ctx, stage, point, acc, slot)

    init = seq([_fill(acc, p, min(TREE, width), _start(stage)) for p in range(0, width, TREE)])
    turns = grid([a.extent for a in outer], lambda ks: seq(_strides(depth, width, lambda f, s: add(ks, f, s))))
    halves = _halve(stage, acc, width)
    done = _finish(ctx, stage, here, load(acc, i64(0)))
    return block([init, turns, *halves, done], [acc])


def _fill(acc: Any, first: int, width: int, value: Expr) -> Stmt:
    return vector(width, lambda lane: store(acc, value, lane + first))


def _strides(depth: int, width: int, add: Any) -> list[Stmt]:
    """Every index below ``depth`` into slot ``index % width``, in rising order for each slot."""
    if width == 1:
        return [loop(depth, lambda f: add(f, i64(0)), name="k")]
    full, rest = divmod(depth, width)

    def turn(o: Expr) -> Stmt:
        return seq([_span(o * width, p, TREE, add) for p in range(0, width, TREE)])

    done = [loop(full, turn, name="k")] if full else []
    spans = [(p, min(TREE, rest - p)) for p in range(0, rest, TREE)]
    return [*done, *(_span(i64(full * width), p, size, add) for p, size in spans)]


def _span(base: Expr, first: int, size: int, add: Any) -> Stmt:
    return vector(size, lambda lane: add(base + (lane + first), lane + first))


def _halve(stage: Stage, acc: Any, width: int) -> list[Stmt]:
    assert stage.fold is not None
    combine, done = stage.fold.combine, []
    while width > 1:
        width //= 2
        for p in range(0, width, TREE):
            pair = lambda lane, p=p, w=width: store(  # noqa: E731
                acc, combine(load(acc, lane + p), load(acc, lane + (p + w))), lane + p
            )
            done.append(vector(min(TREE, width), pair))
    return done


def _columns(ctx: Context, stage: Stage, here: dict[Any, Expr], axis: Axis) -> Stmt:
    """Every column of ``axis``: up to COLUMNS side by side, each summed from the first row to the last."""
    full, rest = divmod(axis.extent, COLUMNS)
    strip = lambda start, width: column_strip(ctx, stage, here, axis, start, width, [])  # noqa: E731
    done = [loop(full, lambda c: strip(c * COLUMNS, COLUMNS), name="c")] if full else []
    return seq([*done, *([strip(i64(full * COLUMNS), rest)] if rest else [])])


def column_strip(
    ctx: Context, stage: Stage, here: dict[Any, Expr], axis: Axis, start: Expr, width: int,
    after: Sequence[Stage],
) -> Stmt:  # fmt: skip
    """``width`` columns from ``start``; ``after``: map stages over the fold's own space, done on the sums at hand."""
    assert stage.fold is not None
    acc = scratch([width], partial_type(stage), "acc")
    spans = [(p, min(TREE, width - p)) for p in range(0, width, TREE)]

    def turn(ks: list[Expr]) -> Stmt:
        def one(p: int, size: int) -> Stmt:
            point = lambda lane: here | at([axis], [start + (lane + p)]) | at(stage.reduce, ks)  # noqa: E731
            return vector(size, lambda lane: _update(ctx, stage, point(lane), acc, lane + p))

        return seq([one(p, size) for p, size in spans])

    def done(p: int, size: int) -> Stmt:
        place = lambda lane: here | at([axis], [start + (lane + p)])  # noqa: E731
        return vector(
            size, lambda lane: finish(ctx, stage, place(lane), _as(load(acc, lane + p), str(stage.buffer.dtype)), after)
        )

    init = [_fill(acc, p, size, _start(stage)) for p, size in spans]
    turns = grid([a.extent for a in stage.reduce], turn)
    return block([*init, turns, *(done(p, size) for p, size in spans)], [acc])
