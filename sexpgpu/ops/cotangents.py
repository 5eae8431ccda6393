"""A cotangent times a derivative, by the one rule of all gradients: a cotangent that is exactly 0 gives 0, whatever the
derivative is (a strong zero). So what a ``where`` or a mask leaves out adds nothing, also where its derivative is
infinite or NaN: IEEE's 0 times infinity would be NaN. And a derivative that is exactly 0 gives 0, though the cotangent
is infinite: the root of a variance of 0 moves nothing. A cotangent that is NaN is never lost.
"""

from __future__ import annotations

import math
from typing import Any

from .create import number_of
from .spec import op, tensor
from .type_rules import FLOATS, joined


def scaled(b: Any, dy: Any, derivative: Any) -> Any:
    """``dy`` times ``derivative``. A finite number other than 0 needs no test."""
    return b("*" if _plain(derivative) else "strong-product", dy, derivative)


def divided(b: Any, dy: Any, divisor: Any) -> Any:
    """``dy`` over ``divisor``. A finite number other than 0 needs no test."""
    g = b("/", dy, divisor)
    return g if _plain(divisor) else b("strong-zero", dy, g)


def _plain(x: Any) -> bool:
    number = number_of(x)
    return number is not None and math.isfinite(number) and number != 0


def strong_ref(np: Any, dy: Any, g: Any) -> Any:
    """``g``, which has ``dy`` as a factor, but 0 where that is 0."""
    return np.where(dy == 0, g.dtype.type(0), g)


op("strong-zero", "g, but 0 where the cotangent dy is 0; a NaN of dy is none.",
   group="logic", internal=True, args=(tensor("dy"), tensor("g")), type=joined(FLOATS),
   ref=strong_ref,
   relax=lambda r, dy, g: r.kernel("strong-zero", dy, g),
   vjp=lambda b, dz, z, dy, g: (None, b("strong-zero", dy, dz)),
   cases=(([("f32", (3, 5)), ("f32", (3, 5))], {}), ([("f32", ()), ("f32", ())], {}),
          ([("bf16", (3, 20)), ("bf16", (3, 20))], {}), ([("f64", (7,)), ("f64", (7,))], {})),
   grad_cases=())


def product_ref(np: Any, dy: Any, d: Any) -> Any:
    return np.where((dy == 0) | ((d == 0) & (dy == dy)), dy.dtype.type(0), dy * d)


op("strong-product", "The cotangent dy times the derivative d, but 0 where either is 0; a NaN of dy stays one.",
   group="logic", internal=True, args=(tensor("dy"), tensor("d")), type=joined(FLOATS),
   ref=product_ref,
   relax=lambda r, dy, d: r.kernel("strong-product", dy, d),
   vjp=lambda b, dz, z, dy, d: (b.fit(scaled(b, dz, d), dy), b.fit(scaled(b, dz, dy), d)),
   cases=(([("f32", (3, 5)), ("f32", (5,))], {}), ([("f32", ()), ("f32", (2, 3))], {}),
          ([("bf16", (3, 20)), ("bf16", (3, 20))], {}), ([("f64", (7,)), ("f64", (7,))], {})))
