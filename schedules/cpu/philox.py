"""Random numbers by Philox4x32-10 (Salmon et al. 2011) on a CPU: a vector of counters at a time.

Lane i computes the four words of counter i; shuffles put them into the order of the elements, and the elementwise
stages that follow read them from a small tile. Words are integers that follow from counter and key alone: neither
vector width nor tasks change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ..tir.context import NestContext, block, parallel_chunks, vector, vector_loop
from ..tir.inline import ScalarWriter
from ..tir.let_buffers import bind_in_buffers
from ..tir.philox import WORDS, Draw, read_draw
from ..tir.point_writer import is_materialized, point_stores
from ..tir.stages import Stage, substitute

TASK_BLOCKS = 64  # blocks, of WORDS vectors of elements each, of a task; chosen, not measured


def philox_nest(ctx: NestContext, stages: Sequence[Stage]) -> Stmt:
    """The loops of a group: blocks of WORDS vectors of elements, the last block with the remainder."""
    points, block_size = stages[0].points, WORDS * ctx.lanes
    full, rest = divmod(points, block_size)

    def full_blocks(start: Expr, length: int) -> Stmt:
        return _blocks(ctx, stages, start, length, block_size)

    nests = [parallel_chunks(ctx, full, TASK_BLOCKS, full_blocks)] if full else []
    if rest:
        nests.append(bind_in_buffers(_blocks(ctx, stages, i64(full), 1, rest)))
    return seq(nests)


def _blocks(ctx: NestContext, stages: Sequence[Stage], start: Expr, length: int, size: int) -> Stmt:
    """``length`` blocks from block ``start`` on, the first ``size`` elements of each."""
    draws = {s: d for s in stages if (d := read_draw(s)) is not None}
    materialized = [s for s in stages if is_materialized(ctx, s, stages)]
    extents, lanes = [a.extent for a in stages[0].space], ctx.lanes
    writer = ScalarWriter(ctx.virtual)
    for draw in draws.values():
        # the key schedule, once for all blocks
        writer.binds += [tirx.Bind(var, writer.write(value, {})) for var, value in draw.fixed]

    def block_at(b: Expr) -> Stmt:
        number = start + b
        tiles = {s: scratch([WORDS * lanes], "uint32", "tile") for s in draws}
        fill = [part for s, draw in draws.items() for part in _fill(draw, number * lanes, lanes, tiles[s])]

        def element(e: Expr) -> Stmt:
            rewritten = [attrs.evolve(s, value=load(tiles[s], e)) if s in draws else s for s in stages]
            stored = [new for new, old in zip(rewritten, stages, strict=True) if old in materialized]
            return point_stores(ctx, rewritten, unravel(number * (WORDS * lanes) + e, extents), {}, stored)

        return block([*fill, *vector_loop(size, lanes, element)], list(tiles.values()))

    return seq([*writer.binds, loop(length, block_at, name="block")])


def _fill(draw: Draw, first_counter: Expr, lanes: int, tile: Any) -> list[Stmt]:
    """The words of ``lanes`` counters from ``first_counter`` on, in the order of the elements, into ``tile``."""
    words = [scratch([lanes], "uint32", "word") for _ in range(WORDS)]

    def counter_words(lane: Expr) -> Stmt:
        counter = {draw.counter: tirx.Cast("uint64", first_counter + lane)}
        binds = [tirx.Bind(var, substitute(value, counter)) for var, value in draw.names]
        stores = [store(w, value, lane) for w, value in zip(words, draw.words, strict=True)]
        return seq([*binds, *stores])

    def element_vector(n: int) -> Stmt:
        """Elements n * lanes .. (n + 1) * lanes - 1: element e is word e % WORDS of counter e / WORDS."""
        mask: Any = [(e % WORDS) * lanes + e // WORDS for e in range(n * lanes, (n + 1) * lanes)]
        shuffled = tirx.Shuffle([load(w, _ramp(0, lanes)) for w in words], mask)
        return store(tile, shuffled, _ramp(n * lanes, lanes))

    allocations = [tirx.AllocBuffer(w) for w in words]
    return [*allocations, vector(lanes, counter_words), *(element_vector(n) for n in range(WORDS))]


def _ramp(first: int, lanes: Any) -> Expr:
    return tirx.Ramp(i64(first), i64(1), lanes)
