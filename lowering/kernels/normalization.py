"""Tensor programs over rows: normalization, and the gradients of normalization and softmax as one program each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .reduction import Elements, dtype_of, merge, reduce_axes, widened
from .registry import kernel


def total(x: Elements, like: te.Tensor, axes: Sequence[int], name: str) -> Any:
    """The sum of ``x`` over ``axes``, which the result lacks."""
    over = reduce_axes(like, axes)
    kept = [m for a, m in enumerate(like.shape) if a not in axes]
    return te.compute(kept, lambda *at: te.sum(x(merge(at, over, axes, len(like.shape), False)), axis=over), name)


def mean(x: Elements, like: te.Tensor, axes: Sequence[int], name: str) -> Any:
    """The mean of ``x`` over ``axes``, which the result lacks: a sum divided by the count."""
    sums, n = total(x, like, axes, name), math.prod(int(like.shape[a]) for a in axes)
    return te.compute(sums.shape, lambda *at: sums(*at) / tirx.const(n, dtype_of(sums)), f"{name}_mean")


def outer(at: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """The place ``at`` without ``axes``: where the result of a reduction has what belongs to it."""
    return [i for a, i in enumerate(at) if a not in axes]


def strong(dy: Any, factor: Any) -> Any:
    """The cotangent ``dy`` times ``factor``, 0 where it is 0 whatever the factor (sexpgpu/ops/cotangents.py). A
    product, which a sum adds by one fused step."""
    zero = tirx.const(0, dtype_of(dy))
    return dy * tirx.Select(dy == zero, zero, factor)


@kernel("rms-normalize")
def rms_normalize(x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """x / sqrt(mean(x^2) + eps)."""
    return scaled(lambda at: widened(x(*at)), x, axes, eps)


@kernel("normalize")
def normalize(x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """The variance is that of the centred values: a mean of squares less the square of the mean loses all digits."""
    centre: Any = mean(lambda at: widened(x(*at)), x, axes, "sum")
    return scaled(lambda at: widened(x(*at)) - centre(*outer(at, axes)), x, axes, eps)


def scale_of(v: Elements, like: te.Tensor, axes: Sequence[int], eps: float) -> Elements:
    """1 over the root of the mean square of ``v`` plus ``eps``."""
    square: Any = mean(lambda at: v(at) * v(at), like, axes, "squares")
    return lambda at: tirx.rsqrt(square(*outer(at, axes)) + tirx.const(eps, dtype_of(square)))


def scaled(v: Elements, x: te.Tensor, axes: Sequence[int], eps: float) -> Any:
    """``v`` times its scale, in the shape of ``x`` and rounded once to its dtype."""
    scale = scale_of(v, x, axes, eps)
    return te.compute(x.shape, lambda *at: (v(at) * scale(at)).astype(dtype_of(x)), "scaled")


@kernel("rms-normalize-grad")
def rms_normalize_grad(
    dy: te.Tensor, y: te.Tensor, x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float
) -> Any:
    """r (dy - y mean(dy y)), r the scale of ``x``."""
    return scaled_grad(lambda at: dy(*at), y, lambda at: x(*at), axes, eps)


@kernel("normalize-grad")
def normalize_grad(dy: te.Tensor, y: te.Tensor, x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """r (dy - mean(dy) - y mean(dy y)), r the scale of x - mean(x)."""
    centre: Any = mean(lambda at: x(*at), x, axes, "sum")
    tilt: Any = mean(lambda at: dy(*at), x, axes, "tilt")
    return scaled_grad(
        lambda at: dy(*at) - tilt(*outer(at, axes)), y, lambda at: x(*at) - centre(*outer(at, axes)), axes, eps
    )


def scaled_grad(dy: Elements, y: te.Tensor, x: Elements, axes: Sequence[int], eps: float) -> Any:
    """r (dy - y mean(dy y)), r the scale of ``x``."""
    scale = scale_of(x, y, axes, eps)
    along: Any = mean(lambda at: strong(dy(at), y(*at)), y, axes, "along")
    apart = lambda at: dy(at) - strong(along(*outer(at, axes)), y(*at))  # noqa: E731
    return te.compute(y.shape, lambda *at: strong(apart(at), scale(at)), "scaled_grad")


@kernel("softmax-grad")
def softmax_grad(dy: te.Tensor, y: te.Tensor, out: TensorType, axis: int) -> Any:
    """y (dy - sum(dy y))."""
    along = total(lambda at: strong(dy(*at), y(*at)), y, [axis], "along")
    apart = lambda at: dy(*at) - along(*outer(at, [axis]))  # noqa: E731
    return te.compute(y.shape, lambda *at: strong(apart(at), y(*at)), "softmax_grad")


@kernel("log-softmax-grad")
def log_softmax_grad(dy: te.Tensor, y: te.Tensor, out: TensorType, axis: int) -> Any:
    """dy - exp(y) sum(dy)."""
    along = total(lambda at: dy(*at), y, [axis], "along")
    weigh = lambda at: strong(along(*outer(at, [axis])), tirx.exp(y(*at)))  # noqa: E731
    return te.compute(y.shape, lambda *at: dy(*at) - weigh(at), "log_softmax_grad")
