"""Shared-memory layout of attention: which intermediates stay in a block, row padding, and rows per block.

It takes a group of fused stages. A block of 256 threads has up to 32 rows of a head. Each intermediate has a region:
rows of equal pitch; an elementwise stage may overwrite its input. The layout changes no order of sums.
"""

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

# Threads of a block. Chosen, not measured: register tiles and the rows of a thread follow from it, but no bit does.
# THREADS, ROWS and COLUMNS are powers of two, so that ``RowMatmul.make`` deals them out evenly. Other THREADS, or
# another most of ROWS, change this module's first lines, TILE_ELEMENTS (four a thread), docs/gpu-schedules.md
# ("Attention in float32"), and the blocks that tests/schedules/gpu/test_attention_kv_tiled.py expects.
THREADS = 256
# Bytes of shared memory of a block on every GPU without opt-in. A plan that needs more is refused.
MAX_SHARED_BYTES = 48 << 10
ELEMENT_BYTES = 4  # bytes of an element
# Rows of a block, most first: they share the loads of K and V. A thread of a matmul has four of them.
ROWS = (32, 16, 8, 4, 2, 1)
# Output columns of a matmul that are made at once, most first: A is read again for each part.
COLUMNS = (256, 128, 64, 32)
# Blocks that fill a GPU: about as many as multiprocessors. Chosen, not measured; fewer leave some idle, and a larger
# number makes blocks of fewer rows, which load K and V more often.
MIN_BLOCKS = 128
# Most k steps of a tile. Rows are padded to multiples of it, since they are the k of later products.
TILE_K = 32
# Elements of a B tile: four a thread, the widest load. More take shared memory from rows.
TILE_ELEMENTS = 1024
# Elements a tile row may be padded by at most (``tile_staging``): reserved in each tile, whatever its operand's layout.
TILE_PADDING = 4
BANKS = 32  # of shared memory, a word of 4 bytes each


@attrs.frozen(eq=False)
class Product:
    """A matmul of the group: ``a`` has its rows, ``b`` its ``columns``."""

    contraction: Contraction
    a: Any
    b: Any
    columns: tuple[Axis, ...]

    @property
    def n(self) -> int:
        return prod(a.extent for a in self.columns)


def as_product(contraction: Contraction, stage: Stage, lead: int) -> Product | None:
    """The product with its batch and rows the first ``lead`` axes, None if it is not so."""
    if str(stage.buffer.dtype) != "float32":
        return None
    for rows, columns, a, b in (
        (contraction.rows, contraction.columns, contraction.a, contraction.b),
        (contraction.columns, contraction.rows, contraction.b, contraction.a),
    ):
        if len(rows) < 2 and (*contraction.batch, *rows) == stage.space[:lead] and columns == stage.space[lead:]:
            return Product(contraction, a, b, columns)
    return None


@attrs.frozen(eq=False)
class Memory:
    """``rows`` of a block, and ``columns`` of its matmuls at once. ``regions``: buffer -> (region, pitch in elements);
    buffers of a region share their memory."""

    rows: int
    columns: int
    regions: Mapping[Any, tuple[int, int]]

    def tile_k(self, columns: int) -> int:
        """k steps of a B tile."""
        # At least 8, chosen: at 256 columns a barrier would else come after 4 k steps.
        return max(8, min(TILE_K, TILE_ELEMENTS // columns))

    def tile_n(self, n: int) -> int:
        """Columns that are made at once of a matmul with ``n``."""
        return min((c for c in COLUMNS if c >= n), default=self.columns) if n < self.columns else self.columns


def padded_length(elements: int) -> int:
    """Elements of a row that a matmul reads in full k tiles."""
    return -(-elements // TILE_K) * TILE_K


def row_padding(elements: int) -> int:
    """Elements between the end of a row and the next, against bank conflicts between rows of a warp.

    A multiple of four, for float4 loads. A row that ends within the banks goes on in the next bank; two rows that end
    with the last bank, 16 threads each, lie half of all banks apart. A row of LONG_ROW has a warp of its own: none."""
    if elements >= LONG_ROW:
        return 0
    return elements % BANKS // FLOAT4 * FLOAT4 or BANKS // 2


def row_counts(heads: int, rows: int) -> list[int]:
    """How many of ``rows`` a block may have, the most first: enough blocks are left, and few rows are idle."""
    return [n for n in ROWS if n == 1 or (n < 2 * rows and heads * -(-rows // n) >= MIN_BLOCKS)]


def plan_memory(
    ctx: NestContext, fused: RowGroup, products: Mapping[Any, Product], heads: int, rows: int
) -> Memory | None:
    """The most rows that fit and leave enough blocks; None if not even a row fits."""
    regions = assign_regions(ctx, fused)
    # Rows count most, since they share the loads of K and V, then columns at once, then padding: it is what goes first.
    layouts = [with_padding(regions, {b: row_padding(row_length(b, fused)) for b in regions}), regions]
    for count in row_counts(heads, rows):
        for columns in COLUMNS:
            plans = [Memory(count, columns, layout) for layout in layouts]
            plan = next((p for p in plans if _shared_bytes(p, fused, products) <= MAX_SHARED_BYTES), None)
            if plan is not None:
                return plan
    return None


def _shared_bytes(plan: Memory, fused: RowGroup, products: Mapping[Any, Product]) -> int:
    resident = sum(dict(plan.regions.values()).values()) + copied_elements(fused, plan.regions, products)
    tiles = max(2 * plan.tile_k(c) * (c + TILE_PADDING) for c in (plan.tile_n(p.n) for p in products.values()))
    return ELEMENT_BYTES * (plan.rows * resident + tiles)


def with_padding(regions: Mapping[Any, tuple[int, int]], padding: Mapping[Any, int]) -> dict[Any, tuple[int, int]]:
    """Adds padding to rows of several elements; a region has a single pitch."""
    pitch: dict[int, int] = {}
    for buffer, (region, n) in regions.items():
        pitch.setdefault(region, n if n == 1 else n + padding[buffer])
    return {b: (region, pitch[region]) for b, (region, _) in regions.items()}


def is_a_in_shared(fused: RowGroup, regions: Mapping[Any, Any], product: Product) -> bool:
    """Is the row operand a resident buffer, read along k?"""
    value, reduce = product.a, product.contraction.stage.reduce
    if not isinstance(value, Load) or value.source not in regions or len(reduce) != 1 or regions[value.source][1] == 1:
        return False
    return reads_at_column(fused, Access(value.source, tuple(value.indices)), reduce[0].var)


def reads_at_column(fused: RowGroup, read: Access, column: Any) -> bool:
    """Is the element at ``column`` what is read of a row?"""
    free = [i for d, i in enumerate(read.indices) if d not in fused.row_dims[read.buffer] and not is_int(i, 0)]
    return len(free) == 1 and free[0].same_as(column)


def copied_elements(fused: RowGroup, regions: Mapping[Any, Any], products: Mapping[Any, Product]) -> int:
    """Elements of a row for row operands that must be copied to shared memory, for each matmul in turn."""
    return max(
        (padded_length(p.contraction.k) for p in products.values() if not is_a_in_shared(fused, regions, p)), default=1
    )


def assign_regions(ctx: NestContext, fused: RowGroup) -> dict[Any, tuple[int, int]]:
    """A region for each buffer that stays in the block. An elementwise stage overwrites an input that it reads last."""
    local, regions = local_buffers(ctx, fused), {}
    for index, stage in enumerate(fused.stages):
        if stage.buffer not in local:
            continue
        overwritten = next((b for b in regions if stage.is_elementwise and is_last_read(ctx, fused, index, b)), None)
        length = row_length(stage.buffer, fused)
        regions[stage.buffer] = (
            regions[overwritten] if overwritten is not None else (index, padded_length(length) if length > 1 else 1)
        )
    return regions
