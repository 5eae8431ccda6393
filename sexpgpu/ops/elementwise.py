"""Elementwise operators: one output element from the input elements at its place.

Integers wrap modulo 2**bits, on every target. Floats follow IEEE 754: nothing traps, NaN goes through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .cotangents import divided, scaled
from .spec import ZERO_GRAD, op, tensor, tensors
from .type_rules import FLOATS, NUMBERS, WHOLE, joined, no_zero, power_of_zero
from .types import DTYPES
from .work import DIVIDE, POW, per_element

XY = (tensor("x"), tensor("y"))
XS = (tensors("xs"),)
X = (tensor("x"),)
INTS_HINT = "the quotient of integers is quot; cast them for a float one"
F, FF = ([("f32", (3, 5))], {}), ([("f32", (3, 5)), ("f32", (5,))], {})


def half_width(np: Any, x: Any) -> bool:
    """Is the array ``x`` of f16 or bf16?"""
    return x.dtype.itemsize == 2 and x.dtype.kind not in "iub"


def rounded(f: Callable[..., Any]) -> Callable[..., Any]:
    """A reference that computes f16 and bf16 in f32 and rounds once, as the compiled code does."""

    def ref(np: Any, *xs: Any) -> Any:
        if not half_width(np, xs[0]):
            return f(np, *xs)
        return f(np, *(x.astype("float32") for x in xs)).astype(xs[0].dtype)

    return ref


def rounded_relax(name: str) -> Callable[..., Any]:
    """``relax.op`` ``name``, in f32 for f16 and bf16, which TVM's functions do not all take."""

    def relax(r: Any, *xs: Any) -> Any:
        own = r.dtype(xs[0])
        if own not in ("f16", "bf16"):
            return getattr(r, name)(*xs)
        return r.astype(getattr(r, name)(*(r.astype(x, "float32") for x in xs)), r.dt(own))

    return relax


def wraps(dtype: str) -> bool:
    """LLVM may take the overflow of these for impossible, so that they need programs of their own."""
    return DTYPES[dtype].kind in WHOLE and DTYPES[dtype].bits >= 32


def binary_relax(name: str, program: str) -> Callable[..., Any]:
    """``relax.op`` ``name``, or the wrapping integer program."""

    def relax(r: Any, x: Any, y: Any) -> Any:
        return r.kernel(program, x, y) if wraps(r.dtype(x)) else getattr(r, name)(x, y)

    return relax


def scaling_relax(name: str, program: str = "") -> Callable[..., Any]:
    """Product or quotient. TVM would take 0 x and 0 / x for 0 where it sees the number 0; a program is handed it as
    data. ``program`` is the wrapping integer one."""

    def relax(r: Any, x: Any, y: Any) -> Any:
        if program and wraps(r.dtype(x)):
            return r.kernel(program, x, y)
        return r.kernel(name, x, y) if 0 in (r.number(x), r.number(y)) else getattr(r, name)(x, y)

    return relax


def subtract_relax(r: Any, x: Any, y: Any) -> Any:
    """TVM would take x - x for 0 and x + y - y for x; of floats that is wrong."""
    if DTYPES[r.dtype(x)].kind == "float":
        return r.kernel("subtract", x, y)
    return binary_relax("subtract", "wrap-subtract")(r, x, y)


def extremum_relax(name: str) -> Callable[..., Any]:
    """TVM's float minimum and maximum lose a NaN on one side; ours is a program."""

    def relax(r: Any, x: Any, y: Any) -> Any:
        return r.kernel(name, x, y) if DTYPES[r.dtype(x)].kind == "float" else getattr(r, name)(x, y)

    return relax


def extremum_vjp(test: str) -> Callable[..., Any]:
    """``test`` of x and y: is x the extremum? Then it gets all of the gradient, else y does."""

    def vjp(b: Any, dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
        first, zero = b(test, x, y), b.const(0, z.type.dtype)
        return b.fit(b("where", first, dz, zero), x), b.fit(b("where", first, zero, dz), y)

    return vjp


def divide(x: float, y: float) -> float:
    """Integers that divide exactly give an integer, so that a dimension stays one."""
    return x // y if isinstance(x, int) and isinstance(y, int) and x % y == 0 else x / y


def quot_number(x: float, y: float) -> int:
    """Truncated toward zero. TypeError for a float; ZeroDivisionError for y = 0, where a tensor has 0."""
    if not (isinstance(x, int) and isinstance(y, int)):
        raise TypeError("quot is of integers")
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def power(x: float, y: float) -> float:
    """An exact integer for integers with y >= 0, OverflowError if it would be far beyond 64 bits; else a float."""
    if not (isinstance(x, int) and isinstance(y, int) and y >= 0):
        return math.pow(x, y)
    if abs(x) > 1 and y > 64:  # refused before it is computed: it could be of any length
        raise OverflowError("the integer does not fit 64 bits")
    return x**y


def quot_ref(np: Any, x: Any, y: Any) -> Any:
    """Truncated quotient: exact in 64 bits, then wrapped (the smallest integer by -1 is itself)."""
    with np.errstate(all="ignore"):
        down = x // np.where(y == 0, x.dtype.type(1), y)
        inexact = (down * y != x) & ((x < 0) != (y < 0))
        return np.where(y == 0, x.dtype.type(0), down + inexact.astype(x.dtype))


def floordiv_ref(np: Any, x: Any, y: Any) -> Any:
    """NumPy's, which follows its exact mod; of x and 0 it is what goes with x mod 0."""
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            return np.where(y == 0, x.dtype.type(0), x // np.where(y == 0, x.dtype.type(1), y))
        return np.where(y == 0, x.dtype.type("nan"), np.floor_divide(x, y))


def mod_ref(np: Any, x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu":
            return np.where(y == 0, x.dtype.type(0), np.mod(x, np.where(y == 0, x.dtype.type(1), y)))
        return np.mod(x, y)


def quotient_vjp(b: Any, dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """d/dx = 1/y and d/dy = -z/y, which is taken in this order, so that y*y need not fit."""
    dx = divided(b, dz, y)
    return b.fit(dx, x), b.fit(b("neg", scaled(b, dx, z)), y)


def mod_vjp(b: Any, dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """d/dx = 1, and d/dy = -floor(x/y), which is round((z - x) / y)."""
    if z.type.kind != "float":
        return None, None
    return b.fit(dz, x), b.fit(scaled(b, dz, b("round", b("/", b("-", z, x), y))), y)


def pow_vjp(b: Any, dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """d/dx = y x**(y-1), and 0 where y is 0; d/dy = x**y log x, and 0 where x is not positive, or where x**y is
    0 (of an infinite x)."""
    one, zero = b.const(1, z.type.dtype), b.const(0, z.type.dtype)
    dx = b("where", b("=", y, zero), zero, b("*", y, b("pow", x, b("-", y, one))))
    positive = b(">", x, zero)
    dy = b("where", positive, scaled(b, z, b("log", b("where", positive, x, one))), zero)
    return b.fit(scaled(b, dz, dx), x), b.fit(scaled(b, dz, dy), y)


op("+", "Sum, broadcast; any number of arguments of one dtype. Integers wrap.",
   group="arithmetic", args=XS, folds=True, type=joined(NUMBERS),
   ref=lambda np, x, y: x + y,
   relax=binary_relax("add", "wrap-add"),
   vjp=lambda b, dz, z, x, y: (b.fit(dz, x), b.fit(dz, y)),
   number=lambda x, y: x + y,
   onnx=lambda o, x, y: o("Add", x, y),
   cases=(FF, ([("f32", ()), ("f32", (2, 1, 3))], {}), ([("f64", (2, 1)), ("f64", (3,))], {}), ([("bf16", (3, 7)),
          ("bf16", (3, 7))], {}),
          ([("i32", (4, 1), -9, 9), ("i32", (5,), -9, 9)], {}), ([("i64", ()), ("i64", ())], {}),
          ([("u8", (37,), 0, 256), ("u8", (37,), 0, 256)], {})))

op("-", "Difference, broadcast; `(- x)` is the negative, and more arguments are subtracted from the left. Integers "
   "wrap.",
   group="arithmetic", args=XS, folds=True, type=joined(NUMBERS),
   ref=lambda np, x, y: x - y,
   relax=subtract_relax,
   vjp=lambda b, dz, z, x, y: (b.fit(dz, x), b.fit(b("neg", dz), y)),
   number=lambda x, y: x - y,
   onnx=lambda o, x, y: o("Sub", x, y),
   cases=(FF, ([("f32", (2, 3)), ("f32", ())], {}), ([("f16", (3, 7)), ("f16", (3, 7))], {}),
          ([("i32", (4, 1), -9, 9), ("i32", (5,), -9, 9)], {}),
          ([("u32", (7,), 0, 9), ("u32", (7,), 0, 9)], {}), ([("i64", (3,)), ("i64", (3,))], {}),
          ([("bf16", (3, 20)), ("bf16", (20,))], {})))

op("*", "Product, broadcast; any number of arguments of one dtype. Integers wrap.",
   group="arithmetic", args=XS, folds=True, type=joined(NUMBERS),
   ref=lambda np, x, y: x * y,
   relax=scaling_relax("multiply", "wrap-multiply"),
   vjp=lambda b, dz, z, x, y: (b.fit(scaled(b, dz, y), x), b.fit(scaled(b, dz, x), y)),
   number=lambda x, y: x * y,
   onnx=lambda o, x, y: o("Mul", x, y),
   cases=(FF, ([("f32", (2, 3)), ("f32", ())], {}), ([("bf16", (3, 7)), ("bf16", (7,))], {}),
          ([("i32", (4, 1), -9, 9), ("i32", (5,), -9, 9)], {}),
          ([("u32", (7,), 0, 2**32), ("u32", (7,), 0, 2**32)], {}), ([("i64", (5,), -2**62, 2**62),
          ("i64", (5,), -2**62, 2**62)], {})))

op("/", "Quotient of floats, broadcast; `(/ x)` is the reciprocal, and more arguments divide from the left. x/0 is "
   "infinite or NaN; division by the plain number 0 is an error. For integers use `quot`. The quotient of two plain "
   "numbers is an integer if it is exact.",
   group="arithmetic", args=XS, folds=True, type=joined(FLOATS, hint=INTS_HINT),
   ref=lambda np, x, y: x / y,
   work=per_element(DIVIDE),
   relax=scaling_relax("divide"),
   vjp=quotient_vjp,
   number=divide,
   domain=no_zero,
   onnx=lambda o, x, y: o("Div", x, y),
   cases=(([("f32", (3, 5)), ("f32", (5,), 0.5, 2.0)], {}), ([("f32", ()), ("f32", (2, 3), -2.0, -0.5)], {}),
          ([("bf16", (3, 7)), ("bf16", (7,), 0.5, 2.0)], {}), ([("f64", (3,)), ("f64", (3,), 0.5, 2.0)], {})))

op("mod", "Remainder with the sign of the divisor, broadcast, for integers and floats, as Common Lisp's mod: x - y "
   "floor(x/y), computed "
   "exactly. Integer x mod 0 is 0, float x mod 0 is NaN.",
   group="arithmetic", args=XY, type=joined(NUMBERS),
   ref=rounded(mod_ref),
   work=per_element(DIVIDE),
   relax=lambda r, x, y: r.kernel("mod", x, y),
   vjp=mod_vjp,
   number=lambda x, y: x % y,
   domain=no_zero,
   cases=(([("i32", (6, 1), -9, 9), ("i32", (9,), -4, 5)], {}), ([("u8", (40,), 0, 256), ("u8", (40,), 0, 4)], {}),
          ([("i64", (3, 5), -9, 9), ("i64", (), 3, 4)], {}), ([("f32", (3, 5), -9.0, 9.0),
          ("f32", (5,), -2.0, 2.0)], {}),
          ([("f64", (4,), -9.0, 9.0), ("f64", (4,), 0.5, 2.0)], {}), ([("bf16", (4,), -9.0, 9.0),
          ("bf16", (4,), 0.5, 2.0)], {})),
   grad_cases=(([("f32", (3, 4), 5.2, 5.8), ("f32", (4,), 2.1, 2.4)], {}), ([("f32", (3, 4), -5.8, -5.2),
          ("f32", (), 2.1, 2.4)], {})))

op("quot", "Quotient of integers truncated toward zero, broadcast. x quot 0 is 0, and the smallest integer quot -1 is "
   "itself.",
   group="arithmetic", args=XY, type=joined(WHOLE, hint="of floats it is floordiv"),
   ref=quot_ref,
   work=per_element(DIVIDE),
   relax=lambda r, x, y: r.kernel("quot", x, y),
   vjp=ZERO_GRAD,
   number=quot_number,
   domain=no_zero,
   cases=(([("i32", (6, 1), -9, 9), ("i32", (9,), -4, 5)], {}), ([("u8", (40,), 0, 256), ("u8", (40,), 0, 4)], {}),
          ([("i8", (300,), -128, 128), ("i8", (300,), -4, 4)], {}), ([("i64", (3, 5), -9, 9), ("i64", (), 3, 4)], {}),
          ([("u32", (5,), 0, 2**32), ("u32", (5,), 0, 9)], {})))

op("floordiv", "Quotient rounded down, broadcast, for integers and floats: x is y floordiv(x, y) + mod(x, y). It is "
   "not floor of /, which rounds the quotient first: `(floordiv 1.0 0.1)` is 9. Integer x floordiv 0 is 0, float "
   "x floordiv 0 is NaN, and the smallest integer floordiv -1 is itself.",
   group="arithmetic", args=XY, type=joined(NUMBERS),
   ref=rounded(floordiv_ref),
   work=per_element(DIVIDE),
   relax=lambda r, x, y: r.kernel("floordiv", x, y),
   vjp=ZERO_GRAD,
   number=lambda x, y: x // y,
   domain=no_zero,
   cases=(([("i32", (6, 1), -9, 9), ("i32", (9,), -4, 5)], {}), ([("u8", (40,), 0, 256), ("u8", (40,), 0, 4)], {}),
          ([("i8", (300,), -128, 128), ("i8", (300,), -4, 4)], {}), ([("i64", (3, 5), -9, 9), ("i64", (), -3, -2)], {}),
          ([("u32", (5,), 0, 2**32), ("u32", (5,), 0, 9)], {}), ([("f32", (3, 5), -9.0, 9.0),
          ("f32", (5,), -2.0, 2.0)], {}),
          ([("f64", (4,), -9.0, 9.0), ("f64", (4,), 0.5, 2.0)], {}), ([("bf16", (4,), -9.0, 9.0),
          ("bf16", (4,), 0.5, 2.0)], {}), ([("f16", (4,), -9.0, 9.0), ("f16", (4,), 0.5, 2.0)], {})))

op("pow", "x to the power y, floats, broadcast. The gradient to y is 0 where x is not positive, and that to x is 0 "
   "where y is 0.",
   group="arithmetic", precision="f32", args=XY, type=joined(FLOATS, hint="cast it to a float dtype first"),
   ref=rounded(lambda np, x, y: np.power(x, y)),
   work=per_element(POW),
   relax=rounded_relax("power"),
   vjp=pow_vjp,
   number=power,
   domain=power_of_zero,
   onnx=lambda o, x, y: o("Pow", x, y),
   cases=(([("f32", (3, 5), 0.2, 3.0), ("f32", (5,), -3.0, 3.0)], {}), ([("f32", ()), ("f32", (4,), 2.0, 2.0)], {}),
          ([("f64", (3,), 0.2, 3.0), ("f64", (3,), -3.0, 3.0)], {}), ([("bf16", (7,), 0.2, 3.0),
          ("bf16", (7,), -2.0, 2.0)], {})),
   grad_cases=(([("f32", (3, 4), 0.2, 3.0), ("f32", (4,), -3.0, 3.0)], {}),),
   tolerance=(8e-6, 2e-6))  # powf of glibc against NumPy's own: a few units in the last place of values up to 125

op("min", "The smaller of the arguments, broadcast; NaN if either is. At a tie the gradient goes to the first.",
   group="arithmetic", args=XS, folds=True, type=joined(NUMBERS),
   ref=lambda np, x, y: np.minimum(x, y),
   relax=extremum_relax("minimum"),
   vjp=extremum_vjp("<="),
   number=lambda x, y: min(x, y),
   onnx=lambda o, x, y: o("Min", x, y),
   cases=(FF, ([("f32", ()), ("f32", (2, 3))], {}), ([("bf16", (3, 7)), ("bf16", (7,))], {}),
          ([("i32", (4, 1), -9, 9), ("i32", (5,), -9, 9)], {}),
          ([("u8", (37,), 0, 256), ("u8", (37,), 0, 256)], {})))

op("max", "The larger of the arguments, broadcast; NaN if either is. At a tie the gradient goes to the first.",
   group="arithmetic", args=XS, folds=True, type=joined(NUMBERS),
   ref=lambda np, x, y: np.maximum(x, y),
   relax=extremum_relax("maximum"),
   vjp=extremum_vjp(">="),
   number=lambda x, y: max(x, y),
   onnx=lambda o, x, y: o("Max", x, y),
   cases=(FF, ([("f32", ()), ("f32", (2, 3))], {}), ([("f16", (3, 7)), ("f16", (7,))], {}),
          ([("i32", (4, 1), -9, 9), ("i32", (5,), -9, 9)], {}),
          ([("u32", (37,), 0, 2**32), ("u32", (37,), 0, 2**32)], {}), ([("f64", (3,)), ("f64", (3,))], {}),
          ([("bf16", (3, 20)), ("bf16", (20,))], {})))
