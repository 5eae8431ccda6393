"""A reshape of an intermediate is a view of its memory, and no kernel.

TVM's pass finds them by working out which element goes where, and counts these in 32 bits: it fails on tensors of 2^31
elements and more. Programs of such are looked at here first, by what TVM names their only block.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import ir, relax, tirx

from .block_accesses import blocks

LARGE = 1 << 31  # elements, from which TVM's own pass cannot count them
BLOCK = "T_reshape"


def views(module: tvm.IRModule) -> tvm.IRModule:
    """Every reshape of an intermediate in ``module`` as Relax's own operator, which becomes a view."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, _rewritten(module, func))
    return relax.transform.RewriteDataflowReshape()(module)


def _rewritten(module: tvm.IRModule, func: relax.Function) -> relax.Function:
    """``func`` with its large reshapes, those that are results left out, as TVM does."""
    builder, made, found = relax.BlockBuilder(), [], False
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            large = isinstance(binding.var, relax.DataflowVar) and _is_large(module, binding.value)
            found |= large
            bindings.append(relax.VarBinding(binding.var, builder.normalize(_view(binding))) if large else binding)
        made.append(type(block)(bindings))
    body = relax.SeqExpr(made, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs) if found else func


def _view(binding: Any) -> Any:
    (x,) = binding.value.args[1].fields
    return relax.op.reshape(x, binding.var.ty.shape)


def _is_large(module: tvm.IRModule, value: Any) -> bool:
    """Is ``value`` a call of a program that reshapes a large tensor, and does nothing else?"""
    if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != "relax.call_tir":
        return False
    program = module[value.args[0]]
    if not isinstance(program, tirx.PrimFunc) or len(program.params) != 2:
        return False
    if any(math.prod(map(int, p.shape)) < LARGE for p in program.params):
        return False
    return [block.name_hint for block in blocks(program)] == [BLOCK]
