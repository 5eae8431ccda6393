"""(mean-over-step x :weights w): a weighted mean over all microbatches of a step.

A mean of each microbatch's own mean weighs its records by how many the microbatch has that count. Here numerators and
weights are added up over the step, and divided once: the gradient is that of one large batch, however it is cut. The
sum of weights travels with the gradients' sums, as one more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ..graph.core import Builder, Value
from ..language import codes
from ..language.diagnostics import UserError
from ..ops.types import ShapeFault, TensorType, broadcast
from .operator_call import as_tensor
from .values import Call, Key, StepMean, describe

USE = "(mean-over-step x :weights w)"
SCALAR = TensorType((), "f32")
WEIGHT = "/weight"  # behind a metric's name: the weight of that number, which the runner takes means with
STEP_WEIGHT = "step-weight"  # the sum of weights among the gradients' sums; a parameter has its model in its name


@frozen(eq=False)
class Loss:
    """What objective returns: ``value``, of the microbatch alone; ``total``, whose gradients are added up over the
    step, and ``weight``, the sum of which they are divided by: None for a plain mean over microbatches."""

    value: Value
    total: Value
    weight: Value | None = None


def mean_over_step(b: Builder, x: Value, call: Call) -> StepMean:
    """The value of the call, whose first argument is ``x``."""
    b.span = call.span
    if x.type.kind != "float":
        what = f"mean-over-step needs a float, not {x.type}"
        raise UserError(codes.TYPE_MIX, call.spans[0], what, hint="cast it to :f32")
    w = weights_of(b, call, x.type)
    x, zero = as_f32(b, x), b.const(0.0, "f32")
    axes = {"axes": tuple(range(x.type.rank)), "keepdims": False}
    terms = b("where", b("=", w, zero), zero, b("*", x, w))
    return StepMean(b("sum", terms, **axes), b("sum", w, **axes))


def weights_of(b: Builder, call: Call, type: TensorType) -> Value:
    """The weights as f32, of the shape of x, without a gradient. E-CALL-001, -002 and E-SHAPE-001."""
    if len(call.args) == 1:
        return b.full(1.0, TensorType(type.shape, "f32"))
    if call.args[1] != Key("weights"):
        what = f"mean-over-step takes :weights, not {describe(call.args[1])}"
        raise UserError(codes.CALL_KEYWORD, call.spans[1], what, hint=USE)
    if len(call.args) == 2:
        raise UserError(codes.CALL_KEYWORD, call.spans[1], ":weights has no value", hint=USE)
    w = as_tensor(b, call.args[2], "f32", call.spans[2], "mean-over-step needs a tensor")
    try:
        fits = broadcast(type.shape, w.type.shape) == type.shape
    except ShapeFault:
        fits = False
    if not fits:
        what = f"the weights {w.type} do not broadcast to {type}"
        raise UserError(codes.SHAPE_FIT, call.spans[2], what, hint="reshape them, with 1 where they are repeated")
    w = b("stop-gradient", as_f32(b, w))
    return w if w.type.shape == type.shape else b("broadcast", w, shape=type.shape)


def as_f32(b: Builder, x: Value) -> Value:
    return x if x.type.dtype == "f32" else b("cast", x, dtype="f32")


def loss_of(b: Builder, made: Any) -> Loss | None:
    """What objective returned as a Loss; None where it is neither a scalar f32 nor a mean over the step."""
    if isinstance(made, StepMean):
        return Loss(value_of(b, made), made.total, made.weight)
    return Loss(made, made) if isinstance(made, Value) and made.type == SCALAR else None


def value_of(b: Builder, made: StepMean) -> Value:
    """The mean of one microbatch; 0 where all weights are."""
    zero, one = b.const(0.0, "f32"), b.const(1.0, "f32")
    none = b("=", made.weight, zero)
    return b("where", none, zero, b("/", made.total, b("where", none, one, made.weight)))


def reported(name: str, value: Value, weight: Value | None) -> list[tuple[str, str, Value]]:
    """The metric ``name``, and its weight."""
    own = [("metric", name, value)]
    return own if weight is None else [*own, ("metric", name + WEIGHT, weight)]


def clashes(name: str, metrics: Mapping[str, Any], is_mean: bool) -> bool:
    """Would the metric ``name``, or the weight of one, have the name of another?"""
    weights = {other + WEIGHT for other, found in metrics.items() if isinstance(found[0], StepMean)}
    return name in weights or name == "loss" + WEIGHT or (is_mean and name + WEIGHT in metrics)


def weighed(b: Builder, grads: Mapping[str, Value], weight: Value) -> dict[str, Value]:
    """Gradients of a step's numerator over the step's weight; 0 where that is."""
    zero, one = b.const(0.0, "f32"), b.const(1.0, "f32")
    none = b("=", weight, zero)
    scale = b("where", none, zero, b("/", one, b("where", none, one, weight)))
    return {n: b("*", g, scale) for n, g in grads.items()}
