"""Multi-tensor kernels (horizontal fusion): an optimizer's step over all parameters, and sums over each, in one launch.

A block is a task: a piece of a member tensor. It gets its member by bisection over the tasks, and the addresses
come from kernel parameters; so the text of a form is written once for all its members. Sums are two-level: a warp
reduces a piece, then a single block reduces the pieces of each member. Both use the reduction tree that the CPU uses,
so bits do not depend on which block ran first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx
from tvm.ir import PointerType, PrimType

from ..tir.accumulators import accumulator
from ..tir.builder import Expr, Stmt, i64, load, scratch, seq, store
from ..tir.context import TREE_WIDTH, block, dynamic_loop
from ..tir.let_buffers import bind_in_buffers
from ..tir.multi_tensor import ELEMENTWISE_PIECE, TensorGroup, make_group
from ..tir.point_writer import index_of, point_stores
from ..tir.reduction import LONG_ROW
from ..tir.stages import Axis, Program, Stage
from ..tir.tensor_list import Members
from .threads.launch import THREADS, UNROLL, WARP, barrier, launch, shared, unrolled
from .threads.warp_reduce import ThreadGroup, tree_reduce

# Parameters of 8 bytes: with room for scalars they take less than 4096 bytes, the limit of CUDA before 12.1. With
# fewer, many members need more launches.
MAX_KERNEL_POINTERS = 480
# Blocks that are wanted before a thread takes several elements; chosen, not measured, and of no effect on bits.
BLOCKS = 256
# Warps of the finishing block, each with a member: as many as a block may have. It changes speed only.
MEMBER_WARPS = 32
# (most pieces of a member, lanes of the reduction of their results); 0 lanes: a single result is copied. It must equal
# what ``reduction_order`` in tir/reduction.py says of a row of as many elements, or a GPU's bits leave the CPU's.
WIDTH_BY_PIECES = ((1, 0), (TREE_WIDTH - 1, 1), (LONG_ROW - 1, TREE_WIDTH), (2**63 - 1, 4 * TREE_WIDTH))


def multi_tensor_launches(program: Program, target: Any, tensors: Members) -> list[Stmt] | None:
    """A launch for each form and as many members as its parameters allow, then a launch that finishes the sums.

    None where a form both reduces and stores, as a task might read what another has stored; and, where buffers are
    aliased, where a launch would read again what it has stored.
    """
    groups: list[TensorGroup] = []
    # CPU kernels write exp and the like out step by step; CUDA text has the same steps as functions.
    target = attrs.evolve(target, functions={})
    for form in dict.fromkeys(m.form for m in tensors.members):
        members = [m for m in tensors.members if m.form is form]
        memory = len(make_group(program, target, form, members[:1], 0).memory)
        max_members = (MAX_KERNEL_POINTERS - memory) // max(memory, 1)
        # Elements of a task shrink until there are enough blocks. Only elementwise tasks do: the pieces of a sum decide
        # its bits, so make_group gives those their own length.
        piece = ELEMENTWISE_PIECE
        while piece > THREADS and sum(-(-m.length // piece) for m in members) < BLOCKS:
            piece //= 2
        for first in range(0, len(members), max_members):
            groups.append(make_group(program, target, form, members[first : first + max_members], 0, piece))
    if any(group.partial and group.outputs for group in groups):
        return None
    launches = [_reductions(group) if group.partial else _elementwise(group) for group in groups]
    if program.pairs and any(group.rereads(launch) for group, launch in zip(groups, launches, strict=True)):
        return None
    return [*launches, *_finish(program, tensors, groups)]


def _bisect(
    ends: Sequence[int], index: Expr, leaf: Callable[[int], Stmt], low: int = 0, high: int | None = None
) -> Stmt:
    """Binary search, written out as branches: ``leaf(n)`` for the first n with ``index`` below ``ends[n]``."""
    high = len(ends) if high is None else high
    if high - low == 1:
        return leaf(low)
    middle = (low + high) // 2
    parts = _bisect(ends, index, leaf, low, middle), _bisect(ends, index, leaf, middle, high)
    return tirx.IfThenElse(index < i64(ends[middle - 1]), *parts)


def _task_ends(group: TensorGroup) -> list[int]:
    return [*group.firsts[1:], group.tasks]


def _with_member(group: TensorGroup, task: Expr, work: Callable[[Expr, Expr], list[Stmt]]) -> Stmt:
    """``work(begin, count)`` on the piece of ``task``, with the form's buffers at its member's addresses."""
    span, addresses = scratch([2], "int64", "first_and_count"), scratch([max(len(group.own), 1)], "uint64", "addresses")

    def leaf(number: int) -> Stmt:
        member = group.members[number]
        pointers = [_address(member.buffers[k]) for k in group.own]
        stores = [store(addresses, pointer, i64(j)) for j, pointer in enumerate(pointers)]
        return seq([store(span, i64(group.firsts[number]), i64(0)), store(span, i64(member.length), i64(1)), *stores])

    def address(k: int) -> Expr:
        if k not in group.own:
            return group.members[0].buffers[k].data
        pointer_type = PointerType(PrimType(str(group.form.buffers[k].dtype)))
        return tirx.reinterpret(pointer_type, load(addresses, i64(group.own.index(k))))

    begin, count = (tirx.Var(name, "int64") for name in ("begin", "count"))
    views = [tirx.DeclBuffer(group.form.buffers[k], data=address(k)) for k in group.memory]
    bind_begin = tirx.Bind(begin, (task - load(span, i64(0))) * group.piece)
    bind_count = tirx.Bind(count, tirx.Min(load(span, i64(1)) - begin, i64(group.piece)))
    body = bind_in_buffers(seq([bind_begin, bind_count, *views, *work(begin, count)]))
    return block([_bisect(_task_ends(group), task, leaf), body], [span, addresses])


def _address(buffer: Any) -> Expr:
    """The address as a number, by a cast in C: TVM 0.27 fails on its own cast from a pointer."""
    first = load(buffer, *(i64(0) for _ in buffer.shape))
    return tirx.call_pure_extern("uint64", "(uint64_t)", tirx.address_of(first))


def _elementwise(group: TensorGroup) -> Stmt:
    def work(begin: Expr, count: Expr, thread: Expr) -> list[Stmt]:
        def element(u: Expr) -> Stmt:
            offset = u * THREADS + thread
            stores = point_stores(group.ctx, group.outputs, [begin + offset], {}, group.outputs)
            return tirx.IfThenElse(offset < count, bind_in_buffers(stores), None)

        return [dynamic_loop(i64(group.piece // THREADS), element, "u")]

    return launch(group.tasks, THREADS, lambda b, t: _with_member(group, b, lambda begin, count: work(begin, count, t)))


def _reductions(group: TensorGroup) -> Stmt:
    """A warp a piece, with the lanes of ``dynamic_reduction`` in tir/reduction.py, so that bits equal the CPU's."""

    def reduce(stage: Stage, task: Expr, begin: Expr, count: Expr, thread_group: ThreadGroup) -> Stmt:
        def index(k: Expr) -> dict[Any, Expr]:
            return index_of(stage.reduce, [begin + k])

        def write(value: Expr) -> Stmt:
            return tirx.IfThenElse(thread_group.lane < 1, store(group.partial[stage], value, task), None)

        return strided_reduction(group, stage, 4 * TREE_WIDTH, count, index, thread_group, write)

    def work(task: Expr, begin: Expr, count: Expr, thread_group: ThreadGroup) -> list[Stmt]:
        return [reduce(stage, task, begin, count, thread_group) for stage in group.partial]

    def body(b: Expr, t: Expr) -> Stmt:
        return _with_member(group, b, lambda begin, count: work(b, begin, count, ThreadGroup(WARP, t)))

    # Blocks of a single warp: shuffles reach no further, and a block's barrier would tie pieces to each other.
    return launch(group.tasks, WARP, body)


def strided_reduction(
    group: TensorGroup, stage: Stage, width: int, count: Expr, index: Any, thread_group: ThreadGroup, write: Any
) -> Stmt:
    """A reduction of ``count`` elements (known at run time only) in ``width`` lanes, lane l taking l, l + width, ...;
    ``index(k)``: the axes' values at element k; ``write(value)``: what is done with the result."""
    slots = width // thread_group.size
    # The slot after the last is for the partial result that a shuffle brings. UNROLL loads of a thread are in flight,
    # whatever its slots.
    acc, unroll = accumulator(stage, slots + 1), UNROLL // slots
    unrolled_steps, full_steps = tirx.floordiv(count, i64(width * unroll)), tirx.floordiv(count, i64(width))

    def add(k: Expr, s: int) -> Stmt:
        return acc.add(group.ctx, index(k), i64(s))

    def step(k: Expr) -> Stmt:
        return seq([add(k * width + (thread_group.lane + s * thread_group.size), s) for s in range(slots)])

    # The remainder goes to the lanes that a full step would give it, as on the CPU: any other lane is another order.
    def remainder(s: int) -> Stmt:
        k = full_steps * width + (thread_group.lane + s * thread_group.size)
        return tirx.IfThenElse(k < count, bind_in_buffers(add(k, s)), None)

    k_loop = [
        dynamic_loop(unrolled_steps, lambda k: unrolled(unroll, lambda u: step(k * unroll + u)), "k"),
        dynamic_loop(full_steps - unrolled_steps * unroll, lambda k: step(unrolled_steps * unroll + k), "k"),
        *(remainder(s) for s in range(slots)),
    ]
    start = [acc.start(i64(s), i64(0)) for s in range(slots)]
    return block([*start, *k_loop, *tree_reduce(acc, slots, thread_group), write(acc.result(i64(0)))], acc.buffers)


def _finish(program: Program, tensors: Members, groups: Sequence[TensorGroup]) -> list[Stmt]:
    """A single block: a warp reduces each member's pieces, then thread 0 does what follows (a global norm, say)."""
    sums = [(g, s, shared([len(g.members)], str(s.buffer.dtype), "sums")) for g in groups for s in g.partial]
    provided, stores = {}, []
    for group, stage, shared_sums in sums:
        for number, member in enumerate(group.members):
            buffer = member.buffers[group.form.buffers.index(stage.buffer)]
            provided[buffer] = lambda _, shared_sums=shared_sums, number=number: load(shared_sums, i64(number))
            if not program.owns(buffer):
                stores.append(store(buffer, load(shared_sums, i64(number)), *(i64(0) for _ in buffer.shape)))
    materialized = [stage for stage in tensors.after if not program.owns(stage.buffer)]
    if materialized:
        stores.append(point_stores(groups[0].ctx, tensors.after, [], provided, materialized))
    if not stores:
        return []
    if not sums:
        return [launch(1, 1, lambda b, t: seq(stores))]

    def body(_: Expr, thread: Expr) -> Stmt:
        reductions = [_reduce_members(*each, thread) for each in sums]
        # Thread 0 reads the sums of all warps from shared memory: hence the barrier, and hence a single block.
        finish = tirx.IfThenElse(thread < 1, bind_in_buffers(seq(stores)), None)
        return block([*reductions, barrier(), finish], [b for *_, b in sums])

    return [launch(1, MEMBER_WARPS * WARP, body)]


def _reduce_members(group: TensorGroup, stage: Stage, shared_sums: Any, thread: Expr) -> Stmt:
    """The results of every member's pieces, reduced as a row of as many elements would be."""
    count, span = len(group.members), scratch([2], "int64", "first_and_count")
    counts = [end - first for first, end in zip(group.firsts, _task_ends(group), strict=True)]
    c = Axis(tirx.Var("c", "int64"), 2)
    value = load(group.partial[stage], c.var + load(span, i64(0)))
    end = Stage(stage.name, (), (c,), stage.buffer, (i64(0),), value, stage.reduction)
    pieces = load(span, i64(1))

    def reduce(member: Expr, width: int) -> Stmt:
        def write(value: Expr) -> Stmt:
            return tirx.IfThenElse(tirx.floormod(thread, i64(WARP)) < 1, store(shared_sums, value, member), None)

        if width == 0:
            return write(load(group.partial[stage], load(span, i64(0))))

        def index(k: Expr) -> dict[Any, Expr]:
            return {c.var: k}

        # Too few pieces for a tree are added in order, by every thread of the warp: no shuffle, and the first stores.
        if width == 1:
            acc = accumulator(end, 1)
            k_loop = dynamic_loop(pieces, lambda k: acc.add(group.ctx, index(k), i64(0)), "k")
            return block([acc.start(i64(0), i64(0)), k_loop, write(acc.result(i64(0)))], acc.buffers)
        thread_group = ThreadGroup(min(width, WARP), tirx.floormod(thread, i64(min(width, WARP))))
        return strided_reduction(group, end, width, pieces, index, thread_group, write)

    def member_of_warp(iteration: Expr) -> Stmt:
        member = iteration * MEMBER_WARPS + tirx.floordiv(thread, i64(WARP))

        def leaf(number: int) -> Stmt:
            return seq([store(span, i64(group.firsts[number]), i64(0)), store(span, i64(counts[number]), i64(1))])

        work = _by_width(counts, pieces, lambda width: bind_in_buffers(reduce(member, width)))
        select = _bisect([*range(1, count + 1)], member, leaf)
        return tirx.IfThenElse(member < count, seq([select, work]), None)

    return block([dynamic_loop(i64(-(-count // MEMBER_WARPS)), member_of_warp, "m")], [span])


def _by_width(counts: Sequence[int], pieces: Expr, reduce: Callable[[int], Stmt]) -> Stmt:
    """``reduce(width)`` by the number of ``pieces``. Each member's is known (``counts``), but all share code: it
    branches at run time between the widths that occur, so that each gets the order of a row of its own length."""
    work: Stmt = None
    for max_pieces, width in reversed(WIDTH_BY_PIECES):
        if any(_tree_width(number) == width for number in counts):
            reduction = reduce(width)
            work = reduction if work is None else tirx.IfThenElse(pieces <= max_pieces, reduction, work)
    return work


def _tree_width(pieces: int) -> int:
    """Lanes of the reduction of the results of ``pieces`` pieces."""
    return next(width for max_pieces, width in WIDTH_BY_PIECES if pieces <= max_pieces)
