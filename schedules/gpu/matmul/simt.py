"""SIMT matmul on CUDA cores: block tiles in shared memory, thread tiles in registers, double-buffered (CUTLASS SIMT).

Takes any contraction into float32 or float64 with the elementwise stages that follow it (its epilogue). A thread has
tm by tn accumulators. While a block multiplies a k tile, its threads load the next into registers, and then store it
into the other half of shared memory: a single barrier a tile. Every element is a chain of fused multiply-adds in the
order of k, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import fma
from ...tir.builder import Expr, Stmt, i64, load, loop, seq, store, unravel
from ...tir.context import NestContext, block
from ...tir.contraction import Contraction, read_contraction
from ...tir.epilogue import epilogue_stages
from ...tir.point_writer import index_of, store_result
from ...tir.stages import Stage, variables
from ..threads.launch import barrier, launch, registers, shared, unrolled
from ..threads.tile_staging import TileLoader, double_buffered, load_global, store_shared, tile_loader, vector_index
from .simt_tiling import SimtTile, choose_tile

# The warp's threads along rows and along columns, where a tile has as many: near a square, so that a warp reads few
# different elements of A and B (4 + 8 of them instead of 1 + 32), and shared memory broadcasts the rest.
WARP_SHAPE = (4, 8)


@attrs.frozen(eq=False)
class SimtMatmul:
    """A matmul and its epilogue.

    ``acc``  [tm * tn], a thread's accumulators
    ``out``  [threads_m * (bn + 1)], a row of every thread on its way to global memory
    """

    ctx: NestContext
    contraction: Contraction
    epilogue: tuple[Stage, ...]
    tile: SimtTile
    a: TileLoader
    b: TileLoader
    acc: Any
    out: Any

    @property
    def k_steps(self) -> int:
        return -(-self.contraction.k // self.tile.bk)


def matmul_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """The number of stages it takes, and the launch; None if the first is no contraction."""
    contraction = read_contraction(ctx.program, stages[0])
    if contraction is None:
        return None
    epilogue = epilogue_stages(ctx, stages[0], stages[1:])
    return 1 + len(epilogue), matmul_launch(ctx, contraction, epilogue)


def matmul_launch(ctx: NestContext, contraction: Contraction, epilogue: Sequence[Stage]) -> Stmt:
    """The launch of a matmul and the elementwise stages of its epilogue."""
    c, dtype = contraction, str(contraction.stage.buffer.dtype)
    tile = choose_tile(c.m, c.n, c.k, c.count, 4 if dtype == "float32" else 8)
    # Past the end of k, 0 of A meets -0 of B: their product, -0, leaves every sum as it is, a sum of -0 too. With 0 on
    # both sides a sum of -0 would become 0, and so differ from the CPU's.
    a = tile_loader(ctx, c, c.a, c.rows, tile.bm, tile.bk, tile.threads, 0.0)
    b = tile_loader(ctx, c, c.b, c.columns, tile.bn, tile.bk, tile.threads, -0.0)
    acc = registers([tile.tm * tile.tn], dtype, "acc")
    # Rows of the epilogue tile are padded by an element: threads that store to a column of several rows have different
    # banks.
    out = shared([tile.threads_m * (tile.bn + 1)], dtype, "epilogue_tile")
    matmul = SimtMatmul(ctx, c, tuple(epilogue), tile, a, b, acc, out)
    # Rows innermost: blocks that run at the same time then share columns of B, which L2 keeps.
    grid = [c.count, -(-c.n // tile.bn), -(-c.m // tile.bm)]
    return launch(grid[0] * grid[1] * grid[2], tile.threads, lambda p, t: _block(matmul, unravel(p, grid), t))


def _block(matmul: SimtMatmul, block_coords: Sequence[Expr], thread: Expr) -> Stmt:
    c, tile, (batch_index, block_n, block_m) = matmul.contraction, matmul.tile, block_coords
    batch = index_of(c.batch, unravel(batch_index, [a.extent for a in c.batch]))
    origin = (block_m * tile.bm, block_n * tile.bn)
    zero = tirx.const(c.stage.reduction.init.value, str(matmul.acc.dtype)) if c.stage.reduction else None
    clear = unrolled(tile.tm * tile.tn, lambda e: store(matmul.acc, zero, e), "e")

    def load_next(step: Expr) -> Stmt:
        k = step * tile.bk
        load_a = load_global(matmul.a, batch, origin[0], c.m, k, thread)
        return seq([load_a, load_global(matmul.b, batch, origin[1], c.n, k, thread)])

    def store_next(into: int) -> Stmt:
        return seq([store_shared(loader, loader.tiles[into], thread) for loader in (matmul.a, matmul.b)])

    def multiply(buffer: int, _: Expr) -> Stmt:
        return multiply_tile(matmul, buffer, thread)

    k_loop = double_buffered(matmul.k_steps, load_next, store_next, multiply, _compute_guard(matmul, thread))
    staging = [*matmul.a.tiles, *matmul.b.tiles, matmul.a.staging, matmul.b.staging]
    return block([clear, k_loop, _epilogue(matmul, batch, origin, thread)], [*staging, matmul.acc, matmul.out])


def _compute_guard(matmul: SimtMatmul, thread: Expr) -> list[Expr]:
    """Does the thread multiply?"""
    tile = matmul.tile
    return [thread < i64(tile.compute_threads)] if tile.compute_threads < tile.threads else []


def thread_coords(tile: SimtTile, thread: Expr) -> tuple[Expr, Expr]:
    """The thread's row and column among the tile's ``threads_m`` by ``threads_n`` threads."""
    rows, columns = WARP_SHAPE
    # Thin tiles have no room for a warp of that shape: their threads are numbered row by row.
    if tile.threads_m % rows or tile.threads_n % columns:
        return tuple(unravel(thread, [tile.threads_m, tile.threads_n]))
    warp_m, warp_n, y, x = unravel(thread, [tile.threads_m // rows, tile.threads_n // columns, rows, columns])
    return warp_m * rows + y, warp_n * columns + x


def multiply_tile(matmul: SimtMatmul, buffer: int, thread: Expr) -> Stmt:
    """``acc += A B`` over a k tile, as outer products of the thread's rows of A and columns of B."""
    tile, dtype = matmul.tile, str(matmul.acc.dtype)
    thread_m, thread_n = thread_coords(tile, thread)
    a_fragment, b_fragment = registers([tile.tm], dtype, "a_fragment"), registers([tile.tn], dtype, "b_fragment")

    def multiply_add(i: Expr, j: Expr) -> Stmt:
        e = i * tile.tn + j
        return store(matmul.acc, fma(load(a_fragment, i), load(b_fragment, j), load(matmul.acc, e)), e)

    def step(k: Expr) -> Stmt:
        return seq(
            [
                *_load_fragment(a_fragment, matmul.a, buffer, k, thread_m, tile.threads_m),
                *_load_fragment(b_fragment, matmul.b, buffer, k, thread_n, tile.threads_n),
                unrolled(tile.tm, lambda i: unrolled(tile.tn, lambda j: multiply_add(i, j), "j"), "i"),
            ]
        )

    # Unrolled over the k tile: the compiler can then load the next fragments while it multiplies these.
    return block([unrolled(tile.bk, step, "k")], [a_fragment, b_fragment])


def _load_fragment(fragment: Any, loader: TileLoader, buffer: int, k: Expr, thread: Expr, threads: int) -> list[Stmt]:
    """A thread's elements of an operand at ``k``, in vectors; vectors of the threads lie side by side."""
    count = int(fragment.shape[0])
    vector = vector_width(count, str(fragment.dtype))
    stmts = []
    for i in range(0, count, vector):
        offset = k * loader.pitch + tile_coord(i64(i), thread, threads, vector)
        stmts.append(
            store(fragment, load(loader.tiles[buffer], vector_index(offset, vector)), vector_index(i64(i), vector))
        )
    return stmts


def vector_width(count: int, dtype: str) -> int:
    """Elements of ``count`` that are read at once: 16 bytes at most."""
    # Of 8-byte elements two: 16 bytes are the widest load of shared memory.
    return min(count, 4 if dtype == "float32" else 2)


def tile_coord(i: Expr, thread: Expr, threads: int, vector: int) -> Expr:
    """The row or column within the block's tile of a thread's ``i``-th.

    A thread's are vectors, ``threads`` vectors apart, so that the vectors of neighbouring threads are neighbours and
    fill the banks of shared memory.
    """
    return tirx.floordiv(i, i64(vector)) * (threads * vector) + thread * vector + tirx.floormod(i, i64(vector))


def _epilogue(matmul: SimtMatmul, batch: dict[Any, Expr], origin: tuple[Expr, Expr], thread: Expr) -> Stmt:
    """Stores the elements, a row of each thread at a time through shared memory: so neighbouring threads store
    neighbours in memory, and the text of the epilogue stands once for a row instead of once for an element."""
    tile, dtype = matmul.tile, str(matmul.acc.dtype)
    thread_m, thread_n = thread_coords(tile, thread)
    pitch, total = tile.bn + 1, tile.threads_m * tile.bn

    def stage_row(i: Expr) -> Stmt:
        def stage_element(j: Expr) -> Stmt:
            column = tile_coord(j, thread_n, tile.threads_n, vector_width(tile.tn, dtype))
            return store(matmul.out, load(matmul.acc, i * tile.tn + j), thread_m * pitch + column)

        elements = unrolled(tile.tn, stage_element, "j")
        guard = _compute_guard(matmul, thread)
        return tirx.IfThenElse(tirx.all(*guard), elements, None) if guard else elements

    def finish(i: Expr, s: Expr) -> Stmt:
        flat = s * tile.threads + thread
        row_major = unravel(flat, [tile.threads_m, tile.bn])
        column_major = unravel(flat, [tile.bn, tile.threads_m])[::-1]
        # Neighbouring threads take neighbours of the result's memory: along its rows, or along columns if it is stored
        # transposed. Else each store of a warp would touch 32 sectors.
        out_row, column = column_major if _is_stored_transposed(matmul.contraction) else row_major
        row = tile_coord(i, out_row, tile.threads_m, vector_width(tile.tm, dtype))
        guard = [flat < i64(total)] if total % tile.threads else []
        value = load(matmul.out, out_row * pitch + column)
        return _finish_element(matmul, batch, (origin[0] + row, origin[1] + column), value, guard)

    def row(i: Expr) -> Stmt:
        finished = loop(-(-total // tile.threads), lambda s: finish(i, s), name="s")
        # The first barrier: the rows are complete. The second: they have been read, and the next may overwrite them.
        return seq([stage_row(i), barrier(), finished, barrier()])

    return unrolled(tile.tm, row, "i")


def _finish_element(
    matmul: SimtMatmul, batch: dict[Any, Expr], position: tuple[Expr, Expr], value: Expr, guard: list[Expr]
) -> Stmt:
    """A finished element stored, and the epilogue on it, where it is within the result."""
    c, tile, (row, column) = matmul.contraction, matmul.tile, position
    coords = batch | index_of(c.rows, unravel(row, [a.extent for a in c.rows]))
    coords |= index_of(c.columns, unravel(column, [a.extent for a in c.columns]))
    guard = guard + ([row < i64(c.m)] if c.m % tile.bm else [])
    guard += [column < i64(c.n)] if c.n % tile.bn else []
    stmt = store_result(matmul.ctx, c.stage, coords, value, matmul.epilogue)
    return tirx.IfThenElse(tirx.all(*guard), stmt, None) if guard else stmt


def _is_stored_transposed(contraction: Contraction) -> bool:
    """Are neighbours in the result's memory neighbouring rows of the product?"""
    last = variables(contraction.stage.indices[-1])
    return any(a.var in last for a in contraction.rows)
