"""Tensor programs of integer arithmetic: wrapping, shifts and saturating casts, as the operator table specifies."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from sexpgpu.ops.types import DTYPES, TensorType

from .elementwise import (
    const_like,
    is_float,
    join_32,
    logical_not,
    low_32,
    name_of,
    narrow,
    pointwise,
    split_32,
    valid_shift,
    widened,
)


@pointwise("not")
def negation(x: Any, out: TensorType) -> Any:
    return logical_not(x)


@pointwise("wrap-add")
def wrap_add(x: Any, y: Any, out: TensorType) -> Any:
    """Modulo 2^bits: up to 32 bits in 64-bit integers, which hold any sum; 64 bits as two halves with a carry."""
    if out.dtype != "i64":
        return narrow(x.astype("int64") + y.astype("int64"), out.dtype)
    (xh, xl), (yh, yl) = split_32(x), split_32(y)
    s = xl + yl
    return join_32(xh + yh + (s >> tirx.const(32, "int64")), s)


@pointwise("wrap-subtract")
def wrap_subtract(x: Any, y: Any, out: TensorType) -> Any:
    """As wrap_add, with a borrow."""
    if out.dtype != "i64":
        return narrow(x.astype("int64") - y.astype("int64"), out.dtype)
    (xh, xl), (yh, yl) = split_32(x), split_32(y)
    s = xl - yl
    return join_32(xh - yh + (s >> tirx.const(32, "int64")), s)


@pointwise("wrap-multiply")
def wrap_multiply(x: Any, y: Any, out: TensorType) -> Any:
    """A 64-bit product is assembled from 32 x 32-bit products, which fit in an unsigned 64-bit integer."""
    wide = "uint64" if out.dtype == "u32" else "int64"
    if out.dtype != "i64":
        return narrow(x.astype(wide) * y.astype(wide), out.dtype)
    (xh, xl), (yh, yl) = ([low_32(h).astype("uint64") for h in split_32(v)] for v in (x, y))
    p = xl * yl
    high = (p >> tirx.const(32, "uint64")) + low_32(xh * yl) + low_32(xl * yh)
    return tirx.reinterpret("int64", (low_32(high) << tirx.const(32, "uint64")) | low_32(p))


@pointwise("abs")
def absolute(x: Any, out: TensorType) -> Any:
    """The smallest integer is itself."""
    if is_float(out.dtype):
        return tirx.abs(x)
    zero = const_like(0, x)
    minus = wrap_subtract(zero, x, out) if DTYPES[out.dtype].bits >= 32 else zero - x
    return tirx.Select(x < zero, minus, x)


@pointwise("shift-left")
def shift_left(x: Any, y: Any, out: TensorType) -> Any:
    """0 for an amount below 0, or of the width or more."""
    in_range, amount = valid_shift(y, out)
    return tirx.Select(in_range, x << amount, const_like(0, x))


@pointwise("shift-right")
def shift_right(x: Any, y: Any, out: TensorType) -> Any:
    """For an amount below 0, or of the width or more: shifted by the width - 1 if signed, else 0."""
    in_range, amount = valid_shift(y, out)
    max_shift = const_like(DTYPES[out.dtype].bits - 1, x)
    return tirx.Select(in_range, x >> amount, x >> max_shift if out.kind == "int" else const_like(0, x))


@pointwise("saturate")
def saturate(x: Any, out: TensorType) -> Any:
    """A float truncated to an integer and clamped to its range; NaN, for which every comparison is false, gives 0."""
    x, d = widened(x), DTYPES[out.dtype]
    smallest, upper_limit = (0, 2**d.bits) if d.kind == "uint" else (-(2 ** (d.bits - 1)), 2 ** (d.bits - 1))
    low_end, high_end = const_like(float(smallest), x), const_like(float(upper_limit), x)
    truncated = tirx.Select(tirx.all(x >= low_end, x < high_end), x, const_like(0.0, x)).astype(d.numpy)
    clamped_low = tirx.Select(x < low_end, tirx.const(smallest, d.numpy), truncated)
    return tirx.Select(x >= high_end, tirx.const(upper_limit - 1, d.numpy), clamped_low)


@pointwise("wrap-cast")
def wrap_cast(x: Any, out: TensorType) -> Any:
    """An integer cast to another integer dtype, modulo 2**bits."""
    d, signed = DTYPES[out.dtype], name_of(x).startswith("int")
    source_bits = int(name_of(x).lstrip("uint"))
    if d.bits < source_bits:
        return narrow(x.astype("int64") if signed else x.astype("uint64"), out.dtype)
    if signed == (d.kind == "int") or (not signed and d.bits > source_bits):
        return x.astype(d.numpy)
    return tirx.reinterpret(d.numpy, x.astype(f"int{d.bits}") if signed else x)
