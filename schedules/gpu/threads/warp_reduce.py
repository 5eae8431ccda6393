"""Folds by threads of one warp, in the CPU's order: what ``cpu/folds.py`` gives to lanes, threads do here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import accumulator, factors, fma, in_type, partial_type
from ...tir.argmax import is_argmax
from ...tir.builder import Expr, Stmt, grid, i64, load, loop, scratch, seq, store, unravel
from ...tir.context import NestContext, block
from ...tir.inline import ScalarWriter
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of
from ...tir.reduction import ReductionOrder
from ...tir.stages import Stage
from .launch import UNROLL, WARP

ALL = 0xFFFFFFFF  # every thread of a warp takes part


@attrs.frozen(eq=False)
class Team:
    """``size`` neighbouring threads of a warp, a power of two; this thread is number ``lane`` of them. All teams of the
    warp do the same at the same time."""

    size: int
    lane: Expr

    def from_lane(self, value: Expr, lane: Expr) -> Expr:
        """What another of the team has as ``value``."""
        return tirx.op.tvm_warp_shuffle(_mask(), value, lane.astype("int32"), self.size, WARP)

    def from_behind(self, value: Expr, offset: int) -> Expr:
        """What the thread ``offset`` further on has; nothing to rely on for those that have none."""
        return tirx.op.tvm_warp_shuffle_down(_mask(), value, offset, self.size, WARP)

    def each(self, count: int, body: Callable[[Expr], Stmt], unroll: int = 4) -> list[Stmt]:
        """``body`` at every index below ``count``, neighbours in neighbouring threads."""
        full, rest = divmod(count, self.size)
        done = [turns(full, lambda o: body(o * self.size + self.lane), unroll)] if full else []
        if rest:
            done.append(tirx.IfThenElse(self.lane < rest, bind_in_buffers(body(self.lane + full * self.size)), None))
        return done


def any_of(condition: Expr) -> Expr:
    """Does it hold for any thread of the warp, all of which ask?"""
    return tirx.call_extern("int32", "__any_sync", _mask(), condition.astype("int32")) > 0


def _mask() -> Expr:
    return tirx.const(ALL, "uint32")


def turns(count: int, body: Callable[[Expr], Stmt], unroll: int) -> Stmt:
    """A loop whose turns the compiler writes out ``unroll`` at a time, so that their loads are under way together."""
    if count == 1 or unroll < 2:
        return loop(count, body, name="k")
    many, few = divmod(count, unroll)
    some = lambda n, first: written_out(n, lambda u: body(first + u))  # noqa: E731
    parts = [loop(many, lambda o: some(unroll, o * unroll), name="k")] if many else []
    return seq([*parts, *([some(few, i64(many * unroll))] if few else [])])


def written_out(count: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """A loop that the compiler writes out in full."""
    return loop(count, body, tirx.ForKind.UNROLLED, "u")


def team_size(folds: Sequence[tuple[ReductionOrder, Stage]]) -> int:
    """The most threads of a warp that folds of one row can use. The lanes of a tree are shared out evenly."""
    trees = [min(order.width, WARP) for order, stage in folds if order.width > 1 and not is_argmax(stage)]
    if trees:
        return min(trees)
    size, most = 2, max(order.depth for order, _ in folds)
    while size < min(most, WARP):
        size *= 2
    return size


def team_fold(
    ctx: NestContext, stage: Stage, order: ReductionOrder, here: dict[Any, Expr], team: Team, done: Any
) -> Stmt:
    """One element at ``here``, the same for the whole team; ``done(value)`` is made of it, in every thread."""
    if order.width == 1 and not is_argmax(stage):
        return _in_order(ctx, stage, order, here, team, done)
    width = team.size if is_argmax(stage) else order.width  # which key is first does not depend on the order
    slots, depth, extents = width // team.size, order.depth, [a.extent for a in order.tail]
    acc = accumulator(stage, slots + 1)  # the last is for what comes from another thread

    def add(ks: list[Expr], f: Expr, slot: int) -> Stmt:
        return acc.add(ctx, here | index_of(order.outer, ks) | index_of(order.tail, unravel(f, extents)), i64(slot))

    def walk(ks: list[Expr]) -> Stmt:
        full, rest = divmod(depth, width)
        one = lambda base: seq([add(ks, base + (team.lane + s * team.size), s) for s in range(slots)])  # noqa: E731
        parts = [turns(full, lambda o: one(o * width), UNROLL // slots)] if full else []
        for s in range(slots):
            left = min(rest - s * team.size, team.size)
            if left > 0:
                last = bind_in_buffers(add(ks, team.lane + (full * width + s * team.size), s))
                parts.append(last if left == team.size else tirx.IfThenElse(team.lane < left, last, None))
        return seq(parts)

    init = [acc.start(i64(s), team.lane + s * team.size) for s in range(slots)]
    walked = grid([a.extent for a in order.outer], walk)
    return block([*init, walked, *halve(acc, slots, team), done(acc.result(i64(0)))], acc.buffers)


def halve(acc: Any, slots: int, team: Team, own: Expr | None = None, other: Expr | None = None) -> list[Stmt]:
    """Within the thread, from the place ``own`` on, then between threads, by way of ``other``, by default the first
    place and the one behind; the result goes to all."""
    done, width, first = [], slots, i64(0) if own is None else own
    while width > 1:
        width //= 2
        done += [acc.combine(first + s, first + (s + width)) for s in range(width)]
    other = first + slots if other is None else other
    offset = team.size
    while offset > 1:
        offset //= 2
        done += [store(b, team.from_behind(load(b, first), offset), other) for b in acc.buffers]
        done.append(acc.combine(first, other))
    return [*done, *(store(b, team.from_lane(load(b, first), i64(0)), first) for b in acc.buffers)]


def _parts(ctx: NestContext, stage: Stage, places: dict[Any, Expr]) -> tuple[ScalarWriter, tuple[Expr, ...]]:
    """What an element brings: its value, or the factors of a product that is added."""
    assert stage.reduction is not None
    point = ScalarWriter(ctx.virtual)
    value = point.write(in_type(stage.value, partial_type(stage)), places)
    return point, (factors(value, point.binds) if stage.reduction.kind == "sum" else None) or (value,)


def parts_of(ctx: NestContext, stage: Stage) -> int:
    """How many numbers an element brings: the two factors of a product that is added, else one."""
    return len(_parts(ctx, stage, {})[1])


def read_parts(ctx: NestContext, stage: Stage, places: dict[Any, Expr], into: Sequence[Any], slot: Expr) -> Stmt:
    """What the element at ``places`` brings, one number a buffer."""
    point, parts = _parts(ctx, stage, places)
    return bind_in_buffers(seq([*point.binds, *(store(b, x, slot) for b, x in zip(into, parts, strict=True))]))


def joined(stage: Stage, before: Expr, parts: Sequence[Expr]) -> Expr:
    """A partial result and one element more."""
    assert stage.reduction is not None
    return fma(parts[0], parts[1], before) if len(parts) == 2 else stage.reduction.combine(before, parts[0])


def _in_order(
    ctx: NestContext, stage: Stage, order: ReductionOrder, here: dict[Any, Expr], team: Team, done: Any
) -> Stmt:
    """Each thread reads an element, then all add all of them, one after the other."""
    assert stage.reduction is not None
    fold, dtype = stage.reduction, partial_type(stage)
    acc = scratch([1], dtype, "acc")
    held = [scratch([1], dtype, "held") for _ in range(2)]
    extents = [a.extent for a in order.tail]
    own = i64(0)

    def read(ks: list[Expr], f: Expr) -> tuple[Stmt, int]:
        point, parts = _parts(ctx, stage, here | index_of(order.outer, ks) | index_of(order.tail, unravel(f, extents)))
        reads = seq([*point.binds, *(store(h, x, own) for h, x in zip(held, parts, strict=False))])
        return bind_in_buffers(reads), len(parts)

    def chunk(ks: list[Expr], base: Expr, count: int) -> Stmt:
        reads, parts = read(ks, base + team.lane)
        if count < team.size:
            reads = tirx.IfThenElse(team.lane < count, reads, None)

        def add(k: Expr) -> Stmt:
            theirs = [team.from_lane(load(h, own), k) for h in held[:parts]]
            before = load(acc, own)
            total = fma(theirs[0], theirs[1], before) if parts == 2 else fold.combine(before, theirs[0])
            return store(acc, total, own)

        return seq([reads, turns(count, add, count)])

    def walk(ks: list[Expr]) -> Stmt:
        full, rest = divmod(order.depth, team.size)
        parts = [loop(full, lambda o: chunk(ks, o * team.size, team.size), name="k")] if full else []
        return seq([*parts, *([chunk(ks, i64(full * team.size), rest)] if rest else [])])

    zero = [store(h, tirx.const(0, dtype), own) for h in held]
    init = store(acc, tirx.const(stage.reduction.init.value, dtype), own)
    walked = grid([a.extent for a in order.outer], walk)
    result = in_type(load(acc, own), str(stage.buffer.dtype))
    return block([init, *zero, walked, done(result)], [acc, *held])
