"""Elementwise operators of one argument. The float ones take every float dtype; f16 and bf16 are computed in f32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .cotangents import divided, scaled
from .elementwise import X, rounded, rounded_relax, wraps
from .spec import ZERO_GRAD, attr, op
from .type_rules import FLOATS, NUMBERS, SIGNED, above, held, need, unary
from .types import TensorType
from .work import DIVIDE, EXP, SIGMOID, per_element

FLOAT = unary(FLOATS, hint="cast it to a float dtype first")
NEAR_0 = (4e-6, 0.0)  # for those that promise small results to full relative precision
TOLERANCE = (4e-6, 2e-6)  # two library functions of a few units in the last place each
F32, POSITIVE = ([("f32", (3, 5))], {}), ([("f32", (3, 5), 0.1, 4.0)], {})
SCALAR, BF16 = ([("f32", ())], {}), ([("bf16", (3, 7))], {})
F64 = ([("f64", (7,), 0.1, 0.9)], {})
ANGLE = " In compiled f32 an angle of 2^46 or more, whose neighbours are a million turns apart, counts as 0."


def stable_sigmoid(x: float) -> float:
    """1 / (1 + e^-x) in Python's floats, where no exponential overflows."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def clip_expand(b: Any, x: Any, lo: float, hi: float) -> Any:
    return b("min", b("max", x, b.const(lo, x.type.dtype)), b.const(hi, x.type.dtype))


def clip_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """``lo`` and ``hi`` as x's dtype holds them; TypeFault where it cannot."""
    need(NUMBERS, types[0])
    return {name: held(attrs[name], types[0].dtype) for name in ("lo", "hi")}


def near_0_relax(program: str, inner: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The program on x, on u = ``inner(r, x)`` and on log u, in f32 for f16 and bf16."""

    def relax(r: Any, x: Any) -> Any:
        x = r.bound(r.astype(x, "float32")) if r.dtype(x) in ("f16", "bf16") else x
        u = r.bound(inner(r, x))
        return r.kernel(program, x, u, r.log(u))

    return relax


op("neg", "The negative of each element; also written `(- x)`. The smallest integer is its own negative.",
   group="arithmetic", args=X, type=unary(SIGNED, hint="an unsigned integer has no negative: cast it"),
   ref=lambda np, x: np.negative(x),
   relax=lambda r, x: r.kernel("wrap-subtract", r.const(0, r.dtype(x)), x) if wraps(r.dtype(x)) else r.negative(x),
   vjp=lambda b, dy, y, x: (b("neg", dy),),
   number=lambda x: -x,
   onnx=lambda o, x: o("Neg", x),
   cases=(F32, SCALAR, BF16, ([("i32", (9,), -9, 9)], {}), ([("i8", (300,), -128, 128)], {}), ([("i64", ())], {})))

op("abs", "The magnitude of each element. The smallest integer is its own magnitude; the gradient at 0 is 0.",
   group="arithmetic", args=X, type=unary(SIGNED, hint="it has no negative values"),
   ref=lambda np, x: np.abs(x),
   relax=lambda r, x: r.kernel("abs", x),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("sign", x)),),
   number=lambda x: abs(x),
   onnx=lambda o, x: o("Abs", x),
   cases=(F32, SCALAR, BF16, ([("i32", (9,), -9, 9)], {}), ([("i8", (300,), -128, 128)], {}), ([("i64", (3,))], {})))

op("sign", "-1, 0 or 1 as each element is below, at or above 0; NaN stays NaN. The gradient is 0.",
   group="arithmetic", args=X, type=unary(SIGNED, hint="it has no negative values"),
   ref=lambda np, x: np.sign(x),
   relax=lambda r, x: r.kernel("sign", x),
   vjp=ZERO_GRAD,
   number=lambda x: (x > 0) - (x < 0),
   onnx=lambda o, x: o("Sign", x),
   cases=(F32, SCALAR, BF16, ([("i32", (9,), -3, 3)], {}), ([("i64", ())], {})))

op("exp", "e to the power of each element.",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.exp(x)),
   work=per_element(EXP),
   relax=rounded_relax("exp"),
   vjp=lambda b, dy, y, x: (scaled(b, dy, y),),
   number=lambda x: math.exp(x),
   onnx=lambda o, x: o("Exp", x),
   cases=(F32, SCALAR, BF16, F64, ([("f16", (7,))], {})))

op("log", "The natural logarithm of each element: -infinity at 0, NaN below.",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.log(x)),
   domain=above(0, False),
   work=per_element(EXP),
   relax=rounded_relax("log"),
   vjp=lambda b, dy, y, x: (divided(b, dy, x),),
   number=lambda x: math.log(x),
   onnx=lambda o, x: o("Log", x),
   cases=(POSITIVE, F64, ([("f32", (), 0.1, 4.0)], {}), ([("bf16", (7,), 0.1, 4.0)], {})))

op("log1p", "log(1 + x) of each element, accurate near 0.",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=NEAR_0,
   ref=rounded(lambda np, x: np.log1p(x)),
   domain=above(-1, False),
   work=per_element(EXP),
   relax=near_0_relax("log1p", lambda r, x: r.add(x, r.const(1, r.dtype(x)))),
   vjp=lambda b, dy, y, x: (divided(b, dy, b("+", x, b.const(1, x.type.dtype))),),
   number=lambda x: math.log1p(x),
   cases=(([("f32", (3, 5), -0.9, 4.0)], {}), ([("f32", (33,), -1e-5, 1e-5)], {}), ([("f64", (5,), -1e-9, 1e-9)], {}),
          ([("f32", (), 1e9, 1e10)], {}), ([("bf16", (7,), -0.5, 4.0)], {})),
   grad_cases=(([("f32", (3, 5), -0.7, 4.0)], {}),))

op("expm1", "e to the power of each element, less 1, accurate near 0.",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=NEAR_0,
   ref=rounded(lambda np, x: np.expm1(x)),
   work=per_element(EXP),
   relax=near_0_relax("expm1", lambda r, x: r.exp(x)),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("exp", x)),),  # y + 1 would lose all digits where y is near -1
   number=lambda x: math.expm1(x),
   cases=(F32, SCALAR, F64, BF16, ([("f32", (33,), -1e-5, 1e-5)], {}), ([("f32", (9,), -200.0, -10.0)], {})),
   grad_cases=(F32,))

op("sqrt", "The square root of each element: NaN below 0; the gradient at 0 is infinite.",
   group="arithmetic", precision="f32", args=X, type=FLOAT,
   ref=rounded(lambda np, x: np.sqrt(x)),
   domain=above(0, True),
   work=per_element(DIVIDE),
   relax=rounded_relax("sqrt"),
   vjp=lambda b, dy, y, x: (divided(b, dy, b("+", y, y)),),
   number=lambda x: math.sqrt(x),
   onnx=lambda o, x: o("Sqrt", x),
   cases=(POSITIVE, F64, ([("f32", (), 0.1, 4.0)], {}), ([("bf16", (7,), 0.1, 4.0)], {})))

op("rsqrt", "1 over the square root of each element.",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: 1 / np.sqrt(x)),
   domain=above(0, False),
   work=per_element(DIVIDE),
   relax=rounded_relax("rsqrt"),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("*", b.const(-0.5, y.type.dtype), b("*", y, b("*", y, y)))),),
   number=lambda x: 1 / math.sqrt(x),
   cases=(POSITIVE, F64, ([("f32", (), 0.1, 4.0)], {}), ([("bf16", (7,), 0.1, 4.0)], {})))

op("square", "Each element times itself.",
   group="arithmetic", args=X,
   ref=lambda np, x: x * x,
   expand=lambda b, x: b("*", x, x),
   number=lambda x: x * x,
   cases=(F32, SCALAR, ([("i32", (9,), -9, 9)], {})))

op("sin", f"The sine of each element, in radians.{ANGLE}",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.sin(x)),
   work=per_element(SIGMOID),
   relax=rounded_relax("sin"),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("cos", x)),),
   number=lambda x: math.sin(x),
   onnx=lambda o, x: o("Sin", x),
   cases=(F32, SCALAR, F64, BF16))

op("cos", f"The cosine of each element, in radians.{ANGLE}",
   group="arithmetic", precision="f32", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.cos(x)),
   work=per_element(SIGMOID),
   relax=rounded_relax("cos"),
   vjp=lambda b, dy, y, x: (b("neg", scaled(b, dy, b("sin", x))),),
   number=lambda x: math.cos(x),
   onnx=lambda o, x: o("Cos", x),
   cases=(F32, SCALAR, F64, BF16))

op("tanh", "The hyperbolic tangent of each element.",
   group="arithmetic", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.tanh(x)),
   work=per_element(SIGMOID),
   relax=rounded_relax("tanh"),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("-", b.const(1, y.type.dtype), b("*", y, y))),),
   number=lambda x: math.tanh(x),
   onnx=lambda o, x: o("Tanh", x),
   cases=(F32, SCALAR, F64, BF16, ([("f32", (9,), -50.0, 50.0)], {})),
   grad_cases=(F32,))

op("sigmoid", "1 / (1 + e**-x) of each element.",
   group="arithmetic", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.exp(-np.logaddexp(x.dtype.type(0), -x))),
   work=per_element(SIGMOID),
   relax=rounded_relax("sigmoid"),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("*", y, b("-", b.const(1, y.type.dtype), y))),),
   number=stable_sigmoid,
   onnx=lambda o, x: o("Sigmoid", x),
   cases=(F32, SCALAR, F64, BF16, ([("f32", (9,), -150.0, 150.0)], {})),
   grad_cases=(F32,))

op("erf", "The error function of each element: 2/sqrt(pi) times the integral of e**(-t*t) from 0 to x.",
   group="arithmetic", args=X, type=FLOAT, tolerance=TOLERANCE,
   ref=rounded(lambda np, x: np.vectorize(math.erf, otypes=[float])(x).astype(x.dtype)),
   work=per_element(SIGMOID),
   relax=rounded_relax("erf"),
   vjp=lambda b, dy, y, x: (scaled(b, dy, b("*", b.const(2 / math.sqrt(math.pi), y.type.dtype),
                                         b("exp", b("neg", b("*", x, x))))),),
   number=lambda x: math.erf(x),
   onnx=lambda o, x: o("Erf", x),
   cases=(F32, SCALAR, F64, BF16))

op("floor", "The largest whole number not above each element. The gradient is 0; a plain number gives an integer.",
   group="arithmetic", args=X, type=FLOAT,
   ref=rounded(lambda np, x: np.floor(x)),
   relax=rounded_relax("floor"),
   vjp=ZERO_GRAD,
   number=lambda x: math.floor(x),
   onnx=lambda o, x: o("Floor", x),
   cases=(([("f32", (3, 5), -3.0, 3.0)], {}), SCALAR, F64, BF16))

op("ceil", "The smallest whole number not below each element. The gradient is 0; a plain number gives an integer.",
   group="arithmetic", args=X, type=FLOAT,
   ref=rounded(lambda np, x: np.ceil(x)),
   relax=rounded_relax("ceil"),
   vjp=ZERO_GRAD,
   number=lambda x: math.ceil(x),
   onnx=lambda o, x: o("Ceil", x),
   cases=(([("f32", (3, 5), -3.0, 3.0)], {}), SCALAR, F64, BF16))

op("round", "The whole number nearest each element, the even one at a tie. The gradient is 0; a plain number gives "
   "an integer.",
   group="arithmetic", args=X, type=FLOAT,
   ref=rounded(lambda np, x: np.rint(x)),
   relax=rounded_relax("round"),
   vjp=ZERO_GRAD,
   number=lambda x: round(x),
   onnx=lambda o, x: o("Round", x),
   cases=(([("f32", (3, 5), -3.0, 3.0)], {}), SCALAR, F64, BF16))

op("clip", "Each element, but not below the number `lo` nor above `hi`; NaN stays NaN. The gradient is 1 from lo to "
   "hi and 0 outside.",
   group="arithmetic", args=(*X, attr("lo", "number"), attr("hi", "number")),
   normal=clip_normal,
   ref=lambda np, x, lo, hi: np.minimum(np.maximum(x, x.dtype.type(lo)), x.dtype.type(hi)),
   expand=clip_expand,
   number=lambda x, lo, hi: min(max(x, lo), hi),
   cases=(([("f32", (3, 5))], {"lo": -0.5, "hi": 0.75}), ([("f32", ())], {"lo": 0, "hi": 1}),
          ([("i32", (9,), -9, 9)], {"lo": -2, "hi": 3}), ([("bf16", (20,))], {"lo": -0.5, "hi": 0.75})))
