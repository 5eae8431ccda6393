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

from .accesses import may_alias, writes

Pair = tuple[int, int]  # (output, input) by position
ALLOC = "relax.builtin.alloc_tensor"
NOALIAS = "tirx.noalias"


def in_place(module: tvm.IRModule, wanted: Mapping[str, Sequence[Pair]]) -> tuple[tvm.IRModule, dict[str, list[Pair]]]:
    """Do of ``wanted`` (by function) what is safe; the functions then no longer return those outputs.

    Returns the module and the pairs done, in the order of their outputs.
    """
    done, module = {}, module.clone()
    for name, pairs in wanted.items():
        body = Body.of(module, module[name])
        done[name] = [pair for pair in sorted(pairs) if body.do(*pair)]
        module.update_func(module.get_global_var(name), body.function({o for o, _ in done[name]}))
        for gv in body.aliased:
            module.update_func(gv, module[gv].without_attr(NOALIAS))
    return module, done


@define
class Body:
    """One function as a list.

    bindings: [variable, value]; owners: the allocations and parameters whose memory a variable may be in
    renamed:  allocations that became parameters; aliased: the programs that are now given one memory twice
    """

    module: tvm.IRModule
    origin: relax.Function
    bindings: list[tuple[relax.Var, Any]]
    owners: dict[relax.Var, frozenset[relax.Var]]
    renamed: dict[relax.Var, relax.Var] = field(factory=dict)
    aliased: list[ir.GlobalVar] = field(factory=list)

    @classmethod
    def of(cls, module: tvm.IRModule, func: relax.Function) -> Body:
        bindings = [(b.var, b.value) for block in func.body.blocks for b in block.bindings]
        owners: dict[relax.Var, frozenset[relax.Var]] = {p: frozenset((p,)) for p in func.params}
        for var, value in bindings:
            owners[var] = frozenset((var,)) if _is_alloc(value) else _owners(value, owners)
        return cls(module, func, bindings, owners)

    def do(self, output: int, input: int) -> bool:
        """Give output number ``output`` the memory of parameter ``input``, if that is safe."""
        param, var = self.origin.params[input], self.origin.body.body.fields[output]
        memory = next(iter(self.owners[var])) if len(self.owners[var]) == 1 else None
        if memory is None or memory in self.renamed or param in self.renamed.values() or not self._is_own(memory):
            return False
        if not structural_equal(memory.ty, param.ty):
            return False
        writers = [n for n in range(len(self.bindings)) if self._writes(n, memory)]
        if len(writers) != 1 or self._read_after(writers[0], param) or not self._call_allows(writers[0], memory, param):
            return False
        self.renamed[memory] = param
        return True

    def _is_own(self, memory: relax.Var) -> bool:
        return memory not in list(self.origin.params)

    def _kernel(self, n: int) -> tuple[tirx.PrimFunc, list[relax.Expr]] | None:
        """The program and arguments of binding ``n``, if it is a kernel call."""
        value = self.bindings[n][1]
        if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, ir.GlobalVar):
            return None
        callee = self.module[value.op]
        return (callee, list(value.args)) if isinstance(callee, tirx.PrimFunc) else None

    def _writes(self, n: int, memory: relax.Var) -> bool:
        call = self._kernel(n)
        if call is None:
            return False
        return any(memory in self.owners.get(a, ()) and writes(call[0], k) for k, a in enumerate(call[1]))

    def _read_after(self, n: int, param: relax.Var) -> bool:
        """Whether ``param``'s memory is used by a binding after ``n``, as itself or through a view, or returned."""
        later = [_owners(value, self.owners) for _, value in self.bindings[n + 1 :]]
        return any(param in owners for owners in [*later, _owners(self.origin.body.body, self.owners)])

    def _call_allows(self, n: int, memory: relax.Var, param: relax.Var) -> bool:
        """Whether the kernel call ``n`` may read ``param`` while writing into it; notes the program if it does."""
        call = self._kernel(n)
        assert call is not None
        func, args = call
        (target,) = (k for k, a in enumerate(args) if memory in self.owners.get(a, ()))
        reads = [k for k, a in enumerate(args) if param in self.owners.get(a, ())]
        if any(not structural_equal(args[k].ty, param.ty) or not may_alias(func, k, target) for k in reads):
            return False
        if reads:
            self.aliased.append(self.bindings[n][1].op)
        return True

    def function(self, gone: set[int]) -> relax.Function:
        """The function with the renamed allocations gone, returning the outputs that are not in ``gone``."""
        bindings = [
            relax.VarBinding(var, _rename(value, self.renamed)) for var, value in self.bindings if var not in self.renamed
        ]
        kept = [v for n, v in enumerate(self.origin.body.body.fields) if n not in gone]
        result = relax.Tuple(kept)
        body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
        type = relax.TupleType([v.ty for v in kept])
        return relax.Function(self.origin.params, body, type, is_pure=self.origin.is_pure, attrs=self.origin.attrs)


def _is_alloc(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == ALLOC


def _owners(value: Any, owners: Mapping[relax.Var, frozenset[relax.Var]]) -> frozenset[relax.Var]:
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
    return frozenset().union(*(_owners(part, owners) for part in parts))


def _rename(value: Any, renamed: Mapping[relax.Var, relax.Var]) -> Any:
    """``value`` with variables replaced; allocations occur only as themselves, as arguments and in tuples."""
    if isinstance(value, relax.Var):
        return renamed.get(value, value)
    if isinstance(value, tvm.ir.Call):
        args = [_rename(a, renamed) for a in value.args]
        return tvm.ir.Call(value.op, args, value.attrs, value.ty_args, value.span, value.ty)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_rename(f, renamed) for f in value.fields])
    return value
