"""Buffer donation: outputs that are written into the memory of an input.

Runs after CallTIRRewrite, where a function is a list of allocations, kernel calls in destination-passing style, and
views. An output's allocation is replaced by the input wherever alias analysis shows that no result changes.
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
# A program's attribute: pairs of its parameters, one read and one written, that share memory.
ALIASED_PARAMS = "in_place"


def in_place(module: tvm.IRModule, wanted: Mapping[str, Sequence[Pair]]) -> tuple[tvm.IRModule, dict[str, list[Pair]]]:
    """Donates the pairs of ``wanted`` (by function) that are safe; the functions no longer return those outputs.

    Returns the module and the pairs donated, in the order of their outputs.
    """
    donated, module = {}, module.clone()
    for name, pairs in wanted.items():
        body = Body.of(module, module[name])
        donated[name] = [pair for pair in sorted(pairs) if body.donate(*pair)]
        module.update_func(module.get_global_var(name), body.rewritten({o for o, _ in donated[name]}))
        for gv, param_pairs in body.aliased.items():
            module.update_func(gv, module[gv].without_attr(NOALIAS).with_attr(ALIASED_PARAMS, sorted(param_pairs)))
    return module, donated


@define
class Body:
    """One function, its bindings as a list.

    bindings:       [variable, value]
    owners:         variable -> the allocations and parameters whose memory it may lie in
    outputs:        program -> the positions of the parameters that it writes
    writers:        allocation -> [binding, argument] of the kernel calls that write it
    reads:          kernel call -> memory -> the arguments that may lie in it
    last_use:       parameter -> the last binding that reads its memory, directly or through a view; the function's
                    result counts as one more binding
    renamed:        allocation -> the parameter that replaces it
    donated_params: the parameters in ``renamed``
    dropped_copies: bindings that would copy a parameter into its own memory
    alias_checks:   (program, argument read, argument written) -> may_alias of it
    aliased:        program that gets one memory twice -> the pairs of its parameters, one read and one written
    """

    module: tvm.IRModule
    origin: Any
    bindings: list[tuple[relax.Var, Any]]
    owners: dict[Any, frozenset[relax.Var]] = field(factory=dict)
    outputs: dict[str, list[int]] = field(factory=dict)
    writers: dict[relax.Var, list[tuple[int, int]]] = field(factory=dict)
    reads: dict[int, dict[relax.Var, list[int]]] = field(factory=dict)
    last_use: dict[relax.Var, int] = field(factory=dict)
    renamed: dict[relax.Var, relax.Var] = field(factory=dict)
    donated_params: set[relax.Var] = field(factory=set)
    dropped_copies: set[int] = field(factory=set)
    alias_checks: dict[tuple[str, int, int], bool] = field(factory=dict)
    aliased: dict[ir.GlobalVar, set[Pair]] = field(factory=dict)

    @classmethod
    def of(cls, module: tvm.IRModule, func: Any) -> Body:
        self = cls(module, func, [(b.var, b.value) for block in func.body.blocks for b in block.bindings])
        self.owners = {p: frozenset((p,)) for p in func.params}
        for n, (var, value) in enumerate(self.bindings):
            read_memory = owners_of(value, self.owners)
            self.owners[var] = frozenset((var,)) if is_alloc(value) else read_memory
            self.last_use.update(dict.fromkeys(read_memory, n))
            self._note_writes(n, value)
        self.last_use.update(dict.fromkeys(owners_of(func.body.body, self.owners), len(self.bindings)))
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
        """The program that ``value`` calls, if it is a kernel call."""
        if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, ir.GlobalVar):
            return None
        callee = self.module[value.op]
        return callee if isinstance(callee, tirx.PrimFunc) else None

    def donate(self, output: int, input: int) -> bool:
        """Whether output ``output`` can have the memory of parameter ``input``; if so, replaces its allocation."""
        param, owners = self.origin.params[input], self.owners[self.origin.body.body.fields[output]]
        memory = next(iter(owners)) if len(owners) == 1 else param
        if memory in self.renamed or param in self.donated_params or not structural_equal(memory.ty, param.ty):
            return False
        writers = self.writers.get(memory, [])
        if len(writers) != 1:
            return False
        n, target = writers[0]
        if self._copies(n, param):
            self.dropped_copies.add(n)
        elif self.last_use.get(param, -1) > n or not self._call_allows(n, target, param):
            return False
        self.renamed[memory] = param
        self.donated_params.add(param)
        return True

    def _call_allows(self, n: int, target: int, param: relax.Var) -> bool:
        """Whether the kernel call ``n`` may read ``param`` while its argument ``target`` is ``param``'s memory. Records
        the program in ``aliased`` if it does read it."""
        call = self.bindings[n][1]
        reads = self._reads(n).get(param, ())
        for k in reads:
            if not structural_equal(call.args[k].ty, param.ty) or not self._may_alias(call, k, target):
                return False
        if reads:
            self.aliased.setdefault(call.op, set()).update((k, target) for k in reads)
        return True

    def _copies(self, n: int, param: relax.Var) -> bool:
        """Whether binding ``n`` only copies ``param``: an input that is returned unchanged is then its own output."""
        value = self.bindings[n][1]
        func = self._program(value)
        return func is not None and value.args[0].same_as(param) and is_copy(func)

    def _may_alias(self, call: Any, read: int, write: int) -> bool:
        key = (call.op.name_hint, read, write)
        if key not in self.alias_checks:
            func = self._program(call)
            assert func is not None
            self.alias_checks[key] = may_alias(func, read, write)
        return self.alias_checks[key]

    def _reads(self, n: int) -> dict[relax.Var, list[int]]:
        """Memory -> the arguments of the kernel call ``n`` that may lie in it."""
        if n not in self.reads:
            args_by_memory = self.reads[n] = {}
            for k, arg in enumerate(self.bindings[n][1].args):
                for memory in self.owners.get(arg, ()):
                    args_by_memory.setdefault(memory, []).append(k)
        return self.reads[n]

    def rewritten(self, donated_outputs: set[int]) -> relax.Function:
        """The function without the replaced allocations, returning the outputs that are not in ``donated_outputs``."""
        bindings: list[Any] = [
            relax.VarBinding(var, renamed(value, self.renamed))
            for n, (var, value) in enumerate(self.bindings)
            if var not in self.renamed and n not in self.dropped_copies
        ]
        returned = [v for n, v in enumerate(self.origin.body.body.fields) if n not in donated_outputs]
        body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(returned))
        type = relax.TupleType([v.ty for v in returned])
        return relax.Function(self.origin.params, body, type, is_pure=self.origin.is_pure, attrs=self.origin.attrs)


def is_alloc(value: Any) -> bool:
    """Whether ``value`` is the call that allocates a tensor."""
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == ALLOC


def owners_of(value: Any, owners: Mapping[relax.Var, frozenset[relax.Var]]) -> frozenset[relax.Var]:
    """The allocations and parameters that ``value`` may read or be a view of."""
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
