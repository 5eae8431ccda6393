"""CPU matmul, as in BLIS: packed panels of B, a micro-kernel with C in registers, an epilogue on the tile.

Taken: a contraction with any batch, rows, columns and k, and the elementwise stages on its result. A task is a panel of
B against a group of row tiles (``matmul_tiling.py``). Lanes past the last column are not stored; rows past the end read
the last row and are not stored: any m, n and k run the same code. A single task sums an element in the order of k, by
fused multiply-adds. A panel that would leave L2 is blocked along k (``matmul_k_blocked.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tvm import tirx

from ..tir.builder import SERIAL, Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ..tir.context import NestContext, block, parallel_loop
from ..tir.contraction import Contraction
from ..tir.let_buffers import bind_in_buffers
from ..tir.stages import Stage
from ..tir.thread_cost import stages_nanoseconds
from .matmul_k_blocked import k_blocked_nest
from .matmul_microkernel import (
    Accumulators,
    LoadB,
    Spans,
    accumulators_of,
    for_each_accumulator,
    k_loop,
    outer_product,
    spans_of,
    store_row,
)
from .matmul_packing import pack_a_tiles, pack_all_panels, pack_panel, transpose_b
from .matmul_tiling import MatmulPlan, plan_matmul, read_b
from .register_transpose import TRANSPOSE_COLUMNS

Iteration = Callable[[Expr, LoadB], Stmt]  # an iteration of the k loop for a whole tile
KLoop = Callable[[Iteration], list[Stmt]]  # all iterations, in order


def matmul_nest(ctx: NestContext, product: Contraction, epilogue: Sequence[Stage]) -> Stmt:
    """The product, and the elementwise stages ``epilogue`` on its result."""
    plan = plan_matmul(ctx, product, tuple(epilogue))
    nanoseconds = stages_nanoseconds(ctx.virtual, [product.stage, *epilogue], {product.stage}, ctx.lanes)
    pack_a = [pack_a_tiles(plan)] if plan.packed_a is not None else []
    if plan.k_blocks is not None:
        return seq([*pack_a, k_blocked_nest(plan, nanoseconds)])
    # Panels are innermost: neighbouring tasks read the same rows of A.
    extents = [product.count, plan.row_groups, plan.panels]

    def task(flat: Expr) -> Stmt:
        batch, group, panel = unravel(flat, extents)
        return _task(plan, batch, panel, group)

    tasks = parallel_loop(ctx, product.count * plan.row_groups * plan.panels, task, nanoseconds)
    return seq([*pack_a, *([pack_all_panels(plan)] if plan.b_packing == "all" else []), tasks])


def product_body(
    ctx: NestContext, product: Contraction, epilogue: Sequence[Stage], batch_indices: Sequence[Expr]
) -> Stmt:
    """The product of a single matrix, at ``batch_indices``, inside a task of the caller's."""
    plan = plan_matmul(ctx, product, tuple(epilogue), tuple(batch_indices))
    return loop(plan.panels, lambda panel: _task(plan, i64(0), panel, i64(0)), name="panel")


def _task(plan: MatmulPlan, batch: Expr, panel: Expr, group: Expr) -> Stmt:
    """All row tiles of a group against a panel."""
    return plan.for_panel(panel, lambda panel, width: _panel(plan, batch, panel, group, width))


def _panel(plan: MatmulPlan, batch: Expr, panel: Expr, group: Expr, width: int) -> Stmt:
    start = panel * plan.tile.panel
    spans = spans_of(plan, width)

    def tiles(load_b: LoadB) -> Stmt:
        def k_loop_of(iteration: Iteration) -> list[Stmt]:
            return k_loop(plan, plan.product.k, lambda k: iteration(k, load_b))

        return _row_tiles(plan, batch, start, group, spans, k_loop_of)

    if plan.b_packing == "none":
        return tiles(lambda k, lane, first: read_b(plan, batch, k, start + (lane + first)))
    if plan.b_packing == "all":
        return tiles(lambda k, lane, first: ([], load(plan.packed_b, batch, panel, k, lane + first)))
    if plan.b_packing == "transpose":
        k_loop_of = functools.partial(_transposed_k_loop, plan, batch, start, width)
        return _tile(plan, batch, i64(0), start, spans, k_loop_of)
    packed = scratch([plan.product.k, plan.tile.panel], plan.dtype, "packed_b")
    pack = pack_panel(plan, batch, start, width, lambda value, k, c: store(packed, value, k, c))
    body = tiles(lambda k, lane, first: ([], load(packed, k, lane + first)))
    return block([pack, body], [packed])


def _row_tiles(plan: MatmulPlan, batch: Expr, start: Expr, group: Expr, spans: Spans, k_loop_of: KLoop) -> Stmt:
    """The row tiles of a group. Loops have static extents: groups with a tile less have a loop of their own."""
    partition = plan.row_partition
    max_tiles, first = partition.max_tiles, partition.first(group)

    def tiles(count: int) -> Stmt:
        return loop(count, lambda t: _tile(plan, batch, first + t, start, spans, k_loop_of), name="tile")

    if partition.is_balanced:
        has_fewer = partition.count(group) < i64(max_tiles)
        return tirx.IfThenElse(has_fewer, tiles(max_tiles - 1), tiles(max_tiles))
    full, rest = divmod(partition.tiles, max_tiles)
    return tirx.IfThenElse(group < i64(full), tiles(max_tiles), tiles(rest)) if rest else tiles(max_tiles)


def _tile(plan: MatmulPlan, batch: Expr, tile: Expr, start: Expr, spans: Spans, k_loop_of: KLoop) -> Stmt:
    """A register tile: initialize, sum over k, store."""
    accumulators, init = accumulators_of(plan, spans), plan.init
    initialize = for_each_accumulator(accumulators, spans, lambda acc, _, __, lane: store(acc, init, lane))
    iterations = k_loop_of(lambda k, load_b: outer_product(plan, batch, tile, accumulators, spans, k, load_b))
    stores = _store_tile(plan, batch, tile * plan.tile.mr, start, accumulators, spans)
    return block([*initialize, *iterations, *stores], [acc for row in accumulators for acc in row])


def _transposed_k_loop(plan: MatmulPlan, batch: Expr, start: Expr, width: int, iteration: Iteration) -> list[Stmt]:
    """The k loop where the only row tile transposes B as it goes, ``transpose_k`` of k at a time.

    A transpose takes TRANSPOSE_COLUMNS of k. The last begins so early that it ends with k, as memory may end there; its
    iterations that were done before are skipped."""
    k, lanes = plan.product.k, plan.tile.lanes
    firsts = range(0, width, lanes)
    transposed = [scratch([plan.transpose_k, lanes], plan.dtype, "transposed") for _ in firsts]

    def transpose(first_k: Expr, count: int, first: int) -> Stmt:
        def store_vector(value: Expr, d: Expr, lane: Expr) -> Stmt:
            return store(transposed[first // lanes], value, d, lane)

        columns = min(lanes, width - first)
        return transpose_b(plan, batch, start + first, columns, first_k, count, store_vector)

    def load_b_at(d: int) -> LoadB:
        return lambda _, lane, first: ([], load(transposed[first // lanes], i64(d), lane))

    def transpose_and_multiply(first_k: Expr, count: int, skip: int = 0) -> Stmt:
        iterations = [iteration(first_k + d, load_b_at(d)) for d in range(skip, count)]
        return seq([*(transpose(first_k, count, first) for first in firsts), *iterations])

    step = plan.transpose_k
    full, rest = divmod(k, step)
    statements = [loop(full, lambda o: transpose_and_multiply(o * step, step), name="k")] if full else []
    full_transposes = rest // TRANSPOSE_COLUMNS * TRANSPOSE_COLUMNS
    if full_transposes:
        statements.append(transpose_and_multiply(i64(k - rest), full_transposes))
    if rest > full_transposes:
        skip = TRANSPOSE_COLUMNS - (rest - full_transposes)
        statements.append(transpose_and_multiply(i64(k - TRANSPOSE_COLUMNS), TRANSPOSE_COLUMNS, skip))
    return [block(statements, transposed)]


def _store_tile(
    plan: MatmulPlan, batch: Expr, first_row: Expr, start: Expr, accumulators: Accumulators, spans: Spans
) -> list[Stmt]:
    """The tile stored. With an epilogue, or rows past the end, it goes to memory first and is stored by a loop over its
    rows: else the code of the epilogue would stand ``mr`` times."""
    if not plan.epilogue and plan.product.m % plan.tile.mr == 0:
        return [
            store_row(plan, batch, first_row + r, start, spans, _accumulator_reader(row))
            for r, row in enumerate(accumulators)
        ]
    tile = scratch([plan.tile.mr, spans[-1][0] + spans[-1][1]], plan.dtype, "tile")
    copies = for_each_accumulator(
        accumulators, spans, lambda acc, r, first, lane: store(tile, load(acc, lane), i64(r), lane + first)
    )
    r = tirx.Var("r", "int64")
    row = store_row(plan, batch, first_row + r, start, spans, lambda first, lane: load(tile, r, lane + first))
    body = bind_in_buffers(row)
    rows: Expr = i64(plan.tile.mr)
    if plan.product.m % plan.tile.mr:
        rows = tirx.min(rows, i64(plan.product.m) - first_row)
    return [block([*copies, tirx.For(r, i64(0), rows, SERIAL, body)], [tile])]


def _accumulator_reader(row: list) -> Callable[[int, Expr], Expr]:
    lanes = int(row[0].shape[0])
    return lambda first, lane: load(row[first // lanes], lane)
