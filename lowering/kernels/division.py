"""Tensor programs of division: quot, floordiv and mod, which no operand makes trap (see elementwise.py)."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from sexpgpu.ops.types import DTYPES, TensorType

from .elementwise import const_like, is_float, low_32, narrow, opaque, pointwise


def nonzero_mask(x: Any, out: TensorType) -> Any:
    """All ones where an integer is not 0, as an integer of ``out``'s dtype.

    Said in bits, because TVM's simplifier drops what a comparison guards where a surrounding ``Select`` already
    knows the answer, although both sides of a ``Select`` are computed: ``where y /= 0`` would bring the trap back.
    """
    wide = x.astype("int64")
    folded = (wide >> const_like(32, wide)) | low_32(wide)
    mask = (folded | (const_like(0, folded) - folded)) >> const_like(63, folded)
    return mask if out.dtype == "i64" else narrow(mask, out.dtype)


def safe_operands(x: Any, y: Any, out: TensorType) -> tuple[Any, Any]:
    """Dividend and divisor of 64 bits that never trap and give what is stated: 0 / 1 for x / 0, x / 1 for the smallest
    / -1."""
    divides = nonzero = nonzero_mask(y, out)
    if out.kind == "int":
        smallest = const_like(-(2 ** (DTYPES[out.dtype].bits - 1)), x)
        divides = nonzero & nonzero_mask((x ^ smallest) | (y ^ const_like(-1, y)), out)
    return x & nonzero, (y & divides) | (~divides & const_like(1, y))


def wide_quotient(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Integers of 32 bits at most as f64, and their quotient: machines divide vectors of f64 and none of integers, and
    without traps. Rounded, a quotient never reaches the next whole number, from which it is 1 / y away at least."""
    x, y = x.astype("float64"), y.astype("float64")
    return x, y, x / y


def truncated_quotient(q: Any, y: Any, out: TensorType) -> Any:
    """The quotient ``q``, an f64, toward zero: 0 of a ``y`` of 0, and the smallest by -1 is itself."""
    d = DTYPES[out.dtype]
    overflow = const_like(2.0 ** (d.bits - 1), q)
    q = tirx.Select(q == overflow, -overflow, q) if d.kind == "int" else q
    return tirx.Select(y == const_like(0.0, y), const_like(0.0, q), q).astype(d.numpy)


def opposite_signs(x: Any, y: Any) -> Any:
    """Have they opposite signs?"""
    zero = const_like(0, x)
    return tirx.any(tirx.all(x < zero, y > zero), tirx.all(x > zero, y < zero))


@pointwise("quot")
def quot(x: Any, y: Any, out: TensorType) -> Any:
    """Up to 32 bits by way of f64, 64 bits by a division of integers. x quot 0 is 0."""
    if DTYPES[out.dtype].bits == 64:
        return tirx.truncdiv(*safe_operands(x, y, out))
    _, y, q = wide_quotient(x, y)
    return truncated_quotient(q, y, out)


@pointwise("mod")
def mod(x: Any, y: Any, out: TensorType) -> Any:
    """Of floats ``Mod`` is C's fmod, exact; TVM cannot lower its ``fmod`` for LLVM."""
    if DTYPES[out.dtype].bits == 16:
        wide = TensorType(out.shape, "f32")
        return mod(x.astype("float32"), y.astype("float32"), wide).astype(DTYPES[out.dtype].numpy)
    if not is_float(out.dtype) and DTYPES[out.dtype].bits <= 32:
        x, y, q = wide_quotient(x, y)
        return tirx.Select(y == const_like(0.0, y), const_like(0.0, x), x - y * tirx.floor(q)).astype(
            DTYPES[out.dtype].numpy
        )
    r = tirx.Mod(x, y) if is_float(out.dtype) else tirx.truncmod(*safe_operands(x, y, out))
    if out.kind == "uint":
        return r
    return r + tirx.Select(opposite_signs(r, y), y, const_like(0, x))


@pointwise("floordiv")
def floordiv(x: Any, y: Any, out: TensorType) -> Any:
    """Of floats (x - fmod(x, y)) / y, whole but for rounding, and one less where mod adds y. Of integers as quot."""
    d = DTYPES[out.dtype]
    if not is_float(out.dtype):
        if d.bits <= 32:
            _, y, q = wide_quotient(x, y)
            return truncated_quotient(tirx.floor(q), y, out)
        x, y = safe_operands(x, y, out)
        return tirx.truncdiv(x, y) - tirx.Select(
            opposite_signs(tirx.truncmod(x, y), y), const_like(1, x), const_like(0, x)
        )
    if d.bits == 16:
        wide = TensorType(out.shape, "f32")
        return floordiv(x.astype("float32"), y.astype("float32"), wide).astype(d.numpy)
    r, one, zero = tirx.Mod(x, y), const_like(1, x), const_like(0, x)
    q = opaque((x - r) / y) - tirx.Select(opposite_signs(r, y), one, zero)
    return tirx.floor(q) + tirx.Select(q - tirx.floor(q) > const_like(0.5, x), one, zero)
