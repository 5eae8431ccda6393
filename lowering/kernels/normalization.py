"""Tensor programs over rows: normalization, and the gradients of normalization and softmax as one program each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .reduction import Elements, dtype_of, merge_index, reduce_axes, widened
from .registry import kernel


def sum_over(x: Elements, like: te.Tensor, axes: Sequence[int], name: str) -> Any:
    """The sum of ``x`` over ``axes``, which the result lacks."""
    reduced = reduce_axes(like, axes)
    shape = [m for a, m in enumerate(like.shape) if a not in axes]
    return te.compute(
        shape, lambda *index: te.sum(x(merge_index(index, reduced, axes, len(like.shape), False)), axis=reduced), name
    )


def mean_over(x: Elements, like: te.Tensor, axes: Sequence[int], name: str) -> Any:
    """The mean of ``x`` over ``axes``, which the result lacks: a sum divided by the count."""
    sums, n = sum_over(x, like, axes, name), math.prod(int(like.shape[a]) for a in axes)
    return te.compute(sums.shape, lambda *index: sums(*index) / tirx.const(n, dtype_of(sums)), f"{name}_mean")


def without_axes(index: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """The place ``index`` without ``axes``: where the result of a reduction has what belongs to it."""
    return [i for a, i in enumerate(index) if a not in axes]


def strong_zero_product(dy: Any, factor: Any) -> Any:
    """The cotangent ``dy`` times ``factor``, 0 where it is 0 whatever the factor (sexpgpu/ops/cotangents.py). A
    product, which a sum adds by one fused step."""
    zero = tirx.const(0, dtype_of(dy))
    return dy * tirx.Select(dy == zero, zero, factor)


@kernel("rms-normalize")
def rms_normalize(x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """x / sqrt(mean(x^2) + eps)."""
    return scaled(lambda index: widened(x(*index)), x, axes, eps)


@kernel("normalize")
def normalize(x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """The variance is that of the centred values: a mean of squares less the square of the mean loses all digits."""
    row_mean: Any = mean_over(lambda index: widened(x(*index)), x, axes, "sum")
    return scaled(lambda index: widened(x(*index)) - row_mean(*without_axes(index, axes)), x, axes, eps)


def inverse_rms(elements: Elements, like: te.Tensor, axes: Sequence[int], eps: float) -> Elements:
    """1 over the root of the mean square of ``elements`` plus ``eps``."""
    mean_square: Any = mean_over(lambda index: elements(index) * elements(index), like, axes, "squares")
    return lambda index: tirx.rsqrt(mean_square(*without_axes(index, axes)) + tirx.const(eps, dtype_of(mean_square)))


def scaled(elements: Elements, x: te.Tensor, axes: Sequence[int], eps: float) -> Any:
    """``elements`` times its scale, in the shape of ``x`` and rounded once to its dtype."""
    scale = inverse_rms(elements, x, axes, eps)
    return te.compute(x.shape, lambda *index: (elements(index) * scale(index)).astype(dtype_of(x)), "scaled")


@kernel("rms-normalize-grad")
def rms_normalize_grad(
    dy: te.Tensor, y: te.Tensor, x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float
) -> Any:
    """r (dy - y mean(dy y)), r the scale of ``x``."""
    return scaled_grad(lambda index: dy(*index), y, lambda index: x(*index), axes, eps)


@kernel("normalize-grad")
def normalize_grad(dy: te.Tensor, y: te.Tensor, x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """r (dy - mean(dy) - y mean(dy y)), r the scale of x - mean(x)."""
    row_mean: Any = mean_over(lambda index: x(*index), x, axes, "sum")
    dy_mean: Any = mean_over(lambda index: dy(*index), x, axes, "tilt")
    return scaled_grad(
        lambda index: dy(*index) - dy_mean(*without_axes(index, axes)),
        y,
        lambda index: x(*index) - row_mean(*without_axes(index, axes)),
        axes,
        eps,
    )


def scaled_grad(dy: Elements, y: te.Tensor, x: Elements, axes: Sequence[int], eps: float) -> Any:
    """r (dy - y mean(dy y)), r the scale of ``x``."""
    scale = inverse_rms(x, y, axes, eps)
    mean_dot: Any = mean_over(lambda index: strong_zero_product(dy(index), y(*index)), y, axes, "along")
    projected = lambda index: dy(index) - strong_zero_product(mean_dot(*without_axes(index, axes)), y(*index))  # noqa: E731
    return te.compute(y.shape, lambda *index: strong_zero_product(projected(index), scale(index)), "scaled_grad")


@kernel("softmax-grad")
def softmax_grad(dy: te.Tensor, y: te.Tensor, out: TensorType, axis: int) -> Any:
    """y (dy - sum(dy y))."""
    row_dot = sum_over(lambda index: strong_zero_product(dy(*index), y(*index)), y, [axis], "along")
    centred = lambda index: dy(*index) - row_dot(*without_axes(index, [axis]))  # noqa: E731
    return te.compute(y.shape, lambda *index: strong_zero_product(centred(index), y(*index)), "softmax_grad")


@kernel("log-softmax-grad")
def log_softmax_grad(dy: te.Tensor, y: te.Tensor, out: TensorType, axis: int) -> Any:
    """dy - exp(y) sum(dy)."""
    dy_sum = sum_over(lambda index: dy(*index), y, [axis], "along")
    weighted_sum = lambda index: strong_zero_product(dy_sum(*without_axes(index, [axis])), tirx.exp(y(*index)))  # noqa: E731
    return te.compute(y.shape, lambda *index: dy(*index) - weighted_sum(index), "log_softmax_grad")
