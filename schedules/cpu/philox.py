"""Philox counters in vectors: four words a counter, stored where the elementwise stages behind them read them."""

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

BLOCKS = 64  # blocks of WORDS vectors a task


def draw_nest(ctx: NestContext, stages: Sequence[Stage]) -> Stmt:
    """The nest of a group: blocks of WORDS vectors of elements, the last one with what is left."""
    total, size = stages[0].points, WORDS * ctx.lanes
    full, rest = divmod(total, size)
    whole = lambda start, length: _blocks(ctx, stages, start, length, size)  # noqa: E731
    done = [parallel_chunks(ctx, full, BLOCKS, whole)] if full else []
    if rest:
        done.append(bind_in_buffers(_blocks(ctx, stages, i64(full), 1, rest)))
    return seq(done)


def _blocks(ctx: NestContext, stages: Sequence[Stage], start: Expr, length: int, size: int) -> Stmt:
    """``length`` blocks from number ``start`` on, of each the first ``size`` elements."""
    draws = {s: d for s in stages if (d := read_draw(s)) is not None}
    keep = [s for s in stages if is_materialized(ctx, s, stages)]
    extents, lanes = [a.extent for a in stages[0].space], ctx.lanes
    point = ScalarWriter(ctx.virtual)
    for draw in draws.values():
        point.binds += [tirx.Bind(var, point.write(value, {})) for var, value in draw.fixed]

    def one(b: Expr) -> Stmt:
        number = start + b
        tiles = {s: scratch([WORDS * lanes], "uint32", "tile") for s in draws}
        filled = [part for s, draw in draws.items() for part in _fill(draw, number * lanes, lanes, tiles[s])]

        def element(at: Expr) -> Stmt:
            own = [attrs.evolve(s, value=load(tiles[s], at)) if s in draws else s for s in stages]
            held = [new for new, old in zip(own, stages, strict=True) if old in keep]
            return point_stores(ctx, own, unravel(number * (WORDS * lanes) + at, extents), {}, held)

        return block([*filled, *vector_loop(size, lanes, element)], list(tiles.values()))

    return seq([*point.binds, loop(length, one, name="block")])


def _fill(draw: Draw, counter: Expr, lanes: int, tile: Any) -> list[Stmt]:
    """The words of ``lanes`` counters from ``counter`` on, in the order of the elements, into ``tile``."""
    words = [scratch([lanes], "uint32", "word") for _ in range(WORDS)]

    def one(lane: Expr) -> Stmt:
        at = {draw.counter: tirx.Cast("uint64", counter + lane)}
        binds = [tirx.Bind(var, substitute(value, at)) for var, value in draw.names]
        stores = [store(w, value, lane) for w, value in zip(words, draw.words, strict=True)]
        return seq([*binds, *stores])

    def row(n: int) -> Stmt:
        """Elements n lanes .. n lanes + lanes - 1: element e is word e % WORDS of counter e / WORDS."""
        places: Any = [(e % WORDS) * lanes + e // WORDS for e in range(n * lanes, (n + 1) * lanes)]
        mixed = tirx.Shuffle([load(w, _ramp(0, lanes)) for w in words], places)
        return store(tile, mixed, _ramp(n * lanes, lanes))

    makes = [tirx.AllocBuffer(w) for w in words]
    return [*makes, vector(lanes, one), *(row(n) for n in range(WORDS))]


def _ramp(first: int, lanes: Any) -> Expr:
    return tirx.Ramp(i64(first), i64(1), lanes)
