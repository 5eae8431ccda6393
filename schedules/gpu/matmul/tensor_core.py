"""Products of halves (bfloat16, float16) on matrix units: ``mma.sync`` of m16n8k16, sums in float32.

A block makes a tile of the product. Copies to shared memory run some stages ahead of the products; each thread's sums
go by way of shared memory to the stages that follow, so that neighbours in memory are written by neighbours.

The order of a sum follows from its depth alone: it is the sum, in order, of the sums of its pieces
(``tiles.piece_of``); where tiles are few the pieces are blocks of their own, whose sums a second launch adds. Inside a
piece the order is the matrix unit's.
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
from ..threads.async_pipeline import Block, products, write
from ..threads.half_operands import Operand, operands
from ..threads.launch import launch, over, registers, shared, unrolled
from ..threads.mma_fragments import clear, registers_of, sums_of, warp_of
from ..threads.mma_tiling import Cut, Tile, cut

LEAST = 16  # depth of one instruction: shorter products are the other nests'


@attrs.frozen(eq=False)
class Job:
    """One product and how it is done."""

    ctx: NestContext
    one: Contraction
    a: Operand
    b: Operand
    cut: Cut
    after: tuple[Stage, ...]

    @property
    def tile(self) -> Tile:
        return self.cut.tile


def mma_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launches; None if the first is no product of halves."""
    one = read_contraction(ctx.program, stages[0])
    found = operands(one) if one is not None else None
    if one is None or found is None or one.k < LEAST or str(one.stage.buffer.dtype) != "float32":
        return None
    if any(operand.read.source in ctx.virtual.stages for operand in found):
        return None
    after = epilogue_stages(ctx, stages[0], stages[1:])
    job = Job(ctx, one, *found, cut(one.m, one.n, one.k, one.count), tuple(after))
    return 1 + len(after), _apart(job) if job.cut.apart else _whole(job)


def _whole(job: Job) -> Stmt:
    """Each block makes whole sums of its tile, piece after piece."""

    def body(number: Expr, thread: Expr) -> Stmt:
        here = _block(job, unravel(number, _grid(job)), thread)
        mine, total = registers_of(job.tile), sums_of(job.tile, "total")
        long = job.cut.pieces > 1

        def end(turn: Expr) -> list[Stmt]:
            if not long:
                return []
            whole = tirx.EQ(tirx.floormod(turn, i64(job.cut.piece)), i64(job.cut.piece - 1))
            last = tirx.any(whole, tirx.EQ(turn, i64(job.cut.turns - 1)))
            return [tirx.IfThenElse(last, seq([_add(total, mine.sums), clear(mine.sums)]), None)]

        steps = products(here, mine, i64(0), i64(job.cut.turns), end)
        result = write(here, total if long else mine.sums, job.one.m, job.one.n, _finish(job, here.batch))
        starts = [clear(mine.sums), *([clear(total)] if long else [])]
        return _launched([here.shared, *mine.buffers, *([total] if long else [])], [*starts, *steps, result])

    return launch(job.cut.tiles, job.tile.threads, body)


def _apart(job: Job) -> Stmt:
    """Each block makes a piece of its tile's sums; a thread an element adds the pieces."""
    one = job.one
    partial = scratch([job.cut.pieces, one.count, one.m, one.n], "float32", "pieces")

    def body(number: Expr, thread: Expr) -> Stmt:
        piece, *rest = unravel(number, [job.cut.pieces, *_grid(job)])
        here, mine = _block(job, rest, thread), registers_of(job.tile)
        first = piece * job.cut.piece
        turns = tirx.min(i64(job.cut.piece), i64(job.cut.turns) - first)
        steps = products(here, mine, first, turns, lambda _: [])
        keep = lambda row, column, value: store(partial, value, piece, here.batch, row, column)  # noqa: E731
        result = write(here, mine.sums, one.m, one.n, keep)
        return _launched([here.shared, *mine.buffers], [clear(mine.sums), *steps, result])

    def add(flat: Expr) -> Stmt:
        batch, row, column = unravel(flat, [one.count, one.m, one.n])
        total = registers([1], "float32", "total")
        term = lambda piece: load(partial, piece, batch, row, column)  # noqa: E731
        grow = loop(job.cut.pieces, lambda piece: store(total, load(total, i64(0)) + term(piece), i64(0)))
        done = _finish(job, batch)(row, column, load(total, i64(0)))
        return seq([tirx.AllocBuffer(total), clear(total), grow, done])

    return seq([launch(job.cut.pieces * job.cut.tiles, job.tile.threads, body), over(one.count * one.m * one.n, add)])


def _grid(job: Job) -> list[int]:
    """Which of the batch, and the tile's place: blocks that are neighbours read the same rows."""
    return [job.one.count, -(-job.one.m // job.tile.rows), -(-job.one.n // job.tile.columns)]


def _block(job: Job, places: Sequence[Expr], thread: Expr) -> Block:
    batch, down, across = places
    memory = shared([job.tile.halves * job.tile.stages], "uint16", "tile")
    row, column = down * job.tile.rows, across * job.tile.columns
    return Block(job.tile, memory, thread, warp_of(job.tile, thread), row, column, batch, job.a, job.b)


def _add(total: Any, sums: Any) -> Stmt:
    return unrolled(int(sums.shape[0]), lambda i: store(total, load(total, i) + load(sums, i), i))


def _finish(job: Job, batch: Expr) -> Callable[[Expr, Expr, Expr], Stmt]:
    one = job.one

    def element(row: Expr, column: Expr, value: Expr) -> Stmt:
        mine: dict[Any, Expr] = {}
        for axes, flat in ((one.batch, batch), (one.rows, row), (one.columns, column)):
            mine |= index_of(axes, unravel(flat, [a.extent for a in axes]))
        return store_result(job.ctx, one.stage, mine, value, job.after)

    return element


def _launched(buffers: Sequence[Any], statements: Sequence[Stmt]) -> Stmt:
    """A block's statements; loops that name registers are left to the compiler to unroll, so that the text is short."""
    body = seq([*(tirx.AllocBuffer(b) for b in buffers), *statements])
    return tirx.AttrStmt(i64(0), "pragma_unroll_explicit", i64(0), body)
