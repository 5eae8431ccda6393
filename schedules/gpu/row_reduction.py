"""Row reductions fused with what follows: softmax, normalization, cross-entropy, argmax in one launch.

Taken: consecutive stages that share their first axes (the rows). A group of 2 to 32 threads of a warp takes a row;
several rows share a block. A result of a row stays in registers, an intermediate row in shared memory; rows too long
for shared memory are recomputed at each read. The order of a sum is the reduction tree of ``tir.reduction``, whose
lanes are spread over the threads, so bits equal the CPU's for any number of threads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
import tvm
from tvm import tirx

from ..tir.access import contiguous_axis, write_of
from ..tir.builder import Expr, Load, Stmt, i64, load, scratch, seq, shape_of, store, unravel
from ..tir.context import MIN_PARALLEL_WORK, NestContext
from ..tir.contraction import read_contraction
from ..tir.inline import ScalarWriter, is_plain_store
from ..tir.let_buffers import bind_in_buffers
from ..tir.point_writer import index_of, point_stores
from ..tir.reduction import reduces_along_memory, reduction_order
from ..tir.rewrite import rewrite
from ..tir.row_group import RowGroup, local_buffers, row_group, row_length, row_work, single_row_group
from ..tir.stages import Stage
from .threads.launch import THREADS, WARP, barrier, launch, shared
from .threads.warp_reduce import ThreadGroup, group_reduce, group_size

# All chosen, not measured; no bit depends on them, only speed.
# Rows of a fused nest: so many fill a GPU whatever the work of a row.
MIN_ROWS = 256
# Elements of a thread in a nest of fewer rows. Beyond, separate launches pay, since elementwise stages then use more
# threads than a warp a row. If it is too large, few long rows leave the GPU idle.
MAX_THREAD_ITERATIONS = 512
BLOCKS = 256  # blocks that are wanted before a block takes several rows
# Bytes of shared memory of a block that every target allows. With more, a launch on sm_75 would need an opt-in.
MAX_SHARED_BYTES = 48 * 1024
# Threads of a block that is made smaller so that its rows fit into shared memory: below, rows are recomputed instead,
# as a multiprocessor that holds few threads hides no latency.
MIN_THREADS = 128


def row_reduction_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if the first is no row reduction."""
    group = row_group(ctx, stages, lambda stage, lead: _accepts(ctx, stage, lead), _is_profitable)
    # Without a reduction there is no row to share: elementwise stages get a thread a point in a nest of their own.
    if group is None or all(s.is_elementwise for s in group.stages):
        stage = stages[0]
        if not _is_row_reduction(ctx, stage):
            return None
        group = single_row_group(stage)
    return len(group.stages), _RowNest.make(ctx, group).launch()


def _is_row_reduction(ctx: NestContext, stage: Stage) -> bool:
    return (
        stage.reduction is not None
        and reduces_along_memory(ctx, stage)
        and read_contraction(ctx.program, stage) is None
    )


def _accepts(ctx: NestContext, stage: Stage, lead: int) -> bool:
    """A reduction with a single result a row, or an elementwise stage that is written along the row."""
    if stage.is_elementwise:
        row_axes = stage.space[lead:]
        return not row_axes or contiguous_axis([write_of(stage)], stage.space) in row_axes
    return len(stage.space) == lead and _is_row_reduction(ctx, stage)


def _is_profitable(ctx: NestContext, group: RowGroup) -> bool:
    """Are there enough rows to fill a GPU, or is there little work in each?"""
    rows = prod(a.extent for a in group.stages[0].space[: group.lead])
    iterations = sum(s.points * s.depth for s in group.stages) // max(rows, 1) // WARP
    if rows >= MIN_ROWS:
        return True
    return iterations <= MAX_THREAD_ITERATIONS and (rows >= WARP or row_work(ctx, group.stages) < 4 * MIN_PARALLEL_WORK)


@attrs.frozen(eq=False)
class _RowNest:
    """``rows`` rows, ``threads_per_row`` threads each, ``rows_per_block`` of them a block. ``registers`` and
    ``shared_rows``: buffer -> what holds a row's part of it inside the block."""

    ctx: NestContext
    inner: NestContext  # as ``ctx``, with the rows that are recomputed inlined
    group: RowGroup
    threads_per_row: int
    rows_per_block: int
    registers: dict[Any, Any]
    shared_rows: dict[Any, Any]

    @property
    def rows(self) -> int:
        return prod(a.extent for a in self.row_axes)

    @property
    def row_axes(self) -> Sequence[Any]:
        return self.group.stages[0].space[: self.group.lead]

    @classmethod
    def make(cls, ctx: NestContext, group: RowGroup) -> _RowNest:
        reductions = [s for s in group.stages if s.reduction is not None]
        threads_per_row = group_size([(reduction_order(ctx, s), s) for s in reductions])
        rows = prod(a.extent for a in group.stages[0].space[: group.lead])
        local = local_buffers(ctx, group)
        registers = {b: scratch([1], str(b.dtype), b.name) for b in group.row_dims if row_length(b, group) == 1}
        vectors = [b for b in local if b not in registers]
        rows_per_block = max(THREADS // threads_per_row, 1)
        # Never under a warp: a narrower block would leave lanes of its warp empty.
        while rows_per_block * threads_per_row > WARP and -(-rows // rows_per_block) < BLOCKS:
            rows_per_block //= 2
        row_bytes = _row_bytes(vectors, group, threads_per_row)
        while rows_per_block * threads_per_row > MIN_THREADS and rows_per_block * row_bytes > MAX_SHARED_BYTES:
            rows_per_block //= 2
        recomputed = _recomputed_rows(group, vectors, MAX_SHARED_BYTES // rows_per_block, threads_per_row)
        inner = _with_inlined(ctx, [s for s in group.stages if s.buffer in recomputed])
        stored_rows = [b for b in vectors if b not in recomputed]
        if rows_per_block * _row_bytes(stored_rows, group, threads_per_row) > MAX_SHARED_BYTES:
            # What can be recomputed was not enough: rows stay in global memory, which is slow and always fits.
            stored_rows = []
        extents = {b: rows_per_block * _pitch(b, group, threads_per_row) for b in stored_rows}
        shared_rows = {b: shared([extent], str(b.dtype), b.name) for b, extent in extents.items()}
        return cls(ctx, inner, group, threads_per_row, rows_per_block, registers, shared_rows)

    def launch(self) -> Stmt:
        blocks = -(-self.rows // self.rows_per_block)

        def body(block: Expr, thread: Expr) -> Stmt:
            slot = tirx.floordiv(thread, i64(self.threads_per_row))
            row = block * self.rows_per_block + slot
            is_exact = blocks * self.rows_per_block == self.rows
            in_bounds = None if is_exact else row < i64(self.rows)
            # Threads beyond the last row take part in shuffles and barriers, on its values, and store nothing.
            clamped = row if is_exact else tirx.Min(row, i64(self.rows - 1))
            row_index = unravel(clamped, [a.extent for a in self.row_axes])
            thread_group = ThreadGroup(self.threads_per_row, tirx.floormod(thread, i64(self.threads_per_row)))
            allocations = [tirx.AllocBuffer(b) for b in (*self.registers.values(), *self.shared_rows.values())]
            stages = [s for s in self.group.stages if s.buffer not in self.inner.virtual.stages]
            parts = (part for s in stages for part in self._stage(s, row_index, thread_group, slot, in_bounds))
            return seq([*allocations, *parts])

        return launch(blocks, self.rows_per_block * self.threads_per_row, body)

    def _stage(
        self, stage: Stage, row_index: Sequence[Expr], thread_group: ThreadGroup, slot: Expr, in_bounds: Expr | None
    ) -> list[Stmt]:
        if stage.reduction is not None:

            def write(value: Expr) -> Stmt:
                return self._result(stage, row_index, thread_group, in_bounds, value)

            index = index_of(stage.space, row_index)
            # Of ``ctx``, not of ``inner``: rows that a GPU alone recomputes may not decide along which axis memory is
            # read, and so the order of the sum, which is the CPU's.
            order = reduction_order(self.ctx, stage)
            reduction = group_reduce(self.inner, stage, order, index, thread_group, write)
            return [self._local(reduction, slot), *self._barrier_after(stage)]
        free_extents = [a.extent for a in stage.space[len(row_index) :]]
        if stage.buffer in self.registers:
            writer = ScalarWriter(self.inner.virtual)
            value = writer.bind(writer.write(stage.value, index_of(stage.space, row_index)))
            body = bind_in_buffers(seq([*writer.binds, self._result(stage, row_index, thread_group, in_bounds, value)]))
            return [self._local(body, slot)]

        def element(f: Expr) -> Stmt:
            stmt = point_stores(self.inner, [stage], [*row_index, *unravel(f, free_extents)], {}, [stage])
            # A row in shared memory needs no guard: threads beyond the last row have a slot of their own.
            if in_bounds is None or stage.buffer in self.shared_rows:
                return stmt
            return tirx.IfThenElse(in_bounds, stmt, None)

        body = self._local(seq(thread_group.each(prod(free_extents), element)), slot)
        return [body, *self._barrier_after(stage)]

    def _result(
        self, stage: Stage, row_index: Sequence[Expr], thread_group: ThreadGroup, in_bounds: Expr | None, value: Expr
    ) -> Stmt:
        """Stores a value a row: in a register of each thread, and by the first in memory if it is read there."""
        register = self.registers.get(stage.buffer)
        if register is not None and stage.buffer in local_buffers(self.ctx, self.group):
            return store(register, value, i64(0))
        writer = ScalarWriter(self.inner.virtual)
        indices = writer.indices(stage.indices, index_of(stage.space, row_index))
        is_writer = thread_group.lane < 1 if in_bounds is None else tirx.And(thread_group.lane < 1, in_bounds)
        result = value if register is None else load(register, i64(0))
        done = bind_in_buffers(seq([*writer.binds, _direct(stage.buffer, result, indices)]))
        write = tirx.IfThenElse(is_writer, done, None)
        return seq([*([] if register is None else [store(register, value, i64(0))]), write])

    def _barrier_after(self, stage: Stage) -> list[Stmt]:
        """A barrier if the nest reads the result from memory: another thread may read it (a reversed row)."""
        is_read = any(x.source.same_as(stage.buffer) for s in self.group.stages for x in s.reads)
        return [barrier()] if is_read and stage.buffer not in self.registers else []

    def _local(self, stmt: Stmt, slot: Expr) -> Stmt:
        """``stmt`` with its accesses of the row's buffers redirected to registers and to shared memory."""

        def offset(buffer: Any, indices: Sequence[Expr]) -> Expr:
            row_dims = self.group.row_dims[buffer]
            flat: Expr = i64(0)
            for d, (index, extent) in enumerate(zip(indices, shape_of(buffer), strict=True)):
                flat = flat if d in row_dims else flat * extent + index
            return slot * _pitch(buffer, self.group, self.threads_per_row) + flat

        def read(node: Any) -> Expr:
            if node.source in self.registers:
                return load(self.registers[node.source], i64(0))
            shared_row = self.shared_rows.get(node.source)
            return node if shared_row is None else load(shared_row, offset(node.source, node.indices))

        def write(node: Any) -> Stmt:
            shared_row = self.shared_rows.get(node.buffer)
            return node if shared_row is None else store(shared_row, node.value, offset(node.buffer, node.indices))

        return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)])


def _direct(buffer: Any, value: Expr, indices: Sequence[Expr]) -> Stmt:
    return store(buffer, value, *indices)


def _pitch(buffer: Any, group: RowGroup, threads_per_row: int) -> int:
    """Elements from row to row in shared memory. With several rows a warp, an odd multiple of ``threads_per_row``: the
    threads of a warp then read different banks. 100 elements, 8 threads a row: pitch 104, 8 banks on for each row."""
    length = row_length(buffer, group)
    if threads_per_row == WARP:
        return length
    return (-(-(length - threads_per_row) // (2 * threads_per_row)) * 2 + 1) * threads_per_row


def _row_bytes(buffers: Sequence[Any], group: RowGroup, threads_per_row: int) -> int:
    return sum(_pitch(b, group, threads_per_row) * tvm.DataType(str(b.dtype)).itemsize for b in buffers)


def _recomputed_rows(group: RowGroup, vectors: Sequence[Any], max_bytes: int, threads_per_row: int) -> list[Any]:
    """The rows to recompute at each read: all that can be, if together they take more than ``max_bytes`` bytes."""
    if _row_bytes(vectors, group, threads_per_row) <= max_bytes:
        return []
    # A draw (a chain of Let steps) is not recomputed: each read would repeat all rounds of its generator.
    stages = [s for s in group.stages if s.is_elementwise and is_plain_store(s) and not isinstance(s.value, tirx.Let)]
    return [s.buffer for s in stages if s.buffer in vectors]


def _with_inlined(ctx: NestContext, stages: Sequence[Stage]) -> NestContext:
    # A copy: other nests of the plan read these rows from memory, where ``ctx`` says that they are.
    virtual = copy.copy(ctx.virtual)
    virtual.stages = ctx.virtual.stages | {s.buffer: s for s in stages}
    return attrs.evolve(ctx, virtual=virtual)
