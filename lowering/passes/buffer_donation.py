"""Outputs written into the memory of an input.

Runs after CallTIRRewrite, where a function is a list of allocations, kernel calls that name their destination, and
views. An output's allocation is replaced by the input itself wherever no one can tell the difference afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from attrs import define, field
from tvm import ir, relax, tirx
from tvm_ffi import structural_equal

from .block_accesses import is_copy, may_alias, outputs

Pair = tuple[int, int]  # (output, input) by position
ALLOC = "relax.builtin.alloc_tensor"
NOALIAS = "tirx.noalias"
SHARED = "in_place"  # attribute of a program: pairs of its parameters, one read and one written, that share memory


def in_place(module: tvm.IRModule, wanted: Mapping[str, Sequence[Pair]]) -> tuple[tvm.IRModule, dict[str, list[Pair]]]:
    """Do of ``wanted`` (by function) what is safe; the functions then no longer return those outputs.

    Returns the module and the pairs done, in the order of their outputs.
    """
    done, module = {}, module.clone()
    for name, pairs in wanted.items():
        body = Body.of(module, module[name])
        done[name] = [pair for pair in sorted(pairs) if body.do(*pair)]
        module.update_func(module.get_global_var(name), body.function({o for o, _ in done[name]}))
        for gv, shared in body.aliased.items():
            module.update_func(gv, module[gv].without_attr(NOALIAS).with_attr(SHARED, sorted(shared)))
    return module, done


@define
class Body:
    """One function as a list.

    bindings: [variable, value]; owners: the allocations and parameters whose memory a variable may be in
    outputs:  program -> which of its parameters it writes
    writers:  allocation -> [binding, argument] of the kernel calls that write it
    reads:    kernel call -> memory -> its arguments that may be in it
    last:     parameter -> the last binding that looks at its memory, as itself or through a view; the result counts
              as one more binding
    renamed:  allocations that became parameters; given: these parameters
    dropped:  bindings that would copy a parameter into its own memory
    allowed:  (program, argument read, argument written) -> may_alias of it
    aliased:  program that is now given one memory twice -> the pairs of its parameters, one read and one written
    """

    module: tvm.IRModule
    origin: Any
    bindings: list[tuple[relax.Var, Any]]
    owners: dict[Any, frozenset[relax.Var]] = field(factory=dict)
    outputs: dict[str, list[int]] = field(factory=dict)
    writers: dict[relax.Var, list[tuple[int, int]]] = field(factory=dict)
    reads: dict[int, dict[relax.Var, list[int]]] = field(factory=dict)
    last: dict[relax.Var, int] = field(factory=dict)
    renamed: dict[relax.Var, relax.Var] = field(factory=dict)
    given: set[relax.Var] = field(factory=set)
    dropped: set[int] = field(factory=set)
    allowed: dict[tuple[str, int, int], bool] = field(factory=dict)
    aliased: dict[ir.GlobalVar, set[Pair]] = field(factory=dict)

    @classmethod
    def of(cls, module: tvm.IRModule, func: Any) -> Body:
        self = cls(module, func, [(b.var, b.value) for block in func.body.blocks for b in block.bindings])
        self.owners = {p: frozenset((p,)) for p in func.params}
        for n, (var, value) in enumerate(self.bindings):
            seen = owners_of(value, self.owners)
            self.owners[var] = frozenset((var,)) if is_alloc(value) else seen
            self.last.update(dict.fromkeys(seen, n))
            self._note_writes(n, value)
        self.last.update(dict.fromkeys(owners_of(func.body.body, self.owners), len(self.bindings)))
        return self

    def _note_writes(self, n: int, value: Any) -> None:
        func = self._program(value)
        if func is None:
            return
        name = value.op.name_hint
        if name not in self.outputs:
            self.outputs[name] = outputs(func)
        for k in self.outputs[name]:
            for memory in self.owners.get(value.args[k], ()):
                self.writers.setdefault(memory, []).append((n, k))

    def _program(self, value: Any) -> tirx.PrimFunc | None:
        """What ``value`` calls, if it is a kernel call."""
        if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, ir.GlobalVar):
            return None
        callee = self.module[value.op]
        return callee if isinstance(callee, tirx.PrimFunc) else None

    def do(self, output: int, input: int) -> bool:
        """Give output number ``output`` the memory of parameter ``input``, if that is safe."""
        param, owners = self.origin.params[input], self.owners[self.origin.body.body.fields[output]]
        memory = next(iter(owners)) if len(owners) == 1 else param
        if memory in self.renamed or param in self.given or not structural_equal(memory.ty, param.ty):
            return False
        writers = self.writers.get(memory, [])
        if len(writers) == 1 and self._copies(writers[0][0], param):
            self.dropped.add(writers[0][0])
        elif len(writers) != 1 or self.last.get(param, -1) > writers[0][0] or not self._call_allows(*writers[0], param):
            return False
        self.renamed[memory] = param
        self.given.add(param)
        return True

    def _call_allows(self, n: int, target: int, param: relax.Var) -> bool:
        """Whether the kernel call ``n`` may read ``param`` while its argument ``target`` is ``param``'s memory. Notes
        the program if it does read it."""
        value = self.bindings[n][1]
        reads = self._reads(n).get(param, ())
        if any(not structural_equal(value.args[k].ty, param.ty) or not self._may(value, k, target) for k in reads):
            return False
        if reads:
            self.aliased.setdefault(value.op, set()).update((k, target) for k in reads)
        return True

    def _copies(self, n: int, param: relax.Var) -> bool:
        """Whether binding ``n`` makes nothing but a copy of ``param``: an input that is returned is then its output."""
        value = self.bindings[n][1]
        func = self._program(value)
        return func is not None and value.args[0].same_as(param) and is_copy(func)

    def _may(self, call: Any, read: int, write: int) -> bool:
        key = (call.op.name_hint, read, write)
        if key not in self.allowed:
            func = self._program(call)
            assert func is not None
            self.allowed[key] = may_alias(func, read, write)
        return self.allowed[key]

    def _reads(self, n: int) -> dict[relax.Var, list[int]]:
        """Memory -> the arguments of the kernel call ``n`` that may be in it."""
        if n not in self.reads:
            found = self.reads[n] = {}
            for k, arg in enumerate(self.bindings[n][1].args):
                for memory in self.owners.get(arg, ()):
                    found.setdefault(memory, []).append(k)
        return self.reads[n]

    def function(self, gone: set[int]) -> relax.Function:
        """The function with the renamed allocations gone, returning the outputs that are not in ``gone``."""
        left = (b for n, b in enumerate(self.bindings) if b[0] not in self.renamed and n not in self.dropped)
        bindings: list[Any] = [relax.VarBinding(var, renamed(value, self.renamed)) for var, value in left]
        kept = [v for n, v in enumerate(self.origin.body.body.fields) if n not in gone]
        body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(kept))
        type = relax.TupleType([v.ty for v in kept])
        return relax.Function(self.origin.params, body, type, is_pure=self.origin.is_pure, attrs=self.origin.attrs)


def is_alloc(value: Any) -> bool:
    """Whether ``value`` is the call that takes memory for a tensor."""
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == ALLOC


def owners_of(value: Any, owners: Mapping[relax.Var, frozenset[relax.Var]]) -> frozenset[relax.Var]:
    """All memory that ``value`` may look at or be a view of."""
    if isinstance(value, relax.Var):
        return owners.get(value, frozenset())
    if isinstance(value, tvm.ir.Call):
        parts: Sequence[Any] = value.args
    elif isinstance(value, relax.Tuple):
        parts = value.fields
    elif isinstance(value, relax.TupleGetItem):
        parts = (value.tuple_value,)
    else:
        parts = ()
    return frozenset().union(*(owners_of(part, owners) for part in parts))


def renamed(value: Any, names: Mapping[relax.Var, relax.Var]) -> Any:
    """``value`` with variables replaced; allocations occur only as themselves, as arguments and in tuples."""
    if isinstance(value, relax.Var):
        return names.get(value, value)
    if isinstance(value, tvm.ir.Call):
        args = [renamed(a, names) for a in value.args]
        return tvm.ir.Call(value.op, args, value.attrs, value.ty_args, value.span, value.ty)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([renamed(f, names) for f in value.fields])
    return value
