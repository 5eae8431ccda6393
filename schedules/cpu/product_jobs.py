"""How one matrix product is cut: the tile in registers, what is copied beforehand, how many tasks share the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from .contraction import Contraction, plain_load, walks
from .emit import Expr, Stmt, i64, scratch, unravel
from .inline import Point
from .maps import at
from .nests import Context
from .stages import Axis, Stage, variables
from .turn import FOUR

TASKS = 8  # tasks that two to eight threads can share out
REUSE = 8  # tiles of rows from which copying a panel of B pays
LONG, REUSED = 64, 4  # depth and panels from which copying an A that walks along rows pays
LATENCY = 4  # cycles of a multiply-add
TURN = 1  # cycles to turn a vector of B, and again to copy it and to read the copy
RUN = 16  # elements of 4 bytes in a cache line
STACK = 1024  # bytes from which TVM asks its pool for scratch memory
TURNS = 2  # vectors of columns that are turned side by side: each is read from as many rows as it has lanes


@attrs.frozen
class Tile:
    """``mr`` rows by ``nv`` vectors of ``lanes``; ``panel`` columns."""

    mr: int
    nv: int
    lanes: int

    @property
    def panel(self) -> int:
        return self.nv * self.lanes


def choose_tile(m: int, n: int, lanes: int, registers: int, turned: bool = False) -> Tile:
    """The tile with the fewest cycles a turn of the depth, the narrower last panel and the rows past the end included.

    A core starts two multiply-adds and two loads a cycle, and each multiply-add waits LATENCY cycles for the last.
    ``turned``: B walks along the depth; one tile of all rows turns it where it uses it, several read a copy."""
    vectors_wide = -(-n // lanes)
    best, least = Tile(1, 1, lanes), float("inf")
    for nv in range(1, min(4, vectors_wide) + 1):
        full, rest = divmod(vectors_wide, nv)
        for mr in range(1, min(14, m) + 1):
            if mr * nv + nv + 1 > registers or (turned and mr == m and nv > TURNS):
                continue
            turn = full * _cycles(mr, nv) + (_cycles(mr, rest) if rest else 0)
            price = -(-m // mr) * turn + (TURN * vectors_wide if turned and mr < m else 0)
            if price < least:
                best, least = Tile(mr, nv, lanes), price
    return best


def _cycles(mr: int, nv: int) -> float:
    return max(mr * nv / 2, (mr + nv) / 2, LATENCY)


@attrs.frozen(eq=False)
class Job:
    """One product and how it is cut. What becomes of B, ``packed``: none, turn (where the one tile of rows uses it),
    task (each task copies its panel) or all (copied before the tasks)."""

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
    def run(self) -> int:
        """Turns of the depth that are turned at a time: a cache line of each row, or less where that would be more
        than lies on the stack."""
        item = 4 if str(self.one.stage.buffer.dtype) == "float32" else 8
        return RUN if RUN * self.tile.lanes * item < STACK else RUN // 2

    @property
    def row_tiles(self) -> int:
        return -(-self.one.m // self.tile.mr)


def plan_product(
    ctx: Context, one: Contraction, after: tuple[Stage, ...], inside: tuple[Expr, ...] | None = None
) -> Job:
    """How ``one`` is cut, from its shape and the target alone. ``after``: the maps on its result; ``inside``: the
    values of its batch axes where the caller's task makes all of it, and nothing is shared out."""
    lanes = ctx.lanes if str(one.stage.buffer.dtype) == "float32" else max(1, ctx.lanes // 2)
    turned = walks_depth(one)
    tile = choose_tile(one.m, one.n, lanes, ctx.registers, turned)
    count = -(-one.n // tile.panel)
    tiles = -(-one.m // tile.mr)
    wanted = 1 if inside is not None else -(-TASKS // (one.count * count))
    each = -(-tiles // min(tiles, max(1, wanted)))
    groups = -(-tiles // each)  # rounding each up may leave fewer groups than were asked for, and no group may be empty
    packed = "none" if not _must_pack(ctx, one, tile, count) else "task" if groups == 1 else "all"
    packed = "turn" if turned and tiles == 1 else packed
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
    if not walks_columns(ctx, one):
        return True
    reused = one.m >= REUSE * tile.mr
    return reused and (count > 1 or one.n % tile.lanes != 0)


def walks_depth(one: Contraction) -> bool:
    """Does B walk along the one axis of the depth, which is long enough to be turned?"""
    return len(one.stage.reduce) == 1 and one.k >= FOUR and walks(one.b, one.stage.reduce)


def walks_columns(ctx: Context, one: Contraction) -> bool:
    """Is B a plain read of memory whose last dimension is the product's one column axis?"""
    return _walks(ctx, one.b, one.columns)


def _walks(ctx: Context, factor: Expr, axes: Sequence[Axis]) -> bool:
    read = plain_load(factor)
    if read is None or read.source in ctx.virtual.stages or len(axes) != 1:
        return False
    var = axes[0].var
    return read.indices[-1].same_as(var) and var not in variables(list(read.indices[:-1]))


def row_of(job: Job, i0: Expr, r: int) -> Expr:
    """The row read by line ``r`` of a tile: the last row for lines past the end."""
    ragged = job.one.m % job.tile.mr and r
    return tirx.min(i0 + r, i64(job.one.m - 1)) if ragged else i0 + r


def places_of(job: Job, b: Expr, row: Expr | None, column: Expr | None) -> dict[Any, Expr]:
    """Axis variable -> its value, of element ``b`` of the batch and of a row and a column, all as flat numbers; None:
    of no row or column."""
    one = job.one
    found = at(one.batch, job.inside if job.inside is not None else unravel(b, [a.extent for a in one.batch]))
    if row is not None:
        found |= at(one.rows, unravel(row, [a.extent for a in one.rows]))
    if column is not None:
        found |= at(one.columns, unravel(column, [a.extent for a in one.columns]))
    return found


def depth_of(job: Job, k: Expr) -> dict[Any, Expr]:
    """Axis variable -> its value at turn ``k`` of the depth."""
    return at(job.one.stage.reduce, unravel(k, [a.extent for a in job.one.stage.reduce]))


def read_a(job: Job, b: Expr, row: Expr, k: Expr) -> tuple[list[Stmt], Expr]:
    """The element of A, under a name, and the statements that have to come before its use."""
    point = Point(job.ctx.virtual)
    value = point.bind(point.write(job.one.a, places_of(job, b, row, None) | depth_of(job, k)), "a")
    return point.binds, value


def read_b(job: Job, b: Expr, k: Expr, column: Expr) -> tuple[list[Stmt], Expr]:
    """The element of B, and the statements that have to come before its use."""
    point = Point(job.ctx.virtual)
    value = point.write(job.one.b, places_of(job, b, None, column) | depth_of(job, k))
    return point.binds, value
