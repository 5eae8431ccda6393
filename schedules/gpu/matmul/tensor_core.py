"""Tensor-core matmul of bfloat16 or float16: ``mma.sync.m16n8k16``, float32 accumulators, split-K (CUTLASS).

Takes a contraction of 16-bit tensors into float32 with its epilogue. A block computes a tile of the result with a
multistage pipeline of ``cp.async`` copies (``async_pipeline.py``); the epilogue goes through shared memory.

The order of a sum follows from its k alone: it is the sum, in order, of the sums of its slices (``slice_k``). A block
makes a tile's slices in series, or each slice is a block's and a second launch adds them. Inside a slice, instructions
add in the order of k; inside an instruction NVIDIA does not specify the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ...tir.context import NestContext
from ...tir.contraction import Contraction, read_contraction
from ...tir.epilogue import epilogue_stages
from ...tir.point_writer import index_of, store_result
from ...tir.stages import Stage
from ..threads.async_pipeline import MatmulBlock, k_loop, write_tile
from ..threads.half_operands import HalfOperand, half_operands
from ..threads.launch import launch, launch_per_point, registers, shared, unrolled
from ..threads.mma_fragments import accumulators_of, clear, fragments_of, warp_of
from ..threads.mma_tiling import MmaTile, MmaTiling, choose_tiling

# k of an instruction: shorter contractions are left to the SIMT matmul, whose sums have the CPU's bits. It decides
# bits.
MIN_K = 16


@attrs.frozen(eq=False)
class TensorCoreMatmul:
    """A matmul, its tiling and its epilogue."""

    ctx: NestContext
    contraction: Contraction
    a: HalfOperand
    b: HalfOperand
    tiling: MmaTiling
    epilogue: tuple[Stage, ...]

    @property
    def tile(self) -> MmaTile:
        return self.tiling.tile


def mma_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """The number of stages it takes, and the launches; None if the first is no contraction of 16-bit tensors."""
    c = read_contraction(ctx.program, stages[0])
    operands = half_operands(c) if c is not None else None
    if c is None or operands is None or c.k < MIN_K or str(c.stage.buffer.dtype) != "float32":
        return None
    # An inlined producer has no memory that cp.async could copy from: the SIMT matmul computes it as it loads.
    if any(operand.read.source in ctx.virtual.stages for operand in operands):
        return None
    epilogue = epilogue_stages(ctx, stages[0], stages[1:])
    matmul = TensorCoreMatmul(ctx, c, *operands, choose_tiling(c.m, c.n, c.k, c.count), tuple(epilogue))
    return 1 + len(epilogue), _parallel_split_k(matmul) if matmul.tiling.parallel else _serial_split_k(matmul)


def _serial_split_k(matmul: TensorCoreMatmul) -> Stmt:
    """A launch: each block makes all slices of its tile in turn, and adds them up in ``total``."""
    c, tiling = matmul.contraction, matmul.tiling

    def body(block_index: Expr, thread: Expr) -> Stmt:
        block = _matmul_block(matmul, unravel(block_index, _grid(matmul)), thread)
        fragments, total = fragments_of(matmul.tile), accumulators_of(matmul.tile, "sum")
        split = tiling.slices > 1

        def end_slice(step: Expr) -> list[Stmt]:
            if not split:
                return []
            # A slice ends where it would end as a block of its own, so that both forms of split-K add the same sums in
            # the same order.
            is_full = tirx.EQ(tirx.floormod(step, i64(tiling.slice_steps)), i64(tiling.slice_steps - 1))
            is_last = tirx.any(is_full, tirx.EQ(step, i64(tiling.k_steps - 1)))
            return [tirx.IfThenElse(is_last, seq([_add(total, fragments.acc), clear(fragments.acc)]), None)]

        steps = k_loop(block, fragments, i64(0), i64(tiling.k_steps), end_slice)
        result = write_tile(block, total if split else fragments.acc, c.m, c.n, _finish(matmul, block.batch))
        clears = [clear(fragments.acc), *([clear(total)] if split else [])]
        buffers = [block.shared, *fragments.buffers, *([total] if split else [])]
        return _block_body(buffers, [*clears, *steps, result])

    return launch(tiling.tiles, matmul.tile.threads, body)


def _parallel_split_k(matmul: TensorCoreMatmul) -> Stmt:
    """Two launches: each block makes a slice of its tile, then a thread for each element adds the slices in order."""
    c, tiling = matmul.contraction, matmul.tiling
    # Slices outermost: the threads of the second launch read neighbouring elements of the same slice, coalesced.
    partial = scratch([tiling.slices, c.count, c.m, c.n], "float32", "partial_sums")

    def body(block_index: Expr, thread: Expr) -> Stmt:
        k_slice, *tile_coords = unravel(block_index, [tiling.slices, *_grid(matmul)])
        block, fragments = _matmul_block(matmul, tile_coords, thread), fragments_of(matmul.tile)
        first = k_slice * tiling.slice_steps
        steps = tirx.min(i64(tiling.slice_steps), i64(tiling.k_steps) - first)
        stmts = k_loop(block, fragments, first, steps, lambda _: [])

        def store_partial(row: Expr, column: Expr, value: Expr) -> Stmt:
            return store(partial, value, k_slice, block.batch, row, column)

        result = write_tile(block, fragments.acc, c.m, c.n, store_partial)
        return _block_body([block.shared, *fragments.buffers], [clear(fragments.acc), *stmts, result])

    def add_slices(point: Expr) -> Stmt:
        batch, row, column = unravel(point, [c.count, c.m, c.n])
        total = registers([1], "float32", "sum")

        def add(k_slice: Expr) -> Stmt:
            return store(total, load(total, i64(0)) + load(partial, k_slice, batch, row, column), i64(0))

        # The epilogue comes after the last slice: it is no sum, and an activation of a part is not a part of the
        # activation.
        finished = _finish(matmul, batch)(row, column, load(total, i64(0)))
        return seq([tirx.AllocBuffer(total), clear(total), loop(tiling.slices, add), finished])

    slices = launch(tiling.slices * tiling.tiles, matmul.tile.threads, body)
    return seq([slices, launch_per_point(c.count * c.m * c.n, add_slices)])


def _grid(matmul: TensorCoreMatmul) -> list[int]:
    """Batch, tiles along m, tiles along n: blocks that run side by side read the same rows of A, which L2 then has."""
    c, tile = matmul.contraction, matmul.tile
    return [c.count, -(-c.m // tile.rows), -(-c.n // tile.columns)]


def _matmul_block(matmul: TensorCoreMatmul, tile_coords: Sequence[Expr], thread: Expr) -> MatmulBlock:
    tile, (batch, tile_m, tile_n) = matmul.tile, tile_coords
    # 16 bits of either dtype: the copies and ldmatrix move bits, and only mma.sync knows what they mean.
    memory = shared([tile.stage_halves * tile.stages], "uint16", "tile")
    row, column = tile_m * tile.rows, tile_n * tile.columns
    return MatmulBlock(tile, memory, thread, warp_of(tile, thread), row, column, batch, matmul.a, matmul.b)


def _add(total: Any, acc: Any) -> Stmt:
    return unrolled(int(acc.shape[0]), lambda i: store(total, load(total, i) + load(acc, i), i))


def _finish(matmul: TensorCoreMatmul, batch: Expr) -> Callable[[Expr, Expr, Expr], Stmt]:
    """What stores an element of a product of the batch and does the epilogue on it."""
    c = matmul.contraction

    def element(row: Expr, column: Expr, value: Expr) -> Stmt:
        coords: dict[Any, Expr] = {}
        for axes, flat in ((c.batch, batch), (c.rows, row), (c.columns, column)):
            coords |= index_of(axes, unravel(flat, [a.extent for a in axes]))
        return store_result(matmul.ctx, c.stage, coords, value, matmul.epilogue)

    return element


def _block_body(buffers: Sequence[Any], statements: Sequence[Stmt]) -> Stmt:
    """A block's statements. Loops that index registers are left to the CUDA compiler to unroll, so that the text is
    short."""
    body = seq([*(tirx.AllocBuffer(b) for b in buffers), *statements])
    return tirx.AttrStmt(i64(0), "pragma_unroll_explicit", i64(0), body)
