"""What of some rows of attention lies in a block's shared memory, and how many rows a block has."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import attrs

from ...tir.access import Access
from ...tir.buffer_reuse import is_last_read
from ...tir.builder import Load, is_int
from ...tir.context import NestContext
from ...tir.contraction import Contraction
from ...tir.reduction import LONG_ROW
from ...tir.row_group import RowGroup, local_buffers, row_length
from ...tir.stages import Axis, Stage
from ..threads.tile_staging import FLOAT4

THREADS = 256
ROOM = 48 << 10  # bytes of a block
ITEM = 4  # bytes of an element
ROWS = (32, 16, 8, 4, 2, 1)  # rows of a block; a thread of a product has four of them
COLUMNS = (256, 128, 64, 32)  # columns of a product that are made side by side
BLOCKS = 128  # blocks that fill a GPU
DEEP = 32  # rows of shared memory are whole multiples, as they are the depth of products
PIECE = 1024  # elements of the other factor that are loaded at once
SKEW = 4
BANKS = 32  # of shared memory, a word of 4 bytes each


@attrs.frozen(eq=False)
class Product:
    """A product of the group: ``left`` is the factor of its rows, ``right`` the other over ``columns``."""

    one: Contraction
    left: Any
    right: Any
    columns: tuple[Axis, ...]

    @property
    def n(self) -> int:
        return prod(a.extent for a in self.columns)


def as_product(one: Contraction, stage: Stage, lead: int) -> Product | None:
    """The product with its batch and rows the first ``lead`` axes, None if it is not so."""
    if str(stage.buffer.dtype) != "float32":
        return None
    for rows, columns, left, right in ((one.rows, one.columns, one.a, one.b), (one.columns, one.rows, one.b, one.a)):
        if len(rows) < 2 and (*one.batch, *rows) == stage.space[:lead] and columns == stage.space[lead:]:
            return Product(one, left, right, columns)
    return None


@attrs.frozen(eq=False)
class Memory:
    """``rows`` of a block and ``columns`` of its products side by side; ``lines``: buffer -> (which line of a row, its
    elements), lines of one number lying in one place."""

    rows: int
    columns: int
    lines: Mapping[Any, tuple[int, int]]

    def deep(self, columns: int) -> int:
        """Turns of the depth that are loaded at once."""
        return max(8, min(DEEP, PIECE // columns))

    def wide(self, n: int) -> int:
        """Columns of a product of ``n`` that are made side by side."""
        return min((c for c in COLUMNS if c >= n), default=self.columns) if n < self.columns else self.columns


def padded(elements: int) -> int:
    """Elements of a line that a product reads in whole pieces."""
    return -(-elements // DEEP) * DEEP


def skew(elements: int) -> int:
    """How much further than ``padded`` the next line begins, so that few threads of a warp meet in a bank: where a line
    of a map ends, the next goes on in the next bank; two lines of whole banks, 16 threads each, lie half of all apart.
    A multiple of four, which are read at once. Folds of LONG lines have a warp for each."""
    return 0 if elements >= LONG_ROW else elements % BANKS // FLOAT4 * FLOAT4 or BANKS // 2


def row_counts(heads: int, rows: int) -> list[int]:
    """How many of ``rows`` a block may have, the most first: enough blocks are left, and few rows are of nobody."""
    return [n for n in ROWS if n == 1 or (n < 2 * rows and heads * -(-rows // n) >= BLOCKS)]


def plan_memory(
    ctx: NestContext, found: RowGroup, products: Mapping[Any, Product], heads: int, rows: int
) -> Memory | None:
    """The most rows that fit and leave enough blocks; None if not even one fits."""
    lines = lines_of(ctx, found)
    kinds = [skewed(lines, {b: skew(row_length(b, found)) for b in lines}), lines]
    for count in row_counts(heads, rows):
        for columns in COLUMNS:
            plans = [Memory(count, columns, kind) for kind in kinds]
            plan = next((p for p in plans if _bytes(p, found, products) <= ROOM), None)
            if plan is not None:
                return plan
    return None


def _bytes(plan: Memory, found: RowGroup, products: Mapping[Any, Product]) -> int:
    kept = sum(dict(plan.lines.values()).values()) + copied(found, plan.lines, products)
    tiles = max(2 * plan.deep(c) * (c + SKEW) for c in (plan.wide(p.n) for p in products.values()))
    return ITEM * (plan.rows * kept + tiles)


def skewed(lines: Mapping[Any, tuple[int, int]], by: Mapping[Any, int]) -> dict[Any, tuple[int, int]]:
    """Lines of more than one element with so many more; those of one place alike."""
    pitch: dict[int, int] = {}
    for buffer, (place, n) in lines.items():
        pitch.setdefault(place, n if n == 1 else n + by[buffer])
    return {b: (place, pitch[place]) for b, (place, _) in lines.items()}


def lies_there(found: RowGroup, lines: Mapping[Any, Any], product: Product) -> bool:
    """Is the factor of the rows a buffer of the block's, along the depth?"""
    value, reduce = product.left, product.one.stage.reduce
    if not isinstance(value, Load) or value.source not in lines or len(reduce) != 1 or lines[value.source][1] == 1:
        return False
    return stands_at(found, Access(value.source, tuple(value.indices)), reduce[0].var)


def stands_at(found: RowGroup, read: Access, column: Any) -> bool:
    """Is the element that is read of a row the one at ``column``?"""
    free = [i for d, i in enumerate(read.indices) if d not in found.row_dims[read.buffer] and not is_int(i, 0)]
    return len(free) == 1 and free[0].same_as(column)


def copied(found: RowGroup, lines: Mapping[Any, Any], products: Mapping[Any, Product]) -> int:
    """Elements of a row for the factors that do not lie in the block: of one product at a time."""
    return max((padded(p.one.k) for p in products.values() if not lies_there(found, lines, p)), default=1)


def lines_of(ctx: NestContext, found: RowGroup) -> dict[Any, tuple[int, int]]:
    """A line for each buffer that nothing outside needs. A map writes over what it alone reads, at its own point."""
    local, lines = local_buffers(ctx, found), {}
    for place, stage in enumerate(found.stages):
        if stage.buffer not in local:
            continue
        over = next((b for b in lines if stage.is_elementwise and is_last_read(ctx, found, place, b)), None)
        mine = row_length(stage.buffer, found)
        lines[stage.buffer] = lines[over] if over is not None else (place, padded(mine) if mine > 1 else 1)
    return lines
