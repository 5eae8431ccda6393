"""Activations: element by element, without parameters.

gelu and silu are rows of their own, whose derivatives are made of their argument alone: a training step keeps that and
no step of the formula, and each gradient is one kernel, or the end of the product that is differentiated after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .batching import pointwise
from .cotangents import scaled
from .reduction import halves_in_f32, in_f32, in_wide, widening
from .spec import op, tensor
from .type_rules import FLOATS, need, unary
from .work import GELU, per_element

HINT = "cast it to a float dtype first"
X = (tensor("x"),)
F = [("f32", (3, 5))]
FLOAT_CASES = ((F, {}), ([("f32", (40,), -30.0, 30.0)], {}), ([("f64", (2, 3))], {}), ([("bf16", (3, 7))], {}),
               ([("f16", (3, 7))], {}))
SCALE, CUBE = math.sqrt(2 / math.pi), 0.044715  # of gelu
FAR = 128.0  # from here on derivatives are 0 or 1, as float64 has them too


def floats_only(f: Callable[..., Any]) -> Callable[..., Any]:
    """An ``expand`` column: ``f`` on a float, TypeFault for any other tensor."""

    def expand(b: Any, x: Any, **attrs: Any) -> Any:
        need(FLOATS, x.type, hint=HINT)
        return f(b, x, **attrs)

    return expand


def bound(f: Callable[..., Any]) -> Callable[..., Any]:
    """A ``relax`` column of one argument for ``f``, which takes a variable."""
    return in_f32(lambda r, x: f(r, r.bound(x)))


def relu(b: Any, x: Any) -> Any:
    """Not ``x > 0``: so a NaN stays one, and the gradient at 0 is 0."""
    zero = b.const(0, x.type.dtype)
    return b("where", b("<=", x, zero), zero, x)


def softplus(b: Any, x: Any) -> Any:
    """max(x, 0) + log1p(exp(-|x|)), written so that the gradient at 0 is 1/2."""
    zero = b.const(0, x.type.dtype)
    positive = b(">", x, zero)
    tail = b("log1p", b("exp", b("where", positive, b("neg", x), x)))
    return b("+", b("where", positive, x, zero), tail)


def gelu_ref(np: Any, x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(SCALE * (x + CUBE * x * x * x)))


def gelu_slope_ref(np: Any, x: Any) -> Any:
    near = np.clip(x, -FAR, FAR)
    t = np.tanh(SCALE * (near + CUBE * near * near * near))
    return 0.5 * (1 + t) + 0.5 * near * (1 - t * t) * SCALE * (1 + 3 * CUBE * near * near)


def gelu(r: Any, x: Any) -> Any:
    """x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is the tanh form: (1 + tanh(u)) / 2 = sigmoid(2 u)."""
    const = lambda number: r.const(number, r.dtype(x))  # noqa: E731
    inner = r.add(const(2 * SCALE), r.multiply(const(2 * SCALE * CUBE), r.multiply(x, x)))
    return r.multiply(x, r.sigmoid(r.multiply(x, inner)))


def held(r: Any, x: Any) -> Any:
    """``x`` where powers of it do not overflow: beyond, every slope is that of the end."""
    low, high = (r.const(number, r.dtype(x)) for number in (-FAR, FAR))
    return r.bound(r.where(r.less(x, low), low, r.where(r.greater(x, high), high, x)))


def gelu_slope(r: Any, x: Any) -> Any:
    """s (1 + x (1 - s) (c + 3 d x^2)) with s = sigmoid(c x + d x^3)."""
    const = lambda number: r.const(number, r.dtype(x))  # noqa: E731
    x = held(r, x)
    square = r.bound(r.multiply(x, x))
    inner = r.add(const(2 * SCALE), r.multiply(const(2 * SCALE * CUBE), square))
    slope = r.add(const(2 * SCALE), r.multiply(const(6 * SCALE * CUBE), square))
    return _of_sigmoid(r, x, r.multiply(x, inner), slope)


def silu_slope(r: Any, x: Any) -> Any:
    """s (1 + x (1 - s)) with s = sigmoid(x)."""
    x = held(r, x)
    return _of_sigmoid(r, x, x, None)


def _of_sigmoid(r: Any, x: Any, inner: Any, slope: Any) -> Any:
    """The derivative of x s with s = sigmoid(``inner``): s (1 + x (1 - s) ``slope``)."""
    one, s = r.const(1, r.dtype(x)), r.bound(r.sigmoid(inner))
    rest = r.multiply(x, r.subtract(one, s))
    return r.multiply(s, r.add(one, rest if slope is None else r.multiply(rest, slope)))


def silu_slope_ref(np: Any, x: Any) -> Any:
    x = np.clip(x, -FAR, FAR)
    s = np.exp(-np.logaddexp(x.dtype.type(0), -x))
    return s * (1 + x * (1 - s))


def activation(name: str, doc: str, value: Any, value_ref: Any, slope: Any, slope_ref: Any) -> None:
    """A row of f32 arithmetic, and the row of its derivative."""
    common: Any = {"group": "neural", "elementwise": True, "stack": pointwise, "args": X, "cases": FLOAT_CASES,
                   "type": unary(FLOATS, hint=HINT), "work": per_element(GELU)}  # fmt: skip
    op(name, doc, ref=halves_in_f32(value_ref), relax=bound(value),
       vjp=widening(lambda b, dy, y, x: scaled(b, dy, b(f"{name}-slope", x))), **common)
    op(f"{name}-slope", f"The derivative of {name}.", internal=True, ref=halves_in_f32(slope_ref),
       relax=bound(slope), vjp=None, **common)  # a run has one backward pass, and nothing differentiates it


op("relu", "x where it is positive, else 0. The gradient at 0 is 0.",
   group="neural", args=X, expand=floats_only(relu),
   ref=lambda np, x: np.where(x <= 0, x.dtype.type(0), x), cases=FLOAT_CASES)

activation(
    "gelu", "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh form of Hendrycks and Gimpel, arXiv:1606.08415.",
    gelu, gelu_ref, gelu_slope, gelu_slope_ref)  # fmt: skip

activation(
    "silu", "x sigmoid(x), also called swish.",
    lambda r, x: r.multiply(x, r.sigmoid(x)), lambda np, x: x / (1 + np.exp(-x)),
    silu_slope, silu_slope_ref)  # fmt: skip

op("softplus", "log(1 + exp(x)), without overflow.",
   group="neural", args=X, expand=floats_only(in_wide(softplus)),
   ref=halves_in_f32(lambda np, x: np.logaddexp(x, x.dtype.type(0))), cases=FLOAT_CASES)
