"""Tensor programs over rows: layer and RMS normalization, and the gradients of normalization and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .reduction import Elements, dtype_of, merge_index, reduce_axes, widened
from .registry import kernel


def sum_over(x: Elements, like: te.Tensor, axes: Sequence[int], name: str) -> Any:
    """The sum of ``x`` over ``axes``, without keepdims."""
    reduced = reduce_axes(like, axes)
    shape = [m for a, m in enumerate(like.shape) if a not in axes]

    def row_sum(*index: Any) -> Any:
        return te.sum(x(merge_index(index, reduced, axes, len(like.shape), False)), axis=reduced)

    return te.compute(shape, row_sum, name)


def mean_over(x: Elements, like: te.Tensor, axes: Sequence[int], name: str) -> Any:
    """The mean of ``x`` over ``axes``, without keepdims: a sum divided by the count."""
    sums, n = sum_over(x, like, axes, name), math.prod(int(like.shape[a]) for a in axes)
    return te.compute(sums.shape, lambda *index: sums(*index) / tirx.const(n, dtype_of(sums)), f"{name}_mean")


def without_axes(index: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """``index`` without ``axes``: the index into the result of a reduction over them."""
    return [i for a, i in enumerate(index) if a not in axes]


def strong_zero_product(dy: Any, factor: Any) -> Any:
    """The cotangent ``dy`` times ``factor``; 0 where ``dy`` is 0, also for a factor that is not finite
    (sexpgpu/ops/cotangents.py). The outermost operation is a product, so that a sum adds it by one fused
    multiply-add."""
    zero = tirx.const(0, dtype_of(dy))
    return dy * tirx.Select(dy == zero, zero, factor)


@kernel("rms-normalize")
def rms_normalize(x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """x / sqrt(mean(x^2) + eps)."""
    return scaled(lambda index: widened(x(*index)), x, axes, eps)


@kernel("normalize")
def normalize(x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """(x - mean) / sqrt(var + eps). The variance is computed from the centred values: mean(x^2) - mean(x)^2 would
    cancel all digits."""
    row_mean: Any = mean_over(lambda index: widened(x(*index)), x, axes, "sum")
    return scaled(lambda index: widened(x(*index)) - row_mean(*without_axes(index, axes)), x, axes, eps)


def inverse_rms(elements: Elements, like: te.Tensor, axes: Sequence[int], eps: float) -> Elements:
    """1 / sqrt(mean(elements^2) + eps)."""
    mean_square: Any = mean_over(lambda index: elements(index) * elements(index), like, axes, "squares")
    return lambda index: tirx.rsqrt(mean_square(*without_axes(index, axes)) + tirx.const(eps, dtype_of(mean_square)))


def scaled(elements: Elements, x: te.Tensor, axes: Sequence[int], eps: float) -> Any:
    """``elements`` times their inverse RMS, in the shape of ``x`` and rounded once to its dtype."""
    scale = inverse_rms(elements, x, axes, eps)
    return te.compute(x.shape, lambda *index: (elements(index) * scale(index)).astype(dtype_of(x)), "scaled")


@kernel("rms-normalize-grad")
def rms_normalize_grad(
    dy: te.Tensor, y: te.Tensor, x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float
) -> Any:
    """r (dy - y mean(dy y)), with r the inverse RMS of ``x``."""
    return scaled_grad(lambda index: dy(*index), y, lambda index: x(*index), axes, eps)


@kernel("normalize-grad")
def normalize_grad(dy: te.Tensor, y: te.Tensor, x: te.Tensor, out: TensorType, axes: Sequence[int], eps: float) -> Any:
    """r (dy - mean(dy) - y mean(dy y)), with r the inverse RMS of x - mean(x)."""
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
    """r (dy - y mean(dy y)), with r the inverse RMS of ``x``."""
    scale = inverse_rms(x, y, axes, eps)
    mean_dot: Any = mean_over(lambda index: strong_zero_product(dy(index), y(*index)), y, axes, "along")

    def projected(index: Sequence[Any]) -> Any:
        return dy(index) - strong_zero_product(mean_dot(*without_axes(index, axes)), y(*index))

    return te.compute(y.shape, lambda *index: strong_zero_product(projected(index), scale(index)), "scaled_grad")


@kernel("softmax-grad")
def softmax_grad(dy: te.Tensor, y: te.Tensor, out: TensorType, axis: int) -> Any:
    """y (dy - sum(dy y))."""
    row_dot = sum_over(lambda index: strong_zero_product(dy(*index), y(*index)), y, [axis], "along")

    def centred(index: Sequence[Any]) -> Any:
        return dy(*index) - row_dot(*without_axes(index, [axis]))

    return te.compute(y.shape, lambda *index: strong_zero_product(centred(index), y(*index)), "softmax_grad")


@kernel("log-softmax-grad")
def log_softmax_grad(dy: te.Tensor, y: te.Tensor, out: TensorType, axis: int) -> Any:
    """dy - exp(y) sum(dy)."""
    dy_sum = sum_over(lambda index: dy(*index), y, [axis], "along")

    def weighted_sum(index: Sequence[Any]) -> Any:
        return strong_zero_product(dy_sum(*without_axes(index, [axis])), tirx.exp(y(*index)))

    return te.compute(y.shape, lambda *index: dy(*index) - weighted_sum(index), "log_softmax_grad")
