"""Gradients of the row operators as operators of their own, so that each is one kernel over rows."""

from __future__ import annotations

import math
from typing import Any

from .batching import attended, summed
from .cotangents import scaled, strong_ref
from .nn import ATTEND_CASES, softmax_of_scores
from .reduction import halves_in_f32
from .spec import key, op, tensor
from .type_rules import axis_attr
from .work import NORMALIZE, SOFTMAX, attention_work, per_element

AXIS = key("axis", "int")
PAIR = [("f32", (3, 5)), ("f32", (3, 5))]
LONG_PAIR = [("f32", (4, 40)), ("f32", (4, 40))]
PAIRS = ((PAIR, {"axis": -1}), (PAIR, {"axis": 0}), (LONG_PAIR, {"axis": 1}),
         ([("f32", (2, 3, 4)), ("f32", (2, 3, 4))], {"axis": 1}), ([("f64", (3, 5)), ("f64", (3, 5))], {"axis": 1}))


def total(b: Any, x: Any, axis: int) -> Any:
    """The sum of ``x`` along ``axis``, which stays as 1."""
    return b("sum", x, axes=(axis,), keepdims=True)


def softmax_grad_ref(np: Any, dy: Any, y: Any, axis: int) -> Any:
    apart = dy - np.sum(strong_ref(np, dy, dy * y), axis=axis, keepdims=True)
    return strong_ref(np, apart, y * apart)


def total_like(b: Any, x: Any, axis: int) -> Any:
    """As ``total``, repeated along ``axis``."""
    return b("broadcast", total(b, x, axis), shape=x.type.shape)


def softmax_grad_vjp(b: Any, dz: Any, z: Any, dy: Any, y: Any, axis: int) -> tuple[Any, Any]:
    """z is linear in dy, by a symmetric matrix."""
    along = scaled(b, dz, b("-", dy, total(b, scaled(b, dy, y), axis)))
    return b("softmax-grad", dz, y, axis=axis), b("-", along, scaled(b, total_like(b, scaled(b, dz, y), axis), dy))


op("softmax-grad", "The gradient of y = softmax(x) along `axis`: y (dy - sum(dy y)).",
   group="neural", internal=True, args=(tensor("dy"), tensor("y"), AXIS), normal=axis_attr(-1),
   type=lambda dy, y, axis: dy,
   ref=softmax_grad_ref,
   work=per_element(SOFTMAX),
   relax=lambda r, dy, y, axis: r.kernel("softmax-grad", dy, y, axis=axis),
   vjp=softmax_grad_vjp,
   stack=summed,
   cases=PAIRS)


def log_softmax_grad_ref(np: Any, dy: Any, y: Any, axis: int) -> Any:
    whole = np.sum(dy, axis=axis, keepdims=True)
    return dy - strong_ref(np, whole, np.exp(y) * whole)


def log_softmax_grad_vjp(b: Any, dz: Any, z: Any, dy: Any, y: Any, axis: int) -> tuple[Any, Any]:
    """Of z = dy - exp(y) sum(dy): the cotangents of dy and y."""
    weighed = scaled(b, dz, b("exp", y))
    return b("-", dz, total(b, weighed, axis)), b("neg", scaled(b, weighed, total(b, dy, axis)))


op("log-softmax-grad", "The gradient of y = log-softmax(x) along `axis`: dy - exp(y) sum(dy).",
   group="neural", internal=True, args=(tensor("dy"), tensor("y"), AXIS), normal=axis_attr(-1),
   type=lambda dy, y, axis: dy,
   ref=log_softmax_grad_ref,
   work=per_element(SOFTMAX),
   relax=lambda r, dy, y, axis: r.kernel("log-softmax-grad", dy, y, axis=axis),
   vjp=log_softmax_grad_vjp,
   stack=summed,
   cases=PAIRS)


# -- normalization: with r = 1 / sqrt(mean(c^2) + eps), c the centred x ----------------------------------------------


def rms_grad_ref(np: Any, dy: Any, y: Any, x: Any, axes: Any, eps: float) -> Any:
    """r (dy - y mean(dy y)), r the scale of ``x``."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(eps))
    along = np.mean(strong_ref(np, dy, dy * y), axis=axes, keepdims=True)
    apart = dy - strong_ref(np, along, y * along)
    return strong_ref(np, apart, scale * apart)


def normalize_grad_ref(np: Any, dy: Any, y: Any, x: Any, axes: Any, eps: float) -> Any:
    """The same of centred ``x`` and ``dy``: as y sums to 0, the mean of dy y is that of the centred dy too."""
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
       ref=ref, work=per_element(NORMALIZE),
       relax=lambda r, dy, y, x, axes, eps, name=name: r.kernel(name, dy, y, x, axes=axes, eps=eps),
       vjp=None,  # a run has one backward pass, and nothing differentiates it
       stack=summed,
       cases=NORMS,
       tolerance=(1e-5, 2e-6))  # the scale carries the roundings of two sums


# -- attention: rows of which one kernel makes all results ------------------------------------------------------------


def attend_grads(np: Any, dy: Any, q: Any, k: Any, v: Any, *mask: Any, causal: bool) -> tuple[Any, Any, Any]:
    """The gradients of q, k and v; with w the weights, those of the scores are w (dw - sum(dw w))."""
    q, k, v = (np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (q, k, v))
    turned = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731
    seen, soft = softmax_of_scores(np, q, k, mask[0] if mask else None, causal)
    shown = lambda x: np.where(seen, x, x.dtype.type(0))  # noqa: E731
    dscores = shown(softmax_grad_ref(np, shown(dy @ turned(v)), soft, -1)) / math.sqrt(q.shape[-1])
    return dscores @ k, turned(dscores) @ q, turned(shown(soft)) @ dy


def attend_grad_cases() -> tuple[Any, ...]:
    """Those of attend, each with a gradient of its result before its arguments."""
    made = []
    for types, attrs in ATTEND_CASES:
        (dtype, shape), v = types[0], types[2]
        made.append(([(dtype, (*shape[:-1], v[1][-1])), *types], attrs))
    return tuple(made)


# One kernel makes all three; the scores and what the gradients share is counted with that of q.
GRADIENTS = (("q", attention_work(qk_products=2, pv_products=1, softmaxes=2, elementwise=2)),
             ("k", attention_work(qk_products=1, pv_products=0, softmaxes=0, elementwise=0)),
             ("v", attention_work(qk_products=0, pv_products=1, softmaxes=0, elementwise=0)))

for n, (name, work) in enumerate(GRADIENTS):
    op(f"attend-grad-{name}", f"The gradient of attend with respect to {name}; dy stands before attend's arguments.",
       group="neural", internal=True,
       args=(tensor("dy"), tensor("q"), tensor("k"), tensor("v"), key("causal", "bool")),
       type=lambda dy, q, k, v, *mask, causal, n=n: (q, k, v)[n],
       ref=halves_in_f32(lambda np, *xs, causal, n=n: attend_grads(np, *xs, causal=causal)[n]),
       relax=lambda r, *xs, causal, n=n: r.one_of(n, "attend-grad", *xs, causal=causal),
       vjp=None,  # a run has one backward pass, and nothing differentiates it
       stack=attended,
       cases=attend_grad_cases()[n::3],  # each makes all three, in a kernel that takes long to compile
       strided=True, shares="attend-grad", work=work,
       tolerance=(1e-5, 2e-6))  # a gradient of a score is a difference, and carries the roundings of two sums
