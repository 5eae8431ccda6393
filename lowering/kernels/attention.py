"""Scaled dot-product attention of many heads as one tensor program, and its three gradients as another.

Vaswani et al. 2017. The programs are plain stages (scores, row_max, exp_scores, row_sum, probs, products); the
schedules fuse them, with online softmax where that pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from tvm import te, tirx

from sexpgpu.ops.nn import MASKED_SCORE
from sexpgpu.ops.types import TensorType

from .elementwise import is_finite
from .normalization import sum_over
from .reduction import dtype_of, widened
from .registry import kernel

Order = tuple[int, ...] | None


@frozen(eq=False)
class AttentionScores:
    """The stages that attention and its gradients share.

    shape:    of the scores, [.. q k]
    dtype:    of the scores
    head_dim: the length of q's and k's rows
    visible:  index -> the conditions under which the query sees the key
    probs:    the stage of the attention probabilities, softmax of the scores
    """

    shape: Sequence[Any]
    dtype: str
    head_dim: int
    visible: Callable[[Sequence[Any]], list[Any]]
    probs: Any

    def zero_masked(self, index: Sequence[Any], x: Any) -> Any:
        """``x`` where the query sees the key, else 0."""
        conditions = self.visible(index)
        return tirx.Select(tirx.all(*conditions), x, tirx.const(0, self.dtype)) if conditions else x


def attention_scores(q: Any, k: Any, mask: Sequence[te.Tensor], causal: bool, nan_bias: Any = None) -> AttentionScores:
    """softmax(q k' / sqrt(d)). A masked key has probability 0, also where all keys of a query are masked. ``nan_bias``:
    added to the scores of each visible key."""
    dtype, head_dim = "float64" if dtype_of(q) == "float64" else "float32", int(q.shape[-1])
    shape = [*q.shape[:-1], k.shape[-2]]

    def score_term(index: Sequence[Any], d: Any) -> Any:
        return wide_at(q, *index[:-1], d) * wide_at(k, *index[:-2], index[-1], d)

    scores = sum_of_products(shape, head_dim, score_term, "scores")
    i = te.reduce_axis((0, shape[-1]), "i")

    def visible(index: Sequence[Any]) -> list[Any]:
        not_in_future = [index[-1] <= index[-2]] if causal else []
        return not_in_future + [m(*_broadcast(m, index)) for m in mask]

    def masked(index: Sequence[Any]) -> Any:
        score = scores(*index) * tirx.const(1 / math.sqrt(head_dim), dtype)
        score = score if nan_bias is None else score + nan_bias(*index[:-2], index[-1])
        conditions = visible(index)
        return tirx.Select(tirx.all(*conditions), score, tirx.const(MASKED_SCORE, dtype)) if conditions else score

    row_max: Any = te.compute(shape[:-1], lambda *index: te.max(masked([*index, i]), axis=i), "top")
    exp_scores: Any = te.compute(shape, lambda *index: tirx.exp(masked(index) - row_max(*index[:-1])), "power")
    row_sum: Any = sum_over(lambda index: exp_scores(*index), exp_scores, [len(shape) - 1], "whole")

    def prob(*index: Any) -> Any:
        quotient = exp_scores(*index) / row_sum(*index[:-1])
        return tirx.Select(tirx.all(*visible(index)), quotient, tirx.const(0, dtype)) if mask else quotient

    return AttentionScores(shape, dtype, head_dim, visible, te.compute(shape, prob, "weights"))


@kernel("attend")
def attend(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor, out: TensorType, causal: bool, order: Order = None
) -> Any:
    """softmax(q k' / sqrt(d)) v of each head, its axes in ``order``. bf16 and f16 are computed in f32 and rounded once.

    A masked value that is not finite has no effect; a query that sees one gives NaN. With a single query, masked values
    are read as 0. With more, values that are not finite are read as 0, and the scores of their keys become NaN. For
    bf16 and f16 the caller does the same beforehand, so that tensor cores can read the values directly."""
    single_query, masks_values = int(q.shape[-2]) == 1, is_full_precision(q) and (causal or bool(mask))
    nan_bias = nan_where_not_finite(v) if masks_values and not single_query else None
    v = finite_or_zero(v) if masks_values and not single_query else v
    scores = attention_scores(q, k, mask, causal, nan_bias)
    keep = scores.zero_masked if single_query else lambda index, x: x

    def weighted_value(index: Sequence[Any], j: Any) -> Any:
        return scores.probs(*index[:-1], j) * keep([*index[:-1], j], wide_at(v, *index[:-2], j, index[-1]))

    return rounded_to(
        sum_of_products([*q.shape[:-1], v.shape[-1]], k.shape[-2], weighted_value, "attended", order), dtype_of(q)
    )


@kernel("attend-grad")
def attend_grad(
    dy: te.Tensor, q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor, causal: bool,
    orders: Sequence[Order] = (None, None, None),
) -> list[Any]:  # fmt: skip
    """The gradients of q, k and v, the axes of each in the order of its entry in ``orders``. The probabilities are
    recomputed. bf16 and f16 are computed in f32 and each gradient is rounded once.

    Elements of q, k and v that are not finite are read as 0, so that a cotangent of 0 gives 0 whatever they are. For
    bf16 and f16 the caller does that beforehand.

    With P the probabilities: dV = P' dY, dP = dY V', dS = P (dP - rowsum(dP P)) / sqrt(d), dQ = dS K, dK = dS' Q
    (FlashAttention, Dao et al. 2022, section 3)."""
    q, k, v = map(finite_or_zero, (q, k, v)) if is_full_precision(q) else (q, k, v)
    scores, queries, keys = attention_scores(q, k, mask, causal), q.shape[-2], k.shape[-2]
    probs = scores.probs

    def dprob_term(index: Sequence[Any], e: Any) -> Any:
        return wide_at(dy, *index[:-1], e) * wide_at(v, *index[:-2], index[-1], e)

    dprobs = sum_of_products(scores.shape, v.shape[-1], dprob_term, "dweights")

    def masked_dprob(index: Sequence[Any]) -> Any:
        return scores.zero_masked(index, dprobs(*index)) if mask else dprobs(*index)

    row_dot = sum_over(lambda index: masked_dprob(index) * probs(*index), probs, [len(scores.shape) - 1], "along")
    scale = tirx.const(1 / math.sqrt(scores.head_dim), scores.dtype)

    def dscore(*index: Any) -> Any:
        return scores.zero_masked(index, probs(*index) * (masked_dprob(index) - row_dot(*index[:-1]))) * scale

    dscores: Any = te.compute(scores.shape, dscore, "dscores")

    def dq_term(index: Sequence[Any], j: Any) -> Any:
        return dscores(*index[:-1], j) * wide_at(k, *index[:-2], j, index[-1])

    def dk_term(index: Sequence[Any], i: Any) -> Any:
        return dscores(*index[:-2], i, index[-2]) * wide_at(q, *index[:-2], i, index[-1])

    def dv_term(index: Sequence[Any], i: Any) -> Any:
        return probs(*index[:-2], i, index[-2]) * wide_at(dy, *index[:-2], i, index[-1])

    grads = (
        sum_of_products(q.shape, keys, dq_term, "dq", orders[0]),
        sum_of_products(k.shape, queries, dk_term, "dk", orders[1]),
        sum_of_products(v.shape, queries, dv_term, "dv", orders[2]),
    )
    return [rounded_to(x, dtype_of(q)) for x in grads]


def sum_of_products(
    shape: Sequence[Any], k_extent: Any, term: Callable[[Sequence[Any], Any], Any], name: str, order: Order = None
) -> Any:
    """The sum of ``term(index, k)`` over k below ``k_extent``, k ascending, at each index of ``shape``. Axis i of the
    result is axis ``order[i]`` of ``shape``."""
    k, order = te.reduce_axis((0, k_extent), f"{name}_k"), order or tuple(range(len(shape)))

    def element(*index: Any) -> Any:
        return te.sum(term([index[order.index(axis)] for axis in range(len(shape))], k), axis=k)

    return te.compute([shape[axis] for axis in order], element, name, attrs={"in_order": True})


def is_full_precision(x: Any) -> bool:
    return dtype_of(x) not in ("bfloat16", "float16")


def finite_or_zero(x: Any) -> Any:
    """``x`` with 0 in the place of infinities and NaN. The stage is not inlined: products read each element often."""

    def element(*index: Any) -> Any:
        return tirx.Select(is_finite(x(*index)), x(*index), tirx.const(0, dtype_of(x)))

    return te.compute(x.shape, element, "finite", attrs={"kept": True})


def nan_where_not_finite(x: Any) -> Any:
    """[.. k e] -> [.. k]: NaN for a row with an element that is not finite, else 0."""
    zero, nan = (tirx.const(number, dtype_of(x)) for number in (0.0, math.nan))
    e = te.reduce_axis((0, x.shape[-1]), "e")

    def element(*index: Any) -> Any:
        return te.sum(tirx.Select(is_finite(x(*index, e)), zero, nan), axis=e)

    return te.compute(x.shape[:-1], element, "not_finite", attrs={"kept": True})


def rounded_to(x: Any, dtype: str) -> Any:
    """``x`` rounded to ``dtype``, a TVM name, by a stage of its own; ``x`` itself if it has that dtype."""
    if dtype_of(x) == dtype:
        return x
    return te.compute(x.shape, lambda *index: x(*index).astype(dtype), f"{x.op.name}_rounded")


def wide_at(x: te.Tensor, *index: Any) -> Any:
    """The element of ``x`` at ``index``, bf16 and f16 widened to f32."""
    return widened(x(*index))


def _broadcast(m: te.Tensor, index: Sequence[Any]) -> list[Any]:
    """The index into ``m``, which may have fewer leading axes than ``index``, or axes of size 1."""
    own_index = index[len(index) - len(m.shape) :]
    return [tirx.const(0, "int64") if int(n) == 1 else i for n, i in zip(m.shape, own_index, strict=True)]
