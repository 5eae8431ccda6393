"""bfloat16 written out in integers: TVM 0.27 converts vectors of it, and names bound to it, as if they were integers."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .emit import Call, Expr

BF16 = "bfloat16"
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def is_bf16(expr: Expr) -> bool:
    return str(expr.ty.dtype) == BF16


def widen(expr: Expr) -> Expr:
    """A bfloat16 value as float32, exactly."""
    if isinstance(expr, tirx.FloatImm):
        return tirx.const(float(expr.value), "float32")
    bits = tirx.Cast("uint32", tirx.reinterpret("uint16", expr))
    return tirx.reinterpret("float32", bits << _u32(16))


def narrow(expr: Expr) -> Expr:
    """A float32 value as bfloat16, to nearest, ties to even; a NaN stays one."""
    bits = tirx.reinterpret("uint32", expr)
    odd = (bits >> _u32(16)) & _u32(1)
    rounded = (bits + odd + _u32(0x7FFF)) >> _u32(16)
    nan = (bits & _u32(0x7FFFFFFF)) > _u32(0x7F800000)
    return tirx.reinterpret(BF16, tirx.Cast("uint16", tirx.Select(nan, _u32(0x7FC0), rounded)))


def _cast(node: Any) -> Expr:
    if is_bf16(node.value):
        wide = widen(node.value)
        return wide if str(node.ty.dtype) == "float32" else tirx.Cast(str(node.ty.dtype), wide)
    if is_bf16(node):
        return narrow(node.value if str(node.value.ty.dtype) == "float32" else tirx.Cast("float32", node.value))
    return node


def _arithmetic(node: Any) -> Expr:
    return narrow(type(node)(widen(node.a), widen(node.b))) if is_bf16(node) else node


def _compare(node: Any) -> Expr:
    return type(node)(widen(node.a), widen(node.b)) if is_bf16(node.a) else node


def _call(node: Any) -> Expr:
    """A function of a bfloat16 value, computed in float32."""
    if not is_bf16(node) or not str(node.op.name).startswith("tirx.") or node.op.name == "tirx.reinterpret":
        return node
    return narrow(Call("float32", node.op, [widen(a) for a in node.args]))


WRITTEN_OUT = ((tirx.Cast, _cast), (_ARITHMETIC, _arithmetic), (_COMPARISONS, _compare), (Call, _call))
