"""One tile of a product in registers: a turn of the depth, all of them in order, and the elements to their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tir.builder import UNROLLED, Expr, Stmt, i64, load, loop, scratch, seq, store
from ..tir.context import vector
from ..tir.let_buffers import bind_in_buffers
from ..tir.point_writer import store_result
from .matmul_tiling import Job, places_of, read_a, row_of

Spans = list[tuple[int, int, int]]  # first column, lanes computed, lanes stored
Vectors = Callable[[Expr, Expr, int], tuple[list[Stmt], Expr]]  # turn, lane, first column -> statements, B's element
Sums = list[list[Any]]  # a buffer for each row and span

ADDS = 48  # vectors of multiply-adds, at most, that the depth loop has written out


def spans_of(job: Job, width: int) -> Spans:
    """Vectors of a panel: first column, lanes computed, lanes stored. A copied panel is zero past its last column."""
    lanes = job.tile.lanes
    whole = [(p, min(lanes, width - p)) for p in range(0, width, lanes)]
    return [(p, lanes if job.packed != "none" else size, size) for p, size in whole]


def sums_of(job: Job, spans: Spans) -> Sums:
    """Buffers that become registers."""
    return [[scratch([size], job.dtype, "acc") for _, size, _ in spans] for _ in range(job.tile.mr)]


def each_sum(sums: Sums, spans: Spans, body: Callable[[Any, int, int, Expr], Stmt]) -> list[Stmt]:
    """``body(buffer, row, first column, lane)`` for every vector of sums."""
    return [
        vector(size, lambda lane, acc=acc, r=r, p=p: body(acc, r, p, lane))
        for r, row in enumerate(sums)
        for acc, (p, size, _) in zip(row, spans, strict=True)
    ]


def in_order(job: Job, deep: int, turn: Callable[[Expr], Stmt]) -> list[Stmt]:
    """Every turn of the depth, one to four of them written out."""
    each = max(1, min(4, ADDS // (job.tile.mr * job.tile.nv)))
    full, rest = divmod(deep, each)
    done = []
    if full:
        done.append(loop(full, lambda o: loop(each, lambda k: turn(o * each + k), UNROLLED, "k"), name="depth"))
    if rest:
        done.append(loop(rest, lambda k: turn(k + full * each), UNROLLED, "k"))
    return done


def multiply(job: Job, b: Expr, tile: Expr, sums: Sums, spans: Spans, k: Expr, b_at: Vectors, k0: Expr = 0) -> Stmt:
    """Turn ``k0 + k`` of the depth for the whole tile; ``b_at`` is asked for ``k``."""
    done = []
    for r, row in enumerate(sums):
        binds, value = _factor_a(job, b, tile, r, k0 + k)
        done += binds
        for acc, (p, size, _) in zip(row, spans, strict=True):

            def add(lane: Expr, acc: Any = acc, p: int = p, value: Expr = value) -> Stmt:
                before, other = b_at(k, lane, p)
                return seq([*before, store(acc, load(acc, lane) + value * other, lane)])

            done.append(vector(size, add))
    return bind_in_buffers(seq(done))


def _factor_a(job: Job, b: Expr, tile: Expr, r: int, k: Expr) -> tuple[list[Stmt], Expr]:
    if job.tall is not None:
        return [], load(job.tall, b, tile, k, i64(r))
    return read_a(job, b, row_of(job, tile * job.tile.mr, r), k)


def end_row(job: Job, b: Expr, i: Expr, start: Expr, spans: Spans, value: Callable[[int, Expr], Expr]) -> Stmt:
    """One row of a tile stored, and the stages that follow on it."""

    def end(p: int, lane: Expr) -> Stmt:
        return store_result(job.ctx, job.one.stage, places_of(job, b, i, start + (lane + p)), value(p, lane), job.after)

    return seq([vector(size, lambda lane, p=p: end(p, lane)) for p, _, size in spans])
