"""Attention whose rows are too long to lie in a block: their columns come some at a time.

A block has some rows of one head. What it makes of COLUMNS of their scores lies in shared memory and is added to the
sums that it is for, in the order of the columns and in the lanes of the CPU's tree. A sum that needs another one, as
a softmax's needs its largest score, is a pass of its own, for which the scores are made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from ...tir.access import reads_of
from ...tir.builder import Expr, Stmt, i64, loop, seq, store, unravel
from ...tir.context import NestContext, block
from ...tir.epilogue import epilogue_stages
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of, point_stores, store_result
from ...tir.reduction import LONG_ROW
from ...tir.row_group import RowGroup
from ...tir.stages import Stage, variables
from ..threads.launch import barrier, launch, shared
from .row_matmul import Strip
from .row_reduction import Fold
from .row_stages import Rows, copy_rows, result
from .shared_memory import (  # fmt: skip
    COLUMNS,
    ITEM,
    ROOM,
    SKEW,
    THREADS,
    Memory,
    Product,
    lies_there,
    lines_of,
    padded,
    row_counts,
    skew,
    skewed,
    stands_at,
)

PIECE = 64  # columns of the scores that are made at once: as many as the most lanes of a fold
ACROSS = 4  # columns, of neighbouring rows, that neighbouring threads have where memory runs along the rows


@attrs.frozen(eq=False)
class Pass:
    """``steps``: what is done with some columns, in order; ``sinks``: the folds and last products among them, none of
    which needs another. But a softmax's in one pass (``head_softmax``): ``top``, the largest score so far, and
    ``whole``, by which sums of weights are divided at the end."""

    steps: tuple[Stage, ...]
    sinks: tuple[Stage, ...]
    top: Stage | None = None
    whole: Stage | None = None

    @property
    def chain(self) -> list[Stage]:
        """What of the scores the sinks need."""
        return [s for s in self.steps if s not in self.sinks]


@attrs.frozen(eq=False)
class Stream:
    """``passes`` over ``extent`` columns, ``after``: the maps on each last product. ``memory``: as of rows that lie in
    a block, with PIECE elements a line, and as many more as make it a pitch (``head_memory.skew``)."""

    ctx: NestContext
    found: RowGroup
    products: Mapping[Any, Product]
    extent: int
    passes: tuple[Pass, ...]
    after: Mapping[Any, tuple[Stage, ...]]
    memory: Memory

    @property
    def chain(self) -> list[Stage]:
        return [s for s in self.found.stages if any(s in p.chain for p in self.passes)]

    @property
    def price(self) -> int:
        """Multiplications of a row: scores are made once a pass."""
        made = [s for p in self.passes for s in p.steps if s in self.products]
        return sum(self.products[s].n * s.depth for s in made)

    def wide(self, product: Product) -> int:
        """Columns of a product that are made side by side: all of a last one's."""
        return PIECE if product.one.stage.buffer in self.memory.lines else min(c for c in COLUMNS if c >= product.n)

    def is_turned(self, stage: Stage) -> bool:
        """Is it a map that reads memory along rows, as a mask of scores that are made turned?"""
        row, column = (stage.space[self.found.lead + d].var for d in (-1, 0))
        places = [
            r.dimensions()
            for r in reads_of(self.ctx, stage)
            if stage.is_elementwise and r.buffer not in self.memory.lines
        ]
        return any(p and p[-1][0].same_as(row) and column in variables([i for i, _ in p[:-1]]) for p in places)

    @property
    def skew(self) -> int:
        """Elements from the end of a line to the next."""
        if any(self.is_turned(s) for s in self.chain):
            return ACROSS
        return skew(PIECE) if self.extent < LONG_ROW else 0

    def bytes(self, rows: int, lines: Mapping[Any, tuple[int, int]]) -> int:
        lefts = sum(padded(self.products[s].one.k) for s in self.chain if s in self.products)
        kept = sum(dict(lines.values()).values()) + lefts
        wides = [self.wide(p) for p in self.products.values()]
        return ITEM * (rows * kept + max(2 * self.memory.deep(w) * (w + SKEW) for w in wides))


def plan_stream(
    ctx: NestContext, found: RowGroup, products: Mapping[Any, Product], heads: int, rows: int
) -> Stream | None:
    """None if not all of its stages are of such kinds, or not one row fits."""
    stream = read_stream(ctx, found, products)
    if stream is None:
        return None
    lines = stream.memory.lines
    kinds = [skewed(lines, dict.fromkeys(lines, stream.skew)), lines]
    for count in row_counts(heads, rows):
        fitting = [kind for kind in kinds if stream.bytes(count, kind) <= ROOM]
        if fitting:
            return attrs.evolve(stream, memory=Memory(count, PIECE, fitting[0]))
    return None


def read_stream(ctx: NestContext, found: RowGroup, products: Mapping[Any, Product]) -> Stream | None:
    """The passes, for blocks of one row; None if not all stages are of such kinds."""
    first = found.stages[0].space[found.lead :]
    whole = lines_of(ctx, found)
    ended = [s for s, p in products.items() if lies_there(found, whole, p)]
    last = {s: [m for m in found.stages if _follows(ctx, s, m)] for s in ended}
    ends = {s.buffer for product, maps in last.items() for s in (product, *maps)}
    lines = {b: (place, PIECE if n > 1 else 1) for b, (place, n) in whole.items() if b not in ends}
    kinds = _Kinds(ctx, found, products, lines, first[0].extent if len(first) == 1 else 0, last)
    passes, after = kinds.passes(), kinds.after()
    if passes is None or after is None:
        return None
    return Stream(ctx, found, products, kinds.extent, passes, after, Memory(1, PIECE, lines))


@attrs.frozen(eq=False)
class _Kinds:
    """What each stage of a group is."""

    ctx: NestContext
    found: RowGroup
    products: Mapping[Any, Product]
    lines: Mapping[Any, tuple[int, int]]
    extent: int
    last: Mapping[Any, Sequence[Stage]]

    def is_chain(self, stage: Stage) -> bool:
        """A matrix of scores, of which an element needs others at its own place alone."""
        free = stage.space[self.found.lead :]
        mine = stage.buffer in self.lines and [a.extent for a in free] == [self.extent]
        return mine and stage not in self.last and (stage in self.products or self._reads_at(stage, free[0].var))

    def is_sink(self, stage: Stage) -> bool:
        if self.is_chain(stage):  # of as many columns as they are deep
            return False
        if stage in self.last:
            left, product = self.products[stage].left, self.products[stage]
            maps = any(s.is_elementwise and s.buffer.same_as(left.source) for s in self.found.stages)
            return maps and product.n <= max(COLUMNS) and stage.depth == self.extent
        return stage.reduction is not None and stage.depth == self.extent and self._reads_at(stage, stage.reduce[0].var)

    def _reads_at(self, stage: Stage, column: Any) -> bool:
        """Does it read of matrices the one column alone?"""
        matrices = [r for r in reads_of(self.ctx, stage) if self.lines.get(r.buffer, (0, 1))[1] > 1]
        return all(stands_at(self.found, x, column) for x in matrices)

    def after(self) -> dict[Any, tuple[Stage, ...]] | None:
        """The maps on each last product; None if there is a stage of no kind."""
        left = {s for s in self.found.stages if not self.is_chain(s) and not self.is_sink(s)}
        following = {m for maps in self.last.values() for m in maps}
        return {s: tuple(maps) for s, maps in self.last.items()} if left == following else None

    def passes(self) -> tuple[Pass, ...] | None:
        """Sinks in order, as many at once as need no other of them."""
        groups: list[list[Stage]] = []
        for stage in filter(self.is_sink, self.found.stages):
            needed = {b for s in (stage, *self._chain(stage)) for b in _sources(self.ctx, s)}
            if groups and not any(s.buffer in needed for s in groups[-1]):
                groups[-1].append(stage)
            else:
                groups.append([stage])
        steps = [{*g, *(s for x in g for s in self._chain(x))} for g in groups]
        made = [
            Pass(tuple(s for s in self.found.stages if s in m), tuple(g)) for m, g in zip(steps, groups, strict=True)
        ]
        chained = {s for p in made for s in p.chain}
        return tuple(made) if made and chained == set(filter(self.is_chain, self.found.stages)) else None

    def _chain(self, sink: Stage) -> list[Stage]:
        makers, todo, needed = {s.buffer: s for s in filter(self.is_chain, self.found.stages)}, [sink], set()
        while todo:
            new = {makers[b] for b in _sources(self.ctx, todo.pop()) if b in makers} - needed
            needed |= new
            todo += new
        return [s for s in self.found.stages if s in needed]


def _sources(ctx: NestContext, stage: Stage) -> set[Any]:
    return {r.buffer for r in reads_of(ctx, stage)}


def _follows(ctx: NestContext, product: Stage, stage: Stage) -> bool:
    return (
        stage.is_elementwise and product.buffer in _sources(ctx, stage) and bool(epilogue_stages(ctx, product, [stage]))
    )


def stream_launch(stream: Stream, batch: Sequence[int], whole: int) -> Stmt:
    """The launch: ``whole`` rows of each of ``batch``."""
    memory, found = stream.memory, stream.found
    count, groups = memory.rows, -(-whole // memory.rows)
    lines = {place: b for b, (place, _) in reversed([*memory.lines.items()])}
    made = {place: shared([count * memory.lines[b][1]], str(b.dtype), b.name) for place, b in lines.items()}
    held = {b: made[place] for b, (place, _) in memory.lines.items()}
    products = [s for s in stream.chain if s in stream.products]
    lefts = {s: shared([count * padded(stream.products[s].one.k)], "float32", "left") for s in products}
    wides = [stream.wide(p) for p in stream.products.values()]
    size = max(memory.deep(w) * (w + SKEW) for w in wides)
    tiles = shared([size], "float32", "tile"), shared([size], "float32", "tile")

    def body(place: Expr, thread: Expr) -> Stmt:
        *heads, group = unravel(place, [*batch, groups])
        first = group * count
        rows = Rows(stream.ctx, found, memory, held, heads, first, whole, thread, tiles, None)
        copies = [part for s in products for part in copy_rows(rows, stream.products[s], lefts[s])]
        parts = [_Passing(stream, rows, lefts, one).statement() for one in stream.passes]
        makes = [tirx.AllocBuffer(b) for b in (*made.values(), *lefts.values(), *tiles)]
        return seq([*makes, *copies, *parts])

    return launch(prod(batch) * groups, THREADS, body)


@attrs.frozen(eq=False)
class _Passing:
    """The text of one pass."""

    stream: Stream
    rows: Rows
    lefts: Mapping[Any, Any]
    one: Pass

    def statement(self) -> Stmt:
        folds = {s: Fold.make(self.rows, s) for s in self.one.sinks if s not in self.stream.products}
        strips = {s: self._strip(s) for s in self.one.sinks if s in self.stream.products}
        starts = [*(fold.start() for fold in folds.values()), *(s.clear() for s in strips.values())]

        def piece(c: Expr) -> Stmt:
            rows = attrs.evolve(self.rows, offset=c * PIECE)
            parts = [part for s in self.one.chain for part in self._make(rows, s)]
            ragged = self.stream.extent % PIECE != 0
            parts += [x for f in folds.values() for x in (f.add(rows, rows.offset, PIECE, ragged), barrier())]
            count = lambda strip: PIECE // strip.deep  # noqa: E731
            parts += [s.turns(i64(0), c * PIECE, i64(0), count(s), PIECE) for s in strips.values()]
            return seq(parts)

        pieces = loop(-(-self.stream.extent // PIECE), piece, name="piece")
        ends = [part for fold in folds.values() for part in fold.end()]
        ends += [strip.elements(lambda *e, s=s: self._end(s, *e)) for s, strip in strips.items()]
        made = [*(f.acc.acc for f in folds.values()), *(b for s in strips.values() for b in (s.factor.staging, s.sums))]
        return block([*starts, pieces, *ends], made)

    # -- scores and what is made of them ---------------------------------------------------------------------------

    def _make(self, rows: Rows, stage: Stage) -> list[Stmt]:
        """PIECE columns of a matrix."""
        if stage in self.stream.products:
            strip = self._strip(stage)
            turns = strip.turns(rows.offset, i64(0), i64(0), -(-stage.depth // strip.deep))
            ends = strip.elements(lambda slot, column, value: self._chained(rows, stage, slot, column, value))
            return [block([strip.clear(), turns, ends], [strip.factor.staging, strip.sums]), barrier()]
        across = ACROSS if self.stream.is_turned(stage) else PIECE
        return [rows.each(PIECE, lambda slot, f: self._mapped(rows, stage, slot, f), across), barrier()]

    def _chained(
        self, rows: Rows, stage: Stage, slot: Expr, column: Expr, value: tuple[Expr, Sequence[Expr]]
    ) -> Stmt:  # fmt: skip
        made, inside = value
        here = index_of(stage.space, [*rows.places(slot), rows.offset + column])
        return result(rows, stage, here, made, slot, *inside)

    def _mapped(self, rows: Rows, stage: Stage, slot: Expr, f: Expr) -> Stmt:
        column = rows.offset + f
        places = [*rows.places(slot), column]
        made = rows.stored(stage, point_stores(rows.ctx, [stage], places, {}, [stage]), slot)
        if self.stream.extent % PIECE == 0:
            return made
        zero = tirx.const(0, str(stage.buffer.dtype))
        blank = store(rows.held[stage.buffer], zero, slot * rows.line(stage.buffer) + f)
        return tirx.IfThenElse(column < i64(self.stream.extent), bind_in_buffers(made), blank)

    # -- last products -----------------------------------------------------------------------------------------------

    def _strip(self, stage: Stage) -> Strip:
        product = self.stream.products[stage]
        left, line = self.lefts.get(stage), padded(product.one.k)
        if left is None:
            left, line = self.rows.held[product.left.source], self.rows.line(product.left.source)
        return Strip.make(self.rows, product, self.stream.wide(product), left, line)

    def _end(self, stage: Stage, slot: Expr, column: Expr, value: tuple[Expr, Sequence[Expr]]) -> Stmt:
        """A finished element, and what is done on it."""
        rows, product = self.rows, self.stream.products[stage]
        made, inside = value
        here = index_of(stage.space[: rows.found.lead], rows.places(slot))
        here |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
        inside = [*inside, *([rows.first + slot < i64(rows.whole)] if rows.whole % rows.memory.rows else [])]
        inside += [column < i64(product.n)] if product.n % self.stream.wide(product) else []
        done = rows.local(bind_in_buffers(store_result(rows.ctx, stage, here, made, self.stream.after[stage])), slot)
        return tirx.IfThenElse(tirx.all(*inside), done, None) if inside else done
