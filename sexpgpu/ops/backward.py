"""Gradients of the row operators as operators of their own, so that each is one kernel over rows."""

from __future__ import annotations

from typing import Any

from ..types import TensorType
from .rules import axis_attr
from .spec import key, op, tensor
from .stacking import summed

AXIS = key("axis", "int")
PAIR = [("f32", (3, 5)), ("f32", (3, 5))]
LONG_PAIR = [("f32", (4, 40)), ("f32", (4, 40))]
PAIRS = ((PAIR, {"axis": -1}), (PAIR, {"axis": 0}), (LONG_PAIR, {"axis": 1}),
         ([("f32", (2, 3, 4)), ("f32", (2, 3, 4))], {"axis": 1}), ([("f64", (3, 5)), ("f64", (3, 5))], {"axis": 1}))


def last_axis(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    return axis_attr(-1)(types, attrs)


def total(b: Any, x: Any, axis: int) -> Any:
    return b("sum", x, axes=(axis,), keepdims=True)


def softmax_grad_ref(np: Any, dy: Any, y: Any, axis: int) -> Any:
    return y * (dy - np.sum(dy * y, axis=axis, keepdims=True))


def softmax_grad_vjp(b: Any, dz: Any, z: Any, dy: Any, y: Any, axis: int) -> tuple[Any, Any]:
    """z is linear in dy, by a symmetric matrix."""
    along = b("*", dz, b("-", dy, total(b, b("*", dy, y), axis)))
    return b("softmax-grad", dz, y, axis=axis), b("-", along, b("*", dy, total(b, b("*", dz, y), axis)))


op("softmax-grad", "The gradient of y = softmax(x) along `axis`: y (dy - sum(dy y)).",
   group="neural", internal=True, args=(tensor("dy"), tensor("y"), AXIS), normal=last_axis,
   type=lambda dy, y, axis: dy,
   ref=softmax_grad_ref,
   relax=lambda r, dy, y, axis: r.kernel("softmax-grad", dy, y, axis=axis),
   vjp=softmax_grad_vjp,
   stack=summed,
   cases=PAIRS)


def log_softmax_grad_ref(np: Any, dy: Any, y: Any, axis: int) -> Any:
    return dy - np.exp(y) * np.sum(dy, axis=axis, keepdims=True)


def log_softmax_grad_vjp(b: Any, dz: Any, z: Any, dy: Any, y: Any, axis: int) -> tuple[Any, Any]:
    weighed = b("*", dz, b("exp", y))
    return b("-", dz, total(b, weighed, axis)), b("neg", b("*", weighed, total(b, dy, axis)))


op("log-softmax-grad", "The gradient of y = log-softmax(x) along `axis`: dy - exp(y) sum(dy).",
   group="neural", internal=True, args=(tensor("dy"), tensor("y"), AXIS), normal=last_axis,
   type=lambda dy, y, axis: dy,
   ref=log_softmax_grad_ref,
   relax=lambda r, dy, y, axis: r.kernel("log-softmax-grad", dy, y, axis=axis),
   vjp=log_softmax_grad_vjp,
   stack=summed,
   cases=PAIRS)


# -- normalization: with r = 1 / sqrt(mean(c^2) + eps), c the centred x ----------------------------------------------


def rms_grad_ref(np: Any, dy: Any, y: Any, x: Any, axes: Any, eps: float) -> Any:
    scale = 1 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(eps))
    return scale * (dy - y * np.mean(dy * y, axis=axes, keepdims=True))


def normalize_grad_ref(np: Any, dy: Any, y: Any, x: Any, axes: Any, eps: float) -> Any:
    x, dy = (v - np.mean(v, axis=axes, keepdims=True) for v in (x, dy))
    return rms_grad_ref(np, dy, y, x, axes, eps)


TRIPLE = [("f32", (3, 5))] * 3
NORMS = ((TRIPLE, {"axes": (1,), "eps": 1e-5}), (TRIPLE, {"axes": (0, 1), "eps": 1e-5}),
         ([("f32", (2, 3, 40))] * 3, {"axes": (2,), "eps": 1e-3}),
         ([("f32", (2, 6, 3))] * 3, {"axes": (1,), "eps": 1e-5}),
         ([("f64", (3, 5))] * 3, {"axes": (1,), "eps": 1e-5}))

for name, formula, ref in (
    ("normalize-grad", "r (dy - mean(dy) - y mean(dy y)), r the scale of x - mean(x)", normalize_grad_ref),
    ("rms-normalize-grad", "r (dy - y mean(dy y)), r the scale of x", rms_grad_ref),
):
    op(name, f"The gradient of y = {name.removesuffix('-grad')}(x) over `axes`: {formula}.",
       group="neural", internal=True,
       args=(tensor("dy"), tensor("y"), tensor("x"), key("axes", "ints"), key("eps", "number")),
       type=lambda dy, y, x, axes, eps: dy,
       ref=ref,
       relax=lambda r, dy, y, x, axes, eps, name=name: r.kernel(name, dy, y, x, axes=axes, eps=eps),
       vjp=None,  # a run has one backward pass, and nothing differentiates it
       stack=summed,
       cases=NORMS,
       tolerance=(1e-5, 2e-6))  # the scale carries the roundings of two sums
