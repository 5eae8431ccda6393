"""Random words, four from one evaluation of a counter, and the map stages that use them.

A thread works out the words of one counter; through shared memory they come into the order of the elements, so that
neighbouring threads do what follows on neighbours. There the first words of all threads lie side by side, then the
second ones, a quarter of the banks further on, as neighbours read all words of an eighth of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, seq, store, unravel
from ..tir.context import NestContext
from ..tir.inline import ScalarWriter
from ..tir.philox import WORDS, draw_group, read_draw
from ..tir.point_writer import is_materialized, point_stores
from ..tir.stages import Stage, substitute
from .threads.launch import THREADS, WARP, barrier, launch, shared, unrolled

SKEW = WARP // WORDS  # words


def philox_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is no draw."""
    taken = draw_group(ctx, stages)
    return None if taken is None else (len(taken), _launch(ctx, taken))


def _launch(ctx: NestContext, stages: Sequence[Stage]) -> Stmt:
    draws = {s: d for s in stages if (d := read_draw(s)) is not None}
    keep = [s for s in stages if is_materialized(ctx, s, stages)]
    extents, total = [a.extent for a in stages[0].space], stages[0].points
    counters = -(-total // WORDS)
    threads = min(THREADS, -(-counters // WARP) * WARP)
    line = threads + SKEW
    words = {s: shared([WORDS * line], "uint32", "words") for s in draws}

    def block(b: Expr, t: Expr) -> Stmt:
        point = ScalarWriter(ctx.virtual)
        made = []
        for stage, draw in draws.items():
            point.binds += [tirx.Bind(var, point.write(value, {})) for var, value in draw.fixed]
            at = {draw.counter: tirx.Cast("uint64", b * threads + t)}
            point.binds += [tirx.Bind(var, substitute(value, at)) for var, value in draw.names]
            made += [store(words[stage], word, t + n * line) for n, word in enumerate(draw.words)]

        def element(u: Expr) -> Stmt:
            here = u * threads + t
            flat = b * (WORDS * threads) + here
            place = tirx.floormod(here, i64(WORDS)) * line + tirx.floordiv(here, i64(WORDS))
            own = [attrs.evolve(s, value=load(words[s], place)) if s in draws else s for s in stages]
            held = [new for new, old in zip(own, stages, strict=True) if old in keep]
            return tirx.IfThenElse(flat < i64(total), point_stores(ctx, own, unravel(flat, extents), {}, held), None)

        tiles = [tirx.AllocBuffer(tile) for tile in words.values()]
        return seq([*tiles, *point.binds, *made, barrier(), unrolled(WORDS, element)])

    return launch(-(-counters // threads), threads, block)
