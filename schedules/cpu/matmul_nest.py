"""Matrix products: a tile of mr rows by nv vectors in registers, the depth summed in order, tasks of many tiles.

Columns are cut into panels of nv vectors. A panel of B is copied to [depth][panel] where B does not already walk along
columns or where many rows reuse it; lanes past the last column are not stored. Rows past the last read the last row
again and are not stored. So any m, n and k run the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from .contraction import Contraction
from .emit import SERIAL, UNROLLED, Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from .maps import finish
from .names import in_buffers
from .nests import Context, block, parallel, vector
from .panels import pack, pack_all, pack_tall, turn_rows
from .price import stages_take
from .product_jobs import Job, places_of, plan_product, read_a, read_b, row_of
from .stages import Stage
from .turn import FOUR

Spans = list[tuple[int, int, int]]  # first column, lanes computed, lanes stored
Vectors = Callable[[Expr, Expr, int], tuple[list[Stmt], Expr]]  # turn, lane, first column -> statements, B's element
Turn = Callable[[Expr, Vectors], Stmt]  # one turn of the depth for the whole tile
Walk = Callable[[Turn], list[Stmt]]  # the whole depth, in order

DEEP = 4  # turns of the depth loop written out


def matmul_nest(ctx: Context, one: Contraction, after: Sequence[Stage]) -> Stmt:
    """The product and the map stages done on its tiles."""
    job = plan_product(ctx, one, tuple(after))
    extents = [one.count, job.count, job.groups]
    tasks = one.count * job.count * job.groups
    work = stages_take(ctx.virtual, [one.stage, *after], {one.stage}, ctx.lanes)
    nest = parallel(ctx, tasks, lambda p: _task(job, *unravel(p, extents)), work)
    before = [pack_tall(job)] if job.tall is not None else []
    return seq([*before, *([pack_all(job)] if job.packed == "all" else []), nest])


def product_body(ctx: Context, one: Contraction, after: Sequence[Stage], batch: Sequence[Expr]) -> Stmt:
    """The product at ``batch``, values of its batch axes, inside a task: nothing in it is shared out."""
    job = plan_product(ctx, one, tuple(after), tuple(batch))
    return loop(job.count, lambda jo: _task(job, i64(0), jo, i64(0)), name="panel")


def _task(job: Job, b: Expr, jo: Expr, group: Expr) -> Stmt:
    """All row tiles of one group against one panel."""
    if not job.rest:
        return _panel(job, b, jo, group, job.tile.panel)
    if not job.full:
        return _panel(job, b, i64(0), group, job.rest)
    whole = _panel(job, b, jo, group, job.tile.panel)
    return tirx.IfThenElse(jo < i64(job.full), whole, _panel(job, b, i64(job.full), group, job.rest))


def _panel(job: Job, b: Expr, jo: Expr, group: Expr, width: int) -> Stmt:
    start = jo * job.tile.panel
    spans = _spans(job, width)
    in_order = lambda b_at: lambda turn: _in_order(job.one.k, lambda k: turn(k, b_at))  # noqa: E731
    if job.packed == "none":
        return _rows(job, b, start, group, spans, in_order(lambda k, c, p: read_b(job, b, k, start + (c + p))))
    if job.packed == "all":
        return _rows(job, b, start, group, spans, in_order(lambda k, c, p: ([], load(job.panels, b, jo, k, c + p))))
    if job.packed == "turn":
        return _tile(job, b, i64(0), start, spans, lambda turn: _turning(job, b, start, width, turn))
    mine = scratch([job.one.k, job.tile.panel], str(job.one.stage.buffer.dtype), "panel")
    fill = pack(job, b, start, width, lambda value, k, c: store(mine, value, k, c))
    body = _rows(job, b, start, group, spans, in_order(lambda k, c, p: ([], load(mine, k, c + p))))
    return block([fill, body], [mine])


def _spans(job: Job, width: int) -> Spans:
    """Vectors of a panel: first column, lanes computed, lanes stored. A copied panel is zero past its last column."""
    lanes = job.tile.lanes
    whole = [(p, min(lanes, width - p)) for p in range(0, width, lanes)]
    return [(p, lanes if job.packed != "none" else size, size) for p, size in whole]


def _rows(job: Job, b: Expr, start: Expr, group: Expr, spans: Spans, walk: Walk) -> Stmt:
    """The row tiles of a group; the last group may have fewer, but has one."""
    each = -(-job.row_tiles // job.groups)
    full, rest = divmod(job.row_tiles, each)

    def some(count: int) -> Stmt:
        return loop(count, lambda t: _tile(job, b, group * each + t, start, spans, walk), name="tile")

    if not rest:
        return some(each)
    return tirx.IfThenElse(group < i64(full), some(each), some(rest))


def _tile(job: Job, b: Expr, tile: Expr, start: Expr, spans: Spans, walk: Walk) -> Stmt:
    """One register tile: clear, sum over the depth, store."""
    one, dtype = job.one, str(job.one.stage.buffer.dtype)
    i0 = tile * job.tile.mr
    accs = [[scratch([size], dtype, "acc") for _, size, _ in spans] for _ in range(job.tile.mr)]
    zero = one.stage.fold.init if one.stage.fold else None
    clear = [
        vector(s[1], lambda lane, a=a: store(a, zero, lane)) for row in accs for a, s in zip(row, spans, strict=True)
    ]
    a_at = lambda r, k: _factor_a(job, b, tile, r, k)  # noqa: E731
    turn = lambda k, b_at: in_buffers(seq(_multiply(k, accs, spans, a_at, b_at)))  # noqa: E731
    ends = _store_tile(job, b, i0, start, accs, spans)
    return block([*clear, *walk(turn), *ends], [a for row in accs for a in row])


def _in_order(deep: int, turn: Callable[[Expr], Stmt]) -> list[Stmt]:
    """Every turn of the depth."""
    full, rest = divmod(deep, DEEP)
    done = []
    if full:
        done.append(loop(full, lambda o: loop(DEEP, lambda k: turn(o * DEEP + k), UNROLLED, "k"), name="depth"))
    if rest:
        done.append(loop(rest, lambda k: turn(k + full * DEEP), UNROLLED, "k"))
    return done


def _turning(job: Job, b: Expr, start: Expr, width: int, turn: Turn) -> list[Stmt]:
    """Every turn of the depth, a run of them turned at a time. The last run may begin among those before, for there is
    nothing behind the end: its first turns are left out."""
    deep, lanes, dtype = job.one.k, job.tile.lanes, str(job.one.stage.buffer.dtype)
    places = range(0, width, lanes)
    mine = [scratch([job.run, lanes], dtype, "turned") for _ in places]

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


def _multiply(k: Expr, accs: list[list[Any]], spans: Spans, a_at: Any, b_at: Any) -> list[Stmt]:
    """One turn of the depth for the whole tile."""
    done = []
    for r, row in enumerate(accs):
        binds, value = a_at(r, k)
        done += binds
        for acc, (p, size, _) in zip(row, spans, strict=True):

            def add(lane: Expr, acc: Any = acc, p: int = p, value: Expr = value) -> Stmt:
                before, other = b_at(k, lane, p)
                return seq([*before, store(acc, load(acc, lane) + value * other, lane)])

            done.append(vector(size, add))
    return done


def _factor_a(job: Job, b: Expr, tile: Expr, r: int, k: Expr) -> tuple[list[Stmt], Expr]:
    if job.tall is not None:
        return [], load(job.tall, b, tile, k, i64(r))
    return read_a(job, b, row_of(job, tile * job.tile.mr, r), k)


def _store_tile(job: Job, b: Expr, i0: Expr, start: Expr, accs: list[list[Any]], spans: Spans) -> list[Stmt]:
    """The tile's elements to their places. With stages to follow, or rows past the end, by way of memory: then the
    code of the stages stands once a tile and not once a row."""
    if not job.after and job.one.m % job.tile.mr == 0:
        return [_end_row(job, b, i0 + r, start, spans, _lane_of(row)) for r, row in enumerate(accs)]
    tile = scratch([job.tile.mr, spans[-1][0] + spans[-1][1]], str(job.one.stage.buffer.dtype), "tile")
    copies = [
        vector(size, lambda lane, a=a, p=p, r=r: store(tile, load(a, lane), i64(r), lane + p))
        for r, row in enumerate(accs)
        for a, (p, size, _) in zip(row, spans, strict=True)
    ]
    here = lambda r: lambda p, lane: load(tile, r, lane + p)  # noqa: E731
    var = tirx.Var("r", "int64")
    body = in_buffers(_end_row(job, b, i0 + var, start, spans, here(var)))
    rows: Expr = i64(job.tile.mr)
    if job.one.m % job.tile.mr:
        rows = tirx.min(rows, i64(job.one.m) - i0)
    return [block([*copies, tirx.For(var, i64(0), rows, SERIAL, body)], [tile])]


def _lane_of(row: list[Any]) -> Callable[[int, Expr], Expr]:
    lanes = int(row[0].shape[0])
    return lambda p, lane: load(row[p // lanes], lane)


def _end_row(job: Job, b: Expr, i: Expr, start: Expr, spans: Spans, value: Callable[[int, Expr], Expr]) -> Stmt:
    """One row of a tile stored, and the stages that follow on it."""

    def end(p: int, lane: Expr) -> Stmt:
        return finish(job.ctx, job.one.stage, places_of(job, b, i, start + (lane + p)), value(p, lane), job.after)

    return seq([vector(size, lambda lane, p=p: end(p, lane)) for p, _, size in spans])
