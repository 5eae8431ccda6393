"""The stages of some rows of attention, one after the other, by all threads of a block: products and maps."""

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
from .row_matmul import Strip
from .shared_memory import THREADS, Memory, Product, lies_there, padded


@attrs.frozen(eq=False)
class Rows:
    """A block's rows: ``rows`` of ``whole`` from ``first`` on, at ``batch``. ``held``: the shared buffers of what stays
    in the block. ``tiles`` and ``left`` are of all stages in turn."""

    ctx: NestContext
    found: RowGroup
    memory: Memory
    held: dict[Any, Any]
    batch: Sequence[Expr]
    first: Expr
    whole: int
    thread: Expr
    tiles: tuple[Any, Any]
    left: Any
    offset: Any = None  # the first of the columns whose elements lie in the block, where not all do

    def places(self, slot: Expr) -> list[Expr]:
        """Where row ``slot`` stands; past the last row, that of the last, which is read and not stored again."""
        if len(self.batch) == self.found.lead:
            return [*self.batch]
        row = self.first + slot
        ragged = self.whole % self.memory.rows
        return [*self.batch, tirx.Min(row, i64(self.whole - 1)) if ragged else row]

    def stored(self, stage: Stage, stmt: Stmt, slot: Expr, *inside: Expr) -> Stmt:
        """``stmt``, which stores what ``stage`` makes of row ``slot``: in the block, or where the row is one."""
        ragged = stage.buffer not in self.held and self.whole % self.memory.rows
        conditions = [*inside, *([self.first + slot < i64(self.whole)] if ragged else [])]
        stmt = self.local(bind_in_buffers(stmt), slot)
        return tirx.IfThenElse(tirx.all(*conditions), stmt, None) if conditions else stmt

    def line(self, buffer: Any) -> int:
        """Elements from one row to the next."""
        return self.memory.lines[buffer][1]

    def local(self, stmt: Stmt, slot: Expr) -> Stmt:
        """Accesses of what stays in the block."""

        def place(buffer: Any, indices: Sequence[Expr]) -> Expr:
            flat: Expr = i64(0)
            for d, (index, extent) in enumerate(zip(indices, shape_of(buffer), strict=True)):
                flat = flat if d in self.found.row_dims[buffer] else flat * extent + index
            if self.offset is not None and self.line(buffer) > 1:
                flat = Analyzer().simplify(flat - self.offset)  # TVM divides by zero where it bounds n + x - n
            return slot * self.line(buffer) + flat

        def read(node: Any) -> Expr:
            held = self.held.get(node.source)
            return node if held is None else load(held, place(node.source, node.indices))

        def write(node: Any) -> Stmt:
            held = self.held.get(node.buffer)
            return node if held is None else store(held, node.value, place(node.buffer, node.indices))

        return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)])

    def each(self, inner: int, body: Callable[[Expr, Expr], Stmt], across: int = 0) -> Stmt:
        """``body(slot, i)`` for every row and i below ``inner``, neighbours in neighbouring threads; if ``across``, a
        divisor, is not 0, then so many of them, and behind them those of the next row."""
        count, across = self.memory.rows * inner, across or inner

        def one(s: Expr) -> Stmt:
            flat = s * THREADS + self.thread
            part, slot, i = unravel(flat, [inner // across, self.memory.rows, across])
            done = bind_in_buffers(body(slot, part * across + i))
            return done if count % THREADS == 0 else tirx.IfThenElse(flat < i64(count), done, None)

        return loop(-(-count // THREADS), one, name="s")


def result(rows: Rows, stage: Stage, here: dict[Any, Expr], value: Expr, slot: Expr, *inside: Expr) -> Stmt:
    """One finished element of a fold to its place."""
    point = ScalarWriter(rows.ctx.virtual)
    indices = point.indices(stage.indices, here)
    put_it = store(stage.buffer, in_type(value, str(stage.buffer.dtype)), *indices)
    return rows.stored(stage, seq([*point.binds, put_it]), slot, *inside)


def map_rows(rows: Rows, stage: Stage) -> list[Stmt]:
    free = [a.extent for a in stage.space[rows.found.lead :]]

    def one(slot: Expr, f: Expr) -> Stmt:
        places = [*rows.places(slot), *unravel(f, free)]
        return rows.stored(stage, point_stores(rows.ctx, [stage], places, {}, [stage]), slot)

    return [rows.each(prod(free), one), barrier()]


def product_rows(rows: Rows, stage: Stage, product: Product) -> list[Stmt]:
    """The product of the rows with all columns, some columns side by side at a time."""
    prepared, left, line = _left(rows, product)
    columns, n = rows.memory.wide(product.n), product.n
    strip = Strip.make(rows, product, columns, left, line)

    def one(c: Expr) -> Stmt:
        start = c * columns
        turns = strip.turns(start, i64(0), i64(0), -(-product.one.k // strip.deep))
        ends = strip.elements(lambda slot, column, inside: element(rows, stage, product, slot, start + column, inside))
        return seq([block([strip.clear(), turns, ends], [strip.factor.staging, strip.sums]), barrier()])

    return [*prepared, loop(-(-n // columns), one, name="strip")]


def element(
    rows: Rows, stage: Stage, product: Product, slot: Expr, column: Expr, value: tuple[Expr, Sequence[Expr]]
) -> Stmt:
    """A finished element of a product, ``value`` where the conditions with it hold, to its place."""
    made, inside = value
    here = index_of(stage.space[: rows.found.lead], rows.places(slot))
    here |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
    inside = [*inside, *([column < i64(product.n)] if product.n % rows.memory.wide(product.n) else [])]
    return result(rows, stage, here, made, slot, *inside)


def _left(rows: Rows, product: Product) -> tuple[list[Stmt], Any, int]:
    """The factor of the rows in shared memory, as it lies there or copied; and the elements from row to row."""
    one, value = product.one, product.left
    if lies_there(rows.found, rows.memory.lines, product):
        return [], rows.held[value.source], rows.line(value.source)
    return copy_rows(rows, product, rows.left), rows.left, padded(one.k)


def copy_rows(rows: Rows, product: Product, into: Any) -> list[Stmt]:
    """The factor of the rows into shared memory, a line a row with zeros behind it."""
    one, value, line = product.one, product.left, padded(product.one.k)
    reduce = one.stage.reduce

    def copy(slot: Expr, k: Expr) -> Stmt:
        point = ScalarWriter(rows.ctx.virtual)
        here = index_of(one.stage.space[: rows.found.lead], rows.places(slot))
        here |= index_of(reduce, unravel(k, [a.extent for a in reduce]))
        made = store(into, point.write(value, here), slot * line + k)
        read = rows.local(bind_in_buffers(seq([*point.binds, made])), slot)
        blank = store(into, tirx.const(0, "float32"), slot * line + k)
        return read if line == one.k else tirx.IfThenElse(k < i64(one.k), read, blank)

    return [rows.each(line, copy), barrier()]
