"""The columns ``padded`` and ``merged``: how the cotangents of a value's parts become one tensor.

A slice's cotangent is zero outside of its place, and so is that of a row that was looked up. graph/slice_cotangents.py
puts them side by side, and looks for them behind operators that keep zeros where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from .element_boxes import Box, moved, whole


@frozen
class Padded:
    """A tensor that is ``value`` at ``box``, and 0 elsewhere."""

    value: Any
    box: Box


def pad_padded(b: Any, v: Any, inner: Padded | None) -> Padded | None:
    """Of a pad with zeros only; ``inner`` may be anything."""
    if v.attrs["value"] != 0:
        return None
    inner = inner or Padded(v.args[0], whole(v.args[0]))
    return Padded(inner.value, moved(inner.box, (before for before, _ in v.attrs["widths"])))


def cast_padded(b: Any, v: Any, inner: Padded | None) -> Padded | None:
    if inner is None:
        return None
    return Padded(b("cast", inner.value, **v.attrs), inner.box)


def transpose_padded(b: Any, v: Any, inner: Padded | None) -> Padded | None:
    if inner is None:
        return None
    return Padded(b("transpose", inner.value, **v.attrs), tuple(inner.box[i] for i in v.attrs["perm"]))


def reshape_padded(b: Any, v: Any, inner: Padded | None) -> Padded | None:
    """Where each axis that is not filled stands in the new shape too."""
    if inner is None:
        return None
    old, new = v.args[0].type.shape, v.type.shape
    box = [(0, n) for n in new]
    for axis, (span, n) in enumerate(zip(inner.box, old, strict=True)):
        if span == (0, n):
            continue
        before = math.prod(old[:axis])
        same = [i for i, m in enumerate(new) if m == n and math.prod(new[:i]) == before]
        if not same:
            return None
        box[same[0]] = span
    return Padded(b("reshape", inner.value, shape=tuple(z - a for a, z in box)), tuple(box))


def sum_padded(b: Any, v: Any, inner: Padded | None) -> Padded | None:
    if inner is None:
        return None
    axes, keep = v.attrs["axes"], v.attrs["keepdims"]
    rest = ((0, 1) if i in axes else span for i, span in enumerate(inner.box) if keep or i not in axes)
    return Padded(b("sum", inner.value, **v.attrs), tuple(rest))


def _one_list(b: Any, values: Sequence[Any], axis: int) -> Any:
    """Indices of any integer dtypes as one tensor: of i64 if they differ."""
    dtypes = {v.type.dtype for v in values}
    return b("concat", *(b("cast", v, dtype="i64") if len(dtypes) > 1 else v for v in values), axis=axis)


def scatter_rows_merged(b: Any, parts: Sequence[Any]) -> Any:
    row = parts[0].type.shape[1:]
    updates = b("concat", *(b("reshape", p.args[0], shape=(p.args[1].type.size, *row)) for p in parts), axis=0)
    ids = _one_list(b, [b("reshape", p.args[1], shape=(p.args[1].type.size,)) for p in parts], 0)
    return b("scatter-rows", updates, ids, **parts[0].attrs)


def scatter_along_merged(b: Any, parts: Sequence[Any]) -> Any:
    axis = parts[0].attrs["axis"]
    updates = b("concat", *(p.args[0] for p in parts), axis=axis)
    ids = [b("broadcast", p.args[1], shape=p.args[0].type.shape) for p in parts]
    return b("scatter-along", updates, _one_list(b, ids, axis), **parts[0].attrs)
