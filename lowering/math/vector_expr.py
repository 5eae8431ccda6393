"""Builder of vector expressions of one width, with a let variable for each shared step."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tvm import tirx

INFINITE = 0x7F800000  # the bits of infinity; larger bits, without the sign, are NaN


class VectorExpr:
    """Expressions with the vector width of one call. Shared ones get names: without them the expression would be
    evaluated as a tree. Vectors of bool get none, since TVM's analyzer refuses that."""

    def __init__(self, dtype: str) -> None:
        self.width = dtype.removeprefix("float32")  # "", "x8", "x16" ...
        self.named: list[tuple[Any, Any]] = []

    def const(self, value: float | int, scalar: str = "float32") -> Any:
        return tirx.const(value, scalar + self.width)

    def name(self, value: Any) -> Any:
        """A variable for ``value``. Its value goes through an identity intrinsic that LLVM removes: TVM's analyzer
        would substitute a pure value for its name everywhere."""
        dtype = dtype_of(value)
        if dtype.startswith("float"):
            return self.llvm("fma", value, tirx.const(1.0, dtype), tirx.const(-0.0, dtype))
        return self.llvm("fshl", value, tirx.const(0, dtype), tirx.const(0, dtype))

    def llvm(self, name: str, *args: Any) -> Any:
        """A variable for an LLVM intrinsic. It is pure, but not declared so (see ``name``)."""
        value = tirx.call_llvm_intrin(dtype_of(args[0]), f"llvm.{name}", *args)
        self.named.append((tirx.Var(f"m{len(self.named)}", value.ty), value))
        return self.named[-1][0]

    def bind_all(self, value: Any) -> Any:
        """``value`` inside a Let of every name."""
        for var, named in reversed(self.named):
            value = tirx.Let(var, named, value)
        return value

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return self.llvm("fma", a, b, c)

    def cast(self, x: Any, scalar: str) -> Any:
        return self.name(tirx.Cast(scalar + self.width, x))

    def bits(self, x: Any) -> Any:
        return self.name(tirx.reinterpret("int32" + self.width, x))

    def float(self, bits: Any) -> Any:
        return self.name(tirx.reinterpret("float32" + self.width, bits))

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        return self.name(tirx.Select(condition, yes, no))

    def polynomial(self, x: Any, coefficients: Sequence[float], scalar: str = "float32") -> Any:
        """Sum of coefficients[k] x^k."""
        y = self.const(coefficients[-1], scalar)
        for c in reversed(coefficients[:-1]):
            y = self.fma(y, x, self.const(c, scalar))
        return y

    def clamp(self, x: Any, low: float, high: float, scalar: str = "float32") -> Any:
        """``x`` clamped to [low, high]; ``low`` for NaN."""
        return self.llvm("minnum", self.llvm("maxnum", x, self.const(low, scalar)), self.const(high, scalar))

    def magnitude(self, x: Any) -> tuple[Any, Any]:
        """|x|, and the sign bit of x as an int32."""
        bits = self.bits(x)
        return self.float(bits & self.const(0x7FFFFFFF, "int32")), self.name(bits & self.const(-(2**31), "int32"))

    def signed(self, x: Any, sign: Any) -> Any:
        return self.float(self.bits(x) ^ sign)

    def is_nan(self, x: Any) -> Any:
        return (self.bits(x) & self.const(0x7FFFFFFF, "int32")) > self.const(INFINITE, "int32")


def dtype_of(x: Any) -> str:
    """The dtype of an expression or buffer element, such as ``float32x8``."""
    return str(x.ty.dtype)


def single(x: float) -> float:
    """``x`` rounded to f32."""
    return struct.unpack("f", struct.pack("f", x))[0]
