"""Horizontal fusion: an optimizer's update of all parameters as few multi-output programs (multi-tensor apply).

TVM's fusion joins a value to its one user, so that an update of three outputs a parameter becomes three kernels, and
that of a model hundreds. Here the elementwise computations from a function's inputs to the outputs that are written in
place become one program of many outputs. The sums over whole tensors that it needs (the norm of the gradients), and the
scalars computed from them, become another program before it. Equal layers are calls of equal programs
(layer_grouping.py). These programs are plain blocks in order, as fusion makes them; the schedules give the elements of
all tensors to threads as one loop.
Runs after AnnotateTIROpPattern, when a function is one dataflow block of calls of single programs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import tvm
from attrs import define, field
from tvm import relax, tirx
from tvm.tirx import IterVar
from tvm_ffi import structural_equal

from .block_accesses import blocks, is_copy, regions
from .buffer_donation import Pair
from .layer_grouping import split_into_calls

# Tensors of one program: each is a parameter of the kernel and code of its own. No measurement on record; the
# schedules' multi-tensor rule counts on the same bound (docs/schedules.md).
MAX_TENSORS = 512
# Kinds of programs that can be fused: elementwise; of scalars alone; the sum of all elements of one tensor.
ELEMENTWISE, SCALAR, FULL_SUM = "map", "scalar", "total"


def fuse_horizontally(module: tvm.IRModule, wanted: Mapping[str, Sequence[Pair]]) -> tvm.IRModule:
    """The module with each function of ``wanted`` (in-place pairs by function) fused, if at least two of its pairs can
    be."""
    builder = relax.BlockBuilder(module)
    for name, pairs in sorted(wanted.items()):
        body = Body.of(module, module[name])
        roots = [root for root in (body.root(*pair) for pair in sorted(pairs)) if root is not None]
        if len(roots) > 1:
            builder.update_func(module.get_global_var(name), body.fused(builder, name, roots))
    return builder.get()


@define
class Member:
    """A connected part of the computation, which shares no tensor with another member.

    vars:    its outputs
    body:    the elementwise values that lead to them, in program order
    tensors: the tensors that it reads from outside
    scalars: the scalars that it reads from outside
    """

    vars: list[relax.Var]
    body: list[relax.Var]
    tensors: set[relax.Var] = field(factory=set)
    scalars: set[relax.Var] = field(factory=set)

    def joined(self, other: Member) -> Member:
        body = list(dict.fromkeys((*self.body, *other.body)))
        return Member(self.vars + other.vars, body, self.tensors | other.tensors, self.scalars | other.scalars)


@define
class Body:
    """One function.

    values:  variable -> its value, in program order
    order:   variable -> its position in that order
    reads:   variable -> the variables in its value
    fusible: variable -> the kind of its program, if it can be fused
    depths:  variable -> the longest chain of full sums that it depends on
    """

    module: tvm.IRModule
    origin: Any
    values: dict[relax.Var, Any] = field(factory=dict)
    order: dict[relax.Var, int] = field(factory=dict)
    reads: dict[relax.Var, list[relax.Var]] = field(factory=dict)
    fusible: dict[relax.Var, str] = field(factory=dict)
    depths: dict[relax.Var, int] = field(factory=dict)

    @classmethod
    def of(cls, module: tvm.IRModule, func: Any) -> Body:
        self, kinds = cls(module, func, depths=dict.fromkeys(func.params, 0)), {}
        canonical = {param: param for param in func.params}  # one object a variable: its hash is computed once
        for binding in (b for block in func.body.blocks for b in block.bindings):
            var, value = binding.var, binding.value
            canonical[var], self.values[var], self.order[var] = var, value, len(self.values)
            inputs = self.reads[var] = [canonical[a] for a in _variables(value)]
            gv = _called_program(module, value)
            if gv is not None and gv not in kinds:
                kinds[gv] = _kind(module[gv])
            kind = kinds.get(gv)
            if kind is not None and all(a in self.depths for a in inputs):
                self.fusible[var] = kind
                self.depths[var] = max((self.depths[a] for a in inputs), default=0) + (kind == FULL_SUM)
        return self

    def root(self, output: int, input: int) -> relax.Var | None:
        """The output's variable, if it is elementwise and has the type of its input; None for a copy of its input,
        which buffer donation drops (buffer_donation.py)."""
        var, param = self.origin.body.body.fields[output], self.origin.params[input]
        read = self.reads.get(var, [])
        gv = _called_program(self.module, self.values.get(var))
        if gv is not None and len(read) == 1 and read[0].same_as(param) and is_copy(self.module[gv]):
            return None
        return var if self.fusible.get(var) == ELEMENTWISE and structural_equal(var.ty, param.ty) else None

    def fused(self, builder: relax.BlockBuilder, name: str, roots: Sequence[relax.Var]) -> relax.Function:
        """The function with ``roots``, and the full sums and scalars that they need, computed by fused programs."""
        needed = self._needed(roots, self.fusible.__contains__)
        programs: list[tuple[str, list[relax.Var]]] = []
        for depth in range(1, max(1, *(self.depths[v] for v in needed)) + 1):
            sums = [v for v in needed if self.fusible[v] == FULL_SUM and self.depths[v] == depth]
            calls, remainder = self._program_outputs(sums)
            scalars = [v for v in needed if self.fusible[v] == SCALAR and max(1, self.depths[v]) == depth]
            if len(remainder) == 1:
                remainder[0] += scalars
            elif scalars:
                remainder.append(scalars)
            programs += [(f"{name}_totals", members) for members in (*calls, *remainder)]
        calls, remainder = self._program_outputs(roots)
        programs += [(f"{name}_elements", members) for members in (*calls, *remainder)]
        return self._with_calls(builder, programs)

    def _needed(self, roots: Iterable[relax.Var], follows: Callable[[relax.Var], bool]) -> list[relax.Var]:
        """``roots`` and the variables that they depend on through those that ``follows`` accepts, in program order."""
        todo, needed = list(roots), set()
        while todo:
            var = todo.pop()
            if var not in needed:
                needed.add(var)
                todo += [a for a in self.reads.get(var, ()) if follows(a)]
        return sorted(needed & self.order.keys(), key=self.order.__getitem__)

    def _program_outputs(self, vars: Sequence[relax.Var]) -> tuple[list[list[relax.Var]], list[list[relax.Var]]]:
        """The outputs of each program that together compute ``vars``: those of equal calls, and the remainder."""
        calls, remainder = split_into_calls(self._members(vars))
        return [part for call in calls for part in _split_by_tensors(call)], _split_by_tensors(remainder)

    def _members(self, vars: Sequence[relax.Var]) -> list[tuple[Hashable, Member]]:
        """``vars`` as (group, member): variables that share a tensor are one member (connected components); members of
        one group compute the same from the same shared scalars."""
        owner: dict[relax.Var, Member] = {}
        members: dict[int, Member] = {}
        for var in vars:
            member = Member([var], self._needed([var], lambda v: self.fusible.get(v) == ELEMENTWISE))
            outer_vars = {a for v in member.body for a in self.reads[v]} - set(member.body)
            member.scalars = {a for a in outer_vars if _size(a.ty) == 1}
            member.tensors = {a for a in outer_vars if _size(a.ty) > 1}
            for other in {id(owner[t]): owner[t] for t in member.tensors if t in owner}.values():
                member = other.joined(member)
                del members[id(other)]
            members[id(member)] = member
            owner.update(dict.fromkeys(member.tensors, member))
        scalar_uses = Counter(a for m in members.values() for a in m.scalars)
        return [(self._group_key(m, scalar_uses), m) for m in members.values()]

    def _group_key(self, member: Member, scalar_uses: Mapping[relax.Var, int]) -> Hashable:
        """The member's computation with its own variables numbered; a scalar that several members use stays itself."""
        numbers: dict[relax.Var, int] = {}

        def name(arg: Any) -> Any:
            renumbered = isinstance(arg, relax.Var) and scalar_uses.get(arg, 0) < 2
            return numbers.setdefault(arg, len(numbers)) if renumbered else _key(arg)

        calls = [(v, self.values[v]) for v in member.body]
        return tuple((c.args[0].name_hint, v in member.vars, *map(name, c.args[1].fields)) for v, c in calls)

    def _with_calls(
        self, builder: relax.BlockBuilder, programs: Sequence[tuple[str, list[relax.Var]]]
    ) -> relax.Function:
        """The function as one call of each of ``programs`` (name, outputs), and the remaining bindings after them."""
        fused = {var for _, members in programs for var in members}
        fields = self.origin.body.body.fields
        alive = self._needed([v for v in fields if v not in fused], lambda v: v not in fused)
        wanted = {*fields, *alive, *(a for v in alive for a in self.reads[v])}
        bindings: list[Any] = [relax.VarBinding(v, self.values[v]) for v in alive]
        for name, members in reversed(programs):
            outputs = [var for var in members if var in wanted]
            inputs, program = self._fused_program(members, outputs)
            wanted |= {a for a in inputs if isinstance(a, relax.Var)}
            call = builder.normalize(tvm.ir.Call(builder.add_func(program, name), inputs))
            result = relax.DataflowVar(name, call.ty)
            items = [builder.normalize(relax.TupleGetItem(result, n)) for n in range(len(outputs))]
            bindings = [relax.VarBinding(result, call), *map(relax.VarBinding, outputs, items), *bindings]
        inner: list[Any] = [relax.DataflowBlock(bindings)]
        body = relax.SeqExpr(inner, self.origin.body.body)
        return relax.Function(self.origin.params, body, self.origin.ret_ty, self.origin.is_pure, self.origin.attrs)

    def _fused_program(
        self, members: Sequence[relax.Var], outputs: Sequence[relax.Var]
    ) -> tuple[list[Any], relax.Function]:
        """The arguments and the fused function that computes ``members`` and returns ``outputs``. Outputs that nothing
        else in it reads come last, so that no input is read after a write to its memory began."""
        member_set, output_set = set(members), set(outputs)
        body_vars: dict[relax.Var, None] = {}  # in the order of ``members``: equal calls then have equal programs

        def follows(v: relax.Var) -> bool:
            return v not in body_vars and (v in member_set or self.fusible.get(v) == ELEMENTWISE)

        for var in members:
            body_vars.update(dict.fromkeys(self._needed([var], follows)))
        read_vars = {a for v in body_vars for a in self.reads[v]}
        ordered = sorted(body_vars, key=lambda v: v in output_set and v not in read_vars)
        param_of: dict[Any, relax.Var] = {}  # outer variable or constant -> the function's parameter
        arguments: list[Any] = []
        bindings: list[Any] = []
        for var in ordered:
            for arg in self.values[var].args[1].fields:
                if _key(arg) not in param_of:
                    param_of[_key(arg)] = relax.Var(f"a{len(arguments)}", arg.ty)
                    arguments.append(arg)
            kind = relax.Var if var in output_set else relax.DataflowVar
            param_of[var] = kind(var.name, var.ty)
            bindings.append(relax.VarBinding(param_of[var], _with_args(self.values[var], param_of)))
        inner: list[Any] = [relax.DataflowBlock(bindings)]
        body = relax.SeqExpr(inner, relax.Tuple([param_of[v] for v in outputs]))
        params = [param_of[_key(a)] for a in arguments]
        func: Any = relax.Function(params, body, relax.TupleType([v.ty for v in outputs]))
        return arguments, func.with_attr("Primitive", True)


def _split_by_tensors(members: Sequence[Member]) -> list[list[relax.Var]]:
    """The outputs of ``members``, split into programs of at most MAX_TENSORS tensors."""
    parts: list[list[relax.Var]] = []
    remaining = 0
    for member in members:
        size = len(member.tensors) + len(member.vars)
        if size > remaining:
            parts.append([])
            remaining = MAX_TENSORS
        parts[-1] += member.vars
        remaining -= size
    return parts


def _called_program(module: tvm.IRModule, value: Any) -> Any:
    """The program that ``value`` calls for a single result; None for anything else."""
    if not isinstance(value, tvm.ir.Call) or getattr(value.op, "name", "") != "relax.call_tir":
        return None
    gv, args = value.args[0], value.args[1]
    single_tensor = isinstance(args, relax.Tuple) and isinstance(value.ty, relax.TensorType)
    return gv if single_tensor and isinstance(module[gv], tirx.PrimFunc) else None


def _variables(value: Any) -> list[relax.Var]:
    """The variables that a call of a program reads; of any other value, those in it."""
    if isinstance(value, relax.Var):
        return [value]
    parts = getattr(value, "args", None) or getattr(value, "fields", None) or ()
    if isinstance(value, relax.TupleGetItem):
        parts = (value.tuple_value,)
    return [v for part in parts for v in _variables(part)]


def _key(arg: Any) -> Any:
    """A variable, or the content of a constant: equal constants are one input."""
    if isinstance(arg, relax.Var):
        return arg
    array = arg.value.numpy()
    return str(array.dtype), array.shape, array.tobytes()


def _with_args(call: Any, param_of: Mapping[Any, relax.Var]) -> Any:
    args = relax.Tuple([param_of[_key(a)] for a in call.args[1].fields])
    return tvm.ir.Call(call.op, [call.args[0], args, *call.args[2:]], call.attrs, call.ty_args, call.span, call.ty)


def _kind(func: tirx.PrimFunc) -> str | None:
    """The kind of a program of one block; None if it cannot be fused."""
    inner_blocks, result = blocks(func), func.params[-1]
    if len(inner_blocks) != 1 or any(not hasattr(p, "shape") for p in func.params):
        return None
    block = inner_blocks[0]
    writes, reads = regions(block.writes), regions(block.reads)
    if len(writes) != 1 or not writes[0][0].same_as(result) or any(r[0].same_as(result) for r in reads):
        return None
    written = writes[0]
    axes: list[Any] = [v for v in block.iter_vars if _length(v) != 1]
    reduced = [v for v in axes if v.iter_type != IterVar.DataPar]
    scalar_result = _size(result) == 1
    tensor_reads = [r for r in reads if _size(r[0]) > 1]
    if scalar_result and not axes:
        return SCALAR if not tensor_reads else None
    if not reduced:
        elementwise = all(_is_elementwise_access(r, block, result.shape) for r in (written, *tensor_reads))
        return ELEMENTWISE if elementwise else None
    if not scalar_result or len(reduced) != len(axes) or not len(tensor_reads) == len(reads) == 1:
        return None
    (read,) = tensor_reads
    return FULL_SUM if _is_elementwise_access(read, block, read[0].shape) and _is_sum(block) else None


def _is_elementwise_access(region: Any, block: Any, shape: Any) -> bool:
    """Whether ``region`` is the single element of a tensor of ``shape`` at the block's axes, in their order."""
    buffer, ranges = region
    axes = [v.var for v in block.iter_vars]
    same_shape = len(buffer.shape) == len(shape) == len(ranges) and all(map(structural_equal, buffer.shape, shape))
    return same_shape and len(axes) == len(ranges) and all(r.min.same_as(a) for r, a in zip(ranges, axes, strict=True))


def _is_sum(block: Any) -> bool:
    value = getattr(block.body, "value", None)
    return isinstance(value, tirx.Add) and any(isinstance(x, tvm.ir.expr.TensorLoad) for x in (value.a, value.b))


def _length(axis: Any) -> int:
    return int(axis.dom.extent)


def _size(buffer: Any) -> int:
    return math.prod(int(n) for n in buffer.shape)
