"""Many small elementwise programs as few large ones: an optimizer's update of all parameters.

Fusion joins a value to its one user, so that an update of three outputs a parameter becomes three kernels, and that of
a model hundreds. Here all that leads, element by element, from a function's inputs to the outputs that are written in
place becomes one program of many outputs; the sums over whole tensors that it needs (the norm of the gradients), and
the scalars made of them, become another before it. Equal layers are calls of equal programs (layer_grouping.py).
These programs are plain blocks in order, as fusion makes them; the schedules share the elements of all tensors out as
one loop.
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
from .layer_grouping import dealt

MOST = 512  # tensors of one program
MAP, SCALAR, TOTAL = "map", "scalar", "total"  # element by element; of one element; the sum of all elements


def together(module: tvm.IRModule, wanted: Mapping[str, Sequence[Pair]]) -> tvm.IRModule:
    """The module with each function of ``wanted`` (in-place pairs by function) rewritten, if two of its pairs allow."""
    builder = relax.BlockBuilder(module)
    for name, pairs in sorted(wanted.items()):
        body = Body.of(module, module[name])
        roots = [root for root in (body.root(*pair) for pair in sorted(pairs)) if root is not None]
        if len(roots) > 1:
            builder.update_func(module.get_global_var(name), body.rewritten(builder, name, roots))
    return builder.get()


@define
class Member:
    """``vars`` to be made and, in order, all that leads to them element by element; the ``tensors`` and ``scalars``
    that this is made of, a tensor in no other member."""

    vars: list[relax.Var]
    inside: list[relax.Var]
    tensors: set[relax.Var] = field(factory=set)
    scalars: set[relax.Var] = field(factory=set)

    def joined(self, other: Member) -> Member:
        inside = list(dict.fromkeys((*self.inside, *other.inside)))
        return Member(self.vars + other.vars, inside, self.tensors | other.tensors, self.scalars | other.scalars)


@define
class Body:
    """One function.

    values: variable -> what is bound to it, in order; order: variable -> its number in that
    reads:  variable -> the variables that stand in its value
    kinds:  what a variable is, if it may be part of a program here
    ranks:  how many totals stand one after the other before a variable is known
    """

    module: tvm.IRModule
    origin: Any
    values: dict[relax.Var, Any] = field(factory=dict)
    order: dict[relax.Var, int] = field(factory=dict)
    reads: dict[relax.Var, list[relax.Var]] = field(factory=dict)
    kinds: dict[relax.Var, str] = field(factory=dict)
    ranks: dict[relax.Var, int] = field(factory=dict)

    @classmethod
    def of(cls, module: tvm.IRModule, func: Any) -> Body:
        self, seen = cls(module, func, ranks=dict.fromkeys(func.params, 0)), {}
        one = {param: param for param in func.params}  # an object for each variable: quick to look up
        for binding in (b for block in func.body.blocks for b in block.bindings):
            var, value = binding.var, binding.value
            one[var], self.values[var], self.order[var] = var, value, len(self.values)
            inputs = self.reads[var] = [one[a] for a in _variables(value)]
            gv = _program(module, value)
            if gv is not None and gv not in seen:
                seen[gv] = _kind(module[gv])
            kind = seen.get(gv)
            if kind is not None and all(a in self.ranks for a in inputs):
                self.kinds[var] = kind
                self.ranks[var] = max((self.ranks[a] for a in inputs), default=0) + (kind == TOTAL)
        return self

    def root(self, output: int, input: int) -> relax.Var | None:
        """The output's variable, if it can be made of inputs element by element and has the type of its input. A copy
        of its input is not made at all (buffer_donation.py)."""
        var, param = self.origin.body.body.fields[output], self.origin.params[input]
        read = self.reads.get(var, [])
        gv = _program(self.module, self.values.get(var))
        if gv is not None and len(read) == 1 and read[0].same_as(param) and is_copy(self.module[gv]):
            return None
        return var if self.kinds.get(var) == MAP and structural_equal(var.ty, param.ty) else None

    def rewritten(self, builder: relax.BlockBuilder, name: str, roots: Sequence[relax.Var]) -> relax.Function:
        """The function with ``roots``, and the totals and scalars they need, made by programs of their own."""
        needed = self._before(roots, self.kinds.__contains__)
        programs: list[tuple[str, list[relax.Var]]] = []
        for rank in range(1, max(1, *(self.ranks[v] for v in needed)) + 1):
            calls, rest = self._parts([v for v in needed if self.kinds[v] == TOTAL and self.ranks[v] == rank])
            scalars = [v for v in needed if self.kinds[v] == SCALAR and max(1, self.ranks[v]) == rank]
            if len(rest) == 1:
                rest[0] += scalars
            elif scalars:
                rest.append(scalars)
            programs += [(f"{name}_totals", part) for part in (*calls, *rest)]
        calls, rest = self._parts(roots)
        programs += [(f"{name}_elements", part) for part in (*calls, *rest)]
        return self._with(builder, programs)

    def _before(self, roots: Iterable[relax.Var], joins: Callable[[relax.Var], bool]) -> list[relax.Var]:
        """``roots`` and what they need, through variables that join, in program order."""
        todo, found = list(roots), set()
        while todo:
            var = todo.pop()
            if var not in found:
                found.add(var)
                todo += [a for a in self.reads.get(var, ()) if joins(a)]
        return sorted(found & self.order.keys(), key=self.order.__getitem__)

    def _parts(self, vars: Sequence[relax.Var]) -> tuple[list[list[relax.Var]], list[list[relax.Var]]]:
        """``vars`` as those of equal calls, and the others, in pieces of few enough tensors."""
        calls, rest = dealt(self._members(vars))
        return [part for call in calls for part in _cut(call)], _cut(rest)

    def _members(self, vars: Sequence[relax.Var]) -> list[tuple[Hashable, Member]]:
        """``vars`` by the tensors that they share, each with its group: what it computes, and of which scalars, where
        others look at these too."""
        of: dict[relax.Var, Member] = {}
        members: dict[int, Member] = {}
        for var in vars:
            made = Member([var], self._before([var], lambda v: self.kinds.get(v) == MAP))
            outer = {a for v in made.inside for a in self.reads[v]} - set(made.inside)
            made.scalars, made.tensors = {a for a in outer if _size(a.ty) == 1}, {a for a in outer if _size(a.ty) > 1}
            for other in {id(of[t]): of[t] for t in made.tensors if t in of}.values():
                made = other.joined(made)
                del members[id(other)]
            members[id(made)] = made
            of.update(dict.fromkeys(made.tensors, made))
        seen = Counter(a for m in members.values() for a in m.scalars)
        return [(self._group(m, seen), m) for m in members.values()]

    def _group(self, member: Member, seen: Mapping[relax.Var, int]) -> Hashable:
        numbers: dict[relax.Var, int] = {}

        def name(arg: Any) -> Any:
            own = isinstance(arg, relax.Var) and seen.get(arg, 0) < 2
            return numbers.setdefault(arg, len(numbers)) if own else _key(arg)

        calls = [(v, self.values[v]) for v in member.inside]
        return tuple((c.args[0].name_hint, v in member.vars, *map(name, c.args[1].fields)) for v, c in calls)

    def _with(self, builder: relax.BlockBuilder, programs: Sequence[tuple[str, list[relax.Var]]]) -> relax.Function:
        """The function with the variables of each of ``programs`` made by one call, and what else it needs after."""
        gone = {var for _, made in programs for var in made}
        fields = self.origin.body.body.fields
        alive = self._before([v for v in fields if v not in gone], lambda v: v not in gone)
        wanted = {*fields, *alive, *(a for v in alive for a in self.reads[v])}
        bindings: list[Any] = [relax.VarBinding(v, self.values[v]) for v in alive]
        for name, made in reversed(programs):
            outputs = [var for var in made if var in wanted]
            inputs, program = self._program(made, outputs)
            wanted |= {a for a in inputs if isinstance(a, relax.Var)}
            call = builder.normalize(tvm.ir.Call(builder.add_func(program, name), inputs))
            whole = relax.DataflowVar(name, call.ty)
            taken = [builder.normalize(relax.TupleGetItem(whole, n)) for n in range(len(outputs))]
            bindings = [relax.VarBinding(whole, call), *map(relax.VarBinding, outputs, taken), *bindings]
        inner: list[Any] = [relax.DataflowBlock(bindings)]
        body = relax.SeqExpr(inner, self.origin.body.body)
        return relax.Function(self.origin.params, body, self.origin.ret_ty, self.origin.is_pure, self.origin.attrs)

    def _program(self, made: Sequence[relax.Var], outputs: Sequence[relax.Var]) -> tuple[list[Any], relax.Function]:
        """What to call and with what, for ``outputs``. Outputs that nothing else in it reads come last, so that no
        input is looked at after its memory began to be written."""
        own, given_out = set(made), set(outputs)
        inside: dict[relax.Var, None] = {}  # by what is made, in its order: equal calls are then equal programs
        for var in made:
            joins = lambda v: v not in inside and (v in own or self.kinds.get(v) == MAP)  # noqa: E731
            inside.update(dict.fromkeys(self._before([var], joins)))
        read = {a for v in inside for a in self.reads[v]}
        ordered = sorted(inside, key=lambda v: v in given_out and v not in read)
        new: dict[Any, relax.Var] = {}  # outer variable or constant -> the function's own
        given: list[Any] = []
        bindings: list[Any] = []
        for var in ordered:
            for arg in self.values[var].args[1].fields:
                if _key(arg) not in new:
                    new[_key(arg)] = relax.Var(f"a{len(given)}", arg.ty)
                    given.append(arg)
            kind = relax.Var if var in given_out else relax.DataflowVar
            new[var] = kind(var.name, var.ty)
            bindings.append(relax.VarBinding(new[var], _with_args(self.values[var], new)))
        inner: list[Any] = [relax.DataflowBlock(bindings)]
        body = relax.SeqExpr(inner, relax.Tuple([new[v] for v in outputs]))
        func: Any = relax.Function([new[_key(a)] for a in given], body, relax.TupleType([v.ty for v in outputs]))
        return given, func.with_attr("Primitive", True)


def _cut(members: Sequence[Member]) -> list[list[relax.Var]]:
    """What ``members`` make, in pieces of at most MOST tensors."""
    parts: list[list[relax.Var]] = []
    room = 0
    for member in members:
        size = len(member.tensors) + len(member.vars)
        if size > room:
            parts.append([])
            room = MOST
        parts[-1] += member.vars
        room -= size
    return parts


def _program(module: tvm.IRModule, value: Any) -> Any:
    """The one program that ``value`` calls for one tensor, None for anything else."""
    if not isinstance(value, tvm.ir.Call) or getattr(value.op, "name", "") != "relax.call_tir":
        return None
    gv, args = value.args[0], value.args[1]
    alone = isinstance(args, relax.Tuple) and isinstance(value.ty, relax.TensorType)
    return gv if alone and isinstance(module[gv], tirx.PrimFunc) else None


def _variables(value: Any) -> list[relax.Var]:
    """The variables that a call of a program reads; of anything else, those that stand in it."""
    if isinstance(value, relax.Var):
        return [value]
    parts = getattr(value, "args", None) or getattr(value, "fields", None) or ()
    if isinstance(value, relax.TupleGetItem):
        parts = (value.tuple_value,)
    return [v for part in parts for v in _variables(part)]


def _key(arg: Any) -> Any:
    """A variable, or what a constant holds: equal constants are one input."""
    if isinstance(arg, relax.Var):
        return arg
    held = arg.value.numpy()
    return str(held.dtype), held.shape, held.tobytes()


def _with_args(call: Any, new: Mapping[Any, relax.Var]) -> Any:
    args = relax.Tuple([new[_key(a)] for a in call.args[1].fields])
    return tvm.ir.Call(call.op, [call.args[0], args, *call.args[2:]], call.attrs, call.ty_args, call.span, call.ty)


def _kind(func: tirx.PrimFunc) -> str | None:
    """What a program of one block computes, None if it is of no kind that can be joined."""
    found, result = blocks(func), func.params[-1]
    if len(found) != 1 or any(not hasattr(p, "shape") for p in func.params):
        return None
    block = found[0]
    writes, reads = regions(block.writes), regions(block.reads)
    if len(writes) != 1 or not writes[0][0].same_as(result) or any(r[0].same_as(result) for r in reads):
        return None
    wrote = writes[0]
    axes: list[Any] = [v for v in block.iter_vars if _length(v) != 1]
    reduced = [v for v in axes if v.iter_type != IterVar.DataPar]
    small = _size(result) == 1
    wide = [r for r in reads if _size(r[0]) > 1]
    if small and not axes:
        return SCALAR if not wide else None
    if not reduced:
        return MAP if all(_is_point(r, block, result.shape) for r in (wrote, *wide)) else None
    whole = small and len(reduced) == len(axes) and len(wide) == len(reads) == 1
    return TOTAL if whole and _is_point(wide[0], block, wide[0][0].shape) and _is_sum(block) else None


def _is_point(region: Any, block: Any, shape: Any) -> bool:
    """Whether ``region`` is the one element of a tensor of ``shape`` at which the block's axes stand, in order."""
    buffer, ranges = region
    axes = [v.var for v in block.iter_vars]
    same = len(buffer.shape) == len(shape) == len(ranges) and all(map(structural_equal, buffer.shape, shape))
    return same and len(axes) == len(ranges) and all(r.min.same_as(a) for r, a in zip(ranges, axes, strict=True))


def _is_sum(block: Any) -> bool:
    value = getattr(block.body, "value", None)
    return isinstance(value, tirx.Add) and any(isinstance(x, tvm.ir.expr.TensorLoad) for x in (value.a, value.b))


def _length(axis: Any) -> int:
    return int(axis.dom.extent)


def _size(buffer: Any) -> int:
    return math.prod(int(n) for n in buffer.shape)
