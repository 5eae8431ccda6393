"""Random draws by Philox4x32-10 (Salmon et al. 2011), with the elementwise stages that use them, in one launch.

An evaluation of a counter gives four words, for four neighbouring elements. A thread evaluates a counter and stores
its words to shared memory; then each thread loads the word of its element, so that stores to global memory are
coalesced. A word depends on its key and counter alone, so no order of threads can change it.
Shared memory: word 0 of all threads, then word 1, ...; rows are padded by 8 words, because a warp's 32 elements read
all four words of 8 counters, and these must lie in different banks.
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

# Words between the rows of shared memory: the four words of a counter then lie 8 banks apart. 0 would put them into the
# same bank, and each load of a warp would take four turns.
BANK_PADDING = WARP // WORDS


def philox_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first stage is no draw."""
    group = draw_group(ctx, stages)
    return None if group is None else (len(group), _launch(ctx, group))


def _launch(ctx: NestContext, stages: Sequence[Stage]) -> Stmt:
    draws = {s: d for s in stages if (d := read_draw(s)) is not None}
    keep = [s for s in stages if is_materialized(ctx, s, stages)]
    extents, total = [a.extent for a in stages[0].space], stages[0].points
    counters = -(-total // WORDS)
    threads = min(THREADS, -(-counters // WARP) * WARP)
    pitch = threads + BANK_PADDING
    words = {s: shared([WORDS * pitch], "uint32", "words") for s in draws}

    def block(b: Expr, t: Expr) -> Stmt:
        writer = ScalarWriter(ctx.virtual)
        stores = []
        for stage, draw in draws.items():
            writer.binds += [tirx.Bind(var, writer.write(value, {})) for var, value in draw.fixed]
            # Counters past the last are evaluated too: the barrier below needs all threads, and nobody reads their
            # words.
            counter = {draw.counter: tirx.Cast("uint64", b * threads + t)}
            writer.binds += [tirx.Bind(var, substitute(value, counter)) for var, value in draw.names]
            stores += [store(words[stage], word, t + n * pitch) for n, word in enumerate(draw.words)]

        def element(u: Expr) -> Stmt:
            element_in_block = u * threads + t
            flat = b * (WORDS * threads) + element_in_block
            slot = tirx.floormod(element_in_block, i64(WORDS)) * pitch + tirx.floordiv(element_in_block, i64(WORDS))
            stages_with_words = [attrs.evolve(s, value=load(words[s], slot)) if s in draws else s for s in stages]
            materialized = [new for new, old in zip(stages_with_words, stages, strict=True) if old in keep]
            done = point_stores(ctx, stages_with_words, unravel(flat, extents), {}, materialized)
            return tirx.IfThenElse(flat < i64(total), done, None)

        tiles = [tirx.AllocBuffer(tile) for tile in words.values()]
        return seq([*tiles, *writer.binds, *stores, barrier(), unrolled(WORDS, element)])

    return launch(-(-counters // threads), threads, block)
