"""Attention of many heads as one tensor program, and its gradients as one of three results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .elementwise import is_finite
from .normalization import sum_over
from .reduction import dtype_of, widened
from .registry import kernel

Order = tuple[int, ...] | None
MASKED_SCORE = -1e30  # the score of a key that is not seen, as in the operator table: exp(FAR - score) is exactly 0


@frozen(eq=False)
class AttentionScores:
    """What attention and its gradients share: which scores, ``shape`` [.. q k] of depth ``head_dim``, are seen, and their
    weights in ``dtype``."""

    shape: Sequence[Any]
    dtype: str
    head_dim: int
    visible: Callable[[Sequence[Any]], list[Any]]
    probs: Any

    def zero_masked(self, index: Sequence[Any], x: Any) -> Any:
        """``x`` where the query sees the key, else 0."""
        return tirx.Select(tirx.all(*self.visible(index)), x, tirx.const(0, self.dtype)) if self.visible(index) else x


def attention_scores(q: Any, k: Any, mask: Sequence[te.Tensor], causal: bool, nan_bias: Any = None) -> AttentionScores:
    """softmax(q k' / sqrt(d)). What is not seen weighs 0, also where a query sees nothing at all. ``nan_bias``: what is
    added to the scores of each key that is seen."""
    dtype, head_dim = "float64" if dtype_of(q) == "float64" else "float32", int(q.shape[-1])
    shape = [*q.shape[:-1], k.shape[-2]]
    scores = sum_of_products(
        shape,
        head_dim,
        lambda index, d: widened_element(q, *index[:-1], d) * widened_element(k, *index[:-2], index[-1], d),
        "scores",
    )
    i = te.reduce_axis((0, shape[-1]), "i")

    def visible(index: Sequence[Any]) -> list[Any]:
        earlier = [index[-1] <= index[-2]] if causal else []
        return earlier + [m(*_broadcast(m, index)) for m in mask]

    def masked(index: Sequence[Any]) -> Any:
        score = scores(*index) * tirx.const(1 / math.sqrt(head_dim), dtype)
        score = score if nan_bias is None else score + nan_bias(*index[:-2], index[-1])
        return (
            tirx.Select(tirx.all(*visible(index)), score, tirx.const(MASKED_SCORE, dtype)) if visible(index) else score
        )

    row_max: Any = te.compute(shape[:-1], lambda *index: te.max(masked([*index, i]), axis=i), "top")
    exp_scores: Any = te.compute(shape, lambda *index: tirx.exp(masked(index) - row_max(*index[:-1])), "power")
    row_sum: Any = sum_over(lambda index: exp_scores(*index), exp_scores, [len(shape) - 1], "whole")

    def prob(*index: Any) -> Any:
        part = exp_scores(*index) / row_sum(*index[:-1])
        return tirx.Select(tirx.all(*visible(index)), part, tirx.const(0, dtype)) if mask else part

    return AttentionScores(shape, dtype, head_dim, visible, te.compute(shape, prob, "weights"))


@kernel("attend")
def attend(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor, out: TensorType, causal: bool, order: Order = None
) -> Any:
    """softmax(q k' / sqrt(d)) v of each head, its axes in ``order``. bf16 and f16 are computed in f32 and rounded once.

    A value that is not finite and not seen counts for nothing; a query that sees one gives NaN. Of one query, values
    that it does not see are taken as 0; of more, those that are not finite, while the scores of their keys become NaN.
    For bf16 and f16 the caller has seen to it, so that matrix units read values as they lie."""
    single_query, masks_values = int(q.shape[-2]) == 1, is_full_precision(q) and (causal or bool(mask))
    nan_bias = nan_where_not_finite(v) if masks_values and not single_query else None
    v = finite_or_zero(v) if masks_values and not single_query else v
    scores = attention_scores(q, k, mask, causal, nan_bias)
    keep = scores.zero_masked if single_query else lambda index, x: x

    def weighted_value(index: Sequence[Any], j: Any) -> Any:
        return scores.probs(*index[:-1], j) * keep([*index[:-1], j], widened_element(v, *index[:-2], j, index[-1]))

    return rounded_to(
        sum_of_products([*q.shape[:-1], v.shape[-1]], k.shape[-2], weighted_value, "attended", order), dtype_of(q)
    )


@kernel("attend-grad")
def attend_grad(
    dy: te.Tensor, q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor, causal: bool,
    orders: Sequence[Order] = (None, None, None),
) -> list[Any]:  # fmt: skip
    """The gradients of q, k and v, the axes of each in its own of ``orders``. The weights are made again; bf16 and f16
    are computed in f32 and each gradient rounded once.

    What of q, k and v is not finite counts as 0, so that a cotangent of 0 gives 0 whatever they are; for bf16 and f16
    the caller has seen to it."""
    q, k, v = map(finite_or_zero, (q, k, v)) if is_full_precision(q) else (q, k, v)
    scores, queries, keys = attention_scores(q, k, mask, causal), q.shape[-2], k.shape[-2]
    probs = scores.probs
    dprob_term = lambda index, e: widened_element(dy, *index[:-1], e) * widened_element(v, *index[:-2], index[-1], e)  # noqa: E731
    dprobs = sum_of_products(scores.shape, v.shape[-1], dprob_term, "dweights")
    masked_dprob = lambda index: scores.zero_masked(index, dprobs(*index)) if mask else dprobs(*index)  # noqa: E731
    row_dot = sum_over(lambda index: masked_dprob(index) * probs(*index), probs, [len(scores.shape) - 1], "along")
    scale = tirx.const(1 / math.sqrt(scores.head_dim), scores.dtype)

    def dscore(*index: Any) -> Any:
        return scores.zero_masked(index, probs(*index) * (masked_dprob(index) - row_dot(*index[:-1]))) * scale

    dscores: Any = te.compute(scores.shape, dscore, "dscores")
    dq_term = lambda index, j: dscores(*index[:-1], j) * widened_element(k, *index[:-2], j, index[-1])  # noqa: E731
    dk_term = lambda index, i: dscores(*index[:-2], i, index[-2]) * widened_element(q, *index[:-2], i, index[-1])  # noqa: E731
    dv_term = lambda index, i: probs(*index[:-2], i, index[-2]) * widened_element(dy, *index[:-2], i, index[-1])  # noqa: E731
    grads = (
        sum_of_products(q.shape, keys, dq_term, "dq", orders[0]),
        sum_of_products(k.shape, queries, dk_term, "dk", orders[1]),
        sum_of_products(v.shape, queries, dv_term, "dv", orders[2]),
    )
    return [rounded_to(x, dtype_of(q)) for x in grads]


def sum_of_products(
    shape: Sequence[Any], k_extent: Any, term: Callable[[Sequence[Any], Any], Any], name: str, order: Order = None
) -> Any:
    """The sum of ``term(place, k)`` over k below ``k_extent``, in order, at each place of ``shape``; axis i of the result
    is its axis ``order[i]``."""
    k, order = te.reduce_axis((0, k_extent), f"{name}_k"), order or tuple(range(len(shape)))

    def element(*index: Any) -> Any:
        return te.sum(term([index[order.index(axis)] for axis in range(len(shape))], k), axis=k)

    return te.compute([shape[axis] for axis in order], element, name, attrs={"in_order": True})


def is_full_precision(x: Any) -> bool:
    return dtype_of(x) not in ("bfloat16", "float16")


def finite_or_zero(x: Any) -> Any:
    """``x`` with 0 in the place of infinities and NaN, by a stage that stays one of its own: products read it often."""
    element = lambda *index: tirx.Select(is_finite(x(*index)), x(*index), tirx.const(0, dtype_of(x)))  # noqa: E731
    return te.compute(x.shape, element, "finite", attrs={"kept": True})


def nan_where_not_finite(x: Any) -> Any:
    """[.. k e] -> [.. k]: 0, or NaN where a row is not finite."""
    zero, nan = (tirx.const(number, dtype_of(x)) for number in (0.0, math.nan))
    e = te.reduce_axis((0, x.shape[-1]), "e")
    element = lambda *index: te.sum(tirx.Select(is_finite(x(*index, e)), zero, nan), axis=e)  # noqa: E731
    return te.compute(x.shape[:-1], element, "not_finite", attrs={"kept": True})


def rounded_to(x: Any, dtype: str) -> Any:
    """``x`` in ``dtype``, TVM's name of one, by a stage of its own; itself where it has it."""
    return (
        x
        if dtype_of(x) == dtype
        else te.compute(x.shape, lambda *index: x(*index).astype(dtype), f"{x.op.name}_rounded")
    )


def widened_element(x: te.Tensor, *index: Any) -> Any:
    """The element of ``x``, bf16 and f16 as f32."""
    return widened(x(*index))


def _broadcast(m: te.Tensor, index: Sequence[Any]) -> list[Any]:
    """The place in ``m``, which may have fewer leading axes than ``index``, or axes of one element."""
    own_index = index[len(index) - len(m.shape) :]
    return [tirx.const(0, "int64") if int(n) == 1 else i for n, i in zip(m.shape, own_index, strict=True)]
