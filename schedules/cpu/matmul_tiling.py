"""How one matrix product is cut: the tile in registers, what is copied beforehand, how many tasks share the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, scratch, unravel
from ..tir.context import NestContext
from ..tir.contraction import Contraction, half_load, is_contiguous, plain_load
from ..tir.inline import ScalarWriter
from ..tir.point_writer import index_of
from ..tir.stages import Axis, Stage, variables
from .matmul_cost import ANY, COLUMNS, DEPTH, PAGE, Sizes, Tile, choose_tile, copies
from .register_transpose import FOUR

TASKS = 8  # tasks that two to eight threads can share out
LONG, REUSED = 64, 4  # depth and panels from which copying an A that walks along rows pays
RUN = 16  # elements of 4 bytes in a cache line
FEW = 16  # a lack of row tiles in one group that is worth spreading: one in so many
SHARE, SHARED = 4, 16  # row tiles of a task with a cut depth, at least: that read B in place, that copy it
DEEPEST = 512  # turns of the depth in a block: so many of a tile's rows of A stay in the first cache
LARGEST = 32 * 1024  # bytes of a panel, for each lane of the target, from which the depth is cut
SECOND = 256 * 1024  # bytes of B in a block, and of an A in place, which a second cache has beside the sums
STACK = 1024  # bytes from which TVM asks its pool for scratch memory


@attrs.frozen
class Blocks:
    """Pieces of a deep product that stay in the caches: turns of the depth, and panels that a task has. ``near``: A
    walks along rows so short that a block of it stays in the second cache as it lies."""

    depth: int
    panels: int
    near: bool = False


@attrs.frozen
class Shares:
    """``tiles`` row tiles in ``groups`` groups, of which none is empty."""

    tiles: int
    groups: int

    @property
    def each(self) -> int:
        """Tiles of a group, at most."""
        return -(-self.tiles // self.groups)

    @property
    def is_spread(self) -> bool:
        """Do several groups have one tile less, spread among the others? Else the last one has all that is lacking.
        Threads take neighbours, of which they so have equal shares; of many tiles they have them anyway."""
        return FEW * (self.each * self.groups - self.tiles) > self.tiles

    def first(self, group: Expr) -> Expr:
        """The first tile of a group."""
        return tirx.floordiv(group * self.tiles, i64(self.groups)) if self.is_spread else group * self.each

    def count(self, group: Expr) -> Expr:
        """How many tiles a group has."""
        if self.is_spread:
            return self.first(group + 1) - self.first(group)
        return fewer(self.each, self.tiles, group * self.each)


@attrs.frozen(eq=False)
class Job:
    """One product and how it is cut. What becomes of B, ``packed``: none, turn (where the one tile of rows uses it),
    task (each task copies its panel) or all (copied before the tasks)."""

    ctx: NestContext
    one: Contraction
    after: tuple[Stage, ...]
    tile: Tile
    packed: str
    groups: int
    panels: Any
    tall: Any = None  # A as [batch][tile][depth][row], where it is copied beforehand
    inside: tuple[Expr, ...] | None = None  # the batch axes' values, where a task holds the whole product
    blocks: Blocks | None = None

    @property
    def dtype(self) -> str:
        return str(self.one.stage.buffer.dtype)

    @property
    def zero(self) -> Any:
        """What a sum begins with."""
        assert self.one.stage.reduction is not None
        return self.one.stage.reduction.init

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
        item = 4 if self.dtype == "float32" else 8
        return RUN if RUN * self.tile.lanes * item < STACK else RUN // 2

    @property
    def row_tiles(self) -> int:
        return -(-self.one.m // self.tile.mr)

    @property
    def shares(self) -> Shares:
        return Shares(self.row_tiles, self.groups)

    def by_width(self, jo: Expr, body: Callable[[Expr, int], Stmt]) -> Stmt:
        """``body(number, columns)`` of panel ``jo``, which may be the narrower last one."""
        if not self.rest:
            return body(jo, self.tile.panel)
        last = body(i64(self.full), self.rest)
        return tirx.IfThenElse(jo < i64(self.full), body(jo, self.tile.panel), last) if self.full else last


def plan_product(
    ctx: NestContext, one: Contraction, after: tuple[Stage, ...], inside: tuple[Expr, ...] | None = None
) -> Job:
    """How ``one`` is cut, from its shape and the target alone. ``after``: the maps on its result; ``inside``: the
    values of its batch axes where the caller's task makes all of it, and nothing is shared out."""
    whole = str(one.stage.buffer.dtype) == "float32"
    lanes = ctx.lanes if whole else max(1, ctx.lanes // 2)
    sizes = Sizes(one.m, one.n, one.k, walk_of(ctx, one), 4 if whole else 8, half_load(one.b) is not None)
    tile = choose_tile(sizes, lanes, ctx.registers)
    count, tiles = -(-one.n // tile.panel), -(-one.m // tile.mr)
    rows = _walks_rows(ctx, one)
    blocks = _blocks(sizes, tile, one.count, rows) if inside is None else None
    if blocks is not None:
        sizes = attrs.evolve(sizes, m=min(one.m, 2 * SHARED * tile.mr), k=blocks.depth)
    copied = copies(sizes, tile)
    others = one.count * -(-count // (1 if blocks is None else blocks.panels))
    groups = 1 if inside is not None else _groups(tiles, 1 if blocks is None else SHARED if copied else SHARE, others)
    packed = "none" if not copied else "task" if groups == 1 or blocks is not None else "all"
    packed = "turn" if sizes.walk == DEPTH and tiles == 1 else packed
    panels = scratch([one.count, count, one.k, tile.panel], str(one.stage.buffer.dtype), "panels")
    tall = None
    if inside is None and rows and one.k >= LONG and count >= REUSED and not (blocks and blocks.near):
        tall = scratch([one.count, tiles, one.k, tile.mr], str(one.stage.buffer.dtype), "tall")
    return Job(ctx, one, after, tile, packed, groups, panels if packed == "all" else None, tall, inside, blocks)


def _groups(tiles: int, least: int, others: int) -> int:
    """Groups of ``least`` row tiles or more, so that there are TASKS tasks with ``others`` of each. One more where
    the tasks are odd in number, and two threads would have unequal shares of them: groups, where there are several,
    may so have a few tiles less than ``least``."""
    wanted = min(tiles // least, -(-TASKS // others))
    most = tiles if wanted > 1 else tiles // least
    return max(1, min(most, wanted + wanted * others % 2))


def fewer(each: int, all_: int, first: Expr) -> Expr:
    """How many of ``all_`` are there from ``first`` on, at most ``each``."""
    return i64(each) if all_ % each == 0 else tirx.min(i64(each), i64(all_) - first)


def _blocks(of: Sizes, tile: Tile, count: int, rows: bool) -> Blocks | None:
    """Of ``count`` products whose panels would leave the second cache, for rows enough to reuse them. ``rows``: A walks
    along rows."""
    turn = tile.panel * of.item
    if of.k * turn < LARGEST * tile.lanes or of.m < SHARE * tile.mr:
        return None
    near = rows and of.m * of.item <= PAGE
    most = min(DEEPEST, SECOND // (of.m * of.item) // RUN * RUN) if near else DEEPEST
    depths = range(most, most // 2, -RUN)
    depth = next((d for d in depths if of.k % d == 0), next(d for d in depths if of.k % d >= FOUR))
    panels = max(REUSED if near else 1, -(-count * -(-of.n // tile.panel) // TASKS))
    return Blocks(depth, max(1, min(panels, -(-of.n // tile.panel), SECOND // (depth * turn))), near)


def _walks_rows(ctx: NestContext, one: Contraction) -> bool:
    """Is A a plain read of memory whose last dimension is the product's one row axis? A tile would read a short piece
    of a line at each turn of the depth."""
    return _walks(ctx, one.a, one.rows)


def walk_of(ctx: NestContext, one: Contraction) -> str:
    """Along what B's memory walks."""
    return COLUMNS if walks_columns(ctx, one) else DEPTH if walks_depth(one) else ANY


def walks_depth(one: Contraction) -> bool:
    """Does B walk along the one axis of the depth, which is long enough to be turned?"""
    return len(one.stage.reduce) == 1 and one.k >= FOUR and is_contiguous(one.b, one.stage.reduce)


def walks_columns(ctx: NestContext, one: Contraction) -> bool:
    """Is B a plain read of memory whose last dimension is the product's one column axis?"""
    return _walks(ctx, one.b, one.columns)


def _walks(ctx: NestContext, factor: Expr, axes: Sequence[Axis]) -> bool:
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
    found = index_of(one.batch, job.inside if job.inside is not None else unravel(b, [a.extent for a in one.batch]))
    if row is not None:
        found |= index_of(one.rows, unravel(row, [a.extent for a in one.rows]))
    if column is not None:
        found |= index_of(one.columns, unravel(column, [a.extent for a in one.columns]))
    return found


def depth_of(job: Job, k: Expr) -> dict[Any, Expr]:
    """Axis variable -> its value at turn ``k`` of the depth."""
    return index_of(job.one.stage.reduce, unravel(k, [a.extent for a in job.one.stage.reduce]))


def read_a(job: Job, b: Expr, row: Expr, k: Expr) -> tuple[list[Stmt], Expr]:
    """The element of A, under a name, and the statements that have to come before its use."""
    point = ScalarWriter(job.ctx.virtual)
    value = point.bind(point.write(job.one.a, places_of(job, b, row, None) | depth_of(job, k)), "a")
    return point.binds, value


def read_b(job: Job, b: Expr, k: Expr, column: Expr) -> tuple[list[Stmt], Expr]:
    """The element of B, and the statements that have to come before its use."""
    point = ScalarWriter(job.ctx.virtual)
    value = point.write(job.one.b, places_of(job, b, None, column) | depth_of(job, k))
    return point.binds, value
