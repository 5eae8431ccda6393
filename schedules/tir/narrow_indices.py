"""Integer narrowing: int64 arithmetic that TVM made of int32 values goes back to int32.

TVM widens comparisons of int32 inside a program, and their operands, to int64. That halves the lanes of a vector, and
hides reductions: ``x = int32(min(int64(x), ..))`` is none. Only expressions whose values provably fit are narrowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.ir import Var

from .builder import Expr, is_int, value_of
from .rewrite import collect, rewrite

WIDE, NARROW = "int64", "int32"
MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_SMALL = ("int8", "int16", "int32", "uint8", "uint16")
# Their results lie between, or have no more bits than, their operands. A sum or product may overflow int32 and stays.
_CLOSED = (tirx.Min, tirx.Max, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor)


def in_32_bits(node: Any, extents: Mapping[Any, int]) -> Any:
    """``node`` with int64 comparisons, and casts of int64 values to int32, done in int32 where all operands fit.

    ``extents``: variable -> its extent; its values are below that.
    """

    def compare(test: Any) -> Expr:
        # Without a cast it is a comparison of indices, which are int64 from the start.
        if str(test.a.ty.dtype) != WIDE or not collect(test, tirx.Cast):
            return test
        a, b = narrowed(test.a, extents), narrowed(test.b, extents)
        return test if a is None or b is None else type(test)(a, b)

    def cast(node: Any) -> Expr:
        if str(node.ty.dtype) != NARROW or str(node.value.ty.dtype) != WIDE or isinstance(node.value, Var):
            return node
        value = narrowed(node.value, extents)
        return node if value is None else value

    return rewrite(node, [(_COMPARISONS, compare), (tirx.Cast, cast)])


def narrowed(expr: Expr, extents: Mapping[Any, int]) -> Expr | None:
    """An int32 expression equal to the int64 ``expr``, None where its value might not fit."""
    if isinstance(expr, tirx.Cast):
        source = str(expr.value.ty.dtype)
        return (expr.value if source == NARROW else tirx.Cast(NARROW, expr.value)) if source in _SMALL else None
    if is_int(expr):
        return tirx.IntImm(NARROW, value_of(expr)) if MIN_INT32 <= value_of(expr) <= MAX_INT32 else None
    if isinstance(expr, Var):
        # An unknown variable counts as too long. A known variable is below its extent, so an extent of 2^31 still fits.
        return tirx.Cast(NARROW, expr) if extents.get(expr, MAX_INT32 + 2) <= MAX_INT32 + 1 else None
    operands = _narrowable_operands(expr)
    narrow_operands = [narrowed(part, extents) for part in operands]
    if not operands or any(part is None for part in narrow_operands):
        return None
    return _rebuild(expr, narrow_operands)


def _narrowable_operands(expr: Expr) -> list[Expr]:
    """The operands of an operation whose result fits int32 whenever these do; none for any other."""
    if isinstance(expr, _CLOSED):
        return [expr.a, expr.b]
    if isinstance(expr, tirx.Select):
        return [expr.true_value, expr.false_value]
    if isinstance(expr, tirx.RShift) and is_int(expr.b) and 0 <= value_of(expr.b) < 32:
        return [expr.a, expr.b]
    return []


def _rebuild(expr: Any, operands: list[Any]) -> Expr:
    return tirx.Select(expr.condition, *operands) if isinstance(expr, tirx.Select) else type(expr)(*operands)
