"""What a loop nest is built for, and the loops that every nest is made of: vectors with a tail, parallel loops, chunks.

A loop over tasks is parallel only if its estimated time pays for starting threads (``thread_cost.py``). Tasks write
different elements, so threads change no bit. TREE_WIDTH is the same for every target, and so is every sum.
"""

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

# Additions below which a row group may have too few rows to parallelize; chosen, not measured. A larger number fuses
# more on a single thread.
MIN_PARALLEL_WORK = 65_536
# Lanes of a reduction tree: the float32 lanes of AVX-512. The same for all targets, as it fixes the order of sums:
# changed, it changes the bits of every sum along memory.
TREE_WIDTH = 16


@attrs.frozen
class NestContext:
    """The program, its inlined stages (``virtual``), float32 ``lanes`` of a vector, and number of vector registers."""

    program: Program
    virtual: InlinedStages
    lanes: int
    registers: int


def vector(width: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """``body`` for 0 <= lane < width, as a vector operation if all its calls have vector forms, else as a loop."""
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
    """``body`` for every index below ``extent``: full vectors, then a narrower vector for the remainder."""
    full, rest = divmod(extent, width)
    loops = []
    if full:
        loops.append(loop(full, lambda o: vector(width, lambda lane: body(o * width + lane)), name="v"))
    if rest:
        loops.append(vector(rest, lambda lane: body(lane + full * width)))
    return loops


def dynamic_loop(extent: Expr, body: Callable[[Expr], Stmt], name: str) -> Stmt:
    """A serial loop over an extent that is an expression."""
    var = tirx.Var(name, "int64")
    return tirx.For(var, i64(0), extent, SERIAL, bind_in_buffers(body(var)))


def parallel_loop(ctx: NestContext, extent: int, body: Callable[[Expr], Stmt], work: float | None = None) -> Stmt:
    """A loop over tasks, parallel if that pays. ``work``: its time on one thread in nanoseconds, by default estimated
    from its statements."""
    serial = loop(extent, body, SERIAL, "task")
    if extent == 1 or not (pays_in_parallel(ctx, serial) if work is None else work >= MIN_PARALLEL_NANOSECONDS):
        return serial
    return tirx.For(serial.loop_var, serial.min, serial.extent, PARALLEL, serial.body)


def pays_in_parallel(ctx: NestContext, stmt: Stmt) -> bool:
    """Does ``stmt`` take long enough on one thread for threads to pay?"""
    return nanoseconds(stmt, ctx.lanes) >= MIN_PARALLEL_NANOSECONDS


def parallel_chunks(ctx: NestContext, extent: int, size: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
    """``body(start, length)`` for chunks of ``size`` and a shorter last chunk, in parallel if that pays."""
    full, rest = divmod(extent, size)
    if not rest:
        return parallel_loop(ctx, full, lambda c: body(c * size, size))
    if not full:
        return body(i64(0), rest)
    # The shorter chunk is a branch of the same loop: behind it, it would wait until all threads are done.
    last = i64(full * size)
    return parallel_loop(
        ctx, full + 1, lambda c: tirx.IfThenElse(c < i64(full), body(c * size, size), body(last, rest))
    )


def block(statements: list[Stmt], buffers: list[Any]) -> Stmt:
    """Statements after the allocations of ``buffers``."""
    return seq([*(tirx.AllocBuffer(b) for b in buffers), *statements])


def nest_buffers(stmt: Stmt) -> list[Any]:
    """The buffers that a nest allocates."""
    return [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
