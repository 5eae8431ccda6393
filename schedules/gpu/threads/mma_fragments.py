"""Matrix units: how a block's tiles of halves lie in shared memory, and the products of one warp.

A tile of a factor is ``lines`` (rows of A, columns of B) by ``depth``. It lies as the factor does in memory, by line or
by depth, so that copies are of neighbours; matrices are turned as they are loaded into registers. Rows of a tile are
units of 8 halves, the 16 bytes that a thread loads for a matrix; the units of a row are turned (``unit``) so that the 8
rows of a matrix lie in different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Stmt, i64, seq, store
from . import ptx
from .launch import WARP, registers, unrolled
from .mma_tiling import DEPTH, Tile

UNIT = 8  # halves that lie together
MATRIX = 16  # rows of A and depth of one instruction


@attrs.frozen
class Layout:
    """Where a factor's tile, ``lines`` by ``deep``, lies in shared memory. ``by_depth``: its rows are depths, and lines
    lie side by side."""

    lines: int
    by_depth: bool
    deep: int = DEPTH

    @property
    def rows(self) -> int:
        return self.deep if self.by_depth else self.lines

    @property
    def units(self) -> int:
        """Units of a row."""
        return (self.lines if self.by_depth else self.deep) // UNIT

    def unit(self, row: Expr, unit: Expr) -> Expr:
        """The half that begins unit ``unit`` of row ``row``. Eight units fill all banks once: neighbours in them are
        8 rows of one unit."""
        together = max(1, UNIT // self.units)  # rows that fill the banks
        turn = tirx.floormod(tirx.floordiv(row, i64(together)), i64(min(UNIT, self.units)))
        return (row * self.units + tirx.floormod(unit + turn, i64(self.units))) * UNIT


@attrs.frozen(eq=False)
class Registers:
    """What a thread holds: sums, and the matrices of A and B of one instruction's depth."""

    sums: Any
    a: Any
    b: Any

    @property
    def buffers(self) -> list[Any]:
        return [self.sums, self.a, self.b]


def registers_of(tile: Tile) -> Registers:
    """A thread's f32 sums of a tile, and its halves of A and B at one depth, two in a u32."""
    down, across = tile.warp_rows // MATRIX, tile.warp_columns // MATRIX
    return Registers(
        sums_of(tile, "sums"), registers([down * 4], "uint32", "a"), registers([across * 4], "uint32", "b")
    )


def sums_of(tile: Tile, name: str) -> Any:
    """A warp's part of the tile: for each 16 rows and 8 columns, 4 a thread."""
    return registers([tile.warp_rows * tile.warp_columns // WARP], "float32", name)


def clear(sums: Any) -> Stmt:
    """All of a thread's sums to 0."""
    return unrolled(int(sums.shape[0]), lambda i: store(sums, tirx.const(0, "float32"), i))


@attrs.frozen(eq=False)
class Warp:
    """One warp's place in the block: which lane the thread is, and where its rows and columns begin."""

    lane: Expr
    row: Expr
    column: Expr


def warp_of(tile: Tile, thread: Expr) -> Warp:
    """The place of the warp that ``thread`` of the block is in; warps stand in rows of ``tile.across``."""
    warp = tirx.floordiv(thread, i64(WARP))
    down, across = tirx.floordiv(warp, i64(tile.across)), tirx.floormod(warp, i64(tile.across))
    lane = tirx.floormod(thread, i64(WARP))
    return Warp(lane, down * tile.warp_rows, across * tile.warp_columns)


def multiply(tile: Tile, warp: Warp, mine: Registers, factors: Sequence[Factor], dtype: str) -> Stmt:
    """``sums += A B`` for a stage that has arrived."""
    a, b = factors
    down, across = tile.warp_rows // MATRIX, tile.warp_columns // MATRIX

    def step(k: Expr) -> Stmt:
        return seq(
            [
                unrolled(down, lambda i: a.load((mine.a, i * 4), warp, warp.row + i * MATRIX, k)),
                unrolled(across, lambda j: b.load((mine.b, j * 4), warp, warp.column + j * MATRIX, k)),
                unrolled(down, lambda i: unrolled(2 * across, lambda j: one(i, j))),
            ]
        )

    def one(i: Expr, j: Expr) -> Stmt:
        place = (i * (2 * across) + j) * 4
        return ptx.multiply((mine.sums, place), (mine.a, i * 4), (mine.b, j * 2), dtype)

    return unrolled(DEPTH // MATRIX, step, "k")


@attrs.frozen(eq=False)
class Factor:
    """A factor's tile in shared memory, from the half ``start`` on. ``lines_first``: of the four matrices that are
    loaded at once, the second is 8 lines on and the third 8 deeper, as A's registers are numbered; else as B's."""

    shared: Any
    start: Expr
    layout: Layout
    lines_first: bool

    def load(self, to: tuple[Any, Expr], warp: Warp, line: Expr, k: Expr) -> Stmt:
        """The matrices of 16 lines from ``line`` on, at depth 16 k, into four registers."""
        matrix, row = tirx.floordiv(warp.lane, i64(8)), tirx.floormod(warp.lane, i64(8))
        inner, outer = tirx.floormod(matrix, i64(2)), tirx.floordiv(matrix, i64(2))
        lines, deeper = (inner, outer) if self.lines_first else (outer, inner)
        if self.layout.by_depth:
            at = self.layout.unit(k * MATRIX + deeper * 8 + row, tirx.floordiv(line, i64(UNIT)) + lines)
        else:
            at = self.layout.unit(line + lines * 8 + row, k * 2 + deeper)
        return ptx.load_matrices(to, self.shared, self.start + at, self.layout.by_depth)


def place(lane: Expr, i: int | Expr) -> tuple[Expr, Expr]:
    """Row and column, of 16 by 8, of the thread's sum ``i`` < 4."""
    return (
        tirx.floordiv(lane, i64(4)) + tirx.floordiv(i, 2) * 8,
        tirx.floormod(lane, i64(4)) * 2 + tirx.floormod(i, 2),
    )
