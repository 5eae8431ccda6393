"""Tensor-core fragments: swizzled shared-memory tiles, ``ldmatrix``, and the ``mma.sync`` of a warp.

A tile of an operand lies in shared memory as in global memory, k-major or mn-major, so that copies are of neighbours;
``ldmatrix`` transposes on the way into registers where that is needed. Rows of a tile are chunks of 8 halves, the 16
bytes that a thread loads for a matrix. Chunks are swizzled within their row, so that the 8 rows of a matrix lie in
different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Stmt, i64, seq, store
from . import ptx
from .launch import WARP, registers, unrolled
from .mma_tiling import TILE_K, MmaTile

CHUNK = 8  # halves of a chunk: a row of an 8 by 8 matrix, 16 bytes
MMA_TILE = 16  # rows of A and k of an m16n8k16 instruction; two instructions make as many columns


@attrs.frozen
class Layout:
    """How an operand's tile, ``tile_mn`` by ``tile_k``, lies in shared memory. ``mn_major``: its rows are values of k,
    of ``tile_mn`` elements; else its rows are rows of A or columns of B, of ``tile_k`` elements."""

    tile_mn: int
    mn_major: bool
    tile_k: int = TILE_K

    @property
    def rows(self) -> int:
        return self.tile_k if self.mn_major else self.tile_mn

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return (self.tile_mn if self.mn_major else self.tile_k) // CHUNK

    def swizzled_offset(self, row: Expr, chunk: Expr) -> Expr:
        """The first half of chunk ``chunk`` of row ``row``.

        All 32 banks are 8 chunks. ``ldmatrix`` reads a chunk of each of 8 rows: without a swizzle, rows of 8 chunks
        and more would put all of them into the same banks. So chunk' = (chunk + row / rows_per_sweep) mod chunks.
        For example, with 4 chunks a row (TILE_K 32) two rows fill the banks: rows 0 and 1 are not shifted, rows 2 and
        3 by a chunk, and so on.
        """
        rows_per_sweep = max(1, CHUNK // self.chunks)  # rows that fill all banks once
        # A rotation, not CUTLASS's XOR: it stays within a row of any number of chunks, 6 of a head of 48 for example.
        shift = tirx.floormod(tirx.floordiv(row, i64(rows_per_sweep)), i64(min(CHUNK, self.chunks)))
        return (row * self.chunks + tirx.floormod(chunk + shift, i64(self.chunks))) * CHUNK


@attrs.frozen(eq=False)
class Fragments:
    """A thread's registers: accumulators, and the fragments of A and B for an instruction's k."""

    acc: Any
    a: Any
    b: Any

    @property
    def buffers(self) -> list[Any]:
        return [self.acc, self.a, self.b]


def fragments_of(tile: MmaTile) -> Fragments:
    """A thread's float32 accumulators of a tile, and its halves of A and B, two in a u32."""
    matrices_m, matrices_n = tile.warp_rows // MMA_TILE, tile.warp_columns // MMA_TILE
    acc = accumulators_of(tile, "acc")
    return Fragments(acc, registers([matrices_m * 4], "uint32", "a"), registers([matrices_n * 4], "uint32", "b"))


def accumulators_of(tile: MmaTile, name: str) -> Any:
    """A thread's accumulators of its warp's part of the tile: 4 for each 16 rows by 8 columns."""
    return registers([tile.warp_rows * tile.warp_columns // WARP], "float32", name)


def clear(acc: Any) -> Stmt:
    """All of a thread's accumulators to 0."""
    return unrolled(int(acc.shape[0]), lambda i: store(acc, tirx.const(0, "float32"), i))


@attrs.frozen(eq=False)
class Warp:
    """The thread's lane in its warp, and the first row and column of the warp's part of the block's tile."""

    lane: Expr
    row: Expr
    column: Expr


def warp_of(tile: MmaTile, thread: Expr) -> Warp:
    """The warp of ``thread`` of the block; warps lie in the tile row-major, ``warps_n`` in a row."""
    warp = tirx.floordiv(thread, i64(WARP))
    warp_m, warp_n = tirx.floordiv(warp, i64(tile.warps_n)), tirx.floormod(warp, i64(tile.warps_n))
    lane = tirx.floormod(thread, i64(WARP))
    return Warp(lane, warp_m * tile.warp_rows, warp_n * tile.warp_columns)


def warp_mma(tile: MmaTile, warp: Warp, fragments: Fragments, operands: Sequence[SharedOperand], dtype: str) -> Stmt:
    """``acc += A B`` over a pipeline stage that has arrived, for the warp's part of the tile."""
    a, b = operands
    matrices_m, matrices_n = tile.warp_rows // MMA_TILE, tile.warp_columns // MMA_TILE

    def step(k: Expr) -> Stmt:
        # All fragments of this k first: each is then used by a row or column of instructions, from registers.
        return seq(
            [
                unrolled(matrices_m, lambda i: a.load((fragments.a, i * 4), warp, warp.row + i * MMA_TILE, k)),
                unrolled(matrices_n, lambda j: b.load((fragments.b, j * 4), warp, warp.column + j * MMA_TILE, k)),
                unrolled(matrices_m, lambda i: unrolled(2 * matrices_n, lambda j: mma(i, j))),
            ]
        )

    def mma(i: Expr, j: Expr) -> Stmt:
        first = (i * (2 * matrices_n) + j) * 4
        return ptx.mma((fragments.acc, first), (fragments.a, i * 4), (fragments.b, j * 2), dtype)

    return unrolled(TILE_K // MMA_TILE, step, "k")


@attrs.frozen(eq=False)
class SharedOperand:
    """An operand's tile in shared memory, from the half ``start`` on.

    ``is_a``: of the four 8 by 8 matrices that an ``ldmatrix`` loads, the second is 8 further along m and the third 8
    further along k, which is how PTX numbers A's registers; B's are the other way round.
    """

    shared: Any
    start: Expr
    layout: Layout
    is_a: bool

    def load(self, to: tuple[Any, Expr], warp: Warp, mn: Expr, k: Expr) -> Stmt:
        """The fragment of 16 rows of A or columns of B from ``mn`` on, at k from 16 ``k`` on, into four registers."""
        # Lane t gives the address of row t % 8 of matrix t / 8.
        matrix, row = tirx.floordiv(warp.lane, i64(8)), tirx.floormod(warp.lane, i64(8))
        inner, outer = tirx.floormod(matrix, i64(2)), tirx.floordiv(matrix, i64(2))
        matrix_mn, matrix_k = (inner, outer) if self.is_a else (outer, inner)
        if self.layout.mn_major:
            chunk = tirx.floordiv(mn, i64(CHUNK)) + matrix_mn
            offset = self.layout.swizzled_offset(k * MMA_TILE + matrix_k * 8 + row, chunk)
        else:
            offset = self.layout.swizzled_offset(mn + matrix_mn * 8 + row, k * 2 + matrix_k)
        return ptx.ldmatrix(to, self.shared, self.start + offset, self.layout.mn_major)


def accumulator_coords(lane: Expr, i: int | Expr) -> tuple[Expr, Expr]:
    """Row and column, of 16 by 8, of the thread's accumulator ``i`` < 4 (PTX ISA 9.7.13, m16n8k16, layout of C)."""
    return (
        tirx.floordiv(lane, i64(4)) + tirx.floordiv(i, 2) * 8,
        tirx.floormod(lane, i64(4)) * 2 + tirx.floormod(i, 2),
    )
