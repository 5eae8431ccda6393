"""Partition of a CPU matmul, as in BLIS: the register tile, which operands are packed, k blocks, tasks.

Columns are cut into panels as wide as a register tile, rows into tiles, and row tiles into groups. A task is a panel
(of a blocked k: several) against a group. All follows from the shape and the target, never from the number of threads.
An element is summed in a single task in the order of k, so nothing here changes bits; a bad constant costs speed.
"""

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
from .matmul_cost import (
    B_ALONG_COLUMNS,
    B_ALONG_K,
    B_STRIDED,
    MIN_PAGE_STRIDE,
    MatmulShape,
    Tile,
    choose_tile,
    packs_b,
)
from .register_transpose import TRANSPOSE_COLUMNS

# Chosen, not measured.
MIN_TASKS = 8  # tasks: two to eight threads then have nearly equal shares
MIN_PACKED_K, MIN_A_REUSE = 64, 4  # k, and panels that read A: below, packing an A contiguous along rows is not repaid
LINE_ELEMENTS = 16  # elements of 4 bytes in a cache line
IMBALANCE_LIMIT = 16  # row tiles: if more than 1 in so many is missing in the last group, all groups share the lack
MIN_GROUP_TILES = 4  # row tiles of a task with k blocks that reads B in place: fewer reuse the block too rarely
MIN_PACKING_GROUP_TILES = 16  # the same where the task packs B's block, which costs as much as some row tiles
MAX_BLOCK_K = 512  # k of a block: so much of a tile's rows of A stays in L1
MIN_BLOCKED_PANEL_BYTES = 32 * 1024  # bytes of a panel for each lane from which k is blocked: it would leave L2
L2_BYTES = 256 * 1024  # of L2 that a block of B may take beside the sums; as many for a block of an A in place
MAX_STACK_BYTES = 1024  # of a buffer; TVM takes one as large from its memory pool, in every task (kMaxStackAlloca)


@attrs.frozen
class KBlocks:
    """``k`` of a block, and ``panels`` of a task, that keep a block of B in L2. ``keeps_a``: A is contiguous along
    rows that are so short that its block stays in L2 too, and is read in place."""

    k: int
    panels: int
    keeps_a: bool = False


@attrs.frozen
class RowPartition:
    """``tiles`` row tiles in ``groups`` groups, none of them empty."""

    tiles: int
    groups: int

    @property
    def max_tiles(self) -> int:
        """Tiles of the largest group."""
        return -(-self.tiles // self.groups)

    @property
    def is_balanced(self) -> bool:
        """Do several groups have a tile less than the others, in turn? Else the last group alone has fewer.

        A thread takes neighbouring tasks, so this gives threads equal shares; of many tiles they have them anyway."""
        return IMBALANCE_LIMIT * (self.max_tiles * self.groups - self.tiles) > self.tiles

    def first(self, group: Expr) -> Expr:
        """The first tile of a group."""
        return tirx.floordiv(group * self.tiles, i64(self.groups)) if self.is_balanced else group * self.max_tiles

    def count(self, group: Expr) -> Expr:
        """How many tiles a group has."""
        if self.is_balanced:
            return self.first(group + 1) - self.first(group)
        return clipped_count(self.max_tiles, self.tiles, group * self.max_tiles)


@attrs.frozen(eq=False)
class MatmulPlan:
    """A product and its partition.

    epilogue:      elementwise stages on the result, done on a tile before it is stored
    b_packing:     none; all (packed before the tasks), task (a task packs what it reads), or transpose (the only row
                   tile transposes B in registers as it goes)
    row_groups:    groups of row tiles
    packed_b:      B as [batch][panel][k][column], where all of it is packed
    packed_a:      A as [batch][tile][k][row], where it is packed
    batch_indices: of the product, where it is done inside a task of the caller's
    """

    ctx: NestContext
    product: Contraction
    epilogue: tuple[Stage, ...]
    tile: Tile
    b_packing: str
    row_groups: int
    packed_b: Any
    packed_a: Any = None
    batch_indices: tuple[Expr, ...] | None = None
    k_blocks: KBlocks | None = None

    @property
    def dtype(self) -> str:
        return str(self.product.stage.buffer.dtype)

    @property
    def init(self) -> Any:
        """What a sum starts with."""
        assert self.product.stage.reduction is not None
        return self.product.stage.reduction.init

    @property
    def full_panels(self) -> int:
        return self.product.n // self.tile.panel

    @property
    def last_width(self) -> int:
        """Columns of the narrower last panel; 0: there is none."""
        return self.product.n % self.tile.panel

    @property
    def panels(self) -> int:
        """Panels, the narrower last one included."""
        return self.full_panels + (1 if self.last_width else 0)

    @property
    def transpose_k(self) -> int:
        """How many k are transposed at a time: a cache line of each row of B, half of it if that fits no stack."""
        item_bytes = 4 if self.dtype == "float32" else 8
        return LINE_ELEMENTS if LINE_ELEMENTS * self.tile.lanes * item_bytes < MAX_STACK_BYTES else LINE_ELEMENTS // 2

    @property
    def row_tiles(self) -> int:
        return -(-self.product.m // self.tile.mr)

    @property
    def row_partition(self) -> RowPartition:
        return RowPartition(self.row_tiles, self.row_groups)

    def for_panel(self, panel: Expr, body: Callable[[Expr, int], Stmt]) -> Stmt:
        """``body(panel, width)``: two copies of it, if the last panel is narrower, as a width is static."""
        if not self.last_width:
            return body(panel, self.tile.panel)
        last = body(i64(self.full_panels), self.last_width)
        if not self.full_panels:
            return last
        return tirx.IfThenElse(panel < i64(self.full_panels), body(panel, self.tile.panel), last)


def plan_matmul(
    ctx: NestContext,
    product: Contraction,
    epilogue: tuple[Stage, ...],
    batch_indices: tuple[Expr, ...] | None = None,
) -> MatmulPlan:
    """The plan, from the product's shape and the target alone. ``batch_indices``: the product is done at these inside a
    task of the caller's, so that it has a single group and no block."""
    dtype = str(product.stage.buffer.dtype)
    is_float32 = dtype == "float32"
    lanes = ctx.lanes if is_float32 else max(1, ctx.lanes // 2)
    item_bytes = 4 if is_float32 else 8
    shape = MatmulShape(
        product.m, product.n, product.k, b_layout(ctx, product), item_bytes, half_load(product.b) is not None
    )
    tile = choose_tile(shape, lanes, ctx.registers)
    panels, row_tiles = -(-product.n // tile.panel), -(-product.m // tile.mr)
    a_along_rows = _is_a_along_rows(ctx, product)
    k_blocks = _k_blocks(shape, tile, product.count, a_along_rows) if batch_indices is None else None
    if k_blocks is not None:
        # Whether packing pays is decided for a single block and the row tiles of a usual task.
        shape = attrs.evolve(shape, m=min(product.m, 2 * MIN_PACKING_GROUP_TILES * tile.mr), k=k_blocks.k)
    packs = packs_b(shape, tile)
    column_tasks = product.count * -(-panels // (1 if k_blocks is None else k_blocks.panels))
    min_tiles = 1 if k_blocks is None else MIN_PACKING_GROUP_TILES if packs else MIN_GROUP_TILES
    groups = 1 if batch_indices is not None else _row_groups(row_tiles, min_tiles, column_tasks)
    transposes = shape.b_layout == B_ALONG_K and row_tiles == 1
    b_packing = "transpose" if transposes else _b_packing(packs, groups, k_blocks)
    packed_a = packed_b = None
    if b_packing == "all":
        packed_b = scratch([product.count, panels, product.k, tile.panel], dtype, "packed_b")
    packs_a = a_along_rows and product.k >= MIN_PACKED_K and panels >= MIN_A_REUSE
    if batch_indices is None and packs_a and not (k_blocks and k_blocks.keeps_a):
        packed_a = scratch([product.count, row_tiles, product.k, tile.mr], dtype, "packed_a")
    return MatmulPlan(ctx, product, epilogue, tile, b_packing, groups, packed_b, packed_a, batch_indices, k_blocks)


def _b_packing(packs: bool, groups: int, k_blocks: KBlocks | None) -> str:
    """Who packs B. A panel that several tasks read is packed once, beforehand.

    A task packs what it reads alone, into its core's caches; blocks of k too, as all of B would leave the caches."""
    if not packs:
        return "none"
    return "task" if groups == 1 or k_blocks is not None else "all"


def _row_groups(row_tiles: int, min_tiles: int, column_tasks: int) -> int:
    """Groups of at least ``min_tiles`` row tiles, so many that there are MIN_TASKS tasks, ``column_tasks`` a group.

    A group more if the number of tasks is odd, as two threads would have unequal shares: then groups, if there are
    several, may have a few tiles less than ``min_tiles``."""
    wanted = min(row_tiles // min_tiles, -(-MIN_TASKS // column_tasks))
    max_groups = row_tiles if wanted > 1 else row_tiles // min_tiles
    return max(1, min(max_groups, wanted + wanted * column_tasks % 2))


def clipped_count(count: int, total: int, first: Expr) -> Expr:
    """``count``, or how many of ``total`` remain from ``first`` on."""
    return i64(count) if total % count == 0 else tirx.min(i64(count), i64(total) - first)


def _k_blocks(shape: MatmulShape, tile: Tile, count: int, a_along_rows: bool) -> KBlocks | None:
    """The blocks of ``count`` products, if their panels would leave L2 and rows are enough to reuse a block of B."""
    bytes_per_k = tile.panel * shape.item_bytes
    if shape.k * bytes_per_k < MIN_BLOCKED_PANEL_BYTES * tile.lanes or shape.m < MIN_GROUP_TILES * tile.mr:
        return None
    a_bytes_per_k = shape.m * shape.item_bytes
    keeps_a = a_along_rows and a_bytes_per_k <= MIN_PAGE_STRIDE
    max_k = min(MAX_BLOCK_K, L2_BYTES // a_bytes_per_k // LINE_ELEMENTS * LINE_ELEMENTS) if keeps_a else MAX_BLOCK_K
    # A length that divides k, so that all blocks share their code; else one whose last block can be transposed.
    lengths = range(max_k, max_k // 2, -LINE_ELEMENTS)
    k = next((length for length in lengths if shape.k % length == 0), None)
    k = k or next(length for length in lengths if shape.k % length >= TRANSPOSE_COLUMNS)
    panels = -(-shape.n // tile.panel)
    panels_per_task = max(MIN_A_REUSE if keeps_a else 1, -(-count * panels // MIN_TASKS))
    return KBlocks(k, max(1, min(panels_per_task, panels, L2_BYTES // (k * bytes_per_k))), keeps_a)


def _is_a_along_rows(ctx: NestContext, product: Contraction) -> bool:
    """Is A contiguous along its single row axis? In place, a tile would read a short piece of a new line for each k."""
    return _is_contiguous_along(ctx, product.a, product.rows)


def b_layout(ctx: NestContext, product: Contraction) -> str:
    """The axis along which B is contiguous."""
    return B_ALONG_COLUMNS if is_b_along_columns(ctx, product) else B_ALONG_K if is_b_along_k(product) else B_STRIDED


def is_b_along_k(product: Contraction) -> bool:
    """Is B contiguous along its single k axis, which is long enough for a register transpose?"""
    reduce_axes = product.stage.reduce
    return len(reduce_axes) == 1 and product.k >= TRANSPOSE_COLUMNS and is_contiguous(product.b, reduce_axes)


def is_b_along_columns(ctx: NestContext, product: Contraction) -> bool:
    """Is B contiguous along its single column axis?"""
    return _is_contiguous_along(ctx, product.b, product.columns)


def _is_contiguous_along(ctx: NestContext, operand: Expr, axes: Sequence[Axis]) -> bool:
    """Is the operand a plain load, with the only axis of ``axes`` as its last index?"""
    read = plain_load(operand)
    if read is None or read.source in ctx.virtual.stages or len(axes) != 1:
        return False
    var = axes[0].var
    return read.indices[-1].same_as(var) and var not in variables(list(read.indices[:-1]))


def row_index(plan: MatmulPlan, first: Expr, r: int) -> Expr:
    """Row ``r`` of a tile, clamped to the last row of A, so that rows past the end need no code of their own."""
    may_exceed = plan.product.m % plan.tile.mr and r
    return tirx.min(first + r, i64(plan.product.m - 1)) if may_exceed else first + r


def coords_of(plan: MatmulPlan, batch: Expr, row: Expr | None, column: Expr | None) -> dict[Any, Expr]:
    """Coordinates (axis variable -> index) of flat numbers of a matrix, a row and a column, where these are given."""
    product = plan.product
    batch_indices = plan.batch_indices
    if batch_indices is None:
        batch_indices = unravel(batch, [a.extent for a in product.batch])
    coords = index_of(product.batch, batch_indices)
    if row is not None:
        coords |= index_of(product.rows, unravel(row, [a.extent for a in product.rows]))
    if column is not None:
        coords |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
    return coords


def k_coords(plan: MatmulPlan, k: Expr) -> dict[Any, Expr]:
    """Coordinates of the flat number ``k``."""
    axes = plan.product.stage.reduce
    return index_of(axes, unravel(k, [a.extent for a in axes]))


def read_a(plan: MatmulPlan, batch: Expr, row: Expr, k: Expr) -> tuple[list[Stmt], Expr]:
    """The element of A as a variable, and the statements that its use needs before it."""
    writer = ScalarWriter(plan.ctx.virtual)
    coords = coords_of(plan, batch, row, None) | k_coords(plan, k)
    value = writer.bind(writer.write(plan.product.a, coords), "a")
    return writer.binds, value


def read_b(plan: MatmulPlan, batch: Expr, k: Expr, column: Expr) -> tuple[list[Stmt], Expr]:
    """The element of B, and the statements that its use needs before it."""
    writer = ScalarWriter(plan.ctx.virtual)
    value = writer.write(plan.product.b, coords_of(plan, batch, None, column) | k_coords(plan, k))
    return writer.binds, value
