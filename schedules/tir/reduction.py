"""Loops of one stage inside a task: elementwise along vectors, reductions along rows or down columns, serial bodies.

A reduction along memory is a tree: TREE_WIDTH lanes (four times as many for a long row) each add every TREE_WIDTH-th
element in turn, then the upper half is added to the lower until a single lane is left. A reduction across memory has
columns side by side, each summed from the first row to the last. Both orders follow from the shape alone: neither
vector width nor threads enter, so every target has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from .access import contiguous_axis, merged_tail, reads_of
from .accumulators import Accumulator, accumulator
from .argmax import is_argmax
from .builder import Expr, Stmt, grid, i64, loop, seq, store, unravel
from .context import TREE_WIDTH, NestContext, block, dynamic_loop, vector, vector_loop
from .inline import ScalarWriter
from .point_writer import index_of, point_stores, store_result
from .stages import Axis, Stage, binds, statements, substitute

# Four independent vectors of additions hide an addition's latency, 4 cycles on current cores. LONG_ROW is part of the
# order of sums: changed, it changes bits; COLUMNS does where it decides what is split (``split_reduction.py``).
# LONG_ROW is four elements a lane. Both are chosen, not measured.
LONG_ROW = 256  # elements from which a tree has 4 * TREE_WIDTH lanes
COLUMNS = 64  # columns summed side by side: four vectors of TREE_WIDTH


def reduces_along_memory(ctx: NestContext, stage: Stage) -> bool:
    """Is the reduction's read with the most axes contiguous along a reduced axis (or along none)?"""
    axis = contiguous_axis(reads_of(ctx, stage), [*stage.space, *stage.reduce])
    return axis is None or axis in stage.reduce or not stage.space


def stage_body(ctx: NestContext, stage: Stage, rows: Sequence[Expr]) -> Stmt:
    """The stage at ``rows``, indices of its first axes, with loops over its other axes."""
    fixed, free = stage.space[: len(rows)], stage.space[len(rows) :]
    coords = index_of(fixed, rows)
    if stage.serial is not None:
        return grid([a.extent for a in free], lambda rest: _serial(ctx, stage, coords | index_of(free, rest)))
    if stage.is_elementwise:
        return _elementwise(ctx, stage, rows, free)
    if free and not reduces_along_memory(ctx, stage):
        return grid(
            [a.extent for a in free[:-1]],
            lambda rest: _columns(ctx, stage, coords | index_of(free[:-1], rest), free[-1]),
        )
    return grid([a.extent for a in free], lambda rest: _tree(ctx, stage, coords | index_of(free, rest)))


def _elementwise(ctx: NestContext, stage: Stage, rows: Sequence[Expr], free: Sequence[Axis]) -> Stmt:
    if not free:
        return point_stores(ctx, [stage], list(rows), {}, [stage])
    extent = free[-1].extent

    def row(outer: list[Expr]) -> Stmt:
        return seq(
            vector_loop(extent, ctx.lanes, lambda f: point_stores(ctx, [stage], [*rows, *outer, f], {}, [stage]))
        )

    return grid([a.extent for a in free[:-1]], row)


def _serial(ctx: NestContext, stage: Stage, coords: dict[Any, Expr]) -> Stmt:
    """The block's own statements, looped over its axes in order."""
    assert stage.serial is not None
    init, body = stage.serial
    prologue = [] if init is None else [_instantiate(ctx, init, coords)]
    extents = [a.extent for a in stage.reduce]
    iterations = grid(extents, lambda k_indices: _instantiate(ctx, body, coords | index_of(stage.reduce, k_indices)))
    return seq([*prologue, iterations])


def _instantiate(ctx: NestContext, stmt: Stmt, coords: dict[Any, Expr]) -> Stmt:
    """A statement at ``coords``. Variables that it binds are replaced by fresh ones, as it may occur more than once."""
    fresh: dict[Any, Expr] = {}
    # TVM wants each variable bound once; two instances of a body in a kernel would bind it twice.
    for binding in binds(stmt):
        fresh[binding.var] = tirx.Var(binding.var.name, str(binding.value.ty.dtype))
    written = []
    for statement in statements(stmt):
        writer = ScalarWriter(ctx.virtual)
        value = writer.write(statement.value, coords | fresh)
        if isinstance(statement, tirx.Bind):
            written += [*writer.binds, tirx.Bind(fresh[statement.var], value)]
            continue
        indices = writer.indices([substitute(i, fresh) for i in statement.indices], coords)
        written += [*writer.binds, tirx.BufferStore(statement.buffer, value, indices)]
    return seq(written)


def _store_element(ctx: NestContext, stage: Stage, coords: dict[Any, Expr], value: Expr) -> Stmt:
    writer = ScalarWriter(ctx.virtual)
    indices = writer.indices(stage.indices, coords)
    value = writer.write(value, {})
    return seq([*writer.binds, store(stage.buffer, value, *indices)])


@attrs.frozen
class ReductionOrder:
    """The order in which the elements of a result are added.

    For each index of ``outer``, in order, lane n of ``width`` adds every width-th element of ``tail`` from the n-th on;
    then the lanes are reduced as a tree. A width of 1 adds all elements in order.
    """

    outer: tuple[Axis, ...]
    tail: tuple[Axis, ...]
    width: int

    @property
    def depth(self) -> int:
        return prod(axis.extent for axis in self.tail)


def reduction_order(ctx: NestContext, stage: Stage) -> ReductionOrder:
    """The order of a reduction along rows, or of any in a row nest. It follows from shape and accesses alone, so that a
    target cannot change it."""
    tail_count = merged_tail(stage.reduce, reads_of(ctx, stage))
    outer, tail = stage.reduce[: len(stage.reduce) - tail_count], stage.reduce[len(stage.reduce) - tail_count :]
    depth = prod(a.extent for a in tail)
    if depth < TREE_WIDTH or stage.in_order or not reduces_along_memory(ctx, stage):
        # Columns too are sequential, whatever nest they are in: a fused row nest must give the bits of a column nest.
        return ReductionOrder(outer, tail, 1)
    return ReductionOrder(outer, tail, TREE_WIDTH if depth < LONG_ROW or is_argmax(stage) else 4 * TREE_WIDTH)


def _tree(ctx: NestContext, stage: Stage, coords: dict[Any, Expr]) -> Stmt:
    """A result: lanes along the innermost reduced axes, loops over the others, then the tree."""
    order = reduction_order(ctx, stage)
    outer, tail, width, depth = order.outer, order.tail, order.width, order.depth
    extents = [a.extent for a in tail]
    acc = accumulator(stage, width)

    def add(outer_indices: list[Expr], flat_index: Expr, slot: Expr) -> Stmt:
        k_coords = index_of(outer, outer_indices) | index_of(tail, unravel(flat_index, extents))
        return acc.add(ctx, coords | k_coords, slot)

    def strided(outer_indices: list[Expr]) -> Stmt:
        return seq(_strided_loop(depth, width, lambda flat_index, slot: add(outer_indices, flat_index, slot)))

    init = seq([_init_slots(acc, first, min(TREE_WIDTH, width), True) for first in range(0, width, TREE_WIDTH)])
    iterations = grid([a.extent for a in outer], strided)
    result = _store_element(ctx, stage, coords, acc.result(i64(0)))
    return block([init, iterations, *_tree_reduce(acc, width), result], acc.buffers)


def _init_slots(acc: Accumulator, first: int, width: int, distinct: bool) -> Stmt:
    """Initializes ``width`` slots from ``first`` on. ``distinct``: slot n sees element n first, else all see 0.

    An argmax starts with the index of that element: it is the answer if no key is better than the initial key."""
    return vector(width, lambda lane: acc.start(lane + first, lane + first if distinct else i64(0)))


def _strided_loop(depth: int, width: int, add: Any) -> list[Stmt]:
    """Adds every index below ``depth`` to slot ``index % width``, in rising order for each slot."""
    if width == 1:
        return [loop(depth, lambda k: add(k, i64(0)), name="k")]
    full, rest = divmod(depth, width)

    # Vectors of TREE_WIDTH on every target: where registers are narrower LLVM splits them, and the lanes stay.
    def iteration(block_index: Expr) -> Stmt:
        return seq([_vector_span(block_index * width, first, TREE_WIDTH, add) for first in range(0, width, TREE_WIDTH)])

    iterations = [loop(full, iteration, name="k")] if full else []
    spans = [(first, min(TREE_WIDTH, rest - first)) for first in range(0, rest, TREE_WIDTH)]
    return [*iterations, *(_vector_span(i64(full * width), first, size, add) for first, size in spans)]


def _vector_span(base: Expr, first: int, size: int, add: Any) -> Stmt:
    return vector(size, lambda lane: add(base + (lane + first), lane + first))


def _tree_reduce(acc: Accumulator, width: int) -> list[Stmt]:
    steps = []
    while width > 1:
        width //= 2
        for first in range(0, width, TREE_WIDTH):
            steps.append(_combine_halves(acc, first, width))
    return steps


def _combine_halves(acc: Accumulator, first: int, half: int) -> Stmt:
    """Slots from ``first`` on, at most TREE_WIDTH of the lower ``half``, and those ``half`` further into them."""
    return vector(min(TREE_WIDTH, half), lambda lane: acc.combine(lane + first, lane + (first + half)))


def dynamic_reduction(ctx: NestContext, stage: Stage, first: Expr, length: Expr, on_result: Any) -> Stmt:
    """A reduction over ``length`` elements from ``first`` on, both known at run time only.

    It has 4 * TREE_WIDTH lanes whatever the length. ``on_result(value)`` stores the result.
    """
    acc, width = accumulator(stage, 4 * TREE_WIDTH), 4 * TREE_WIDTH
    iterations = tirx.floordiv(length, i64(width))

    def add(k: Expr, slot: Expr) -> Stmt:
        return acc.add(ctx, index_of(stage.reduce, [first + k]), slot)

    def iteration(block_index: Expr) -> Stmt:
        base = block_index * width
        return seq([_vector_span(base, offset, TREE_WIDTH, add) for offset in range(0, width, TREE_WIDTH)])

    init = [_init_slots(acc, offset, TREE_WIDTH, False) for offset in range(0, width, TREE_WIDTH)]
    # The rest goes to the lanes that a full step would give it: so the order is that of a row whose length is known.
    rest = dynamic_loop(tirx.floormod(length, i64(width)), lambda r: add(iterations * width + r, r), "k")
    result = on_result(acc.result(i64(0)))
    return block(
        [*init, dynamic_loop(iterations, iteration, "k"), rest, *_tree_reduce(acc, width), result], acc.buffers
    )


def _columns(ctx: NestContext, stage: Stage, coords: dict[Any, Expr], axis: Axis) -> Stmt:
    """All columns of ``axis``, up to COLUMNS of them side by side."""
    full, rest = divmod(axis.extent, COLUMNS)

    def tile(start: Expr, width: int) -> Stmt:
        return reduce_columns(ctx, stage, coords, axis, start, width, [])

    tiles = [loop(full, lambda c: tile(c * COLUMNS, COLUMNS), name="c")] if full else []
    return seq([*tiles, *([tile(i64(full * COLUMNS), rest)] if rest else [])])


def reduce_columns(
    ctx: NestContext,
    stage: Stage,
    coords: dict[Any, Expr],
    axis: Axis,
    start: Expr,
    width: int,
    epilogue: Sequence[Stage],
) -> Stmt:
    """``width`` columns from ``start`` on, each reduced from the first row to the last, and their ``epilogue``."""
    acc = accumulator(stage, width)
    spans = [(offset, min(TREE_WIDTH, width - offset)) for offset in range(0, width, TREE_WIDTH)]

    def coords_of(column: Expr) -> dict[Any, Expr]:
        return coords | index_of([axis], [start + column])

    def add(k_indices: list[Expr], slot: Expr) -> Stmt:
        return acc.add(ctx, coords_of(slot) | index_of(stage.reduce, k_indices), slot)

    def iteration(k_indices: list[Expr]) -> Stmt:
        return seq([vector(size, lambda lane, offset=offset: add(k_indices, lane + offset)) for offset, size in spans])

    def store_column(slot: Expr) -> Stmt:
        return store_result(ctx, stage, coords_of(slot), acc.result(slot), epilogue)

    def store_columns(offset: int, size: int) -> Stmt:
        return vector(size, lambda lane: store_column(lane + offset))

    init = [_init_slots(acc, offset, size, False) for offset, size in spans]
    iterations = grid([a.extent for a in stage.reduce], iteration)
    return block([*init, iterations, *(store_columns(offset, size) for offset, size in spans)], acc.buffers)
