"""Tensor programs of the reductions.

A float extremum is taken over integers of the same order. TVM's own starts from the largest finite float and drops a
NaN, so that it would be wrong for a row of infinities and would hide a diverged run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .registry import kernel
from .strided_views import Viewed

KEYS = {  # of a float: the integer of its width, all bits but the sign, the sign's place, the bits of infinity
    "float32": ("int32", 0x7FFFFFFF, 31, 0x7F800000),
    "float64": ("int64", 0x7FFFFFFFFFFFFFFF, 63, 0x7FF0000000000000),
}
Elements = Callable[[Sequence[Any]], Any]


def dtype_of(x: Any) -> str:
    """TVM's name of the dtype of a te tensor or of an element's expression."""
    return str((x.dtype if isinstance(x, te.Tensor | Viewed) else x.ty).dtype)


def merge(at: Sequence[Any], over: Sequence[Any], axes: Sequence[int], rank: int, keepdims: bool) -> list[Any]:
    """The place in an argument of ``rank``: ``over`` along ``axes``, ``at`` along the others."""
    rest, inner = iter(at), iter(over)
    out = []
    for axis in range(rank):
        if axis in axes:
            out.append(next(inner))
            if keepdims:
                next(rest)
        else:
            out.append(next(rest))
    return out


def reduce_axes(x: te.Tensor, axes: Sequence[int]) -> list[Any]:
    """An axis to reduce over for each of ``axes`` of ``x``, in their order."""
    return [te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes]


def widened(v: Any) -> Any:
    """bf16 and f16 as f32, which holds them exactly."""
    return v.astype("float32") if dtype_of(v) in ("bfloat16", "float16") else v


def to_key(v: Any, nan_largest: bool, merge_zeros: bool) -> Any:
    """An integer in the order of the float ``v``. A NaN is the largest or the smallest of all; -0 is 0 if
    ``merge_zeros``: then the key is the bits but the sign, negated where the sign is set. Else it is just below 0: the
    bits, with the lower ones of a negative number turned over."""
    v = widened(v)
    dtype, low, sign, infinity = KEYS[dtype_of(v)]
    mask = tirx.const(low, dtype)
    bits = tirx.reinterpret(dtype, v)
    negative = bits >> tirx.const(sign, dtype)  # all ones or none
    key = ((bits & mask) ^ negative) - negative if merge_zeros else bits ^ (negative & mask)
    nan = tirx.const(low if nan_largest else -low - 1, dtype)
    return tirx.Select((bits & mask) > tirx.const(infinity, dtype), nan, key)


def from_key(key: Any, dtype: str) -> Any:
    """The float of ``dtype`` whose key is ``key``; the largest and the smallest integer are NaNs."""
    wide = dtype if dtype in KEYS else "float32"
    whole, low, sign, _ = KEYS[wide]
    bits = key ^ ((key >> tirx.const(sign, whole)) & tirx.const(low, whole))
    return tirx.reinterpret(wide, bits).astype(dtype)


def extremum(largest: bool) -> Callable[..., Any]:
    """The program of reduce-max or reduce-min, over keys in which a NaN is the extremum."""

    def program(x: te.Tensor, out: TensorType, axes: Sequence[int], keepdims: bool) -> Any:
        over, take = reduce_axes(x, axes), te.max if largest else te.min

        def best(*at: Any) -> Any:
            return take(to_key(x(*merge(at, over, axes, len(x.shape), keepdims)), largest, False), axis=over)

        keys: Any = te.compute(out.shape, best, "key")
        return te.compute(out.shape, lambda *at: from_key(keys(*at), dtype_of(x)), "extremum")

    return program


kernel("reduce-max")(extremum(True))
kernel("reduce-min")(extremum(False))


def extreme_index(largest: bool) -> Callable[..., Any]:
    """The smallest index at which the extremum stands: two plain reductions, so that their order cannot matter."""

    def program(x: te.Tensor, out: TensorType, axis: int, keepdims: bool) -> Any:
        rank, n = len(x.shape), int(x.shape[axis])
        first, second = (te.reduce_axis((0, n), name) for name in ("k", "i"))
        take = te.max if largest else te.min
        keys: Any = x
        if "float" in dtype_of(x):
            keys = te.compute(x.shape, lambda *at: to_key(x(*at), largest, True), "keys")
        key = lambda at, k: keys(*merge(at, [k], [axis], rank, keepdims))  # noqa: E731
        best: Any = te.compute(out.shape, lambda *at: take(key(at, first.var), axis=first), "best")

        def index(*at: Any) -> Any:
            i = second.var.astype("int32")
            return te.min(tirx.Select(key(at, second.var).equal(best(*at)), i, tirx.const(n, "int32")), axis=second)

        return te.compute(out.shape, index, "index")

    return program


kernel("argmax")(extreme_index(True))
kernel("argmin")(extreme_index(False))
