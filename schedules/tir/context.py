"""Loops that every nest is made of: vectors with a tail, parallel loops, chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from tvm import tirx

from .bfloat16 import splat
from .builder import PARALLEL, SERIAL, VECTOR, Expr, Stmt, i64, loop, seq
from .inline import InlinedStages, can_vectorize
from .let_buffers import bind_in_buffers, split_names
from .rewrite import collect
from .stages import Program
from .thread_cost import MIN_PARALLEL_NANOSECONDS, nanoseconds

MIN_PARALLEL_WORK = 65_536  # additions from which stages are put together so that there is something to share out
TREE_WIDTH = 16  # lanes of a reduction, the same for every target: the order of a sum is part of the result


@attrs.frozen
class NestContext:
    """What a nest is made for: the program, what of it is virtual, and the machine's vector registers."""

    program: Program
    virtual: InlinedStages
    lanes: int
    registers: int


def vector(width: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """``body`` at 0 <= lane < width, as one vector where its calls allow it."""
    if width == 1:
        return bind_in_buffers(body(i64(0)))
    lane = tirx.Var("lane", "int64")
    inner = body(lane)
    if can_vectorize(inner, lane):
        splats, inner = splat(inner, lane, width)
        allocations, inner = split_names(inner, lane, width)
        return seq([*splats, *allocations, tirx.For(lane, i64(0), i64(width), VECTOR, inner)])
    return tirx.For(lane, i64(0), i64(width), SERIAL, bind_in_buffers(inner))


def vector_loop(extent: int, width: int, body: Callable[[Expr], Stmt]) -> list[Stmt]:
    """``body`` at every index below ``extent``: whole vectors, then one narrower vector for the rest."""
    full, rest = divmod(extent, width)
    loops = []
    if full:
        loops.append(loop(full, lambda o: vector(width, lambda lane: body(o * width + lane)), name="v"))
    if rest:
        loops.append(vector(rest, lambda lane: body(lane + full * width)))
    return loops


def dynamic_loop(extent: Expr, body: Callable[[Expr], Stmt], name: str) -> Stmt:
    """A serial loop over an extent that is known only where it runs."""
    var = tirx.Var(name, "int64")
    return tirx.For(var, i64(0), extent, SERIAL, bind_in_buffers(body(var)))


def parallel_loop(ctx: NestContext, extent: int, body: Callable[[Expr], Stmt], work: float | None = None) -> Stmt:
    """A loop whose turns are shared out to threads if that pays. ``work``: what it takes on one thread, in nanoseconds;
    by default what its statements say."""
    serial = loop(extent, body, SERIAL, "task")
    if extent == 1 or not (pays_in_parallel(ctx, serial) if work is None else work >= MIN_PARALLEL_NANOSECONDS):
        return serial
    return tirx.For(serial.loop_var, serial.min, serial.extent, PARALLEL, serial.body)


def pays_in_parallel(ctx: NestContext, stmt: Stmt) -> bool:
    """Does ``stmt`` take long enough to be shared out to threads?"""
    return nanoseconds(stmt, ctx.lanes) >= MIN_PARALLEL_NANOSECONDS


def parallel_chunks(ctx: NestContext, extent: int, size: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
    """``body(start, length)`` for pieces of ``size`` and a last shorter one, in parallel if that pays."""
    full, rest = divmod(extent, size)
    if not rest:
        return parallel_loop(ctx, full, lambda c: body(c * size, size))
    if not full:
        return body(i64(0), rest)
    last = i64(full * size)
    return parallel_loop(
        ctx, full + 1, lambda c: tirx.IfThenElse(c < i64(full), body(c * size, size), body(last, rest))
    )


def block(statements: list[Stmt], buffers: list[Any]) -> Stmt:
    """Statements with buffers of their own."""
    return seq([*(tirx.AllocBuffer(b) for b in buffers), *statements])


def nest_buffers(stmt: Stmt) -> list[Any]:
    """The buffers that a nest makes for itself."""
    return [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
