"""Matmul of a block's rows by some columns: register tiles, A in shared memory, B through double-buffered tiles.

The classic SIMT GEMM (as in CUTLASS): a thread has ``tm`` x ``tn`` accumulators, its columns interleaved with those of
its neighbours. Each sum is a chain of FMAs in ascending k, so tile sizes change no bit.
"""

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

# Rows of a thread's register tile. Chosen, not measured: more of them reuse B more often, fewer fill more threads.
MAX_ROWS_PER_THREAD = 4
# (row, column, (value, the conditions under which it exists)) -> what stores it
StoreElement = Callable[[Expr, Expr, tuple[Expr, Sequence[Expr]]], Stmt]


@attrs.frozen(eq=False)
class RowMatmul:
    """``a_shared``: the row operand, with ``a_pitch`` elements from row to row. ``active_threads``: conditions for the
    threads that multiply: ``thread_rows`` x ``thread_columns``, each with ``tm`` x ``tn`` of ``sums``."""

    product: Product
    batch: dict[Any, Expr]
    thread: Expr
    a_shared: Any
    a_pitch: int
    b_loader: TileLoader
    sums: Any
    tm: int
    tn: int
    thread_rows: int
    thread_columns: int

    @classmethod
    def make(cls, rows: Any, product: Product, tile_n: int, a_shared: Any, a_pitch: int) -> RowMatmul:
        """For a block's ``rows`` (``row_stages.RowBlock``)."""
        contraction = product.contraction
        tile_k, tm = rows.memory.tile_k(tile_n), min(MAX_ROWS_PER_THREAD, rows.memory.rows)
        thread_rows = rows.memory.rows // tm
        # As many columns a thread as keep all threads busy; in a narrow tile some threads only load.
        tn = max(1, tile_n * thread_rows // THREADS)
        # Past the end of k, B is -0 and A's padding 0: their product -0 changes no sum (``matmul/simt.py``).
        b_loader = tile_loader(rows.ctx, contraction, product.b, product.columns, tile_n, tile_k, THREADS, -0.0)
        b_loader = attrs.evolve(b_loader, tiles=rows.b_tiles)
        batch = index_of(contraction.batch, rows.batch[: len(contraction.batch)])
        sums = registers([tm * tn], "float32", "acc")
        return cls(product, batch, rows.thread, a_shared, a_pitch, b_loader, sums, tm, tn, thread_rows, tile_n // tn)

    @property
    def tile_k(self) -> int:
        """k steps of a B tile."""
        return self.b_loader.tile_k

    @property
    def active_threads(self) -> list[Expr]:
        threads = self.thread_rows * self.thread_columns
        return [self.thread < i64(threads)] if threads < THREADS else []

    def clear(self) -> Stmt:
        return unrolled(self.tm * self.tn, lambda e: store(self.sums, tirx.const(0, "float32"), e), "e")

    def k_loop(self, first_column: Expr, first_tile: Expr, a_column: Expr, count: int, k_multiple: int = 1) -> Stmt:
        """Adds ``count`` k tiles from step ``first_tile`` on, at ``a_column`` in A, for the columns from
        ``first_column`` on. k is bounds-checked if it is no multiple of ``k_multiple``."""
        loader = self.b_loader

        def read(t: Expr) -> Stmt:
            return load_global(
                loader, self.batch, first_column, self.product.n, first_tile + t * self.tile_k, self.thread, k_multiple
            )

        def multiply(buffer: int, piece: Expr) -> Stmt:
            return self._multiply_tile(a_column + piece * self.tile_k, loader.tiles[buffer])

        return double_buffered(
            count,
            read,
            lambda into: store_shared(loader, loader.tiles[into], self.thread),
            multiply,
            self.active_threads,
        )

    def _thread_coords(self) -> tuple[Expr, Expr]:
        """Row and column of the thread in the grid of threads."""
        return tirx.floordiv(self.thread, i64(self.thread_columns)), tirx.floormod(
            self.thread, i64(self.thread_columns)
        )

    def for_each_element(self, store_element: StoreElement) -> Stmt:
        y, x = self._thread_coords()

        def element(i: Expr, j: Expr) -> Stmt:
            return store_element(
                y * self.tm + i, x + j * self.thread_columns, (load(self.sums, i * self.tn + j), self.active_threads)
            )

        return unrolled(self.tm, lambda i: unrolled(self.tn, lambda j: element(i, j), "j"), "i")

    def _multiply_tile(self, a_column: Expr, b_tile: Any) -> Stmt:
        """A k tile: A is read four k steps at a time (float4), B a row of the tile at a time."""
        y, x = self._thread_coords()
        tm, tn, thread_columns = self.tm, self.tn, self.thread_columns
        a, b = registers([tm * FLOAT4], "float32", "a_fragment"), registers([tn], "float32", "b_fragment")

        def four_k_steps(k: Expr) -> Stmt:
            def load_a_row(i: Expr) -> Stmt:
                start = (y * tm + i) * self.a_pitch + a_column + k * FLOAT4
                return store(a, load(self.a_shared, vector_index(start, FLOAT4)), vector_index(i * FLOAT4, FLOAT4))

            def k_step(q: Expr) -> Stmt:
                b_row = (k * FLOAT4 + q) * self.b_loader.pitch + x

                # Columns of a thread are ``thread_columns`` apart: neighbouring threads read neighbouring banks.
                def load_b(j: Expr) -> Stmt:
                    return store(b, load(b_tile, b_row + j * thread_columns), j)

                outer_product = unrolled(tm, lambda i: unrolled(tn, lambda j: add(i, j, q), "j"), "i")
                return seq([unrolled(tn, load_b, "j"), outer_product])

            def add(i: Expr, j: Expr, q: Expr) -> Stmt:
                element = i * tn + j
                return store(self.sums, fma(load(a, i * FLOAT4 + q), load(b, j), load(self.sums, element)), element)

            return seq([unrolled(tm, load_a_row, "i"), unrolled(FLOAT4, k_step, "q")])

        return block([unrolled(self.tile_k // FLOAT4, four_k_steps, "k")], [a, b])
