"""Tensor programs that compute the same become one."""

from __future__ import annotations

import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal, structural_hash


def dedup(module: tvm.IRModule) -> tvm.IRModule:
    """Every call goes to the first (by name) of equal programs; the others are gone."""
    twins = _twins(module)
    if not twins:
        return module
    rename = _Rename(module, twins)
    for gv, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        if isinstance(func, relax.Function):
            rename.builder_.update_func(gv, rename.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rename.builder_.get())


def _twins(module: tvm.IRModule) -> dict[str, ir.GlobalVar]:
    """Name of a program -> the equal one that stays."""
    first: dict[int, list[tuple[ir.GlobalVar, tirx.PrimFunc]]] = {}
    twins = {}
    for gv, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        if isinstance(func, tirx.PrimFunc):
            bare = func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
            known = first.setdefault(structural_hash(bare, map_free_vars=True), [])
            same = next((g for g, f in known if structural_equal(f, bare, map_free_vars=True)), None)
            if same is None:
                known.append((gv, bare))
            else:
                twins[gv.name_hint] = same
    return twins


@mutator
class _Rename(PyExprMutator):
    def __init__(self, module: tvm.IRModule, twins: dict[str, ir.GlobalVar]) -> None:
        super().__init__(module)
        self.twins = twins

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        return self.twins.get(op.name_hint, op)
