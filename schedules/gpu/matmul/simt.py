"""Matrix products: a tile of the result a block, a smaller one a thread in registers, factors through shared memory.

While a block multiplies one piece of the depth, its threads already load the next, and put it into the other half of
shared memory: one barrier a piece. Every element is one chain of fused multiply-adds in the order of the depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import fma
from ...tir.builder import Expr, Stmt, i64, load, loop, seq, store, unravel
from ...tir.context import NestContext, block
from ...tir.contraction import Contraction, read_contraction
from ...tir.epilogue import epilogue_stages
from ...tir.point_writer import index_of, store_result
from ...tir.stages import Stage, variables
from ..threads.launch import barrier, launch, registers, shared, unrolled
from ..threads.tile_staging import Factor, factor, fetch, pieces, put, span_at
from .simt_tiling import Tile, choose_tile

LANES = (
    4,
    8,
)  # threads of a warp along rows and along columns, where a tile has as many: they read few different lines


@attrs.frozen(eq=False)
class Job:
    """One product and what is done on its elements: ``after``."""

    ctx: NestContext
    one: Contraction
    after: tuple[Stage, ...]
    tile: Tile
    a: Factor
    b: Factor
    sums: Any  # [tm * tn], a thread's elements
    out: Any  # [down * (bn + 1)], a line of elements of each thread on their way out

    @property
    def steps(self) -> int:
        return -(-self.one.k // self.tile.bk)


def matmul_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is no product."""
    one = read_contraction(ctx.program, stages[0])
    if one is None:
        return None
    after = epilogue_stages(ctx, stages[0], stages[1:])
    return 1 + len(after), product(ctx, one, after)


def product(ctx: NestContext, one: Contraction, after: Sequence[Stage]) -> Stmt:
    """The launch of one product and the map stages done on its elements."""
    dtype = str(one.stage.buffer.dtype)
    tile = choose_tile(one.m, one.n, one.k, one.count, 4 if dtype == "float32" else 8)
    a = factor(ctx, one, one.a, one.rows, tile.bm, tile.bk, tile.threads, 0.0)
    b = factor(ctx, one, one.b, one.columns, tile.bn, tile.bk, tile.threads, -0.0)
    sums = registers([tile.tm * tile.tn], dtype, "sums")
    out = shared([tile.down * (tile.bn + 1)], dtype, "out")
    job = Job(ctx, one, tuple(after), tile, a, b, sums, out)
    grid = [one.count, -(-one.n // tile.bn), -(-one.m // tile.bm)]
    return launch(grid[0] * grid[1] * grid[2], tile.threads, lambda p, t: _block(job, unravel(p, grid), t))


def _block(job: Job, places: Sequence[Expr], thread: Expr) -> Stmt:
    b, column, row = places
    batch = index_of(job.one.batch, unravel(b, [a.extent for a in job.one.batch]))
    first = (row * job.tile.bm, column * job.tile.bn)
    zero = tirx.const(job.one.stage.reduction.init.value, str(job.sums.dtype)) if job.one.stage.reduction else None
    clear = unrolled(job.tile.tm * job.tile.tn, lambda e: store(job.sums, zero, e), "e")

    def load_next(t: Expr) -> Stmt:
        turn = t * job.tile.bk
        return seq([
            fetch(job.a, batch, first[0], job.one.m, turn, thread),
            fetch(job.b, batch, first[1], job.one.n, turn, thread),
        ])  # fmt: skip

    put_next = lambda into: seq([put(f, f.tiles[into], thread) for f in (job.a, job.b)])  # noqa: E731
    turns = pieces(job.steps, load_next, put_next, lambda half, _: multiply(job, half, thread), _makers(job, thread))
    buffers = [*job.a.tiles, *job.b.tiles, job.a.mine, job.b.mine, job.sums, job.out]
    return block([clear, turns, _ends(job, batch, first, thread)], buffers)


def _makers(job: Job, thread: Expr) -> list[Expr]:
    """Is it one of the threads that multiply?"""
    return [thread < i64(job.tile.makers)] if job.tile.makers < job.tile.threads else []


def spot(tile: Tile, thread: Expr) -> tuple[Expr, Expr]:
    """The thread's place in the tile, down and across."""
    rows, columns = LANES
    if tile.down % rows or tile.across % columns:
        return tuple(unravel(thread, [tile.down, tile.across]))
    down, across, y, x = unravel(thread, [tile.down // rows, tile.across // columns, rows, columns])
    return down * rows + y, across * columns + x


def multiply(job: Job, half: int, thread: Expr) -> Stmt:
    """One piece of the depth, from one tile of each factor."""
    tile, dtype = job.tile, str(job.sums.dtype)
    down, across = spot(tile, thread)
    left, right = registers([tile.tm], dtype, "left"), registers([tile.tn], dtype, "right")

    def element(i: Expr, j: Expr) -> Stmt:
        place = i * tile.tn + j
        return store(job.sums, fma(load(left, i), load(right, j), load(job.sums, place)), place)

    def turn(k: Expr) -> Stmt:
        return seq([
            *_lines(left, job.a, half, k, down, tile.down),
            *_lines(right, job.b, half, k, across, tile.across),
            unrolled(tile.tm, lambda i: unrolled(tile.tn, lambda j: element(i, j), "j"), "i"),
        ])  # fmt: skip

    return block([unrolled(tile.bk, turn, "k")], [left, right])


def _lines(into: Any, f: Factor, half: int, k: Expr, place: Expr, places: int) -> list[Stmt]:
    """A thread's lines of a factor in pieces of at most four neighbours; those of the threads lie side by side."""
    each = int(into.shape[0])
    wide = piece(each, str(into.dtype))
    return [
        store(
            into,
            load(f.tiles[half], span_at(k * f.line + line_of(i64(p), place, places, wide), wide)),
            span_at(i64(p), wide),
        )
        for p in range(0, each, wide)
    ]


def piece(each: int, dtype: str) -> int:
    """Elements of ``each`` that are read at once: 16 bytes at most."""
    return min(each, 4 if dtype == "float32" else 2)


def line_of(i: Expr, place: Expr, places: int, wide: int) -> Expr:
    """The line within a tile that is line ``i`` of the thread at ``place``: pieces of ``wide`` side by side."""
    return tirx.floordiv(i, i64(wide)) * (places * wide) + place * wide + tirx.floormod(i, i64(wide))


def _ends(job: Job, batch: dict[Any, Expr], first: tuple[Expr, Expr], thread: Expr) -> Stmt:
    """The elements out: one line of each thread at a time through shared memory, so that neighbouring threads store
    neighbours in memory, and what is done on an element stands once a line."""
    tile, dtype = job.tile, str(job.sums.dtype)
    down, across = spot(tile, thread)
    width, total = tile.bn + 1, tile.down * tile.bn

    def lay(i: Expr) -> Stmt:
        def one(j: Expr) -> Stmt:
            column = line_of(j, across, tile.across, piece(tile.tn, dtype))
            return store(job.out, load(job.sums, i * tile.tn + j), down * width + column)

        every = unrolled(tile.tn, one, "j")
        makers = _makers(job, thread)
        return tirx.IfThenElse(tirx.all(*makers), every, None) if makers else every

    def take(i: Expr, s: Expr) -> Stmt:
        flat = s * tile.threads + thread
        across_first = unravel(flat, [tile.down, tile.bn])
        place, c = across_first if not _stores_rows(job.one) else unravel(flat, [tile.bn, tile.down])[::-1]
        row = line_of(i, place, tile.down, piece(tile.tm, dtype))
        inside = [flat < i64(total)] if total % tile.threads else []
        return _element(job, batch, first[0] + row, first[1] + c, load(job.out, place * width + c), inside)

    def line(i: Expr) -> Stmt:
        takes = loop(-(-total // tile.threads), lambda s: take(i, s), name="s")
        return seq([lay(i), barrier(), takes, barrier()])

    return unrolled(tile.tm, line, "i")


def _element(
    job: Job, batch: dict[Any, Expr], row: Expr, column: Expr, value: Expr, inside: list[Expr]
) -> Stmt:  # fmt: skip
    """One finished element stored, and the stages that follow on it."""
    one, tile = job.one, job.tile
    here = batch | index_of(one.rows, unravel(row, [a.extent for a in one.rows]))
    here |= index_of(one.columns, unravel(column, [a.extent for a in one.columns]))
    inside = inside + ([row < i64(one.m)] if one.m % tile.bm else [])
    inside += [column < i64(one.n)] if one.n % tile.bn else []
    done = store_result(job.ctx, one.stage, here, value, job.after)
    return tirx.IfThenElse(tirx.all(*inside), done, None) if inside else done


def _stores_rows(one: Contraction) -> bool:
    """Do neighbouring rows lie side by side where the product is stored?"""
    last = variables(one.stage.indices[-1])
    return any(a.var in last for a in one.rows)
