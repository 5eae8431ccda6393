"""Matrix products: a tile of mr rows by nv vectors in registers, the depth summed in order, tasks of many tiles.

Columns are cut into panels of nv vectors. A panel of B is copied to [depth][panel] where B does not already walk along
columns or where many rows reuse it; lanes past the last column are not stored. Rows past the last read the last row
again and are not stored. So any m, n and k run the same code. A depth whose panels would leave the second cache is cut
(``matmul_k_blocked.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from ..tir.builder import SERIAL, Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ..tir.context import NestContext, block, parallel_loop
from ..tir.contraction import Contraction
from ..tir.let_buffers import bind_in_buffers
from ..tir.stages import Stage
from ..tir.thread_cost import stages_nanoseconds
from .matmul_k_blocked import deep_nest
from .matmul_microkernel import Spans, Sums, Vectors, each_sum, end_row, in_order, multiply, spans_of, sums_of
from .matmul_packing import pack, pack_all, pack_tall, turn_rows
from .matmul_tiling import Job, plan_product, read_b
from .register_transpose import FOUR

Turn = Callable[[Expr, Vectors], Stmt]  # one turn of the depth for the whole tile
Walk = Callable[[Turn], list[Stmt]]  # the whole depth, in order


def matmul_nest(ctx: NestContext, one: Contraction, after: Sequence[Stage]) -> Stmt:
    """The product and the map stages done on its tiles."""
    job = plan_product(ctx, one, tuple(after))
    work = stages_nanoseconds(ctx.virtual, [one.stage, *after], {one.stage}, ctx.lanes)
    before = [pack_tall(job)] if job.tall is not None else []
    if job.blocks is not None:
        return seq([*before, deep_nest(job, work)])
    extents = [one.count, job.groups, job.count]

    def task(p: Expr) -> Stmt:
        b, group, jo = unravel(p, extents)
        return _task(job, b, jo, group)

    nest = parallel_loop(ctx, one.count * job.groups * job.count, task, work)
    return seq([*before, *([pack_all(job)] if job.packed == "all" else []), nest])


def product_body(ctx: NestContext, one: Contraction, after: Sequence[Stage], batch: Sequence[Expr]) -> Stmt:
    """The product at ``batch``, values of its batch axes, inside a task: nothing in it is shared out."""
    job = plan_product(ctx, one, tuple(after), tuple(batch))
    return loop(job.count, lambda jo: _task(job, i64(0), jo, i64(0)), name="panel")


def _task(job: Job, b: Expr, jo: Expr, group: Expr) -> Stmt:
    """All row tiles of one group against one panel."""
    return job.by_width(jo, lambda at, width: _panel(job, b, at, group, width))


def _panel(job: Job, b: Expr, jo: Expr, group: Expr, width: int) -> Stmt:
    start = jo * job.tile.panel
    spans = spans_of(job, width)
    every = lambda b_at: lambda turn: in_order(job, job.one.k, lambda k: turn(k, b_at))  # noqa: E731
    if job.packed == "none":
        return _rows(job, b, start, group, spans, every(lambda k, c, p: read_b(job, b, k, start + (c + p))))
    if job.packed == "all":
        return _rows(job, b, start, group, spans, every(lambda k, c, p: ([], load(job.panels, b, jo, k, c + p))))
    if job.packed == "turn":
        return _tile(job, b, i64(0), start, spans, lambda turn: _turning(job, b, start, width, turn))
    mine = scratch([job.one.k, job.tile.panel], job.dtype, "panel")
    fill = pack(job, b, start, width, lambda value, k, c: store(mine, value, k, c))
    body = _rows(job, b, start, group, spans, every(lambda k, c, p: ([], load(mine, k, c + p))))
    return block([fill, body], [mine])


def _rows(job: Job, b: Expr, start: Expr, group: Expr, spans: Spans, walk: Walk) -> Stmt:
    """The row tiles of a group; some groups have fewer than the others, but none has none."""
    shares = job.shares
    each, first = shares.each, shares.first(group)

    def some(count: int) -> Stmt:
        return loop(count, lambda t: _tile(job, b, first + t, start, spans, walk), name="tile")

    if shares.is_spread:
        return tirx.IfThenElse(shares.count(group) < i64(each), some(each - 1), some(each))
    full, rest = divmod(shares.tiles, each)
    return tirx.IfThenElse(group < i64(full), some(each), some(rest)) if rest else some(each)


def _tile(job: Job, b: Expr, tile: Expr, start: Expr, spans: Spans, walk: Walk) -> Stmt:
    """One register tile: clear, sum over the depth, store."""
    sums, zero = sums_of(job, spans), job.zero
    clear = each_sum(sums, spans, lambda acc, _, __, lane: store(acc, zero, lane))
    body = walk(lambda k, b_at: multiply(job, b, tile, sums, spans, k, b_at))
    ends = _store_tile(job, b, tile * job.tile.mr, start, sums, spans)
    return block([*clear, *body, *ends], [acc for row in sums for acc in row])


def _turning(job: Job, b: Expr, start: Expr, width: int, turn: Turn) -> list[Stmt]:
    """Every turn of the depth, a run of them turned at a time. The last run may begin among those before, for there is
    nothing behind the end: its first turns are left out."""
    deep, lanes = job.one.k, job.tile.lanes
    places = range(0, width, lanes)
    mine = [scratch([job.run, lanes], job.dtype, "turned") for _ in places]

    def fill(first: Expr, count: int, p: int) -> Stmt:
        put = lambda value, k, c: store(mine[p // lanes], value, k, c)  # noqa: E731
        return turn_rows(job, b, start + p, min(lanes, width - p), first, count, put)

    def some(first: Expr, count: int, skip: int = 0) -> Stmt:
        at = lambda k: lambda _, lane, p: ([], load(mine[p // lanes], k, lane))  # noqa: E731
        turns = [turn(first + k, at(i64(k))) for k in range(skip, count)]
        return seq([*(fill(first, count, p) for p in places), *turns])

    full, rest = divmod(deep, job.run)
    done = [loop(full, lambda o: some(o * job.run, job.run), name="depth")] if full else []
    whole = rest // FOUR * FOUR
    if whole:
        done.append(some(i64(deep - rest), whole))
    if rest > whole:
        done.append(some(i64(deep - FOUR), FOUR, FOUR - rest + whole))
    return [block(done, mine)]


def _store_tile(job: Job, b: Expr, i0: Expr, start: Expr, sums: Sums, spans: Spans) -> list[Stmt]:
    """The tile's elements to their places. With stages to follow, or rows past the end, by way of memory: then the
    code of the stages stands once a tile and not once a row."""
    if not job.after and job.one.m % job.tile.mr == 0:
        return [end_row(job, b, i0 + r, start, spans, _lane_of(row)) for r, row in enumerate(sums)]
    tile = scratch([job.tile.mr, spans[-1][0] + spans[-1][1]], job.dtype, "tile")
    copies = each_sum(sums, spans, lambda acc, r, p, lane: store(tile, load(acc, lane), i64(r), lane + p))
    here = lambda r: lambda p, lane: load(tile, r, lane + p)  # noqa: E731
    var = tirx.Var("r", "int64")
    body = bind_in_buffers(end_row(job, b, i0 + var, start, spans, here(var)))
    rows: Expr = i64(job.tile.mr)
    if job.one.m % job.tile.mr:
        rows = tirx.min(rows, i64(job.one.m) - i0)
    return [block([*copies, tirx.For(var, i64(0), rows, SERIAL, body)], [tile])]


def _lane_of(row: list) -> Callable[[int, Expr], Expr]:
    lanes = int(row[0].shape[0])
    return lambda p, lane: load(row[p // lanes], lane)
