"""The elements of many tensors, shared out as one loop over pieces of them: an optimizer's step over all parameters.

Members of one form share their code. What differs, the addresses, the lengths and the first task of each, stands in
tables of the kernel's own, where a task finds its member by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx
from tvm.ir import PointerType, PrimType

from .builder import Expr, Stmt, i64, load, scratch, seq, store
from .context import NestContext, dynamic_loop, vector
from .inline import InlinedStages, Provided
from .point_writer import point_stores
from .reduction import lanes_fold, stage_body
from .rewrite import collect
from .stages import Axis, NotStaged, Program, Stage, loads, read_program
from .tensor_list import Form, Member, Members, read_members
from .thread_cost import element_takes

ELEMENTWISE_PIECE, REDUCTION_PIECE = 2048, 8192  # elements of a task; of a fold, it is part of the order of the sum
ADDRESS = 15  # the field of a table's entry, of 16 bytes: TVMStructFieldKind::kTVMFFIAnyUnionValue


@attrs.frozen
class MultiTensorRule:
    """Takes programs of several members, and those with several outputs of which some are in place.

    ``nests``: (program, target, members) -> what does them, or None; ``function``: (program, nests) -> the function.
    """

    nests: Callable[[Program, Any, Members], list[Stmt] | None]
    function: Callable[[Program, list[Stmt]], Any]
    name: str = "pieces"

    def apply(self, func: Any, target: Any) -> Any:
        try:
            program = read_program(func)
        except NotStaged:
            return None
        found = read_members(program)
        if found is None or (len(found.members) < 2 and not program.pairs):
            return None
        done = self.nests(program, target, found)
        return None if done is None else self.function(program, done)


@attrs.frozen(eq=False)
class TensorGroup:
    """The members of one form.

    begin:     the number of its first task
    firsts:    the first task of each member, counted from ``begin``
    own:       of the form's buffers in memory, those that differ from member to member
    addresses: a table of them, member by member; ``spans``: first task and length of each
    partial:   fold stage -> its results, a task each
    """

    ctx: NestContext
    form: Form
    members: tuple[Member, ...]
    begin: int
    piece: int
    firsts: tuple[int, ...]
    tasks: int
    memory: tuple[int, ...]
    own: tuple[int, ...]
    addresses: Any
    spans: Any
    partial: dict[Any, Any]

    @property
    def end(self) -> int:
        return self.begin + self.tasks

    @property
    def takes(self) -> float:
        """Nanoseconds an element."""
        return element_takes(self.ctx.virtual, self.form.stages, sum(self.form.wide), self.ctx.lanes)

    @property
    def outputs(self) -> list[Stage]:
        """The map stages whose buffers are in memory."""
        held = [self.form.buffers[k] for k in self.memory]
        return [s for s in self.form.stages if s.is_map and s.buffer in held]

    def tables(self) -> list[Stmt]:
        """Statements that fill the tables in."""
        if len(self.members) == 1:
            return []
        entries = tirx.tvm_stack_alloca("tvm_ffi_any", len(self.own) * len(self.members))
        done: list[Stmt] = [tirx.AllocBuffer(self.spans), tirx.Bind(self.addresses, entries)]
        for n, member in enumerate(self.members):
            done += [store(self.spans, i64(v), i64(2 * n + k)) for k, v in enumerate((self.firsts[n], member.length))]
            for k, slot in enumerate(self.own):
                entry = n * len(self.own) + k
                set_ = tirx.tvm_struct_set(self.addresses, entry, ADDRESS, member.buffers[slot].data)
                done.append(tirx.Evaluate(set_))
        return done

    def run(self, task: Expr) -> Stmt:
        """One task: its member is looked up, then its piece is done."""
        own = task - i64(self.begin)
        if len(self.members) == 1:
            return self._piece(own, i64(0), i64(0), i64(self.members[0].length))
        row = scratch([1], "int64", "row")
        find: list[Stmt] = [tirx.AllocBuffer(row), store(row, i64(0), i64(0))]
        step = 1 << (len(self.members) - 1).bit_length()
        while step := step // 2:
            next_ = load(row, i64(0)) + step
            later = tirx.IfThenElse(load(self.spans, next_ * 2) <= own, store(row, next_, i64(0)), None)
            find.append(tirx.IfThenElse(next_ < len(self.members), later, None))
        at = load(row, i64(0))
        return seq([*find, self._piece(own, at, load(self.spans, at * 2), load(self.spans, at * 2 + 1))])

    def _piece(self, own: Expr, row: Expr, first: Expr, length: Expr) -> Stmt:
        """The piece that task number ``own`` of the group is, of the member in ``row``."""
        begin, names = (own - first) * self.piece, [tirx.Var(n, "int64") for n in ("begin", "count")]
        binds = [
            tirx.Bind(names[0], begin),
            tirx.Bind(names[1], tirx.Min(length - begin, i64(self.piece))),
        ]
        views = [tirx.DeclBuffer(self.form.buffers[k], data=self._address(k, row)) for k in self.memory]
        work = self._folds(own, *names) if self.partial else self._maps(*names)
        return seq([*binds, *views, *work])

    def _address(self, k: int, row: Expr) -> Expr:
        """Where the form's buffer number ``k`` is, for the member in ``row``."""
        if k not in self.own or len(self.members) == 1:
            return self.members[0].buffers[k].data
        pointer = PointerType(PrimType(str(self.form.buffers[k].dtype)))
        entry = row * len(self.own) + self.own.index(k)
        return tirx.tvm_struct_get(self.addresses, entry, ADDRESS, pointer)

    def _folds(self, own: Expr, begin: Expr, count: Expr) -> list[Stmt]:
        folds = [s for s in self.form.stages if s.reduction is not None]
        keep = lambda s: lambda value: store(self.partial[s], value, own)  # noqa: E731
        return [lanes_fold(self.ctx, s, begin, count, keep(s)) for s in folds]

    def _maps(self, begin: Expr, count: Expr) -> list[Stmt]:
        """Vectors, then what is left one by one. What is one element for all is loaded once, before."""
        lanes, binds, known = self.ctx.lanes, [], {}
        for k in self.memory:
            buffer = self.form.buffers[k]
            if not self.form.wide[k] and not any(s.buffer.same_as(buffer) for s in self.form.stages):
                _load_once(buffer, binds, known)
        point = lambda f: point_stores(self.ctx, self.outputs, [f], known, self.outputs)  # noqa: E731
        full = tirx.floordiv(count, i64(lanes))
        whole = lambda v: vector(lanes, lambda lane: point(begin + (v * lanes + lane)))  # noqa: E731
        rest = dynamic_loop(tirx.floormod(count, i64(lanes)), lambda r: point(begin + (full * lanes + r)), "r")
        return [*binds, dynamic_loop(full, whole, "v"), rest]

    def rereads(self, tasks: Stmt) -> bool:
        """Does a store of an output look into memory?"""
        held = {self.form.buffers[k] for k in self.memory}
        stores = [s for s in collect(tasks, tirx.BufferStore) if s.buffer in held]
        return any(x.source in held for s in stores for x in loads(s.value))

    def results(self) -> list[Stmt]:
        """The partial results of each member folded into its own."""
        done = []
        for n, member in enumerate(self.members):
            count = (self.firsts[n + 1] if n + 1 < len(self.members) else self.tasks) - self.firsts[n]
            c = Axis(tirx.Var("c", "int64"), count)
            for stage, partial in self.partial.items():
                buffer = member.buffers[self.form.buffers.index(stage.buffer)]
                indices = tuple(i64(0) for _ in buffer.shape)
                value = load(partial, c.var + i64(self.firsts[n]) if count > 1 else i64(self.firsts[n]))
                fold = stage.reduction if count > 1 else None
                end = Stage(stage.name, (), (c,) if fold else (), buffer, indices, value, fold)
                done.append(stage_body(self.ctx, end, []))
        return done


def _load_once(buffer: Any, binds: list[Stmt], known: dict[Any, Provided]) -> None:
    """A name for the one element of ``buffer``; that of a truth value is an integer, which vectors may be made of."""
    is_bool = str(buffer.dtype) == "bool"
    held = load(buffer, i64(0))
    if str(buffer.dtype) == "bfloat16":
        return
    var = tirx.Var("x", "int32" if is_bool else str(buffer.dtype))
    binds.append(tirx.Bind(var, tirx.Cast("int32", held) if is_bool else held))
    known[buffer] = lambda _: tirx.NE(var, tirx.const(0, "int32")) if is_bool else var


def make_group(
    program: Program, target: Any, form: Form, members: Sequence[Member], begin: int, map_piece: int = ELEMENTWISE_PIECE
) -> TensorGroup:
    """``map_piece``: elements of a task where nothing is summed."""
    folds = [s for s in form.stages if s.reduction is not None]
    piece = REDUCTION_PIECE if folds else map_piece
    counts = [-(-m.length // piece) for m in members]
    firsts = tuple(sum(counts[:n]) for n in range(len(counts)))
    results = [form.buffers.index(s.buffer) for s in folds]
    memory = tuple(
        k for k, b in enumerate(members[0].buffers) if not program.owns(b) and k not in results
    )  # fmt: skip
    own = tuple(k for k in memory if any(not m.buffers[k].same_as(members[0].buffers[k]) for m in members))
    held = [form.buffers[k] for k in memory]
    plain = attrs.evolve(program, stages=())
    virtual = InlinedStages(plain, (), target.functions)
    virtual.stages = {s.buffer: s for s in form.stages if s.is_map and s.buffer not in held}
    ctx = NestContext(plain, virtual, target.lanes, target.registers)
    return TensorGroup(
        ctx, form, tuple(members), begin, piece, firsts, sum(counts), memory, own,
        tirx.Var("addresses", PointerType(PrimType("void"))),
        scratch([2 * len(members)], "int64", "spans"),
        {s: scratch([sum(counts)], str(s.buffer.dtype), "partial") for s in folds},
    )  # fmt: skip
