"""Reductions of a row by a group of threads of a warp: partial results in registers, then a tree of shuffles.

The order of a reduction is the CPU's (``ReductionOrder``), so that bits are equal: lane k of the CPU's vector is thread
k of the group, or slot k / size of thread k % size where there are more lanes than threads. Lanes are then combined by
halves, first in a thread's registers, then with ``__shfl_down_sync``. A sum whose order is the input's is read by the
group and added by every thread, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import accumulator, factors, fma, in_type, partial_type
from ...tir.argmax import is_argmax
from ...tir.builder import Expr, Stmt, grid, i64, load, loop, scratch, seq, store, unravel
from ...tir.context import NestContext, block
from ...tir.inline import ScalarWriter
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of
from ...tir.reduction import ReductionOrder
from ...tir.stages import Stage
from .launch import UNROLL, WARP, unrolled

# Every thread of the warp takes part in a shuffle or vote: with some missing its result is undefined.
FULL_MASK = 0xFFFFFFFF


@attrs.frozen(eq=False)
class ThreadGroup:
    """``size`` neighbouring threads of a warp, a power of two; this thread is number ``lane`` of them. All groups of
    the warp run the same code at the same time, as shuffles need."""

    size: int
    lane: Expr

    def shuffle(self, value: Expr, lane: Expr) -> Expr:
        """``value`` of the group's thread ``lane`` (``__shfl_sync``)."""
        return tirx.op.tvm_warp_shuffle(_mask(), value, lane.astype("int32"), self.size, WARP)

    def shuffle_down(self, value: Expr, offset: int) -> Expr:
        """``value`` of the thread ``offset`` further on (``__shfl_down_sync``); the last ``offset`` threads have no
        such thread, and what they get must not be used."""
        return tirx.op.tvm_warp_shuffle_down(_mask(), value, offset, self.size, WARP)

    def each(self, count: int, body: Callable[[Expr], Stmt], unroll: int = 4) -> list[Stmt]:
        """``body`` at every index below ``count``, neighbours in neighbouring threads."""
        # Unrolled by 4, chosen: bodies store as well as load, and are longer than those of a reduction (UNROLL).
        full, rest = divmod(count, self.size)
        stmts = [partially_unrolled(full, lambda o: body(o * self.size + self.lane), unroll)] if full else []
        if rest:
            stmts.append(tirx.IfThenElse(self.lane < rest, bind_in_buffers(body(self.lane + full * self.size)), None))
        return stmts


def warp_any(condition: Expr) -> Expr:
    """Does it hold for any thread of the warp (``__any_sync``)? All of them must ask."""
    return tirx.call_extern("int32", "__any_sync", _mask(), condition.astype("int32")) > 0


def _mask() -> Expr:
    return tirx.const(FULL_MASK, "uint32")


def partially_unrolled(count: int, body: Callable[[Expr], Stmt], unroll: int) -> Stmt:
    """A loop unrolled by ``unroll``, so that as many loads are in flight together, and the rest behind it."""
    if count == 1 or unroll < 2:
        return loop(count, body, name="k")
    chunks, rest = divmod(count, unroll)

    def chunk(size: int, first: Expr) -> Stmt:
        return unrolled(size, lambda u: body(first + u))

    stmts = [loop(chunks, lambda o: chunk(unroll, o * unroll), name="k")] if chunks else []
    return seq([*stmts, *([chunk(rest, i64(chunks * unroll))] if rest else [])])


def group_size(reductions: Sequence[tuple[ReductionOrder, Stage]]) -> int:
    """The most threads of a warp that all reductions of a row can use: the width of the narrowest tree; without a
    tree (in-order sums, argmax), as many as the longest has elements, to a power of two."""
    widths = [min(order.width, WARP) for order, stage in reductions if order.width > 1 and not is_argmax(stage)]
    # More threads than the narrowest tree has lanes would have nothing to add to it.
    if widths:
        return min(widths)
    size, longest = 2, max(order.depth for order, _ in reductions)
    while size < min(longest, WARP):
        size *= 2
    return size


def group_reduce(
    ctx: NestContext, stage: Stage, order: ReductionOrder, coords: dict[Any, Expr], group: ThreadGroup, finish: Any
) -> Stmt:
    """An element of the result at ``coords``, the same for the whole group; every thread runs ``finish(value)``."""
    if order.width == 1 and not is_argmax(stage):
        return _reduce_in_order(ctx, stage, order, coords, group, finish)
    # An argmax takes the first of equal keys in whatever order it is combined, so its lanes are the group's threads.
    width = group.size if is_argmax(stage) else order.width
    slots, depth, extents = width // group.size, order.depth, [a.extent for a in order.tail]
    acc = accumulator(stage, slots + 1)  # the last slot is for another thread's partial result

    def add(outer: list[Expr], tail: Expr, slot: int) -> Stmt:
        element = coords | index_of(order.outer, outer) | index_of(order.tail, unravel(tail, extents))
        return acc.add(ctx, element, i64(slot))

    def add_row(outer: list[Expr]) -> Stmt:
        full, rest = divmod(depth, width)

        def add_slots(base: Expr) -> Stmt:
            return seq([add(outer, base + (group.lane + s * group.size), s) for s in range(slots)])

        stmts = [partially_unrolled(full, lambda o: add_slots(o * width), UNROLL // slots)] if full else []
        for s in range(slots):
            count = min(rest - s * group.size, group.size)
            if count > 0:
                last = bind_in_buffers(add(outer, group.lane + (full * width + s * group.size), s))
                stmts.append(last if count == group.size else tirx.IfThenElse(group.lane < count, last, None))
        return seq(stmts)

    init = [acc.start(i64(s), group.lane + s * group.size) for s in range(slots)]
    rows = grid([a.extent for a in order.outer], add_row)
    return block([*init, rows, *tree_reduce(acc, slots, group), finish(acc.result(i64(0)))], acc.buffers)


def tree_reduce(
    acc: Any, slots: int, group: ThreadGroup, first_slot: Expr | None = None, scratch_slot: Expr | None = None
) -> list[Stmt]:
    """Combines a group's partial results: ``slots`` of each thread, from ``first_slot`` on (0 by default).

    log2(slots) steps in the thread's registers, then log2(size) steps of ``__shfl_down_sync`` by way of
    ``scratch_slot`` (by default the slot after the last); then thread 0 sends the result to all. Every step combines a
    lane with the lane half of all lanes further on, which is the CPU's order.
    """
    first = i64(0) if first_slot is None else first_slot
    stmts, width = [], slots
    while width > 1:
        width //= 2
        stmts += [acc.combine(first + s, first + (s + width)) for s in range(width)]
    scratch_slot = first + slots if scratch_slot is None else scratch_slot
    offset = group.size
    while offset > 1:
        offset //= 2
        stmts += [store(b, group.shuffle_down(load(b, first), offset), scratch_slot) for b in acc.buffers]
        stmts.append(acc.combine(first, scratch_slot))
    # Only thread 0 has combined all lanes: the others took values from past the group's end. All get its result, so
    # that each may use it.
    return [*stmts, *(store(b, group.shuffle(load(b, first), i64(0)), first) for b in acc.buffers)]


def _operands(ctx: NestContext, stage: Stage, coords: dict[Any, Expr]) -> tuple[ScalarWriter, tuple[Expr, ...]]:
    """What is added for an element: its value, or the two factors of a product that is summed (for a fused
    multiply-add)."""
    assert stage.reduction is not None
    writer = ScalarWriter(ctx.virtual)
    value = writer.write(in_type(stage.value, partial_type(stage)), coords)
    return writer, (factors(value, writer.binds) if stage.reduction.kind == "sum" else None) or (value,)


def operand_count(ctx: NestContext, stage: Stage) -> int:
    """Numbers that are loaded for an element: the two factors of a product that is summed, else its value."""
    return len(_operands(ctx, stage, {})[1])


def load_operands(ctx: NestContext, stage: Stage, coords: dict[Any, Expr], into: Sequence[Any], slot: Expr) -> Stmt:
    """The operands of the element at ``coords``, each into its buffer at ``slot``."""
    writer, operands = _operands(ctx, stage, coords)
    stores = [store(buffer, operand, slot) for buffer, operand in zip(into, operands, strict=True)]
    return bind_in_buffers(seq([*writer.binds, *stores]))


def accumulate(stage: Stage, partial: Expr, operands: Sequence[Expr]) -> Expr:
    """A partial result and the next element."""
    assert stage.reduction is not None
    return fma(operands[0], operands[1], partial) if len(operands) == 2 else stage.reduction.combine(partial, *operands)


def _reduce_in_order(
    ctx: NestContext, stage: Stage, order: ReductionOrder, coords: dict[Any, Expr], group: ThreadGroup, finish: Any
) -> Stmt:
    """A sum in the order of its elements: each thread loads an element, so that loads coalesce, then all threads add
    all of the group's in turn."""
    assert stage.reduction is not None
    dtype = partial_type(stage)
    acc, loaded = scratch([1], dtype, "acc"), [scratch([1], dtype, "staged") for _ in range(2)]
    extents, slot = [a.extent for a in order.tail], i64(0)

    def load_own(outer: list[Expr], tail: Expr) -> tuple[Stmt, int]:
        element = coords | index_of(order.outer, outer) | index_of(order.tail, unravel(tail, extents))
        writer, operands = _operands(ctx, stage, element)
        stores = [store(buffer, operand, slot) for buffer, operand in zip(loaded, operands, strict=False)]
        return bind_in_buffers(seq([*writer.binds, *stores])), len(operands)

    def chunk(outer: list[Expr], base: Expr, count: int) -> Stmt:
        loads, operands = load_own(outer, base + group.lane)
        if count < group.size:
            loads = tirx.IfThenElse(group.lane < count, loads, None)

        def add(lane: Expr) -> Stmt:
            others = [group.shuffle(load(buffer, slot), lane) for buffer in loaded[:operands]]
            return store(acc, accumulate(stage, load(acc, slot), others), slot)

        # Every thread adds every element: so all have the result, without a shuffle at the end.
        return seq([loads, partially_unrolled(count, add, count)])

    def add_row(outer: list[Expr]) -> Stmt:
        full, rest = divmod(order.depth, group.size)
        stmts = [loop(full, lambda o: chunk(outer, o * group.size, group.size), name="k")] if full else []
        return seq([*stmts, *([chunk(outer, i64(full * group.size), rest)] if rest else [])])

    # Threads past the end of a row load nothing, and their registers take part in the shuffles all the same.
    zero = [store(buffer, tirx.const(0, dtype), slot) for buffer in loaded]
    init = store(acc, tirx.const(stage.reduction.init.value, dtype), slot)
    rows = grid([a.extent for a in order.outer], add_row)
    result = in_type(load(acc, slot), str(stage.buffer.dtype))
    return block([init, *zero, rows, finish(result)], [acc, *loaded])
