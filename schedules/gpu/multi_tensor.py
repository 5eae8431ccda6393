"""The elements of many tensors in one launch: an optimizer's step over all parameters, and sums over each of them.

A block is one piece of one tensor. It finds its member, whose addresses are parameters of the kernel, by bisection;
what members of one form do is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.ir.expr import Call

from ..tir.accumulators import accumulator
from ..tir.builder import Expr, Stmt, i64, load, scratch, seq, store
from ..tir.context import TREE_WIDTH, block, dynamic_loop
from ..tir.let_buffers import bind_in_buffers
from ..tir.multi_tensor import ELEMENTWISE_PIECE, TensorGroup, make_group
from ..tir.point_writer import index_of, point_stores
from ..tir.reduction import LONG_ROW
from ..tir.stages import Axis, Program, Stage
from ..tir.tensor_list import Members
from .threads.launch import THREADS, UNROLL, WARP, barrier, launch, shared
from .threads.warp_reduce import ThreadGroup, fully_unrolled, tree_reduce

POINTERS = 480  # parameters of a kernel: they take 4096 bytes at most
BLOCKS = 256  # blocks from which each takes several elements a thread
WARPS = 32  # members whose pieces' results are folded at a time


def nests(program: Program, target: Any, found: Members) -> list[Stmt] | None:
    """None where a store might change what another reads: values have names, but for truth values."""
    groups: list[TensorGroup] = []
    target = attrs.evolve(target, functions={})  # what those write out is LLVM's; a GPU's text has functions
    for form in dict.fromkeys(m.form for m in found.members):
        members = [m for m in found.members if m.form is form]
        memory = len(make_group(program, target, form, members[:1], 0).memory)
        most = (POINTERS - memory) // max(memory, 1)
        piece = ELEMENTWISE_PIECE
        while piece > THREADS and sum(-(-m.length // piece) for m in members) < BLOCKS:
            piece //= 2
        for n in range(0, len(members), most):
            groups.append(make_group(program, target, form, members[n : n + most], 0, piece))
    if any(g.partial and g.outputs for g in groups):
        return None
    pieces = [_folds(g) if g.partial else _maps(g) for g in groups]
    if program.pairs and any(g.rereads(p) for g, p in zip(groups, pieces, strict=True)):
        return None
    return [*pieces, *_ends(program, found, groups)]


def _chosen(ends: Sequence[int], at: Expr, leaf: Callable[[int], Stmt], low: int = 0, high: int | None = None) -> Stmt:
    """``leaf(n)`` for the n of which ``at`` is below ``ends[n]`` first."""
    high = len(ends) if high is None else high
    if high - low == 1:
        return leaf(low)
    middle = (low + high) // 2
    parts = _chosen(ends, at, leaf, low, middle), _chosen(ends, at, leaf, middle, high)
    return tirx.IfThenElse(at < i64(ends[middle - 1]), *parts)


def _ends_of(group: TensorGroup) -> list[int]:
    return [*group.firsts[1:], group.tasks]


def _found(group: TensorGroup, task: Expr, work: Callable[[Expr, Expr], list[Stmt]]) -> Stmt:
    """``work(begin, count)`` on the piece that ``task`` is, with the form's buffers at its member's addresses."""
    span, addresses = scratch([2], "int64", "span"), scratch([max(len(group.own), 1)], "uint64", "addresses")

    def leaf(n: int) -> Stmt:
        member = group.members[n]
        places = [_address(member.buffers[k]) for k in group.own]
        kept = [store(addresses, place, i64(j)) for j, place in enumerate(places)]
        return seq([store(span, i64(group.firsts[n]), i64(0)), store(span, i64(member.length), i64(1)), *kept])

    def address(k: int) -> Expr:
        if k not in group.own:
            return group.members[0].buffers[k].data
        pointer = PointerType(PrimType(str(group.form.buffers[k].dtype)))
        return Call(_REINTERPRET, [load(addresses, i64(group.own.index(k)))], ret_ty=pointer)

    begin, count = (tirx.Var(name, "int64") for name in ("begin", "count"))
    views = [tirx.DeclBuffer(group.form.buffers[k], data=address(k)) for k in group.memory]
    first = tirx.Bind(begin, (task - load(span, i64(0))) * group.piece)
    many = tirx.Bind(count, tirx.Min(load(span, i64(1)) - begin, i64(group.piece)))
    done = bind_in_buffers(seq([first, many, *views, *work(begin, count)]))
    return block([_chosen(_ends_of(group), task, leaf), done], [span, addresses])


def _address(buffer: Any) -> Expr:
    """As a number, by a cast of C's: TVM 0.27 fails on one of its own from a pointer."""
    first = load(buffer, *(i64(0) for _ in buffer.shape))
    return tirx.call_pure_extern("uint64", "(uint64_t)", tirx.address_of(first))


_REINTERPRET = tirx.reinterpret("uint64", tirx.const(0, "int64")).op


def _maps(group: TensorGroup) -> Stmt:
    def work(begin: Expr, count: Expr, thread: Expr) -> list[Stmt]:
        def one(u: Expr) -> Stmt:
            place = u * THREADS + thread
            stores = point_stores(group.ctx, group.outputs, [begin + place], {}, group.outputs)
            return tirx.IfThenElse(place < count, bind_in_buffers(stores), None)

        return [dynamic_loop(i64(group.piece // THREADS), one, "u")]

    return launch(group.tasks, THREADS, lambda b, t: _found(group, b, lambda begin, count: work(begin, count, t)))


def _folds(group: TensorGroup) -> Stmt:
    """A warp a piece, which has the lanes of ``cpu/folds.py``'s lanes_fold."""

    def one(stage: Stage, task: Expr, begin: Expr, count: Expr, team: ThreadGroup) -> Stmt:
        place = lambda k: index_of(stage.reduce, [begin + k])  # noqa: E731
        put = lambda value: tirx.IfThenElse(team.lane < 1, store(group.partial[stage], value, task), None)  # noqa: E731
        return strided(group, stage, 4 * TREE_WIDTH, count, place, team, put)

    def work(task: Expr, begin: Expr, count: Expr, team: ThreadGroup) -> list[Stmt]:
        return [one(stage, task, begin, count, team) for stage in group.partial]

    return launch(
        group.tasks,
        WARP,
        lambda b, t: _found(group, b, lambda begin, count: work(b, begin, count, ThreadGroup(WARP, t))),
    )


def strided(group: TensorGroup, stage: Stage, width: int, count: Expr, place: Any, team: ThreadGroup, put: Any) -> Stmt:
    """A fold of ``count`` elements, known only where it runs, by ``width`` lanes; ``place(k)``: where the k-th is."""
    slots = width // team.size
    acc, many = accumulator(stage, slots + 1), UNROLL // slots
    whole, full = tirx.floordiv(count, i64(width * many)), tirx.floordiv(count, i64(width))
    add = lambda k, s: acc.add(group.ctx, place(k), i64(s))  # noqa: E731
    turn = lambda o: seq([add(o * width + (team.lane + s * team.size), s) for s in range(slots)])  # noqa: E731

    def last(s: int) -> Stmt:
        k = full * width + (team.lane + s * team.size)
        return tirx.IfThenElse(k < count, bind_in_buffers(add(k, s)), None)

    walk = [
        dynamic_loop(whole, lambda o: fully_unrolled(many, lambda u: turn(o * many + u)), "k"),
        dynamic_loop(full - whole * many, lambda o: turn(whole * many + o), "k"),
        *(last(s) for s in range(slots)),
    ]
    start = [acc.start(i64(s), i64(0)) for s in range(slots)]
    return block([*start, *walk, *tree_reduce(acc, slots, team), put(acc.result(i64(0)))], acc.buffers)


def _ends(program: Program, found: Members, groups: Sequence[TensorGroup]) -> list[Stmt]:
    """One block: each member's results of pieces folded by a warp, and what is made of them by one thread."""
    sums = [(g, s, shared([len(g.members)], str(s.buffer.dtype), "sums")) for g in groups for s in g.partial]
    known, out = {}, []
    for group, stage, held in sums:
        for n, member in enumerate(group.members):
            buffer = member.buffers[group.form.buffers.index(stage.buffer)]
            known[buffer] = lambda _, held=held, n=n: load(held, i64(n))
            if not program.owns(buffer):
                out.append(store(buffer, load(held, i64(n)), *(i64(0) for _ in buffer.shape)))
    keep = [s for s in found.after if not program.owns(s.buffer)]
    if keep:
        out.append(point_stores(groups[0].ctx, found.after, [], known, keep))
    if not out:
        return []
    if not sums:
        return [launch(1, 1, lambda b, t: seq(out))]

    def body(_: Expr, thread: Expr) -> Stmt:
        folds = [_member_folds(*one, thread) for one in sums]
        return block(
            [*folds, barrier(), tirx.IfThenElse(thread < 1, bind_in_buffers(seq(out)), None)], [b for *_, b in sums]
        )

    return [launch(1, WARPS * WARP, body)]


def _member_folds(group: TensorGroup, stage: Stage, held: Any, thread: Expr) -> Stmt:
    """Of every member, the results of its pieces, in the order of a row's."""
    count, span = len(group.members), scratch([2], "int64", "span")
    counts = [end - first for first, end in zip(group.firsts, _ends_of(group), strict=True)]
    c = Axis(tirx.Var("c", "int64"), 2)
    value = load(group.partial[stage], c.var + load(span, i64(0)))
    end = Stage(stage.name, (), (c,), stage.buffer, (i64(0),), value, stage.reduction)
    pieces = load(span, i64(1))

    def fold(member: Expr, width: int) -> Stmt:
        put = lambda value: tirx.IfThenElse(tirx.floormod(thread, i64(WARP)) < 1, store(held, value, member), None)  # noqa: E731
        if width == 0:
            return put(load(group.partial[stage], load(span, i64(0))))
        place = lambda k: {c.var: k}  # noqa: E731
        if width == 1:
            acc = accumulator(end, 1)
            walk = dynamic_loop(pieces, lambda k: acc.add(group.ctx, place(k), i64(0)), "k")
            return block([acc.start(i64(0), i64(0)), walk, put(acc.result(i64(0)))], acc.buffers)
        team = ThreadGroup(min(width, WARP), tirx.floormod(thread, i64(min(width, WARP))))
        return strided(group, end, width, pieces, place, team, put)

    def one(turn: Expr) -> Stmt:
        member = turn * WARPS + tirx.floordiv(thread, i64(WARP))
        leaf = lambda n: seq([store(span, i64(group.firsts[n]), i64(0)), store(span, i64(counts[n]), i64(1))])  # noqa: E731
        work: Stmt = None
        for most, width in ((1, 0), (TREE_WIDTH - 1, 1), (LONG_ROW - 1, TREE_WIDTH), (max(counts), 4 * TREE_WIDTH))[
            ::-1
        ]:
            if any(_width(n) == width for n in counts):
                mine = bind_in_buffers(fold(member, width))
                work = mine if work is None else tirx.IfThenElse(pieces <= most, mine, work)
        found = _chosen([*range(1, count + 1)], member, leaf)
        return tirx.IfThenElse(member < count, seq([found, work]), None)

    return block([dynamic_loop(i64(-(-count // WARPS)), one, "m")], [span])


def _width(pieces: int) -> int:
    """Lanes of the fold of some pieces' results; 0 for a single one."""
    return 0 if pieces == 1 else 1 if pieces < TREE_WIDTH else TREE_WIDTH if pieces < LONG_ROW else 4 * TREE_WIDTH
