"""exp, log, tanh, sigmoid, sin, cos, erf and pow of f32, built from IEEE operations alone.

The C library's functions are called once an element, and their bits depend on the machine. These work on whole vectors,
and every product that is added is an explicit fused multiply-add, so that a scalar, a vector of any width and every
instruction set give the same bits. TVM uses them where it lowers its intrinsics for LLVM and CUDA; f64 still goes to
the C library. Method: range reduction and polynomial, as in Cody and Waite, "Software Manual for the Elementary
Functions" (1980). Coefficients: our own fits, by weighted least squares towards the smallest maximum relative error.
NaN stays NaN, infinities and zeros give what C11 annex F states; a subnormal exp is 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from . import cuda_text
from .vector_expr import VectorExpr, dtype_of, single

LEVEL = 20  # the priority of our lowering rules; TVM's own have 10
LN2 = math.log(2.0)
ROUND = 1.5 * 2**23  # its unit in the last place is 1: adding a number to it rounds the number to an integer
ROUND_F64 = 1.5 * 2**52
ROOT_HALF, ROOT_HALF_F64 = 0x3F3504F3, 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)

EXP = (0.4999999403953552, 0.16666515171527863, 0.04166845604777336, 0.008369418792426586, 0.0013813142431899905)
EXP_LOWEST, EXP_HIGHEST = -87.33654, 88.72283  # below, exp is subnormal; above, it overflows
LOG = (
    0.3333333134651184, -0.250008225440979, 0.20001226663589478, -0.16623356938362122,
    0.14201761782169342, -0.131601944565773, 0.12761549651622772, -0.07634429633617401,
)  # fmt: skip
TANH_ONE = 20.0  # 2 |x| from which on tanh rounds to 1
SIN = (-0.16666655242443085, 0.008332155644893646, -0.0001951463200384751)
COS = (0.04166664555668831, -0.0013887309469282627, 2.443241282890085e-05)
LARGEST_ANGLE = 2.0**46
ERF = (
    -0.37612634897232056, 0.1128370389342308, -0.026859590783715248,
    0.005201154854148626, -0.0008141532307490706, 8.357648039236665e-05,
)  # fmt: skip
ERF_FIRST = 0.12837916612625122  # 2 / sqrt(pi) - 1
ERFC = (
    -0.00017587465117685497, 1.1295207738876343, 0.6333346366882324, 0.10829395055770874,
    -0.025128625333309174, 0.004174643196165562, -0.00043521897168830037, 2.1161913537071086e-05,
)  # fmt: skip


def reduce_by_ln2(v: VectorExpr, x: Any, bias: int) -> tuple[Any, Any, Any]:
    """Range reduction x = n ln 2 + r, with n the integer nearest to x / ln 2. Returns r, (e^r - 1 - r) / r^2, and the
    bits of the f32 with the exponent field n + bias. The sum with ROUND rounds to an integer and leaves it in the low
    bits."""
    rounded = v.fma(x, v.const(1 / LN2), v.const(ROUND + bias))
    n, high = v.name(rounded - v.const(ROUND + bias)), single(LN2)
    r = v.fma(n, v.const(high - LN2), v.fma(n, v.const(-high), x))
    return r, v.polynomial(r, EXP), v.name(v.bits(rounded) << v.const(23, "int32"))


def exp(v: VectorExpr, x: Any) -> Any:
    """e^x = 2^n e^r. n is added to the exponent field, since 2^128 is no f32 to multiply by."""
    r, tail, n = reduce_by_ln2(v, x, 0)
    p = v.fma(v.name(r * r), tail, v.name(r + v.const(1.0)))
    y = v.float(v.bits(p) + n)
    y = v.select(x < v.const(EXP_LOWEST), v.const(0.0), y)
    return v.select(x <= v.const(EXP_HIGHEST), y, v.name(x + v.const(math.inf)))  # x itself, so that NaN propagates


def split_exponent(v: VectorExpr, x: Any) -> tuple[Any, Any]:
    """e and f with x = 2^e (1 + f) and f from sqrt(1/2) - 1 to sqrt(2) - 1, for a finite x > 0."""
    tiny = x < v.const(2.0**-126)
    shifted = v.name(v.bits(v.select(tiny, x * v.const(2.0**25), x)) - v.const(ROOT_HALF, "int32"))
    e = v.cast(shifted >> v.const(23, "int32"), "float32")
    m = v.float((shifted & v.const(0x7FFFFF, "int32")) + v.const(ROOT_HALF, "int32"))
    return v.select(tiny, e - v.const(25.0), e), v.name(m - v.const(1.0))


def log(v: VectorExpr, x: Any) -> Any:
    """log x = e ln 2 + log(1 + f)."""
    e, f = split_exponent(v, x)
    square, high = v.name(f * f), single(LN2)
    small = v.fma(e, v.const(LN2 - high), v.name(f * square) * v.polynomial(f, LOG))
    y = v.fma(e, v.const(high), v.name(f + v.fma(square, v.const(-0.5), small)))
    y = v.select(x > v.const(0.0), y, v.const(math.nan))
    y = v.select(tirx.EQ(x, v.const(0.0)), v.const(-math.inf), y)
    return v.select(tirx.EQ(x, v.const(math.inf)), x, y)


def tanh(v: VectorExpr, x: Any) -> Any:
    """d / (d + 2) with d = e^(2 |x|) - 1 = 2^n (e^r - 1) + (2^n - 1). Near 0, n is 0 and nothing cancels."""
    magnitude, sign = v.magnitude(x)
    twice = v.name(magnitude + magnitude)
    r, tail, power = reduce_by_ln2(v, v.select(twice > v.const(TANH_ONE), v.const(TANH_ONE), twice), 127)
    scale = v.float(power)
    d = v.fma(scale, v.fma(v.name(r * r), tail, r), v.name(scale - v.const(1.0)))
    return v.signed(v.name(d / v.name(d + v.const(2.0))), sign)


def sigmoid(v: VectorExpr, x: Any) -> Any:
    """1 / (1 + e^-x); 0 where it would be subnormal."""
    y = v.name(v.const(1.0) / v.name(exp(v, v.name(v.const(0.0) - x)) + v.const(1.0)))
    return v.select(x < v.const(EXP_LOWEST), v.const(0.0), y)


def erf(v: VectorExpr, x: Any) -> Any:
    """Near 0 a polynomial; else 1 - e^-g, with g a polynomial fitted to -log(1 - erf)."""
    magnitude, sign = v.magnitude(x)
    square = v.name(x * x)
    near = v.fma(x, v.fma(square, v.polynomial(square, ERF), v.const(ERF_FIRST)), x)
    g = v.polynomial(v.clamp(magnitude, 0.0, 3.95), ERFC)
    far = v.name(v.const(1.0) - exp(v, v.name(v.const(0.0) - g)))
    y = v.select(magnitude < v.const(0.92), near, v.signed(far, sign))
    return v.select(v.is_nan(x), x, y)


def reduce_by_quarter_turns(v: VectorExpr, x: Any) -> tuple[Any, Any]:
    """Range reduction x = n pi/2 + r with |r| <= pi/4, in f64; n modulo 4. An |x| from LARGEST_ANGLE on counts as 0:
    there neighbouring f32 are a million turns apart, and 2/pi to 53 bits no longer gives the quadrant."""
    magnitude, _ = v.magnitude(x)
    wide = v.cast(v.select(magnitude < v.const(LARGEST_ANGLE), x, v.const(0.0)), "float64")
    rounded = v.fma(wide, v.const(2 / math.pi, "float64"), v.const(ROUND_F64, "float64"))
    n = v.name(rounded - v.const(ROUND_F64, "float64"))
    high = math.pi / 2
    low = 6.123233995736766e-17  # pi/2 - high
    r = v.fma(n, v.const(-low, "float64"), v.fma(n, v.const(-high, "float64"), wide))
    bits = v.name(tirx.reinterpret("int64" + v.width, rounded))
    return v.cast(bits & v.const(3, "int64"), "int32"), v.cast(r, "float32")


def shifted_sin(v: VectorExpr, x: Any, ahead: int) -> Any:
    """sin(x + ahead pi/2)."""
    n, r = reduce_by_quarter_turns(v, x)
    n = v.name(n + v.const(ahead, "int32")) if ahead else n
    square = v.name(r * r)
    sine = v.fma(r * square, v.polynomial(square, SIN), r)
    cosine = v.fma(v.name(square * square), v.polynomial(square, COS), v.fma(square, v.const(-0.5), v.const(1.0)))
    odd = tirx.NE(n & v.const(1, "int32"), v.const(0, "int32"))
    sign = v.name((n & v.const(2, "int32")) << v.const(30, "int32"))
    y = v.signed(v.select(odd, cosine, sine), sign)
    return v.select(v.magnitude(x)[0] < v.const(math.inf), y, v.const(math.nan))


def sin(v: VectorExpr, x: Any) -> Any:
    """sin x, x in radians; a zero is itself, an infinity gives NaN; see ``reduce_by_quarter_turns`` for the largest
    x."""
    return v.select(tirx.EQ(x, v.const(0.0)), x, shifted_sin(v, x, 0))  # keeps the sign of a zero


def cos(v: VectorExpr, x: Any) -> Any:
    """cos x, x in radians; an infinity gives NaN; see ``reduce_by_quarter_turns`` for the largest x."""
    return shifted_sin(v, x, 1)


def power(v: VectorExpr, x: Any, y: Any) -> Any:
    """x^y: |x|^y in f64, then the sign and C's special cases."""
    magnitude, sign = v.magnitude(x)
    zero, infinite = tirx.EQ(x, v.const(0.0)), tirx.EQ(magnitude, v.const(math.inf))
    clamped_y = v.clamp(y, -1e30, 1e30)  # for an infinite y; with so large an exponent only |x| against 1 matters
    result = exp_f64(v, v.name(v.cast(clamped_y, "float64") * log_f64(v, magnitude)))
    limit = v.select(v.select(zero, v.const(0.0) - y, y) > v.const(0.0), v.const(math.inf), v.const(0.0))
    result = v.select(tirx.Or(zero, infinite), limit, result)
    y_is_integer = tirx.EQ(v.llvm("nearbyint", clamped_y), clamped_y)
    odd = tirx.And(y_is_integer, tirx.NE(v.llvm("nearbyint", clamped_y * v.const(0.5)) * v.const(2.0), clamped_y))
    value = v.signed(result, v.select(odd, sign, v.const(0, "int32")))
    undefined = tirx.And(tirx.And(x < v.const(0.0), tirx.Not(infinite)), tirx.Not(y_is_integer))
    value = v.select(undefined, v.const(math.nan), value)
    value = v.select(tirx.Or(v.is_nan(x), v.is_nan(y)), v.const(math.nan), value)
    return v.select(tirx.Or(tirx.EQ(x, v.const(1.0)), tirx.EQ(y, v.const(0.0))), v.const(1.0), value)


def log_f64(v: VectorExpr, x: Any) -> Any:
    """log of a finite f32 x > 0 in f64, to 2e-14: log(1 + f) = 2 artanh(f / (2 + f)), by its series."""
    shifted = v.name(tirx.reinterpret("int64" + v.width, v.cast(x, "float64")) - v.const(ROOT_HALF_F64, "int64"))
    e = v.cast(v.cast(shifted >> v.const(52, "int64"), "int32"), "float64")
    m = v.name((shifted & v.const(2**52 - 1, "int64")) + v.const(ROOT_HALF_F64, "int64"))
    f = v.name(tirx.reinterpret("float64" + v.width, m) - v.const(1.0, "float64"))
    s = v.name(f / (f + v.const(2.0, "float64")))
    series = v.polynomial(v.name(s * s), [2 / (2 * k + 1) for k in range(9)], "float64")
    return v.fma(e, v.const(LN2, "float64"), s * series)


def exp_f64(v: VectorExpr, x: Any) -> Any:
    """e^x for an f64 x, to 3e-13, as f32."""
    x = v.clamp(x, -200.0, 200.0, "float64")
    n = v.llvm("nearbyint", x * v.const(1 / LN2, "float64"))
    r = v.fma(n, v.const(-LN2, "float64"), x)
    p = v.polynomial(r, [1 / math.factorial(k) for k in range(11)], "float64")
    biased = v.cast(v.cast(n, "int32"), "int64") + v.const(1023, "int64")
    scale = v.name(tirx.reinterpret("float64" + v.width, biased << v.const(52, "int64")))
    return v.cast(p * scale, "float32")


def tanh_f64(x: Any) -> Any:
    """(1 - t) / (1 + t) with t = e^(-2 |x|)."""
    one, zero = tirx.const(1.0, dtype_of(x)), tirx.const(0.0, dtype_of(x))
    t = tirx.exp(tirx.Select(x < zero, x, zero - x) * tirx.const(2.0, dtype_of(x)))
    y = (one - t) / (one + t)
    return tirx.Select(x < zero, zero - y, y)


def _library(call: Any, name: str) -> Any:
    """The f64 function on a CPU: LLVM's intrinsic, which calls the C library. Returning ``call`` leaves it to TVM's
    next rule."""
    if name in ("erf", "sigmoid"):
        return call
    return tirx.call_llvm_pure_intrin(dtype_of(call), f"llvm.{name}", *call.args)


def _rule(name: str, f32: Callable[[Any], Any], f64: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        dtype = dtype_of(call)
        scalar, _, lanes = dtype.partition("x")
        if scalar in ("float16", "bfloat16"):
            wide = f"float32x{lanes}" if lanes else "float32"
            args = [tirx.Cast(wide, a) for a in call.args]
            return tirx.Cast(dtype, lower(type(call)(call.op, args, ret_ty=args[0].ty)))
        if scalar != "float32":
            return tanh_f64(call.args[0]) if name == "tanh" else f64(call, name)
        return f32(call)

    return lower


def _as_expression(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """A lowering rule for LLVM: a call becomes one expression of the function's steps."""

    def lower(call: Any) -> Any:
        v = VectorExpr(dtype_of(call))
        return v.bind_all(function(v, *map(v.name, call.args)))

    return lower


RULES = {"exp": exp, "log": log, "tanh": tanh, "sigmoid": sigmoid, "sin": sin, "cos": cos, "erf": erf, "pow": power}


def power_steps(call: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """``pow`` of f32 as named steps and its value in terms of them, for a schedule to write as statements.

    As one expression it takes TVM half a second: its analyzer substitutes the value of every name.
    """
    v = VectorExpr("float32")
    value = power(v, *map(v.name, call.args))
    return v.named, value


STEPS = {"tirx.pow": power_steps}


@functools.cache
def install() -> None:
    """Register the lowering rules in this process, for every LLVM and every CUDA target. Cached, since TVM refuses a
    rule twice."""
    for name, function in RULES.items():
        _install(name, "llvm", _rule(name, _as_expression(function), _library))
        _install(name, "cuda", _rule(name, cuda_text.caller(name, function), lambda call, _: call))
    for name, rule in cuda_text.OTHERS.items():
        _install(name, "cuda", rule)


def _install(name: str, target: str, rule: Callable[[Any], Any]) -> None:
    tirx.register_intrin_lowering(f"tirx.{name}", target, f=rule, level=LEVEL)
