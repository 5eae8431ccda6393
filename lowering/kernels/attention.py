"""Attention of many heads as one tensor program, and its gradients as one of three results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from tvm import te, tirx

from sexpgpu.ops.nn import MASKED_SCORE
from sexpgpu.ops.types import TensorType

from .elementwise import is_finite
from .normalization import total
from .reduction import dtype_of, widened
from .registry import kernel

Order = tuple[int, ...] | None


@frozen(eq=False)
class Heads:
    """What attention and its gradients share: which scores, ``shape`` [.. q k] of depth ``deep``, are seen, and their
    weights in ``dtype``."""

    shape: Sequence[Any]
    dtype: str
    deep: int
    seen: Callable[[Sequence[Any]], list[Any]]
    weights: Any

    def shown(self, at: Sequence[Any], x: Any) -> Any:
        """``x`` where the query sees the key, else 0."""
        return tirx.Select(tirx.all(*self.seen(at)), x, tirx.const(0, self.dtype)) if self.seen(at) else x


def heads_of(q: Any, k: Any, mask: Sequence[te.Tensor], causal: bool, poison: Any = None) -> Heads:
    """softmax(q k' / sqrt(d)). What is not seen weighs 0, also where a query sees nothing at all. ``poison``: what is
    added to the scores of each key that is seen."""
    dtype, deep = "float64" if dtype_of(q) == "float64" else "float32", int(q.shape[-1])
    shape = [*q.shape[:-1], k.shape[-2]]
    scores = product(shape, deep, lambda at, d: wide(q, *at[:-1], d) * wide(k, *at[:-2], at[-1], d), "scores")
    i = te.reduce_axis((0, shape[-1]), "i")

    def seen(at: Sequence[Any]) -> list[Any]:
        earlier = [at[-1] <= at[-2]] if causal else []
        return earlier + [m(*_broadcast(m, at)) for m in mask]

    def masked(at: Sequence[Any]) -> Any:
        score = scores(*at) * tirx.const(1 / math.sqrt(deep), dtype)
        score = score if poison is None else score + poison(*at[:-2], at[-1])
        return tirx.Select(tirx.all(*seen(at)), score, tirx.const(MASKED_SCORE, dtype)) if seen(at) else score

    top: Any = te.compute(shape[:-1], lambda *at: te.max(masked([*at, i]), axis=i), "top")
    power: Any = te.compute(shape, lambda *at: tirx.exp(masked(at) - top(*at[:-1])), "power")
    whole: Any = total(lambda at: power(*at), power, [len(shape) - 1], "whole")

    def weight(*at: Any) -> Any:
        part = power(*at) / whole(*at[:-1])
        return tirx.Select(tirx.all(*seen(at)), part, tirx.const(0, dtype)) if mask else part

    return Heads(shape, dtype, deep, seen, te.compute(shape, weight, "weights"))


@kernel("attend")
def attend(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor, out: TensorType, causal: bool, order: Order = None
) -> Any:
    """softmax(q k' / sqrt(d)) v of each head, its axes in ``order``. bf16 and f16 are computed in f32 and rounded once.

    A value that is not finite and not seen counts for nothing; a query that sees one gives NaN. Of one query, values
    that it does not see are taken as 0; of more, those that are not finite, while the scores of their keys become NaN.
    For bf16 and f16 the caller has seen to it, so that matrix units read values as they lie."""
    single, guards = int(q.shape[-2]) == 1, is_wide(q) and (causal or bool(mask))
    poison = not_finite(v) if guards and not single else None
    v = finite(v) if guards and not single else v
    heads = heads_of(q, k, mask, causal, poison)
    shown = heads.shown if single else lambda at, x: x

    def weigh(at: Sequence[Any], j: Any) -> Any:
        return heads.weights(*at[:-1], j) * shown([*at[:-1], j], wide(v, *at[:-2], j, at[-1]))

    return rounded(product([*q.shape[:-1], v.shape[-1]], k.shape[-2], weigh, "attended", order), dtype_of(q))


@kernel("attend-grad")
def attend_grad(
    dy: te.Tensor, q: te.Tensor, k: te.Tensor, v: te.Tensor, *mask: te.Tensor, causal: bool,
    orders: Sequence[Order] = (None, None, None),
) -> list[Any]:  # fmt: skip
    """The gradients of q, k and v, the axes of each in its own of ``orders``. The weights are made again; bf16 and f16
    are computed in f32 and each gradient rounded once.

    What of q, k and v is not finite counts as 0, so that a cotangent of 0 gives 0 whatever they are; for bf16 and f16
    the caller has seen to it."""
    q, k, v = map(finite, (q, k, v)) if is_wide(q) else (q, k, v)
    heads, queries, keys = heads_of(q, k, mask, causal), q.shape[-2], k.shape[-2]
    weights = heads.weights
    seen = lambda at, e: wide(dy, *at[:-1], e) * wide(v, *at[:-2], at[-1], e)  # noqa: E731
    dweights = product(heads.shape, v.shape[-1], seen, "dweights")
    shown = lambda at: heads.shown(at, dweights(*at)) if mask else dweights(*at)  # noqa: E731
    along = total(lambda at: shown(at) * weights(*at), weights, [len(heads.shape) - 1], "along")
    scale = tirx.const(1 / math.sqrt(heads.deep), heads.dtype)

    def dscore(*at: Any) -> Any:
        return heads.shown(at, weights(*at) * (shown(at) - along(*at[:-1]))) * scale

    dscores: Any = te.compute(heads.shape, dscore, "dscores")
    across = lambda at, j: dscores(*at[:-1], j) * wide(k, *at[:-2], j, at[-1])  # noqa: E731
    down = lambda at, i: dscores(*at[:-2], i, at[-2]) * wide(q, *at[:-2], i, at[-1])  # noqa: E731
    weigh = lambda at, i: weights(*at[:-2], i, at[-2]) * wide(dy, *at[:-2], i, at[-1])  # noqa: E731
    made = (
        product(q.shape, keys, across, "dq", orders[0]),
        product(k.shape, queries, down, "dk", orders[1]),
        product(v.shape, queries, weigh, "dv", orders[2]),
    )
    return [rounded(x, dtype_of(q)) for x in made]


def product(
    shape: Sequence[Any], deep: Any, term: Callable[[Sequence[Any], Any], Any], name: str, order: Order = None
) -> Any:
    """The sum of ``term(place, k)`` over k below ``deep``, in order, at each place of ``shape``; axis i of the result
    is its axis ``order[i]``."""
    k, order = te.reduce_axis((0, deep), f"{name}_k"), order or tuple(range(len(shape)))

    def element(*at: Any) -> Any:
        return te.sum(term([at[order.index(axis)] for axis in range(len(shape))], k), axis=k)

    return te.compute([shape[axis] for axis in order], element, name, attrs={"in_order": True})


def is_wide(x: Any) -> bool:
    return dtype_of(x) not in ("bfloat16", "float16")


def finite(x: Any) -> Any:
    """``x`` with 0 in the place of infinities and NaN, by a stage that stays one of its own: products read it often."""
    element = lambda *at: tirx.Select(is_finite(x(*at)), x(*at), tirx.const(0, dtype_of(x)))  # noqa: E731
    return te.compute(x.shape, element, "finite", attrs={"kept": True})


def not_finite(x: Any) -> Any:
    """[.. k e] -> [.. k]: 0, or NaN where a row is not finite."""
    zero, nan = (tirx.const(number, dtype_of(x)) for number in (0.0, math.nan))
    e = te.reduce_axis((0, x.shape[-1]), "e")
    element = lambda *at: te.sum(tirx.Select(is_finite(x(*at, e)), zero, nan), axis=e)  # noqa: E731
    return te.compute(x.shape[:-1], element, "not_finite", attrs={"kept": True})


def rounded(x: Any, dtype: str) -> Any:
    """``x`` in ``dtype``, TVM's name of one, by a stage of its own; itself where it has it."""
    return x if dtype_of(x) == dtype else te.compute(x.shape, lambda *at: x(*at).astype(dtype), f"{x.op.name}_rounded")


def wide(x: te.Tensor, *at: Any) -> Any:
    """The element of ``x``, bf16 and f16 as f32."""
    return widened(x(*at))


def _broadcast(m: te.Tensor, at: Sequence[Any]) -> list[Any]:
    """The place in ``m``, which may have fewer leading axes than ``at``, or axes of one element."""
    mine = at[len(at) - len(m.shape) :]
    return [tirx.const(0, "int64") if int(n) == 1 else i for n, i in zip(m.shape, mine, strict=True)]
