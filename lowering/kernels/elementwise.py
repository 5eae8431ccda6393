"""Tensor programs of elementwise operators that Relax lacks, or for which TVM or LLVM has undefined behaviour.

Undefined there: signed and unsigned overflow of 32 and 64 bits, division by zero, shifts past the width, casts that do
not fit. No program here does any of these.

TVM's bounds analysis assumes that ``Cast`` is exact, so a cast that wraps is written with masks or ``reinterpret``. Its
simplifier treats floats as real numbers (x - x is 0, x + y - y is x, x = x is true, not x < y is y <= x), which loses
NaN and infinity. ``opaque`` and ``logical_not`` hide from it that two expressions are related; LLVM sees through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import DTYPES, TensorType

from .registry import dims, kernel

LOW_32 = 0xFFFFFFFF
HALF_DTYPES = ("float16", "bfloat16")


def pointwise(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the tensor program ``name`` by its scalar function (*elements, out) -> element; arguments broadcast."""

    def add(scalar: Callable[..., Any]) -> Callable[..., Any]:
        @kernel(name)
        def program(*xs: te.Tensor, out: TensorType) -> Any:
            def element(*i: Any) -> Any:
                return scalar(*(broadcast_element(x, i) for x in xs), out=out)

            return te.compute(dims(out), element, name.replace("-", "_"))

        return scalar

    return add


def broadcast_element(x: te.Tensor, i: tuple[Any, ...]) -> Any:
    """The element of ``x`` that broadcasts to index ``i`` of the result."""
    own_index = i[len(i) - len(x.shape) :]
    zero = tirx.const(0, "int64")
    return x(*(zero if int(n) == 1 else j for n, j in zip(x.shape, own_index, strict=True)))


def name_of(x: Any) -> str:
    """TVM's name of an element's dtype."""
    return str(x.ty.dtype)


def const_like(value: float | int, like: Any) -> Any:
    """``value`` in the dtype of the element ``like``."""
    return tirx.const(value, name_of(like))


def is_float(dtype: str) -> bool:
    """Whether ``dtype``, one of our names ("f32"), is a float dtype."""
    return DTYPES[dtype].kind == "float"


def low_32(x: Any) -> Any:
    """The low 32 bits of a 64-bit integer."""
    return x & const_like(LOW_32, x)


def narrow(x: Any, dtype: str) -> Any:
    """An int64 or uint64 modulo 2**bits, as ``dtype`` of fewer bits."""
    d = DTYPES[dtype]
    low_bits = x & const_like(2**d.bits - 1, x)
    if d.kind == "uint":
        return low_bits.astype(d.numpy)
    half = tirx.const(2 ** (d.bits - 1), "int64")
    return ((low_bits.astype("int64") ^ half) - half).astype(d.numpy)


def join_32(high: Any, low: Any) -> Any:
    """The int64 of two halves, each in the low 32 bits of an int64."""
    return (high << tirx.const(32, "int64")) | low_32(low)


def split_32(x: Any) -> tuple[Any, Any]:
    """The high 32 bits of an int64, sign-extended, and the low 32 bits."""
    return x >> tirx.const(32, "int64"), low_32(x)


def opaque(x: Any) -> Any:
    """``x``, a float, in a form that the simplifier does not equate with ``x``; it costs no instruction."""
    name = name_of(x)
    return tirx.reinterpret(name, tirx.reinterpret(f"int{name.removeprefix('float')}", x))


def logical_not(condition: Any) -> Any:
    """Logical not, in a form that the simplifier does not turn into the opposite comparison: that is wrong for NaN."""
    return (condition.astype("int8") ^ tirx.const(1, "int8")).astype("bool")


def widened(x: Any) -> Any:
    """f16 and bf16 as f32."""
    return x.astype("float32") if name_of(x) in HALF_DTYPES else x


@pointwise("subtract")
def subtract(x: Any, y: Any, out: TensorType) -> Any:
    """f16 and bf16 in f32, rounded once."""
    return (widened(x) - opaque(widened(y))).astype(DTYPES[out.dtype].numpy)


@pointwise("multiply")
def multiply(x: Any, y: Any, out: TensorType) -> Any:
    """Also for a constant factor 0, for which TVM folds the product to 0, even of infinity and NaN."""
    return x * y


@pointwise("divide")
def divide(x: Any, y: Any, out: TensorType) -> Any:
    """Also for a constant operand 0, for which TVM folds 0 / x to 0, even for an x of 0 or NaN."""
    return x / y


@pointwise("strong-zero")
def strong_zero(dy: Any, g: Any, out: TensorType) -> Any:
    """``g``, 0 where ``dy`` is 0."""
    return tirx.Select(is_zero(dy), const_like(0, g), g)


@pointwise("strong-product")
def strong_product(dy: Any, d: Any, out: TensorType) -> Any:
    """dy d; 0 where ``dy`` is 0, or where ``d`` is 0 and ``dy`` is no NaN. f16 and bf16 in f32, rounded once. The
    outermost operation is a product, so that a sum adds it by one fused multiply-add."""
    dy, d = widened(dy), widened(d)
    zero = const_like(0.0, dy)
    factor = tirx.Select(tirx.all(is_zero(d), logical_not(is_nan(dy))), zero, dy)
    return (factor * tirx.Select(is_zero(dy), zero, d)).astype(DTYPES[out.dtype].numpy)


def is_zero(x: Any) -> Any:
    """Whether a float is 0 or -0."""
    return widened(x) == const_like(0, widened(x))


def is_finite(x: Any) -> Any:
    """Whether a float is neither infinite nor NaN."""
    wide = widened(x)
    return tirx.abs(wide) < const_like(float("inf"), wide)


@pointwise("finite")
def finite(x: Any, out: TensorType) -> Any:
    """``x``, 0 in the place of infinities and NaN."""
    return tirx.Select(is_finite(x), x, const_like(0, x))


def is_nan(x: Any) -> Any:
    """Whether a float is NaN; false for an integer. TVM 0.27 does not vectorize a statement with its own isnan."""
    x = widened(x)
    return logical_not(x == opaque(x)) if name_of(x).startswith("float") else tirx.const(False, "bool")


@pointwise("equal")
def equal(x: Any, y: Any, out: TensorType) -> Any:
    """False where either is NaN."""
    return tirx.all(x == y, logical_not(is_nan(x)))


@pointwise("differ")
def differ(x: Any, y: Any, out: TensorType) -> Any:
    """True where either is NaN. TVM's own != of floats is LLVM's ordered comparison, which is false there."""
    return logical_not(equal(x, y, out))


@pointwise("at-most")
def at_most(x: Any, y: Any, out: TensorType) -> Any:
    """False where either is NaN."""
    return tirx.all(x <= y, logical_not(is_nan(x)))


def extremum(x: Any, y: Any, first: Any) -> Any:
    """``x`` where it is NaN or where ``first`` holds, else ``y``: a NaN of either is the result."""
    return tirx.Select(tirx.any(is_nan(x), first), x, y)


@pointwise("minimum")
def minimum(x: Any, y: Any, out: TensorType) -> Any:
    """NaN if either is; the first of equal elements (0 and -0)."""
    return extremum(x, y, x <= y)


@pointwise("maximum")
def maximum(x: Any, y: Any, out: TensorType) -> Any:
    """NaN if either is; the first of equal elements (0 and -0)."""
    return extremum(x, y, x >= y)


@pointwise("sign")
def sign(x: Any, out: TensorType) -> Any:
    """-1, 0 or 1; ``x`` itself for a zero or a NaN."""
    zero, one, minus = (const_like(n, x) for n in (0, 1, -1))
    return tirx.Select(x > zero, one, tirx.Select(x < zero, minus, x))


@pointwise("log1p")
def log1p(x: Any, u: Any, log_u: Any, out: TensorType) -> Any:
    """x log(u) / (u - 1) with u = 1 + x: the rounding of u cancels (HP-15C Advanced Functions Handbook, appendix)."""
    one = const_like(1, x)
    near = tirx.Select(u == one, x, log_u * (x / (opaque(u) - one)))
    return tirx.Select(x >= one, log_u, near).astype(DTYPES[out.dtype].numpy)


@pointwise("expm1")
def expm1(x: Any, u: Any, log_u: Any, out: TensorType) -> Any:
    """(u - 1) x / log(u) with u = e**x (Kahan): the rounding of u cancels as in log1p."""
    one = const_like(1, x)
    near = tirx.Select(u == one, x, (u - one) * (x / log_u))
    return tirx.Select(tirx.any(x >= one, u - one == -one), u - one, near).astype(DTYPES[out.dtype].numpy)


def valid_shift(y: Any, out: TensorType) -> tuple[Any, Any]:
    """Whether a shift amount is in 0 .. bits - 1, and the amount masked to that range."""
    bits = DTYPES[out.dtype].bits
    in_range = y < const_like(bits, y)
    if out.kind == "int":
        in_range = tirx.all(y >= const_like(0, y), in_range)
    return in_range, y & const_like(bits - 1, y)


@kernel("spread-bf16")
def spread_bf16(x: te.Tensor, out: TensorType) -> Any:
    """``x`` broadcast. TVM 0.27 fails to store a vector that repeats one bf16, so the value is written as if it
    depended on its index. LLVM sees that an integer is never NaN."""

    def element(*i: Any) -> Any:
        position = sum(i[1:], i[0]).astype("float32") if i else tirx.const(0.0, "float32")
        return tirx.Select(tirx.isnan(position), const_like(0, broadcast_element(x, i)), broadcast_element(x, i))

    return te.compute(dims(out), element, "spread")


@kernel("iota")
def iota(out: TensorType, axis: int) -> Any:
    """The index along ``axis``; f16 and bf16 through f32."""

    def element(*i: Any) -> Any:
        d = DTYPES[out.dtype]
        return i[axis].astype("float32").astype(d.numpy) if out.dtype in ("f16", "bf16") else i[axis].astype(d.numpy)

    return te.compute(dims(out), element, "iota")


@kernel("pad")
def pad(x: te.Tensor, out: TensorType, before: tuple[int, ...], value: float | int | bool) -> Any:
    """``before``: padding before ``x`` on each axis, in elements; the padding after it follows from ``out``."""

    def element(*i: Any) -> Any:
        in_bounds = [
            side for j, start, n in zip(i, before, x.shape, strict=True) for side in (j >= start, j < start + int(n))
        ]
        filled = tirx.const(value, x.dtype)
        return tirx.if_then_else(tirx.all(*in_bounds), x(*(j - n for j, n in zip(i, before, strict=True))), filled)

    return te.compute(dims(out), element, "pad")


@kernel("flip")
def flip(x: te.Tensor, out: TensorType, axes: tuple[int, ...]) -> Any:
    """``x`` reversed along ``axes``, counted from 0."""

    def element(*i: Any) -> Any:
        return x(*(int(n) - 1 - j if a in axes else j for a, (j, n) in enumerate(zip(i, x.shape, strict=True))))

    return te.compute(dims(out), element, "flip")
