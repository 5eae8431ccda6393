"""FMA contraction made explicit: the same products are fused with sums on every target.

``a b + c``, ``c - a b`` and ``a b - c`` in one expression of float32 or float64 become one fused multiply-add, which
rounds once; ``a b - a b`` does not. LLVM would contract a product and a sum wherever it sees them in one basic block,
which depends on how a kernel was scheduled. So every other product goes through an arithmetic fence, which costs
nothing. The GPU's compiler contracts nothing (``-fmad=false``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

FENCE = "llvm.arithmetic.fence"
C_NAMES = {"float32": "fmaf", "float64": "fma"}


def explicit(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The scheduled programs of ``module`` with an explicit fused multiply-add for every product that is added."""
    if target.kind.name == "cuda":
        rules = [*_rules(_c_step), (tirx.FloatImm, _as_bits)]
    else:
        rules = [*_rules(_llvm_step), (tirx.Mul, _fenced)]
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, rules, order="post")
            module.update_func(gv, func.with_body(body))
    return module


def _rules(step: Callable[[Any, Any, Any], Any]) -> list[tuple[Any, Callable[[Any], Any]]]:
    def add(node: Any) -> Any:
        for product, other in ((_factors(node.b), node.a), (_factors(node.a), node.b)):
            if product is not None:
                return step(*product, other)
        return node

    def subtract(node: Any) -> Any:
        if tvm_ffi.structural_equal(_bare(node.a), _bare(node.b)):
            return node  # x - x is 0, or NaN; fused, it would be the rounding error of the product
        product = _factors(node.b)
        if product is not None:
            return step(_minus(product[0]), product[1], node.a)
        product = _factors(node.a)
        return node if product is None else step(*product, _minus(node.b))

    return [(tirx.Add, add), (tirx.Sub, subtract)]


def _scalar(expr: Any) -> str:
    return str(expr.ty.dtype).partition("x")[0]


def _factors(expr: Any) -> tuple[Any, Any] | None:
    """The two factors of a product, which may be fenced; None of anything else."""
    if isinstance(expr, tvm.ir.Call) and expr.op.name == "tirx.call_llvm_pure_intrin":
        expr = expr.args[-1]  # a fence's argument; the last argument of any other intrinsic is no product
    return (expr.a, expr.b) if isinstance(expr, tirx.Mul) and _scalar(expr) in C_NAMES else None


def _bare(expr: Any) -> Any:
    """``expr`` without the two reinterpretations that hide ``x - x`` from TVM's simplifier."""
    inner = expr
    for _ in range(2):
        if not (isinstance(inner, tvm.ir.Call) and inner.op.name == "tirx.reinterpret"):
            return expr
        inner = inner.args[0]
    return inner


def _minus(x: Any) -> Any:
    return tirx.const(-0.0, str(x.ty.dtype)) - x


def _fenced(node: Any) -> Any:
    if _scalar(node) not in C_NAMES:
        return node
    return tirx.call_llvm_pure_intrin(str(node.ty.dtype), FENCE, node)


def _as_bits(node: Any) -> Any:
    """A float64 constant as its bits, if TVM 0.27, which prints 15 decimal places, would print another number."""
    value = float(node.value)
    if _scalar(node) != "float64" or float(f"{value:.15f}") == value or not math.isfinite(value):
        return node
    return tirx.reinterpret("float64", tirx.IntImm("int64", struct.unpack("q", struct.pack("d", value))[0]))


def _llvm_step(a: Any, b: Any, c: Any) -> Any:
    return tirx.call_llvm_pure_intrin(str(c.ty.dtype), "llvm.fma", a, b, c)


def _c_step(a: Any, b: Any, c: Any) -> Any:
    return tirx.call_pure_extern(str(c.ty.dtype), C_NAMES[_scalar(c)], a, b, c)
