"""Which passes attention over K/V tiles makes: score stages, row results, and the outputs of each pass.

It takes a fused row group. A result that needs another, as a softmax's sum needs the row max, goes into a later pass;
each pass makes the scores that it needs again. Results keep the group's order; how columns are summed is decided by
``kv_tiled`` and ``tensor_core``, which write the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ...tir.access import reads_of
from ...tir.context import NestContext
from ...tir.epilogue import epilogue_stages
from ...tir.reduction import LONG_ROW
from ...tir.row_group import RowGroup
from ...tir.stages import Stage, variables
from .shared_memory import (
    COLUMNS,
    ELEMENT_BYTES,
    MAX_SHARED_BYTES,
    TILE_PADDING,
    Memory,
    Product,
    assign_regions,
    is_a_in_shared,
    padded_length,
    reads_at_column,
    row_counts,
    row_padding,
    with_padding,
)

# Score columns of a K/V tile: as many as the most lanes of a reduction, so that tiles change no order. With fewer, a
# lane of a long row would not get the columns that the CPU gives it.
TILE_COLUMNS = 64
# Columns a row for neighbouring threads where memory runs along rows: 4 columns by 8 rows a warp. Chosen, not measured;
# fewer coalesce better and conflict more in shared memory.
TRANSPOSED_WIDTH = 4


@attrs.frozen(eq=False)
class Pass:
    """``steps``: stages for each tile, in order. ``results``: the reductions and output products among them, none of
    which needs another; but for an online softmax, with its ``row_max`` and ``row_sum``."""

    steps: tuple[Stage, ...]
    results: tuple[Stage, ...]
    row_max: Stage | None = None
    row_sum: Stage | None = None

    @property
    def score_stages(self) -> list[Stage]:
        """The score stages that the results need."""
        return [s for s in self.steps if s not in self.results]


@attrs.frozen(eq=False)
class KvTiledPlan:
    """``passes`` over ``extent`` columns. ``epilogues``: elementwise stages on each output product. ``memory``: regions
    of TILE_COLUMNS elements a row, plus padding."""

    ctx: NestContext
    fused: RowGroup
    products: Mapping[Any, Product]
    extent: int
    passes: tuple[Pass, ...]
    epilogues: Mapping[Any, tuple[Stage, ...]]
    memory: Memory

    @property
    def score_stages(self) -> list[Stage]:
        return [s for s in self.fused.stages if any(s in p.score_stages for p in self.passes)]

    @property
    def cost(self) -> int:
        """Multiply-adds of a row: scores are made once a pass."""
        products = [s for p in self.passes for s in p.steps if s in self.products]
        return sum(self.products[s].n * s.depth for s in products)

    def tile_n(self, product: Product) -> int:
        """Columns of a matmul that are made at once: all of an output product's."""
        return (
            TILE_COLUMNS
            if product.contraction.stage.buffer in self.memory.regions
            else min(c for c in COLUMNS if c >= product.n)
        )

    def reads_transposed(self, stage: Stage) -> bool:
        """Does an elementwise stage read memory along rows, as the mask of transposed scores does?"""
        row, column = (stage.space[self.fused.lead + d].var for d in (-1, 0))
        reads = [
            r.dimensions()
            for r in reads_of(self.ctx, stage)
            if stage.is_elementwise and r.buffer not in self.memory.regions
        ]
        return any(p and p[-1][0].same_as(row) and column in variables([i for i, _ in p[:-1]]) for p in reads)

    @property
    def padding(self) -> int:
        """Elements between the end of a row and the next, against bank conflicts."""
        if any(self.reads_transposed(s) for s in self.score_stages):
            return TRANSPOSED_WIDTH
        return row_padding(TILE_COLUMNS) if self.extent < LONG_ROW else 0

    def shared_bytes(self, rows: int, regions: Mapping[Any, tuple[int, int]]) -> int:
        a_copies = sum(padded_length(self.products[s].contraction.k) for s in self.score_stages if s in self.products)
        elements = sum(dict(regions.values()).values()) + a_copies
        widths = [self.tile_n(p) for p in self.products.values()]
        return ELEMENT_BYTES * (rows * elements + max(2 * self.memory.tile_k(w) * (w + TILE_PADDING) for w in widths))


def plan_kv_tiled(
    ctx: NestContext, fused: RowGroup, products: Mapping[Any, Product], heads: int, rows: int
) -> KvTiledPlan | None:
    """None if not all of its stages are of such kinds, or not even a row fits."""
    kv_plan = read_kv_tiled(ctx, fused, products)
    if kv_plan is None:
        return None
    regions = kv_plan.memory.regions
    # Padding goes before a row does: rows share the loads of K and V, and a bank conflict costs less than loading them
    # again for fewer.
    layouts = [with_padding(regions, dict.fromkeys(regions, kv_plan.padding)), regions]
    for count in row_counts(heads, rows):
        fitting = [layout for layout in layouts if kv_plan.shared_bytes(count, layout) <= MAX_SHARED_BYTES]
        if fitting:
            return attrs.evolve(kv_plan, memory=Memory(count, TILE_COLUMNS, fitting[0]))
    return None


def read_kv_tiled(ctx: NestContext, fused: RowGroup, products: Mapping[Any, Product]) -> KvTiledPlan | None:
    """The passes, for blocks of a row; None if not all stages are of such kinds."""
    column_axes = fused.stages[0].space[fused.lead :]
    all_regions = assign_regions(ctx, fused)
    last_products = [s for s, p in products.items() if is_a_in_shared(fused, all_regions, p)]
    outputs = {s: [m for m in fused.stages if _is_epilogue(ctx, s, m)] for s in last_products}
    written = {s.buffer for product, epilogue in outputs.items() for s in (product, *epilogue)}
    regions = {b: (region, TILE_COLUMNS if n > 1 else 1) for b, (region, n) in all_regions.items() if b not in written}
    kinds = _StageKinds(ctx, fused, products, regions, column_axes[0].extent if len(column_axes) == 1 else 0, outputs)
    passes, epilogues = kinds.passes(), kinds.epilogues()
    if passes is None or epilogues is None:
        return None
    return KvTiledPlan(ctx, fused, products, kinds.extent, passes, epilogues, Memory(1, TILE_COLUMNS, regions))


@attrs.frozen(eq=False)
class _StageKinds:
    """What each stage of a group is."""

    ctx: NestContext
    fused: RowGroup
    products: Mapping[Any, Product]
    regions: Mapping[Any, tuple[int, int]]
    extent: int
    outputs: Mapping[Any, Sequence[Stage]]

    def is_score_stage(self, stage: Stage) -> bool:
        """Does it make a matrix of scores, each element from its own coordinates alone?"""
        free = stage.space[self.fused.lead :]
        spans_columns = stage.buffer in self.regions and [a.extent for a in free] == [self.extent]
        return (
            spans_columns
            and stage not in self.outputs
            and (stage in self.products or self._reads_at(stage, free[0].var))
        )

    def is_result(self, stage: Stage) -> bool:
        if self.is_score_stage(stage):  # of as many columns as they are deep
            return False
        if stage in self.outputs:
            product = self.products[stage]
            # All output columns are made at once, since their accumulators stay in registers from the first tile to the
            # last.
            a_is_elementwise = any(s.is_elementwise and s.buffer.same_as(product.a.source) for s in self.fused.stages)
            return a_is_elementwise and product.n <= max(COLUMNS) and stage.depth == self.extent
        return stage.reduction is not None and stage.depth == self.extent and self._reads_at(stage, stage.reduce[0].var)

    def _reads_at(self, stage: Stage, column: Any) -> bool:
        """Does it read score matrices at this column alone?"""
        matrices = [r for r in reads_of(self.ctx, stage) if self.regions.get(r.buffer, (0, 1))[1] > 1]
        return all(reads_at_column(self.fused, x, column) for x in matrices)

    def epilogues(self) -> dict[Any, tuple[Stage, ...]] | None:
        """The epilogue of each output product; None if a stage is of no kind."""
        remaining = {s for s in self.fused.stages if not self.is_score_stage(s) and not self.is_result(s)}
        in_epilogues = {m for epilogue in self.outputs.values() for m in epilogue}
        return {s: tuple(epilogue) for s, epilogue in self.outputs.items()} if remaining == in_epilogues else None

    def passes(self) -> tuple[Pass, ...] | None:
        """Results in order, as many a pass as need no other of the same pass."""
        groups: list[list[Stage]] = []
        for stage in filter(self.is_result, self.fused.stages):
            needed = {b for s in (stage, *self._score_stages_of(stage)) for b in _buffers_read(self.ctx, s)}
            if groups and not any(s.buffer in needed for s in groups[-1]):
                groups[-1].append(stage)
            else:
                groups.append([stage])
        steps = [{*g, *(s for x in g for s in self._score_stages_of(x))} for g in groups]
        passes = [
            Pass(tuple(s for s in self.fused.stages if s in m), tuple(g)) for m, g in zip(steps, groups, strict=True)
        ]
        # A score stage that no pass needs would not be made at all: such a group is refused.
        in_passes = {s for p in passes for s in p.score_stages}
        return tuple(passes) if passes and in_passes == set(filter(self.is_score_stage, self.fused.stages)) else None

    def _score_stages_of(self, result: Stage) -> list[Stage]:
        makers, todo, needed = {s.buffer: s for s in filter(self.is_score_stage, self.fused.stages)}, [result], set()
        while todo:
            new = {makers[b] for b in _buffers_read(self.ctx, todo.pop()) if b in makers} - needed
            needed |= new
            todo += new
        return [s for s in self.fused.stages if s in needed]


def _buffers_read(ctx: NestContext, stage: Stage) -> set[Any]:
    return {r.buffer for r in reads_of(ctx, stage)}


def _is_epilogue(ctx: NestContext, product: Stage, stage: Stage) -> bool:
    return (
        stage.is_elementwise
        and product.buffer in _buffers_read(ctx, stage)
        and bool(epilogue_stages(ctx, product, [stage]))
    )
