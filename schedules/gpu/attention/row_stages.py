"""Matmul and elementwise stages on a block's rows, with scores in shared memory.

It takes the stages of a fused group in order, with a barrier after each. Neighbouring threads take
neighbouring columns. Sums are those of ``row_matmul`` and ``row_reduction``; no stage reorders them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx
from tvm.sym import Analyzer

from ...tir.accumulators import in_type
from ...tir.builder import Expr, Load, Stmt, i64, load, loop, seq, shape_of, store, unravel
from ...tir.context import NestContext, block
from ...tir.inline import ScalarWriter
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of, point_stores
from ...tir.rewrite import rewrite
from ...tir.row_group import RowGroup
from ...tir.stages import Stage
from ..threads.launch import barrier
from .row_matmul import RowMatmul
from .shared_memory import THREADS, Memory, Product, is_a_in_shared, padded_length


@attrs.frozen(eq=False)
class RowBlock:
    """A block's rows, of ``total_rows`` from ``first_row`` on, at ``batch``. ``shared_buffers``: of the intermediates
    that stay in the block. ``b_tiles`` and ``a_copy`` are reused by all stages."""

    ctx: NestContext
    fused: RowGroup
    memory: Memory
    shared_buffers: dict[Any, Any]
    batch: Sequence[Expr]
    first_row: Expr
    total_rows: int
    thread: Expr
    b_tiles: tuple[Any, Any]
    a_copy: Any
    column_offset: Any = None  # first column of the K/V tile, if columns are tiled

    def row_indices(self, slot: Expr) -> list[Expr]:
        """Batch and row of ``slot``. Past the last row it is the last: read again, but its store is guarded."""
        if len(self.batch) == self.fused.lead:
            return [*self.batch]
        row = self.first_row + slot
        ragged = self.total_rows % self.memory.rows
        return [*self.batch, tirx.Min(row, i64(self.total_rows - 1)) if ragged else row]

    def store_guarded(self, stage: Stage, stmt: Stmt, slot: Expr, *guards: Expr) -> Stmt:
        """``stmt`` stores a result of row ``slot``: guarded if it goes to global memory and the row may not exist."""
        ragged = stage.buffer not in self.shared_buffers and self.total_rows % self.memory.rows
        conditions = [*guards, *([self.first_row + slot < i64(self.total_rows)] if ragged else [])]
        stmt = self.to_shared(bind_in_buffers(stmt), slot)
        return tirx.IfThenElse(tirx.all(*conditions), stmt, None) if conditions else stmt

    def pitch(self, buffer: Any) -> int:
        """Elements from a row to the next."""
        return self.memory.regions[buffer][1]

    def to_shared(self, stmt: Stmt, slot: Expr) -> Stmt:
        """Replaces accesses to intermediates by accesses to shared memory."""

        def offset(buffer: Any, indices: Sequence[Expr]) -> Expr:
            flat: Expr = i64(0)
            for d, (index, extent) in enumerate(zip(indices, shape_of(buffer), strict=True)):
                flat = flat if d in self.fused.row_dims[buffer] else flat * extent + index
            if self.column_offset is not None and self.pitch(buffer) > 1:
                # Simplified at once, since TVM divides by zero where it bounds n + x - n.
                flat = Analyzer().simplify(flat - self.column_offset)
            return slot * self.pitch(buffer) + flat

        def read(node: Any) -> Expr:
            shared = self.shared_buffers.get(node.source)
            return node if shared is None else load(shared, offset(node.source, node.indices))

        def write(node: Any) -> Stmt:
            shared = self.shared_buffers.get(node.buffer)
            return node if shared is None else store(shared, node.value, offset(node.buffer, node.indices))

        return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)])

    def for_each(self, inner: int, body: Callable[[Expr, Expr], Stmt], across: int = 0) -> Stmt:
        """``body(slot, i)`` for every row and i below ``inner``, neighbours in neighbouring threads; if ``across``, a
        divisor, is not 0, then so many of them, and behind them those of the next row."""
        count, across = self.memory.rows * inner, across or inner

        def element(s: Expr) -> Stmt:
            flat = s * THREADS + self.thread
            part, slot, i = unravel(flat, [inner // across, self.memory.rows, across])
            stmt = bind_in_buffers(body(slot, part * across + i))
            return stmt if count % THREADS == 0 else tirx.IfThenElse(flat < i64(count), stmt, None)

        return loop(-(-count // THREADS), element, name="s")


def store_element(rows: RowBlock, stage: Stage, at: dict[Any, Expr], value: Expr, slot: Expr, *guards: Expr) -> Stmt:
    """Stores a finished element."""
    point = ScalarWriter(rows.ctx.virtual)
    indices = point.indices(stage.indices, at)
    write = store(stage.buffer, in_type(value, str(stage.buffer.dtype)), *indices)
    return rows.store_guarded(stage, seq([*point.binds, write]), slot, *guards)


def elementwise_rows(rows: RowBlock, stage: Stage) -> list[Stmt]:
    free = [a.extent for a in stage.space[rows.fused.lead :]]

    def element(slot: Expr, f: Expr) -> Stmt:
        coords = [*rows.row_indices(slot), *unravel(f, free)]
        return rows.store_guarded(stage, point_stores(rows.ctx, [stage], coords, {}, [stage]), slot)

    return [rows.for_each(prod(free), element), barrier()]


def matmul_rows(rows: RowBlock, stage: Stage, product: Product) -> list[Stmt]:
    """A matmul of the rows, ``tile_n`` columns at a time."""
    prepared, a_shared, a_pitch = _load_a(rows, product)
    columns, n = rows.memory.tile_n(product.n), product.n
    matmul = RowMatmul.make(rows, product, columns, a_shared, a_pitch)

    def column_tile(c: Expr) -> Stmt:
        start = c * columns
        k_loop = matmul.k_loop(start, i64(0), i64(0), -(-product.contraction.k // matmul.tile_k))
        stores = matmul.for_each_element(
            lambda slot, column, value: store_product_element(rows, stage, product, slot, start + column, value)
        )
        # The barrier: the next column tile, or the next stage, reads what these threads have stored.
        return seq([block([matmul.clear(), k_loop, stores], [matmul.b_loader.staging, matmul.sums]), barrier()])

    return [*prepared, loop(-(-n // columns), column_tile, name="column_tile")]


def store_product_element(
    rows: RowBlock, stage: Stage, product: Product, slot: Expr, column: Expr, value: tuple[Expr, Sequence[Expr]]
) -> Stmt:
    """Stores an element of a matmul; ``value`` comes with the conditions under which it exists."""
    result, guards = value
    indices = index_of(stage.space[: rows.fused.lead], rows.row_indices(slot))
    indices |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
    guards = [*guards, *([column < i64(product.n)] if product.n % rows.memory.tile_n(product.n) else [])]
    return store_element(rows, stage, indices, result, slot, *guards)


def _load_a(rows: RowBlock, product: Product) -> tuple[list[Stmt], Any, int]:
    """The row operand in shared memory, resident or copied, and its pitch."""
    contraction, value = product.contraction, product.a
    if is_a_in_shared(rows.fused, rows.memory.regions, product):
        return [], rows.shared_buffers[value.source], rows.pitch(value.source)
    return copy_a_to_shared(rows, product, rows.a_copy), rows.a_copy, padded_length(contraction.k)


def copy_a_to_shared(rows: RowBlock, product: Product, into: Any) -> list[Stmt]:
    """Copies the row operand to shared memory; zeros pad each row to full k tiles."""
    contraction, value, pitch = product.contraction, product.a, padded_length(product.contraction.k)
    reduce = contraction.stage.reduce

    def copy(slot: Expr, k: Expr) -> Stmt:
        point = ScalarWriter(rows.ctx.virtual)
        indices = index_of(contraction.stage.space[: rows.fused.lead], rows.row_indices(slot))
        indices |= index_of(reduce, unravel(k, [a.extent for a in reduce]))
        write = store(into, point.write(value, indices), slot * pitch + k)
        read = rows.to_shared(bind_in_buffers(seq([*point.binds, write])), slot)
        zero = store(into, tirx.const(0, "float32"), slot * pitch + k)
        # Zeros past k, so that the k loop needs no bounds test: it reads whole tiles.
        return read if pitch == contraction.k else tirx.IfThenElse(k < i64(contraction.k), read, zero)

    return [rows.for_each(pitch, copy), barrier()]
