"""Tensor programs of division: quot, floordiv and mod, which trap for no operands (see elementwise.py)."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from sexpgpu.ops.types import DTYPES, TensorType

from .elementwise import const_like, is_float, low_32, narrow, opaque, pointwise


def nonzero_mask(x: Any, out: TensorType) -> Any:
    """A mask of all ones where an integer is not 0, as an integer of ``out``'s dtype.

    Written with bit operations: TVM's simplifier drops a guard by a comparison inside a ``Select`` on the same
    condition, although both sides of a ``Select`` are computed. ``where y /= 0`` would bring the trap back.
    """
    wide = x.astype("int64")
    folded = (wide >> const_like(32, wide)) | low_32(wide)
    mask = (folded | (const_like(0, folded) - folded)) >> const_like(63, folded)
    return mask if out.dtype == "i64" else narrow(mask, out.dtype)


def safe_operands(x: Any, y: Any, out: TensorType) -> tuple[Any, Any]:
    """A 64-bit dividend and divisor that never trap, with the specified quotient: 0 / 1 in the place of x / 0, and x /
    1 in the place of the smallest integer / -1."""
    divides = nonzero = nonzero_mask(y, out)
    if out.kind == "int":
        smallest = const_like(-(2 ** (DTYPES[out.dtype].bits - 1)), x)
        divides = nonzero & nonzero_mask((x ^ smallest) | (y ^ const_like(-1, y)), out)
    return x & nonzero, (y & divides) | (~divides & const_like(1, y))


def wide_quotient(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Integers of at most 32 bits as f64, and their quotient: CPUs have vector division of f64, but none of integers,
    and it does not trap. Rounding never reaches the next integer, from which the quotient is at least 1 / y away."""
    x, y = x.astype("float64"), y.astype("float64")
    return x, y, x / y


def truncated_quotient(q: Any, y: Any, out: TensorType) -> Any:
    """The f64 quotient ``q`` truncated toward zero: 0 for a ``y`` of 0, and the smallest integer for itself by -1."""
    d = DTYPES[out.dtype]
    overflow = const_like(2.0 ** (d.bits - 1), q)
    q = tirx.Select(q == overflow, -overflow, q) if d.kind == "int" else q
    return tirx.Select(y == const_like(0.0, y), const_like(0.0, q), q).astype(d.numpy)


def opposite_signs(x: Any, y: Any) -> Any:
    """Whether ``x`` and ``y`` are nonzero and of opposite signs."""
    zero = const_like(0, x)
    return tirx.any(tirx.all(x < zero, y > zero), tirx.all(x > zero, y < zero))


@pointwise("quot")
def quot(x: Any, y: Any, out: TensorType) -> Any:
    """Up to 32 bits through f64; 64 bits by integer division. x quot 0 is 0."""
    if DTYPES[out.dtype].bits == 64:
        return tirx.truncdiv(*safe_operands(x, y, out))
    _, y, q = wide_quotient(x, y)
    return truncated_quotient(q, y, out)


@pointwise("mod")
def mod(x: Any, y: Any, out: TensorType) -> Any:
    """For floats, ``Mod`` is C's fmod, which is exact; TVM cannot lower its own ``fmod`` for LLVM."""
    if DTYPES[out.dtype].bits == 16:
        wide = TensorType(out.shape, "f32")
        return mod(x.astype("float32"), y.astype("float32"), wide).astype(DTYPES[out.dtype].numpy)
    if not is_float(out.dtype) and DTYPES[out.dtype].bits <= 32:
        x, y, q = wide_quotient(x, y)
        r = tirx.Select(y == const_like(0.0, y), const_like(0.0, x), x - y * tirx.floor(q))
        return r.astype(DTYPES[out.dtype].numpy)
    r = tirx.Mod(x, y) if is_float(out.dtype) else tirx.truncmod(*safe_operands(x, y, out))
    if out.kind == "uint":
        return r
    return r + tirx.Select(opposite_signs(r, y), y, const_like(0, x))


@pointwise("floordiv")
def floordiv(x: Any, y: Any, out: TensorType) -> Any:
    """For floats, (x - fmod(x, y)) / y, an integer but for rounding, and one less where mod adds y. For integers as
    quot."""
    d = DTYPES[out.dtype]
    if not is_float(out.dtype):
        if d.bits <= 32:
            _, y, q = wide_quotient(x, y)
            return truncated_quotient(tirx.floor(q), y, out)
        x, y = safe_operands(x, y, out)
        round_down = opposite_signs(tirx.truncmod(x, y), y)
        return tirx.truncdiv(x, y) - tirx.Select(round_down, const_like(1, x), const_like(0, x))
    if d.bits == 16:
        wide = TensorType(out.shape, "f32")
        return floordiv(x.astype("float32"), y.astype("float32"), wide).astype(d.numpy)
    r, one, zero = tirx.Mod(x, y), const_like(1, x), const_like(0, x)
    q = opaque((x - r) / y) - tirx.Select(opposite_signs(r, y), one, zero)
    return tirx.floor(q) + tirx.Select(q - tirx.floor(q) > const_like(0.5, x), one, zero)
