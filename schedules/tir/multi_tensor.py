"""Horizontal fusion: one parallel loop over pieces of many tensors, for an optimizer step over all parameters.

As in multi-tensor apply (NVIDIA Apex) a task is a piece of a tensor, and small tensors cost next to nothing. Members
of a form share code; addresses, lengths and first tasks stand in tables on the stack, where a task finds its member
by binary search. A sum has a partial result a piece; these are reduced as a row is. Piece lengths fix the order.
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
from .reduction import dynamic_reduction, stage_body
from .rewrite import collect
from .stages import Axis, NotStaged, Program, Stage, loads, read_program
from .tensor_list import Form, Member, Members, read_members
from .thread_cost import element_nanoseconds

# Elements of a task; chosen, not measured: larger pieces leave threads idle at the end, smaller search for their member
# more often. The second is part of the order of sums: changed, it changes bits.
ELEMENTWISE_PIECE, REDUCTION_PIECE = 2048, 8192
# TVMStructFieldKind::kTVMFFIAnyUnionValue: the value of a 16-byte entry of the address table. It is TVM 0.27's number.
ADDRESS_FIELD = 15


@attrs.frozen
class MultiTensorRule:
    """A rule for programs of several members, and for those with donated buffers.

    ``nests``: (program, target, members) -> their loops, or None; ``function``: (program, nests) -> scheduled function.
    """

    nests: Callable[[Program, Any, Members], list[Stmt] | None]
    function: Callable[[Program, list[Stmt]], Any]
    name: str = "multi-tensor"

    def apply(self, func: Any, target: Any) -> Any:
        try:
            program = read_program(func)
        except NotStaged:
            return None
        tensor_list = read_members(program)
        if tensor_list is None or (len(tensor_list.members) < 2 and not program.pairs):
            return None
        nests = self.nests(program, target, tensor_list)
        return None if nests is None else self.function(program, nests)


@attrs.frozen(eq=False)
class TensorGroup:
    """The members of a form.

    begin:     number of the group's first task; ``tasks``: how many it has
    piece:     elements of a task
    firsts:    first task of each member, counted from ``begin``
    memory:    positions of the form's buffers that are in memory
    own:       those of them that differ between members
    addresses: table of the addresses of ``own``, member by member
    spans:     table of (first task, length) of each member
    partial:   reduction -> its partial results, an element a task
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
    def element_nanoseconds(self) -> float:
        """Estimated nanoseconds an element, for the decision to parallelize."""
        return element_nanoseconds(self.ctx.virtual, self.form.stages, sum(self.form.is_tensor), self.ctx.lanes)

    @property
    def outputs(self) -> list[Stage]:
        """The elementwise stages whose results are in memory."""
        in_memory = [self.form.buffers[k] for k in self.memory]
        return [s for s in self.form.stages if s.is_elementwise and s.buffer in in_memory]

    def tables(self) -> list[Stmt]:
        """Statements that fill the tables."""
        # A single member needs none: its addresses and length are in the code.
        if len(self.members) == 1:
            return []
        # On the stack: a table in a constant could not hold addresses, which are known at the call only.
        entries = tirx.tvm_stack_alloca("tvm_ffi_any", len(self.own) * len(self.members))
        statements: list[Stmt] = [tirx.AllocBuffer(self.spans), tirx.Bind(self.addresses, entries)]
        for n, member in enumerate(self.members):
            statements += [
                store(self.spans, i64(v), i64(2 * n + k)) for k, v in enumerate((self.firsts[n], member.length))
            ]
            for k, slot in enumerate(self.own):
                entry = n * len(self.own) + k
                set_address = tirx.tvm_struct_set(self.addresses, entry, ADDRESS_FIELD, member.buffers[slot].data)
                statements.append(tirx.Evaluate(set_address))
        return statements

    def run(self, task: Expr) -> Stmt:
        """A task: a binary search for its member (the last whose first task is not after it), then its piece."""
        local_task = task - i64(self.begin)
        if len(self.members) == 1:
            return self._piece(local_task, i64(0), i64(0), i64(self.members[0].length))
        # Binary search by powers of two, unrolled: log2(members) steps whatever the task.
        row = scratch([1], "int64", "member")
        search: list[Stmt] = [tirx.AllocBuffer(row), store(row, i64(0), i64(0))]
        step = 1 << (len(self.members) - 1).bit_length()
        while step := step // 2:
            next_ = load(row, i64(0)) + step
            later = tirx.IfThenElse(load(self.spans, next_ * 2) <= local_task, store(row, next_, i64(0)), None)
            search.append(tirx.IfThenElse(next_ < len(self.members), later, None))
        member_row = load(row, i64(0))
        first, length = load(self.spans, member_row * 2), load(self.spans, member_row * 2 + 1)
        return seq([*search, self._piece(local_task, member_row, first, length)])

    def _piece(self, local_task: Expr, row: Expr, first: Expr, length: Expr) -> Stmt:
        """Task number ``local_task`` of the group: a piece of the member in ``row`` of the tables."""
        begin, bounds = (local_task - first) * self.piece, [tirx.Var(n, "int64") for n in ("begin", "count")]
        binds = [
            tirx.Bind(bounds[0], begin),
            tirx.Bind(bounds[1], tirx.Min(length - begin, i64(self.piece))),
        ]
        views = [tirx.DeclBuffer(self.form.buffers[k], data=self._address(k, row)) for k in self.memory]
        work = self._reductions(local_task, *bounds) if self.partial else self._elementwise(*bounds)
        return seq([*binds, *views, *work])

    def _address(self, k: int, row: Expr) -> Expr:
        """The address of the form's buffer number ``k``, for the member in ``row``."""
        if k not in self.own or len(self.members) == 1:
            return self.members[0].buffers[k].data
        pointer = PointerType(PrimType(str(self.form.buffers[k].dtype)))
        entry = row * len(self.own) + self.own.index(k)
        return tirx.tvm_struct_get(self.addresses, entry, ADDRESS_FIELD, pointer)

    def _reductions(self, local_task: Expr, begin: Expr, count: Expr) -> list[Stmt]:
        reductions = [s for s in self.form.stages if s.reduction is not None]

        def partial_result(stage: Stage) -> Stmt:
            partial = self.partial[stage]
            return dynamic_reduction(self.ctx, stage, begin, count, lambda value: store(partial, value, local_task))

        return [partial_result(s) for s in reductions]

    def _elementwise(self, begin: Expr, count: Expr) -> list[Stmt]:
        """Full vectors, then a scalar remainder loop. Scalars that the group only reads are loaded once, before."""
        lanes, binds, provided = self.ctx.lanes, [], {}
        for k in self.memory:
            buffer = self.form.buffers[k]
            if not self.form.is_tensor[k] and not any(s.buffer.same_as(buffer) for s in self.form.stages):
                _load_once(buffer, binds, provided)

        def element(index: Expr) -> Stmt:
            return point_stores(self.ctx, self.outputs, [index], provided, self.outputs)

        def vector_at(v: Expr) -> Stmt:
            return vector(lanes, lambda lane: element(begin + (v * lanes + lane)))

        # The rest element by element: its length is known at run time only, so no narrower vector can be written for
        # it.
        vectors = tirx.floordiv(count, i64(lanes))
        rest = dynamic_loop(tirx.floormod(count, i64(lanes)), lambda r: element(begin + (vectors * lanes + r)), "r")
        return [*binds, dynamic_loop(vectors, vector_at, "v"), rest]

    def rereads(self, tasks: Stmt) -> bool:
        """Does a stored value load from memory? An earlier store of the same point may have changed what it reads."""
        in_memory = {self.form.buffers[k] for k in self.memory}
        stores = [s for s in collect(tasks, tirx.BufferStore) if s.buffer in in_memory]
        return any(x.source in in_memory for s in stores for x in loads(s.value))

    def results(self) -> list[Stmt]:
        """The reduction of each member's partial results into its result."""
        statements = []
        for n, member in enumerate(self.members):
            count = (self.firsts[n + 1] if n + 1 < len(self.members) else self.tasks) - self.firsts[n]
            c = Axis(tirx.Var("c", "int64"), count)
            for stage, partial in self.partial.items():
                buffer = member.buffers[self.form.buffers.index(stage.buffer)]
                indices = tuple(i64(0) for _ in buffer.shape)
                value = load(partial, c.var + i64(self.firsts[n]) if count > 1 else i64(self.firsts[n]))
                reduction = stage.reduction if count > 1 else None
                # A single partial result is copied: a reduction of extent 1 would add 0 to it, and make 0 of -0.
                combine_stage = Stage(stage.name, (), (c,) if reduction else (), buffer, indices, value, reduction)
                statements.append(stage_body(self.ctx, combine_stage, []))
        return statements


def _load_once(buffer: Any, binds: list[Stmt], provided: dict[Any, Provided]) -> None:
    """Binds a variable to the only element of ``buffer``, and provides it. A bool is bound as int32, which TVM can
    vectorize; a bfloat16 is left alone (``bfloat16.py``)."""
    is_bool = str(buffer.dtype) == "bool"
    value = load(buffer, i64(0))
    if str(buffer.dtype) == "bfloat16":
        return
    var = tirx.Var("x", "int32" if is_bool else str(buffer.dtype))
    binds.append(tirx.Bind(var, tirx.Cast("int32", value) if is_bool else value))
    provided[buffer] = lambda _: tirx.NE(var, tirx.const(0, "int32")) if is_bool else var


def make_group(
    program: Program,
    target: Any,
    form: Form,
    members: Sequence[Member],
    begin: int,
    elementwise_piece: int = ELEMENTWISE_PIECE,
) -> TensorGroup:
    """The group of ``members``, its first task ``begin``. ``elementwise_piece``: elements of a task without sums."""
    reductions = [s for s in form.stages if s.reduction is not None]
    piece = REDUCTION_PIECE if reductions else elementwise_piece
    counts = [-(-m.length // piece) for m in members]
    firsts = tuple(sum(counts[:n]) for n in range(len(counts)))
    results = [form.buffers.index(s.buffer) for s in reductions]
    memory = tuple(k for k, b in enumerate(members[0].buffers) if not program.owns(b) and k not in results)
    own = tuple(k for k in memory if any(not m.buffers[k].same_as(members[0].buffers[k]) for m in members))
    in_memory = [form.buffers[k] for k in memory]
    plain = attrs.evolve(program, stages=())
    virtual = InlinedStages(plain, (), target.functions)
    # However costly, what is not in memory is inlined: a member's intermediate has no buffer.
    virtual.stages = {s.buffer: s for s in form.stages if s.is_elementwise and s.buffer not in in_memory}
    ctx = NestContext(plain, virtual, target.lanes, target.registers)
    return TensorGroup(
        ctx,
        form,
        tuple(members),
        begin,
        piece,
        firsts,
        sum(counts),
        memory,
        own,
        tirx.Var("addresses", PointerType(PrimType("void"))),
        scratch([2 * len(members)], "int64", "first_and_length"),
        {s: scratch([sum(counts)], str(s.buffer.dtype), "partial") for s in reductions},
    )
