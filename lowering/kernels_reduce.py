"""Tensor programs of the reductions.

A float extremum is taken over integers of the same order. TVM's own starts from the largest finite float and drops a
NaN, so that it would be wrong for a row of infinities and would hide a diverged run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.types import TensorType

from .kernels import kernel

SHORT_SCAN = 64  # a running sum of up to so many terms is summed anew for each element
KEYS = {  # of a float: the integer of its width, all bits but the sign, the sign's place, the bits of infinity
    "float32": ("int32", 0x7FFFFFFF, 31, 0x7F800000),
    "float64": ("int64", 0x7FFFFFFFFFFFFFFF, 63, 0x7FF0000000000000),
}
ACCUMULATORS = {"bfloat16": "float32", "float16": "float32", "int32": "uint32", "int64": "uint64"}
At = Sequence[Any]
Elements = Callable[[At], Any]


def dtype_of(x: Any) -> str:
    """TVM's name of the dtype of a te tensor or of an element's expression."""
    return str((x.dtype if isinstance(x, te.Tensor) else x.ty).dtype)


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


@kernel("cumsum")
def cumsum(x: te.Tensor, out: TensorType, axis: int, reverse: bool) -> Any:
    """Long sums are taken in blocks of about the root of the length: within the block, and over those before it."""
    acc = ACCUMULATORS.get(dtype_of(x), dtype_of(x))
    n = int(x.shape[axis])
    way = blocked_scan if n > SHORT_SCAN else scan
    y = way(lambda at: x(*at).astype(acc), out.shape, axis, reverse, acc)
    return y if acc == dtype_of(x) else te.compute(out.shape, lambda *at: y(*at).astype(dtype_of(x)), "round")


def put(at: Sequence[Any], axis: int, i: Any) -> list[Any]:
    return [*at[:axis], i, *at[axis + 1 :]]


def scan(x: Elements, shape: At, axis: int, reverse: bool, acc: str, strict: bool = False) -> Any:
    """Sums of the terms up to each place (from it on, if ``reverse``), without its own if ``strict``."""
    k = te.reduce_axis((0, shape[axis]), "k")

    def total(*at: Any) -> Any:
        a, b = (at[axis], k.var) if reverse else (k.var, at[axis])
        wanted = a < b if strict else a <= b
        return te.sum(tirx.if_then_else(wanted, x(put(at, axis, k.var)), tirx.const(0, acc)), axis=k)

    return te.compute(shape, total, "scan")


def blocked_scan(x: Elements, shape: At, axis: int, reverse: bool, acc: str) -> Any:
    n = shape[axis]
    block = math.isqrt(n - 1) + 1
    counts = put(shape, axis, -(-n // block))
    k, j = (te.reduce_axis((0, block), name) for name in "kj")

    def term(at: Sequence[Any], i: Any, wanted: Any) -> Any:
        return tirx.if_then_else(tirx.all(wanted, i < n), x(put(at, axis, i)), tirx.const(0, acc))

    def inner(*at: Any) -> Any:
        place = at[axis] % block
        return te.sum(term(at, at[axis] - place + j.var, j.var >= place if reverse else j.var <= place), axis=j)

    def whole(*at: Any) -> Any:
        return te.sum(term(at, at[axis] * block + k.var, tirx.const(True, "bool")), axis=k)

    totals: Any = te.compute(counts, whole, "totals")
    before: Any = scan(lambda at: totals(*at), counts, axis, reverse, acc, strict=True)
    inside: Any = te.compute(shape, inner, "inside")
    return te.compute(shape, lambda *at: before(*put(at, axis, at[axis] // block)) + inside(*at), "cumsum")
