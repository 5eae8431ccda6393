"""A block's products: tiles of both factors come to shared memory some stages ahead of the products that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Stmt, i64, load, loop, seq, store
from ...tir.context import dynamic_loop
from . import ptx
from .half_operands import Operand
from .launch import WARP, barrier, registers, unrolled
from .mma_fragments import MATRIX, UNIT, Factor, Layout, Registers, Warp, multiply, place
from .mma_tiling import DEPTH, Tile

Place = tuple[Expr, Expr, Expr]  # of a tile: which of the batch, its first line, its first depth


@attrs.frozen(eq=False)
class Part:
    """One block's part of a product: the thread, and where the block's rows and columns begin."""

    tile: Tile
    shared: Any
    thread: Expr
    warp: Warp
    row: Expr
    column: Expr


@attrs.frozen(eq=False)
class Block(Part):
    """Which of the batch it makes, of which factors."""

    batch: Expr
    a: Operand
    b: Operand

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        return Layout(self.tile.rows, self.a.by_depth), Layout(self.tile.columns, self.b.by_depth)

    def starts(self, turn: Expr) -> tuple[Expr, Expr]:
        """Where the tiles of A and B of a turn lie."""
        start = tirx.floormod(turn, i64(self.tile.stages)) * self.tile.halves
        return start, start + self.tile.rows * DEPTH


def products(
    block: Block, mine: Registers, first: Expr, turns: Expr, then: Callable[[Expr], Sequence[Stmt]]
) -> list[Stmt]:
    """``mine.sums += A B`` for ``turns`` depths of a tile from the ``first`` on, and ``then(turn)`` after each."""
    ahead = block.tile.stages - 1

    def bring(turn: Expr) -> Stmt:
        copies = seq(_copies(block, turn, first + turn))
        return seq([tirx.IfThenElse(turn < turns, copies, None), ptx.commit()])

    def turn(now: Expr) -> Stmt:
        # One barrier: what arrived is seen by all, and all are done with the stage that is filled next.
        step = [ptx.wait(ahead - 1), barrier(), bring(now + ahead)]
        factors = [
            Factor(block.shared, start, layout, letter == "a")
            for start, layout, letter in zip(block.starts(now), block.layouts, "ab", strict=True)
        ]
        return seq([*step, multiply(block.tile, block.warp, mine, factors, block.a.dtype), *then(now)])

    return [unrolled(ahead, bring, "ahead"), dynamic_loop(turns, turn, "turn"), barrier()]


def _copies(block: Block, turn: Expr, k: Expr) -> list[Stmt]:
    parts = zip((block.a, block.b), block.layouts, block.starts(turn), (block.row, block.column), strict=True)
    return [_copy(block, *part, k * DEPTH) for part in parts]


def _copy(block: Block, operand: Operand, layout: Layout, start: Expr, line: Expr, k: Expr) -> Stmt:
    place = block.batch, line, k
    return copy_tile(block.shared, start, layout, operand, place, block.thread, block.tile.threads)


def copy_tile(
    memory: Any, start: Expr, layout: Layout, operand: Operand, place: Place, thread: Expr, threads: int
) -> Stmt:
    """The tile at ``place`` to shared memory from the half ``start`` on, by ``threads``, all of a block; what lies
    outside is zeros."""
    width, (batch, line, k) = operand.width, place
    pieces = layout.units * (UNIT // width)  # of a row
    total, (lines, deep) = layout.rows * pieces, operand.extents

    def one(turn: Expr) -> Stmt:
        flat = turn * threads + thread
        row, piece = tirx.floordiv(flat, i64(pieces)), tirx.floormod(flat, i64(pieces))
        unit, rest = tirx.floordiv(piece, i64(UNIT // width)), tirx.floormod(piece, i64(UNIT // width))
        mine, depth = (line + piece * width, k + row) if layout.by_depth else (line + row, k + piece * width)
        inside = [mine < i64(lines)] if lines % layout.lines else []
        inside += [depth < i64(deep)] if deep % layout.deep else []
        valid = tirx.all(*inside) if inside else tirx.const(True, "bool")
        source = tirx.address_of(operand.element(batch, mine, depth))
        copy = ptx.copy(memory, start + layout.unit(row, unit) + rest * width, source, width, valid)
        return copy if total % threads == 0 else tirx.IfThenElse(flat < i64(total), copy, None)

    return unrolled(-(-total // threads), one)


def write(block: Part, sums: Any, m: int, n: int, element: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
    """``element(row, column, sum)`` for all of the tile that is inside, columns in neighbouring threads."""
    tile, warp = block.tile, block.warp
    pitch = tile.warp_columns + 8  # rows of a warp's 16 begin in different banks
    slab = tirx.floordiv(block.thread, i64(WARP)) * (MATRIX * pitch)
    columns = tile.warp_columns // 8

    def lay(i: Expr) -> Stmt:
        def two(j: Expr, e: Expr) -> Stmt:
            """A thread's neighbours: half a warp's of four rows fill all banks."""
            row, column = place(warp.lane, e * 2)
            first = (i * columns + j) * 4 + e * 2
            values = load(sums, first), load(sums, first + 1)
            return ptx.put(block.shared, slab + row * pitch + j * 8 + column, values)

        return unrolled(columns, lambda j: unrolled(2, lambda e: two(j, e)))

    def pass_on(i: Expr, turn: Expr) -> Stmt:
        flat = turn * WARP + warp.lane
        down, across = tirx.floordiv(flat, i64(tile.warp_columns)), tirx.floormod(flat, i64(tile.warp_columns))
        row, column = block.row + warp.row + i * MATRIX + down, block.column + warp.column + across
        value = registers([1], "float32", "sum")
        bring = store(value, ptx.get(block.shared, slab + down * pitch + across), i64(0))
        done = seq([tirx.AllocBuffer(value), bring, element(row, column, load(value, i64(0)))])
        inside = [row < i64(m)] if m % tile.rows else []
        inside += [column < i64(n)] if n % tile.columns else []
        return tirx.IfThenElse(tirx.all(*inside), done, None) if inside else done

    def rows(i: Expr) -> Stmt:
        turns = MATRIX * tile.warp_columns // WARP
        return seq([lay(i), ptx.meet(), loop(turns, lambda turn: pass_on(i, turn)), ptx.meet()])

    return unrolled(tile.warp_rows // MATRIX, rows)
