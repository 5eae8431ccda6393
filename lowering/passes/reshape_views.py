"""Turns the reshape of an intermediate into a view of its memory, without a kernel.

TVM's pass recognizes reshapes by their index maps and counts elements in 32 bits: it fails on tensors of 2^31 elements
and more. Programs on such tensors are recognized here first, by the name that TVM gives their only block.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import ir, relax, tirx

from .block_accesses import blocks

MIN_LARGE_ELEMENTS = 1 << 31  # the smallest number of elements that TVM's own pass cannot count
BLOCK = "T_reshape"


def reshapes_to_views(module: tvm.IRModule) -> tvm.IRModule:
    """Every reshape of an intermediate in ``module`` as Relax's own operator, which becomes a view."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, _rewritten(module, func))
    return relax.transform.RewriteDataflowReshape()(module)


def _rewritten(module: tvm.IRModule, func: relax.Function) -> relax.Function:
    """``func`` with its large reshapes as Relax's operator; those that are results stay kernels, as in TVM's pass."""
    builder, new_blocks, any_large = relax.BlockBuilder(), [], False
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            large = isinstance(binding.var, relax.DataflowVar) and _is_large(module, binding.value)
            any_large |= large
            bindings.append(relax.VarBinding(binding.var, builder.normalize(_view(binding))) if large else binding)
        new_blocks.append(type(block)(bindings))
    body = relax.SeqExpr(new_blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs) if any_large else func


def _view(binding: Any) -> Any:
    (x,) = binding.value.args[1].fields
    return relax.op.reshape(x, binding.var.ty.shape)


def _is_large(module: tvm.IRModule, value: Any) -> bool:
    """Whether ``value`` calls a program that only reshapes a large tensor."""
    if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != "relax.call_tir":
        return False
    program = module[value.args[0]]
    if not isinstance(program, tirx.PrimFunc) or len(program.params) != 2:
        return False
    if any(math.prod(map(int, p.shape)) < MIN_LARGE_ELEMENTS for p in program.params):
        return False
    return [block.name_hint for block in blocks(program)] == [BLOCK]
