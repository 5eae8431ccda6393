"""Some rows of a product by some of its columns, made by all threads of a block: the factor of the rows lies in shared
memory, the other comes through tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import fma
from ...tir.builder import Expr, Stmt, i64, load, seq, store
from ...tir.context import block
from ...tir.point_writer import index_of
from ..threads.launch import registers, unrolled
from ..threads.tile_staging import (
    FLOAT4,
    TileLoader,
    double_buffered,
    load_global,
    store_shared,
    tile_loader,
    vector_index,
)
from .shared_memory import THREADS, Product

MOST = 4  # rows that one thread makes
Element = Callable[[Expr, Expr, tuple[Expr, Sequence[Expr]]], Stmt]  # row, column, (value, where it is one) -> its end


@attrs.frozen(eq=False)
class Strip:
    """``wide`` columns of a product. ``left``: the factor of the rows, ``line`` elements from one to the next;
    ``makers``: which threads multiply, each ``tm`` by ``tn`` elements of ``sums``, its columns ``across`` apart."""

    product: Product
    batch: dict[Any, Expr]
    thread: Expr
    left: Any
    line: int
    factor: TileLoader
    sums: Any
    tm: int
    tn: int
    down: int
    across: int

    @classmethod
    def make(cls, rows: Any, product: Product, wide: int, left: Any, line: int) -> Strip:
        """For a block's ``rows`` (head_stages.Rows)."""
        one = product.one
        deep, tm = rows.memory.deep(wide), min(MOST, rows.memory.rows)
        down = rows.memory.rows // tm
        tn = max(1, wide * down // THREADS)
        f = tile_loader(rows.ctx, one, product.right, product.columns, wide, deep, THREADS, -0.0)
        f = attrs.evolve(f, tiles=rows.tiles)
        batch = index_of(one.batch, rows.batch[: len(one.batch)])
        sums = registers([tm * tn], "float32", "sums")
        return cls(product, batch, rows.thread, left, line, f, sums, tm, tn, down, wide // tn)

    @property
    def deep(self) -> int:
        """Turns of the depth that are loaded at once."""
        return self.factor.tile_k

    @property
    def makers(self) -> list[Expr]:
        threads = self.down * self.across
        return [self.thread < i64(threads)] if threads < THREADS else []

    def clear(self) -> Stmt:
        return unrolled(self.tm * self.tn, lambda e: store(self.sums, tirx.const(0, "float32"), e), "e")

    def turns(self, start: Expr, first: Expr, here: Expr, count: int, whole: int = 1) -> Stmt:
        """Adds ``count`` pieces of the depth from turn ``first`` on, at ``here`` in the factor of the rows, for the
        columns from ``start`` on. The depth is asked for its end if it is no multiple of ``whole``."""
        f = self.factor

        def read(t: Expr) -> Stmt:
            return load_global(f, self.batch, start, self.product.n, first + t * self.deep, self.thread, whole)

        def multiply(half: int, piece: Expr) -> Stmt:
            return self._multiply(here + piece * self.deep, f.tiles[half])

        return double_buffered(
            count, read, lambda into: store_shared(f, f.tiles[into], self.thread), multiply, self.makers
        )

    def _place(self) -> tuple[Expr, Expr]:
        """The thread's place, down and across."""
        return tirx.floordiv(self.thread, i64(self.across)), tirx.floormod(self.thread, i64(self.across))

    def elements(self, end: Element) -> Stmt:
        y, x = self._place()

        def one(i: Expr, j: Expr) -> Stmt:
            return end(y * self.tm + i, x + j * self.across, (load(self.sums, i * self.tn + j), self.makers))

        return unrolled(self.tm, lambda i: unrolled(self.tn, lambda j: one(i, j), "j"), "i")

    def _multiply(self, turn: Expr, tile: Any) -> Stmt:
        """One piece of the depth: of the rows four turns are read at once, of the tile one."""
        y, x = self._place()
        tm, tn, across = self.tm, self.tn, self.across
        mine, theirs = registers([tm * FLOAT4], "float32", "left"), registers([tn], "float32", "right")

        def four(k: Expr) -> Stmt:
            def row(i: Expr) -> Stmt:
                place = (y * tm + i) * self.line + turn + k * FLOAT4
                return store(mine, load(self.left, vector_index(place, FLOAT4)), vector_index(i * FLOAT4, FLOAT4))

            def one(q: Expr) -> Stmt:
                line = (k * FLOAT4 + q) * self.factor.pitch + x
                read = lambda j: store(theirs, load(tile, line + j * across), j)  # noqa: E731
                each = unrolled(tm, lambda i: unrolled(tn, lambda j: add(i, j, q), "j"), "i")
                return seq([unrolled(tn, read, "j"), each])

            def add(i: Expr, j: Expr, q: Expr) -> Stmt:
                place = i * tn + j
                return store(self.sums, fma(load(mine, i * FLOAT4 + q), load(theirs, j), load(self.sums, place)), place)

            return seq([unrolled(tm, row, "i"), unrolled(FLOAT4, one, "q")])

        return block([unrolled(self.deep // FLOAT4, four, "k")], [mine, theirs])
