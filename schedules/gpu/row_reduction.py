"""Row nests: consecutive stages that agree on their first axes as one launch, a team of a warp's threads a row.

Softmax, normalisation, cross-entropy, argmax: a result of a row stays in registers, an intermediate row in shared
memory, or is worked out again where it is too long for that.
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

ROWS, TURNS = 256, 512  # rows, or else turns of a thread, for which one launch is better than several
BLOCKS = 256  # blocks from which rows share one
SHARED = 48 * 1024
FEW = 128  # threads below which a block is not made smaller for its rows to fit into shared memory


def row_reduction_nest(ctx: NestContext, stages: Sequence[Stage]) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if no fold of rows comes first."""
    found = row_group(ctx, stages, lambda stage, lead: _accepts(ctx, stage, lead), _worth)
    if found is None or all(s.is_elementwise for s in found.stages):
        head = stages[0]
        if not _is_row_fold(ctx, head):
            return None
        found = single_row_group(head)
    return len(found.stages), _Nest.make(ctx, found).launch()


def _is_row_fold(ctx: NestContext, stage: Stage) -> bool:
    return (
        stage.reduction is not None
        and reduces_along_memory(ctx, stage)
        and read_contraction(ctx.program, stage) is None
    )


def _accepts(ctx: NestContext, stage: Stage, lead: int) -> bool:
    """One result a row; or a map that is written along the row."""
    if stage.is_elementwise:
        free = stage.space[lead:]
        return not free or contiguous_axis([write_of(stage)], stage.space) in free
    return len(stage.space) == lead and _is_row_fold(ctx, stage)


def _worth(ctx: NestContext, found: RowGroup) -> bool:
    """Enough rows to fill a GPU, or little to do in each."""
    rows = prod(a.extent for a in found.stages[0].space[: found.lead])
    inside = sum(s.points * s.depth for s in found.stages) // max(rows, 1) // WARP
    return rows >= ROWS or inside <= TURNS and (rows >= WARP or row_work(ctx, found.stages) < 4 * MIN_PARALLEL_WORK)


@attrs.frozen(eq=False)
class _Nest:
    """``rows`` rows, ``team`` threads each, ``group`` of them a block. ``kept``: what of a row stays in the block,
    (place of a row's slot or None, buffer)."""

    ctx: NestContext
    inner: NestContext  # with rows that are worked out again
    found: RowGroup
    team: int
    group: int
    registers: dict[Any, Any]
    rows_of: dict[Any, Any]

    @property
    def rows(self) -> int:
        return prod(a.extent for a in self.lead)

    @property
    def lead(self) -> Sequence[Any]:
        return self.found.stages[0].space[: self.found.lead]

    @classmethod
    def make(cls, ctx: NestContext, found: RowGroup) -> _Nest:
        folds = [s for s in found.stages if s.reduction is not None]
        team = group_size([(reduction_order(ctx, s), s) for s in folds])
        rows = prod(a.extent for a in found.stages[0].space[: found.lead])
        local = local_buffers(ctx, found)
        registers = {b: scratch([1], str(b.dtype), b.name) for b in found.row_dims if row_length(b, found) == 1}
        vectors = [b for b in local if b not in registers]
        group = max(THREADS // team, 1)
        while group * team > WARP and -(-rows // group) < BLOCKS:
            group //= 2
        while group * team > FEW and group * _bytes(vectors, found, team) > SHARED:
            group //= 2
        again = _again(found, vectors, SHARED // group, team)
        inner = _with_virtual(ctx, [s for s in found.stages if s.buffer in again])
        kept = [b for b in vectors if b not in again]
        if group * _bytes(kept, found, team) > SHARED:
            kept = []  # they go to memory
        rows_of = {b: shared([group * _line(b, found, team)], str(b.dtype), b.name) for b in kept}
        return cls(ctx, inner, found, team, group, registers, rows_of)

    def launch(self) -> Stmt:
        blocks = -(-self.rows // self.group)

        def body(block: Expr, thread: Expr) -> Stmt:
            slot = tirx.floordiv(thread, i64(self.team))
            row = block * self.group + slot
            whole = blocks * self.group == self.rows
            live = None if whole else row < i64(self.rows)
            places = unravel(row if whole else tirx.Min(row, i64(self.rows - 1)), [a.extent for a in self.lead])
            team = ThreadGroup(self.team, tirx.floormod(thread, i64(self.team)))
            makes = [tirx.AllocBuffer(b) for b in (*self.registers.values(), *self.rows_of.values())]
            stages = [s for s in self.found.stages if s.buffer not in self.inner.virtual.stages]
            return seq([*makes, *(part for s in stages for part in self._stage(s, places, team, slot, live))])

        return launch(blocks, self.group * self.team, body)

    def _stage(
        self, stage: Stage, places: Sequence[Expr], team: ThreadGroup, slot: Expr, live: Expr | None
    ) -> list[Stmt]:
        if stage.reduction is not None:
            put = lambda value: self._result(stage, places, team, live, value)  # noqa: E731
            here = index_of(stage.space, places)
            order = reduction_order(self.ctx, stage)
            return [self._local(group_reduce(self.inner, stage, order, here, team, put), slot), *self._seen(stage)]
        free = [a.extent for a in stage.space[len(places) :]]
        if stage.buffer in self.registers:
            point = ScalarWriter(self.inner.virtual)
            value = point.bind(point.write(stage.value, index_of(stage.space, places)))
            done = bind_in_buffers(seq([*point.binds, self._result(stage, places, team, live, value)]))
            return [self._local(done, slot)]

        def one(f: Expr) -> Stmt:
            stmt = point_stores(self.inner, [stage], [*places, *unravel(f, free)], {}, [stage])
            return stmt if live is None or stage.buffer in self.rows_of else tirx.IfThenElse(live, stmt, None)

        done = self._local(seq(team.each(prod(free), one)), slot)
        return [done, *self._seen(stage)]

    def _result(self, stage: Stage, places: Sequence[Expr], team: ThreadGroup, live: Expr | None, value: Expr) -> Stmt:
        """One value a row: in a register of each thread, and in memory if it is needed there."""
        register = self.registers.get(stage.buffer)
        if register is not None and stage.buffer in local_buffers(self.ctx, self.found):
            return store(register, value, i64(0))
        point = ScalarWriter(self.inner.virtual)
        indices = point.indices(stage.indices, index_of(stage.space, places))
        first = team.lane < 1 if live is None else tirx.And(team.lane < 1, live)
        held = value if register is None else load(register, i64(0))
        put = tirx.IfThenElse(first, bind_in_buffers(seq([*point.binds, _direct(stage.buffer, held, indices)])), None)
        return seq([*([] if register is None else [store(register, value, i64(0))]), put])

    def _seen(self, stage: Stage) -> list[Stmt]:
        """What is not in registers may be read by another thread, as a row from its end is."""
        inside = any(x.source.same_as(stage.buffer) for s in self.found.stages for x in s.reads)
        return [barrier()] if inside and stage.buffer not in self.registers else []

    def _local(self, stmt: Stmt, slot: Expr) -> Stmt:
        """Accesses of registers and of rows in shared memory."""

        def place(buffer: Any, indices: Sequence[Expr]) -> Expr:
            spots = self.found.row_dims[buffer]
            flat: Expr = i64(0)
            for d, (index, extent) in enumerate(zip(indices, shape_of(buffer), strict=True)):
                flat = flat if d in spots else flat * extent + index
            return slot * _line(buffer, self.found, self.team) + flat

        def read(node: Any) -> Expr:
            if node.source in self.registers:
                return load(self.registers[node.source], i64(0))
            held = self.rows_of.get(node.source)
            return node if held is None else load(held, place(node.source, node.indices))

        def write(node: Any) -> Stmt:
            held = self.rows_of.get(node.buffer)
            return node if held is None else store(held, node.value, place(node.buffer, node.indices))

        return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)])


def _direct(buffer: Any, value: Expr, indices: Sequence[Expr]) -> Stmt:
    return store(buffer, value, *indices)


def _line(buffer: Any, found: RowGroup, team: int) -> int:
    """Elements from one row to the next in shared memory, an odd multiple of ``team``: what the teams of a warp take
    together lies in different banks."""
    length = row_length(buffer, found)
    return length if team == WARP else (-(-(length - team) // (2 * team)) * 2 + 1) * team


def _bytes(buffers: Sequence[Any], found: RowGroup, team: int) -> int:
    return sum(_line(b, found, team) * tvm.DataType(str(b.dtype)).itemsize for b in buffers)


def _again(found: RowGroup, vectors: Sequence[Any], room: int, team: int) -> list[Any]:
    """The rows to work out again where they are read: all, if they do not fit into ``room`` bytes together."""
    if _bytes(vectors, found, team) <= room:
        return []
    stages = [s for s in found.stages if s.is_elementwise and is_plain_store(s) and not isinstance(s.value, tirx.Let)]
    return [s.buffer for s in stages if s.buffer in vectors]


def _with_virtual(ctx: NestContext, stages: Sequence[Stage]) -> NestContext:
    virtual = copy.copy(ctx.virtual)
    virtual.stages = ctx.virtual.stages | {s.buffer: s for s in stages}
    return attrs.evolve(ctx, virtual=virtual)
