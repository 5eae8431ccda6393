"""Type rules and attribute rules that several families of operators share.

Every fault is worded for the user and names the types; the caller adds the operator's name and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .types import DTYPES, ShapeFault, TensorType, TypeFault, axis_of, broadcast

FLOATS = ("float",)
NUMBERS = ("float", "int", "uint")
SIGNED = ("float", "int")
WHOLE = ("int", "uint")
BOOLS = ("bool",)

WORDS = {
    FLOATS: "a float tensor",
    NUMBERS: "a tensor of numbers",
    SIGNED: "a signed tensor",
    WHOLE: "an integer tensor",
    BOOLS: "a bool tensor",
}

# The finite floats of a dtype are those of smaller magnitude than this: half a unit past the largest one.
FLOAT_LIMIT = {"f16": 65520.0, "bf16": 3.3961775292304957e38, "f32": 3.4028235677973366e38, "f64": float("inf")}


def need(kinds: tuple[str, ...], *types: TensorType, hint: str = "convert with cast") -> None:
    """TypeFault unless the dtype of each of ``types`` is one of ``kinds``."""
    for t in types:
        if t.kind not in kinds:
            raise TypeFault(f"{t} is not {WORDS[kinds]}; {hint}")


def same_dtype(*types: TensorType) -> str:
    """The dtype that all ``types`` have; TypeFault when they differ."""
    for t in types[1:]:
        if t.dtype != types[0].dtype:
            raise TypeFault(f"dtypes differ: {types[0]} and {t}; convert one with cast")
    return types[0].dtype


def unary(kinds: tuple[str, ...], hint: str = "convert with cast") -> Callable[..., TensorType]:
    """The rule of an operator whose result has its argument's type."""

    def rule(x: TensorType, **attrs: Any) -> TensorType:
        need(kinds, x, hint=hint)
        return x

    return rule


def joined(kinds: tuple[str, ...], dtype: str = "", hint: str = "convert with cast") -> Callable[..., TensorType]:
    """The rule of a broadcasting operator of one dtype; ``dtype`` is the result's, where it is another one."""

    def rule(*xs: TensorType, **attrs: Any) -> TensorType:
        need(kinds, *xs, hint=hint)
        common = same_dtype(*xs)
        return TensorType(broadcast(*(x.shape for x in xs)), dtype or common)

    return rule


def int_range(dtype: str) -> tuple[int, int]:
    """The smallest and the largest integer of an integer dtype."""
    d = DTYPES[dtype]
    return (0, 2**d.bits - 1) if d.kind == "uint" else (-(2 ** (d.bits - 1)), 2 ** (d.bits - 1) - 1)


def held(value: float | int | bool, dtype: str) -> float | int | bool:
    """``value`` as the Python number that a scalar of ``dtype`` is; TypeFault when the dtype cannot hold it.

    A float may lose precision, not range; infinities and NaN are floats.
    """
    kind = DTYPES[dtype].kind
    if kind == "bool":
        if value not in (0, 1):
            raise TypeFault(f"{value} is not true or false, and cannot be held in {dtype}")
        return bool(value)
    if kind == "float":
        return held_float(value, dtype)
    low, high = int_range(dtype)
    if value != value or value in (float("inf"), float("-inf")) or value != int(value) or not low <= value <= high:
        raise TypeFault(f"{value} cannot be held in {dtype}")
    return int(value)


def held_float(value: float | int, dtype: str) -> float:
    """``value`` as a float, unless it is finite and too large for ``dtype``."""
    try:
        out = float(value)
    except OverflowError:
        raise TypeFault(f"an integer of {value.bit_length()} bits is too large for {dtype}") from None  # type: ignore[union-attr]
    if FLOAT_LIMIT[dtype] <= abs(out) < float("inf"):
        raise TypeFault(f"{value} is too large for {dtype}")
    return out


def numpy_dtype(np: Any, dtype: str) -> Any:
    """NumPy's dtype object of ours; bf16 is ml_dtypes' and is looked for only where it is used."""
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(DTYPES[dtype].numpy)


def axes_of(axes: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """``axes`` counted from 0, sorted; ShapeFault for one that is out of range or named twice."""
    out = sorted(axis_of(a, rank) for a in ((axes,) if isinstance(axes, int) else axes))
    for a, b in zip(out, out[1:], strict=False):
        if a == b:
            raise ShapeFault(f"axis {a} is named twice")
    return tuple(out)


def axis_attr(default: int) -> Callable[..., dict[str, Any]]:
    """A ``normal`` column: the attribute ``axis`` of the first argument, counted from 0."""

    def normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axis": axis_of(attrs.get("axis", default), types[0].rank)}

    return normal


# -- domains: what a constant operand may not be --------------------------------------------------------------------

ROUNDS_TO_0 = {"f32": 2.0**-150, "bf16": 2.0**-134, "f16": 2.0**-25}  # the largest number that does
Range = tuple[float, float] | None  # least and greatest number of a constant


def no_zero(x: Range, y: Range) -> str:
    """The divisor is not 0 everywhere."""
    return "the divisor is 0" if y == (0, 0) else ""


def above(least: float, allowed: bool) -> Callable[[Range], str]:
    """The argument is above ``least`` somewhere, or there, if that is ``allowed``."""

    def domain(x: Range) -> str:
        what = "negative" if allowed else f"{least:g} or less"
        return f"the argument is {what}" if x and (x[1] < least or (x[1] == least and not allowed)) else ""

    return domain


def power_of_zero(x: Range, y: Range) -> str:
    return "0 has no negative power" if x == (0, 0) and y and y[1] < 0 else ""
