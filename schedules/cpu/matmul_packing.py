"""Copies of a product's factors in the order in which its tiles read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from ..tir.builder import UNROLLED, Expr, Stmt, i64, loop, seq, store, unravel
from ..tir.context import parallel_chunks, parallel_loop, vector, vector_loop
from .matmul_tiling import RUN, Job, read_a, read_b, walks_columns, walks_depth
from .register_transpose import FOUR, span, turned

DEPTHS = 16  # turns of the depth that one task copies of A

Put = Callable[[Expr, Expr, Expr], Stmt]  # value, turn of the depth, columns of the panel


def pack_all(job: Job) -> Stmt:
    """Every panel, before the tasks that read them."""

    def one(p: Expr) -> Stmt:
        b, jo = unravel(p, [job.one.count, job.count])
        put = lambda value, k, c: store(job.panels, value, b, jo, k, c)  # noqa: E731
        whole = lambda: pack(job, b, jo * job.tile.panel, job.tile.panel, put)  # noqa: E731
        if not job.rest:
            return whole()
        last = pack(job, b, i64(job.full * job.tile.panel), job.rest, put)
        return tirx.IfThenElse(jo < i64(job.full), whole(), last) if job.full else last

    return parallel_loop(job.ctx, job.one.count * job.count, one)


def pack_tall(job: Job) -> Stmt:
    """A by tiles of rows; in the last one, rows past the end are left as they are: what comes of them is not stored."""
    one, mr = job.one, job.tile.mr

    def rows(b: Expr, tile: Expr, k: Expr, count: int) -> Stmt:
        def copy(r: Expr) -> Stmt:
            binds, value = read_a(job, b, tile * mr + r, k)
            return seq([*binds, store(job.tall, value, b, tile, k, r)])

        return seq(vector_loop(count, job.tile.lanes, copy))

    def some(b: Expr, start: Expr, deep: int) -> Stmt:
        """All tiles at ``deep`` turns of the depth: the lines of A that they share stay in the first cache."""
        full, rest = divmod(one.m, mr)
        tile = lambda t, count: loop(deep, lambda k: rows(b, t, start + k, count), name="k")  # noqa: E731
        whole = [loop(full, lambda t: tile(t, mr), name="tile")] if full else []
        return seq([*whole, *([tile(i64(full), rest)] if rest else [])])

    if one.count > 1:
        return parallel_loop(job.ctx, one.count, lambda b: some(b, i64(0), one.k))
    return parallel_chunks(job.ctx, one.k, DEPTHS, lambda start, deep: some(i64(0), start, deep))


def pack(
    job: Job, b: Expr, start: Expr, width: int, put: Put, first: Expr | None = None, deep: int | None = None
) -> Stmt:
    """One panel as [depth][column], zero past the last column: ``deep`` turns from ``first`` on, or all."""
    columns = job.tile.panel if width == job.tile.panel else -(-width // job.tile.lanes) * job.tile.lanes
    k0, deep = i64(0) if first is None else first, job.one.k if deep is None else deep

    def copy(k: Expr, c: Expr) -> Stmt:
        binds, value = read_b(job, b, k0 + k, start + c)
        return seq([*binds, put(value, k, c)])

    pad = columns - width
    blank = [] if not pad else [loop(deep, lambda k: vector(pad, lambda lane: put(job.zero, k, lane + width)))]
    if walks_columns(job.ctx, job.one):
        lanes = job.tile.lanes
        fill = loop(deep, lambda k: seq(vector_loop(width, lanes, lambda c: copy(k, c))))
    elif walks_depth(job.one):
        return _turn(job, b, start, width, put, k0, deep)
    else:
        fill = _transpose(deep, width, copy)
    return seq([fill, *blank])


def _transpose(deep: int, width: int, copy: Any) -> Stmt:
    """Reads along the depth, DEEP cache lines' worth at a time, so that lines written stay near."""
    full, rest = divmod(deep, RUN)

    def lines(first: Expr, count: int) -> Stmt:
        return loop(width, lambda c: loop(count, lambda k: copy(first + k, c), UNROLLED, "k"), name="c")

    done = [loop(full, lambda o: lines(o * RUN, RUN))] if full else []
    return seq([*done, *([lines(i64(full * RUN), rest)] if rest else [])])


def _turn(job: Job, b: Expr, start: Expr, width: int, put: Put, k0: Expr, deep: int) -> Stmt:
    """A B that walks along the depth: a vector of its rows after the other, a cache line of each row at a time. The
    last turns may be written twice, for there is nothing behind the end."""
    full, rest = divmod(deep, RUN)
    lanes = job.tile.lanes
    lasts = [min(full * RUN + d, deep - FOUR) for d in range(0, rest, FOUR)]

    def rows(o: Expr, count: int) -> Stmt:
        def some(k: Expr, turns: int) -> Stmt:
            here = lambda v, d, _: put(v, k + d, span(o * lanes, lanes))  # noqa: E731
            return turn_rows(job, b, start + o * lanes, count, k0 + k, turns, here)

        done = [loop(full, lambda o: some(o * RUN, RUN), name="k")] if full else []
        return seq([*done, *(some(i64(k), FOUR) for k in lasts)])

    whole, left = divmod(width, lanes)
    done = [loop(whole, lambda o: rows(o, lanes), name="v")] if whole else []
    return seq([*done, *([rows(i64(whole), left)] if left else [])])


def turn_rows(job: Job, b: Expr, start: Expr, width: int, k: Expr, deep: int, put: Put) -> Stmt:
    """B's rows, ``width`` of them from ``start`` on, at ``deep`` turns from ``k`` on, as vectors across them for
    ``put(vector, turn, columns)``. Rows past the last are the last one again: nothing of them is stored."""
    lanes, dtype = job.tile.lanes, str(job.one.stage.buffer.dtype)

    def four(p: int, d: int) -> Stmt:
        def element(r: int, lane: Expr) -> tuple[list[Stmt], Expr]:
            return read_b(job, b, k + (lane + d), start + min(p + r, width - 1))

        return turned(lanes, dtype, element, lambda c, v: put(v, i64(d + c), span(p, lanes)))

    return seq([four(p, d) for p in range(0, width, lanes) for d in range(0, deep, FOUR)])
