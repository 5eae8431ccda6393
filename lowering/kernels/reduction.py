"""Tensor programs of max, min, argmax and argmin reductions.

A float extremum is reduced over integer keys of the same order. TVM's own reduction starts from the largest finite
float
and drops NaN: it is wrong for a row of infinities and would hide a diverged run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .registry import kernel
from .strided_views import Viewed

# float dtype: the integer of its width, the mask of all bits but the sign, the number of the sign bit, the bits of
# infinity
KEYS = {
    "float32": ("int32", 0x7FFFFFFF, 31, 0x7F800000),
    "float64": ("int64", 0x7FFFFFFFFFFFFFFF, 63, 0x7FF0000000000000),
}
Elements = Callable[[Sequence[Any]], Any]


def dtype_of(x: Any) -> str:
    """TVM's name of the dtype of a te tensor or of an element's expression."""
    return str((x.dtype if isinstance(x, te.Tensor | Viewed) else x.ty).dtype)


def merge_index(
    index: Sequence[Any], reduced: Sequence[Any], axes: Sequence[int], rank: int, keepdims: bool
) -> list[Any]:
    """The index into an argument of ``rank``: ``reduced`` along ``axes``, ``index`` along the other axes."""
    outer_indices, reduced_indices = iter(index), iter(reduced)
    merged = []
    for axis in range(rank):
        if axis in axes:
            merged.append(next(reduced_indices))
            if keepdims:
                next(outer_indices)
        else:
            merged.append(next(outer_indices))
    return merged


def reduce_axes(x: te.Tensor, axes: Sequence[int]) -> list[Any]:
    """A reduction axis for each of ``axes`` of ``x``, in their order."""
    return [te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes]


def widened(v: Any) -> Any:
    """bf16 and f16 as f32, which holds them exactly."""
    return v.astype("float32") if dtype_of(v) in ("bfloat16", "float16") else v


def to_key(v: Any, nan_largest: bool, merge_zeros: bool) -> Any:
    """An integer key with the order of the float ``v``. NaN is the largest or the smallest of all. With
    ``merge_zeros``, -0 equals 0: the key is the magnitude's bits, negated if the sign is set. Without it, -0 is just
    below 0: the key is the bits, with all but the sign bit of a negative number inverted."""
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
    int_dtype, low, sign, _ = KEYS[wide]
    bits = key ^ ((key >> tirx.const(sign, int_dtype)) & tirx.const(low, int_dtype))
    return tirx.reinterpret(wide, bits).astype(dtype)


def extremum(largest: bool) -> Callable[..., Any]:
    """The program of reduce-max or reduce-min, over keys in which a NaN is the extremum."""

    def program(x: te.Tensor, out: TensorType, axes: Sequence[int], keepdims: bool) -> Any:
        reduced, reduce_op = reduce_axes(x, axes), te.max if largest else te.min

        def extreme_key(*index: Any) -> Any:
            element = x(*merge_index(index, reduced, axes, len(x.shape), keepdims))
            return reduce_op(to_key(element, largest, False), axis=reduced)

        keys: Any = te.compute(out.shape, extreme_key, "key")
        return te.compute(out.shape, lambda *index: from_key(keys(*index), dtype_of(x)), "extremum")

    return program


kernel("reduce-max")(extremum(True))
kernel("reduce-min")(extremum(False))


def extreme_index(largest: bool) -> Callable[..., Any]:
    """The program of argmax or argmin: the smallest index of the extremum. It is two plain reductions (the extremum,
    then the smallest index that has it), so that the order of reduction cannot matter."""

    def program(x: te.Tensor, out: TensorType, axis: int, keepdims: bool) -> Any:
        rank, n = len(x.shape), int(x.shape[axis])
        k, i = (te.reduce_axis((0, n), name) for name in ("k", "i"))
        reduce_op = te.max if largest else te.min
        keys: Any = x
        if "float" in dtype_of(x):
            keys = te.compute(x.shape, lambda *index: to_key(x(*index), largest, True), "keys")

        def key(index: Sequence[Any], k: Any) -> Any:
            return keys(*merge_index(index, [k], [axis], rank, keepdims))

        best: Any = te.compute(out.shape, lambda *index: reduce_op(key(index, k.var), axis=k), "best")

        def first_index(*index: Any) -> Any:
            is_best = key(index, i.var).equal(best(*index))
            return te.min(tirx.Select(is_best, i.var.astype("int32"), tirx.const(n, "int32")), axis=i)

        return te.compute(out.shape, first_index, "index")

    return program


kernel("argmax")(extreme_index(True))
kernel("argmin")(extreme_index(False))
