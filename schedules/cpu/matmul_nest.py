"""Matrix products: a tile of mr rows by nv vectors in registers, the depth summed in order, tasks of many tiles.

Columns are cut into panels of nv vectors. A panel of B is copied to [depth][panel] where B does not already walk along
columns or where many rows reuse it; lanes past the last column are zero there. Rows past the last read the last row
again and are not stored. So any m, n and k run the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from .contraction import Contraction, plain_load
from .emit import SERIAL, UNROLLED, Expr, Stmt, grid, i64, load, loop, scratch, seq, store, unravel
from .inline import Point
from .maps import at, finish
from .names import in_buffers
from .nests import Context, block, chunks, parallel, vector, vectors
from .stages import Axis, Stage, variables

Spans = list[tuple[int, int, int]]  # first column, lanes computed, lanes stored

DEEP = 4  # turns of the depth loop written out
DEPTHS = 16  # turns of the depth that one task copies of A
TASKS = 8  # tasks that two to eight threads can share out
REUSE = 8  # tiles of rows from which copying a panel of B pays
LONG, REUSED = 64, 4  # depth and panels from which copying an A that walks along rows pays
LATENCY = 4  # cycles of a multiply-add
SPEED = 8  # multiply-adds that count like one addition beside GRAIN


@attrs.frozen
class Tile:
    """``mr`` rows by ``nv`` vectors of ``lanes``; ``panel`` columns."""

    mr: int
    nv: int
    lanes: int

    @property
    def panel(self) -> int:
        return self.nv * self.lanes


def choose_tile(m: int, n: int, lanes: int, registers: int) -> Tile:
    """The tile with the fewest cycles a turn of the depth, the narrower last panel and the rows past the end included.

    A core starts two multiply-adds and two loads a cycle, and each multiply-add waits LATENCY cycles for the last."""
    vectors_wide = -(-n // lanes)
    best, least = Tile(1, 1, lanes), float("inf")
    for nv in range(1, min(4, vectors_wide) + 1):
        full, rest = divmod(vectors_wide, nv)
        for mr in range(1, min(14, m) + 1):
            if mr * nv + nv + 1 > registers:
                continue
            turn = full * _cycles(mr, nv) + (_cycles(mr, rest) if rest else 0)
            price = -(-m // mr) * turn
            if price < least:
                best, least = Tile(mr, nv, lanes), price
    return best


def _cycles(mr: int, nv: int) -> float:
    return max(mr * nv / 2, (mr + nv) / 2, LATENCY)


@attrs.frozen(eq=False)
class Job:
    """One product and how it is cut: ``packed`` none, task (each task its panel) or all (before the tasks)."""

    ctx: Context
    one: Contraction
    after: tuple[Stage, ...]
    tile: Tile
    packed: str
    groups: int
    panels: Any
    tall: Any = None  # A as [batch][tile][depth][row], where it is copied beforehand
    inside: tuple[Expr, ...] | None = None  # the batch axes' values, where a task holds the whole product

    @property
    def full(self) -> int:
        return self.one.n // self.tile.panel

    @property
    def rest(self) -> int:
        return self.one.n % self.tile.panel

    @property
    def count(self) -> int:
        """Panels, the narrower last one included."""
        return self.full + (1 if self.rest else 0)

    @property
    def row_tiles(self) -> int:
        return -(-self.one.m // self.tile.mr)


def matmul_nest(ctx: Context, one: Contraction, after: Sequence[Stage]) -> Stmt:
    """The product and the map stages done on its tiles."""
    job = _plan(ctx, one, tuple(after))
    extents = [one.count, job.count, job.groups]
    tasks = one.count * job.count * job.groups
    nest = parallel(tasks, lambda p: _task(job, *unravel(p, extents)), one.count * one.m * one.n * one.k // SPEED)
    before = [_pack_tall(job)] if job.tall is not None else []
    return seq([*before, *([_pack_all(job)] if job.packed == "all" else []), nest])


def product_body(ctx: Context, one: Contraction, after: Sequence[Stage], batch: Sequence[Expr]) -> Stmt:
    """The product at ``batch``, values of its batch axes, inside a task: nothing in it is shared out."""
    job = _plan(ctx, one, tuple(after), tuple(batch))
    return loop(job.count, lambda jo: _task(job, i64(0), jo, i64(0)), name="panel")


def _plan(ctx: Context, one: Contraction, after: tuple[Stage, ...], inside: tuple[Expr, ...] | None = None) -> Job:
    lanes = ctx.lanes if str(one.stage.buffer.dtype) == "float32" else max(1, ctx.lanes // 2)
    tile = choose_tile(one.m, one.n, lanes, ctx.registers)
    count = -(-one.n // tile.panel)
    tiles = -(-one.m // tile.mr)
    wanted = 1 if inside is not None else -(-TASKS // (one.count * count))
    each = -(-tiles // min(tiles, max(1, wanted)))
    groups = -(-tiles // each)  # rounding each up may leave fewer groups than were asked for, and no group may be empty
    packed = "none" if not _must_pack(ctx, one, tile, count) else "task" if groups == 1 else "all"
    shape = [one.k, tile.panel] if packed == "task" else [one.count, count, one.k, tile.panel]
    panels = scratch(shape, str(one.stage.buffer.dtype), "panels") if packed == "all" else None
    tall = None
    if inside is None and _walks_rows(ctx, one) and one.k >= LONG and count >= REUSED:
        tall = scratch([one.count, tiles, one.k, tile.mr], str(one.stage.buffer.dtype), "tall")
    return Job(ctx, one, after, tile, packed, groups, panels, tall, inside)


def _walks_rows(ctx: Context, one: Contraction) -> bool:
    """Is A a plain read of memory whose last dimension is the product's one row axis? A tile would read a short piece
    of a line at each turn of the depth."""
    return _walks(ctx, one.a, one.rows)


def _must_pack(ctx: Context, one: Contraction, tile: Tile, count: int) -> bool:
    if not _walks_columns(ctx, one):
        return True
    reused = one.m >= REUSE * tile.mr
    return reused and (count > 1 or one.n % tile.lanes != 0)


def _walks_columns(ctx: Context, one: Contraction) -> bool:
    """Is B a plain read of memory whose last dimension is the product's one column axis?"""
    return _walks(ctx, one.b, one.columns)


def _walks(ctx: Context, factor: Expr, axes: Sequence[Axis]) -> bool:
    read = plain_load(factor)
    if read is None or read.source in ctx.virtual.stages or len(axes) != 1:
        return False
    var = axes[0].var
    return read.indices[-1].same_as(var) and var not in variables(list(read.indices[:-1]))


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
    if job.packed == "none":
        return _rows(job, b, start, group, spans, lambda k, c: _factor_b(job, b, k, start + c))
    if job.packed == "all":
        return _rows(job, b, start, group, spans, lambda k, c: ([], load(job.panels, b, jo, k, c)))
    mine = scratch([job.one.k, job.tile.panel], str(job.one.stage.buffer.dtype), "panel")
    fill = _pack(job, b, start, width, lambda value, k, c: store(mine, value, k, c))
    body = _rows(job, b, start, group, spans, lambda k, c: ([], load(mine, k, c)))
    return block([fill, body], [mine])


def _spans(job: Job, width: int) -> Spans:
    """Vectors of a panel: first column, lanes computed, lanes stored. A copied panel is zero past its last column."""
    lanes = job.tile.lanes
    whole = [(p, min(lanes, width - p)) for p in range(0, width, lanes)]
    return [(p, lanes if job.packed != "none" else size, size) for p, size in whole]


def _rows(job: Job, b: Expr, start: Expr, group: Expr, spans: Spans, b_at: Any) -> Stmt:
    """The row tiles of a group; the last group may have fewer, but has one."""
    each = -(-job.row_tiles // job.groups)
    full, rest = divmod(job.row_tiles, each)

    def some(count: int) -> Stmt:
        return loop(count, lambda t: _tile(job, b, group * each + t, start, spans, b_at), name="tile")

    if not rest:
        return some(each)
    return tirx.IfThenElse(group < i64(full), some(each), some(rest))


def _tile(job: Job, b: Expr, tile: Expr, start: Expr, spans: Spans, b_at: Any) -> Stmt:
    """One register tile: clear, sum over the depth, store."""
    one, dtype = job.one, str(job.one.stage.buffer.dtype)
    i0 = tile * job.tile.mr
    accs = [[scratch([size], dtype, "acc") for _, size, _ in spans] for _ in range(job.tile.mr)]
    zero = one.stage.fold.init if one.stage.fold else None
    clear = [
        vector(s[1], lambda lane, a=a: store(a, zero, lane)) for row in accs for a, s in zip(row, spans, strict=True)
    ]
    a_at = lambda r, k: _factor_a(job, b, tile, r, k)  # noqa: E731
    turn = lambda k: in_buffers(seq(_multiply(k, accs, spans, a_at, b_at)))  # noqa: E731
    full, rest = divmod(one.k, DEEP)
    depth = []
    if full:
        depth.append(loop(full, lambda o: loop(DEEP, lambda k: turn(o * DEEP + k), UNROLLED, "k"), name="depth"))
    if rest:
        depth.append(loop(rest, lambda k: turn(k + full * DEEP), UNROLLED, "k"))
    ends = _store_tile(job, b, i0, start, accs, spans)
    return block([*clear, *depth, *ends], [a for row in accs for a in row])


def _multiply(k: Expr, accs: list[list[Any]], spans: Spans, a_at: Any, b_at: Any) -> list[Stmt]:
    """One turn of the depth for the whole tile."""
    done = []
    for r, row in enumerate(accs):
        binds, value = a_at(r, k)
        done += binds
        for acc, (p, size, _) in zip(row, spans, strict=True):

            def add(lane: Expr, acc: Any = acc, p: int = p, value: Expr = value) -> Stmt:
                before, other = b_at(k, lane + p)
                return seq([*before, store(acc, load(acc, lane) + value * other, lane)])

            done.append(vector(size, add))
    return done


def _row(job: Job, i0: Expr, r: int) -> Expr:
    """The row read by line ``r`` of a tile: the last row for lines past the end."""
    ragged = job.one.m % job.tile.mr and r
    return tirx.min(i0 + r, i64(job.one.m - 1)) if ragged else i0 + r


def _places(job: Job, b: Expr, row: Expr | None, column: Expr | None) -> dict[Any, Expr]:
    one = job.one
    found = at(one.batch, job.inside if job.inside is not None else unravel(b, [a.extent for a in one.batch]))
    if row is not None:
        found |= at(one.rows, unravel(row, [a.extent for a in one.rows]))
    if column is not None:
        found |= at(one.columns, unravel(column, [a.extent for a in one.columns]))
    return found


def _depth(job: Job, k: Expr) -> dict[Any, Expr]:
    return at(job.one.stage.reduce, unravel(k, [a.extent for a in job.one.stage.reduce]))


def _factor_a(job: Job, b: Expr, tile: Expr, r: int, k: Expr) -> tuple[list[Stmt], Expr]:
    if job.tall is not None:
        return [], load(job.tall, b, tile, k, i64(r))
    return _read_a(job, b, _row(job, tile * job.tile.mr, r), k)


def _read_a(job: Job, b: Expr, row: Expr, k: Expr) -> tuple[list[Stmt], Expr]:
    point = Point(job.ctx.virtual)
    value = point.bind(point.write(job.one.a, _places(job, b, row, None) | _depth(job, k)), "a")
    return point.binds, value


def _factor_b(job: Job, b: Expr, k: Expr, column: Expr) -> tuple[list[Stmt], Expr]:
    point = Point(job.ctx.virtual)
    value = point.write(job.one.b, _places(job, b, None, column) | _depth(job, k))
    return point.binds, value


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
        return finish(job.ctx, job.one.stage, _places(job, b, i, start + (lane + p)), value(p, lane), job.after)

    return seq([vector(size, lambda lane, p=p: end(p, lane)) for p, _, size in spans])


def _pack_all(job: Job) -> Stmt:
    """Every panel, before the tasks that read them."""
    work = job.one.count * job.one.n * job.one.k

    def one(p: Expr) -> Stmt:
        b, jo = unravel(p, [job.one.count, job.count])
        put = lambda value, k, c: store(job.panels, value, b, jo, k, c)  # noqa: E731
        whole = lambda: _pack(job, b, jo * job.tile.panel, job.tile.panel, put)  # noqa: E731
        if not job.rest:
            return whole()
        last = _pack(job, b, i64(job.full * job.tile.panel), job.rest, put)
        return tirx.IfThenElse(jo < i64(job.full), whole(), last) if job.full else last

    return parallel(job.one.count * job.count, one, work)


def _pack_tall(job: Job) -> Stmt:
    """A by tiles of rows; in the last one, rows past the end are left as they are: what comes of them is not stored."""
    one, mr = job.one, job.tile.mr

    def rows(b: Expr, tile: Expr, k: Expr, count: int) -> Stmt:
        def copy(r: Expr) -> Stmt:
            binds, value = _read_a(job, b, tile * mr + r, k)
            return seq([*binds, store(job.tall, value, b, tile, k, r)])

        return seq(vectors(count, job.tile.lanes, copy))

    def some(b: Expr, start: Expr, deep: int) -> Stmt:
        """All tiles at ``deep`` turns of the depth: the lines of A that they share stay in the first cache."""
        full, rest = divmod(one.m, mr)
        tile = lambda t, count: loop(deep, lambda k: rows(b, t, start + k, count), name="k")  # noqa: E731
        whole = [loop(full, lambda t: tile(t, mr), name="tile")] if full else []
        return seq([*whole, *([tile(i64(full), rest)] if rest else [])])

    if one.count > 1:
        return parallel(one.count, lambda b: some(b, i64(0), one.k), one.count * one.m * one.k)
    return chunks(one.k, DEPTHS, lambda start, deep: some(i64(0), start, deep), one.m * one.k)


def _pack(job: Job, b: Expr, start: Expr, width: int, put: Any) -> Stmt:
    """One panel as [depth][column], zero past the last column."""
    columns = job.tile.panel if width == job.tile.panel else -(-width // job.tile.lanes) * job.tile.lanes

    def copy(k: Expr, c: Expr) -> Stmt:
        binds, value = _factor_b(job, b, k, start + c)
        return seq([*binds, put(value, k, c)])

    zero = job.one.stage.fold.init if job.one.stage.fold else None
    pad = columns - width
    blank = [] if not pad else [loop(job.one.k, lambda k: vector(pad, lambda lane: put(zero, k, lane + width)))]
    if _walks_columns(job.ctx, job.one):
        lanes = job.tile.lanes
        fill = loop(job.one.k, lambda k: seq(vectors(width, lanes, lambda c: copy(k, c))))
    else:
        fill = _transpose(job.one.k, width, copy)
    return seq([fill, *blank])


def _transpose(deep: int, width: int, copy: Any) -> Stmt:
    """Reads along the depth, DEEP cache lines' worth at a time, so that lines written stay near."""
    run = 16
    full, rest = divmod(deep, run)

    def lines(first: Expr, count: int) -> Stmt:
        return loop(width, lambda c: loop(count, lambda k: copy(first + k, c), UNROLLED, "k"), name="c")

    done = [loop(full, lambda o: lines(o * run, run))] if full else []
    return seq([*done, *([lines(i64(full * run), rest)] if rest else [])])


__all__ = ["Tile", "choose_tile", "grid", "matmul_nest"]
