"""Cotangents of one value put together: those of its parts as one tensor, each element written once.

A slice's cotangent is zero outside of its place, and so is that of a row that was looked up. Made whole and added,
those of T slices would take T times the tensor. Here places that do not meet stand side by side in one ``concat``, and
rows are added by one ``scatter``; only where places overlap is anything added. What is whole is added from left to
right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from attrs import frozen

from ..ops.types import MAX_DIM, TensorType
from .core import Builder, Value

Box = tuple[tuple[int, int], ...]  # from, to: an axis each


@frozen
class Place:
    """``value`` at ``box`` of a tensor that is 0 elsewhere."""

    value: Value
    box: Box


def together(b: Builder, parts: Sequence[Value]) -> Value:
    """The sum of ``parts``, of one type: those of one kind that do not fill it as one, the others one after the other,
    in the order in which a first one of each comes."""
    if len(parts) == 1:
        return parts[0]
    groups: dict[object, list[Value]] = {}
    places: dict[Value, Place] = {}
    for n, part in enumerate(parts):
        place = placed(b, part)
        if place is not None:
            places[part] = place
        kind = "place" if place else (part.op, *part.attrs.values()) if part.op in SCATTERS else n
        groups.setdefault(kind, []).append(part)
    total: Value | None = None
    for kind, group in groups.items():
        if kind == "place":
            made = side_by_side(b, [places[p] for p in group], parts[0].type)
        else:
            made = group[0] if len(group) == 1 else scattered(b, group)
        total = made if total is None else b("+", total, made)
    assert total is not None
    return total


# -- slices ---------------------------------------------------------------------------------------------------------


def placed(b: Builder, v: Value) -> Place | None:
    """``v`` as what is padded with zeros, if it is that: also behind operators that zeros pass."""
    if v.op == "pad" and v.attrs["value"] == 0:
        inner = placed(b, v.args[0]) or Place(v.args[0], tuple((0, n) for n in v.args[0].type.shape))
        moved = zip(inner.box, v.attrs["widths"], strict=True)
        return Place(inner.value, tuple((a + before, z + before) for (a, z), (before, _) in moved))
    if v.op not in THROUGH:
        return None
    inner = placed(b, v.args[0])
    return THROUGH[v.op](b, v, inner) if inner else None


def _cast(b: Builder, v: Value, inner: Place) -> Place:
    return Place(b("cast", inner.value, **v.attrs), inner.box)


def _transpose(b: Builder, v: Value, inner: Place) -> Place:
    return Place(b("transpose", inner.value, **v.attrs), tuple(inner.box[i] for i in v.attrs["perm"]))


def _reshape(b: Builder, v: Value, inner: Place) -> Place | None:
    """Where each axis that is not filled stands in the new shape too."""
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
    return Place(b("reshape", inner.value, shape=tuple(z - a for a, z in box)), tuple(box))


def _sum(b: Builder, v: Value, inner: Place) -> Place:
    axes, keep = v.attrs["axes"], v.attrs["keepdims"]
    rest = ((0, 1) if i in axes else span for i, span in enumerate(inner.box) if keep or i not in axes)
    return Place(b("sum", inner.value, **v.attrs), tuple(rest))


# operators of which a tensor of zeros gives zeros at the same places
THROUGH: dict[str, Callable[[Builder, Value, Place], Place | None]] = {
    "cast": _cast, "transpose": _transpose, "reshape": _reshape, "sum": _sum,
}  # fmt: skip


def side_by_side(b: Builder, places: Sequence[Place], type: TensorType) -> Value:
    """The sum of what stands at ``places`` of a tensor of ``type``: axis by axis, equal places first."""
    axis = next((i for i, n in enumerate(type.shape) if any(p.box[i] != (0, n) for p in places)), None)
    if axis is None:
        total = places[0].value
        for p in places[1:]:
            total = b("+", total, p.value)
        return total
    spans: dict[tuple[int, int], list[Place]] = {}
    for p in places:
        inner = (*p.box[:axis], (0, p.box[axis][1] - p.box[axis][0]), *p.box[axis + 1 :])
        spans.setdefault(p.box[axis], []).append(Place(p.value, inner))
    made = [(*span, side_by_side(b, group, _cut(type, axis, *span))) for span, group in sorted(spans.items())]
    return _in_line(b, [_overlaid(b, run, axis) for run in _runs(made)], axis, 0, type.shape[axis])


Piece = tuple[int, int, Value]  # from, to, what stands there


def _cut(type: TensorType, axis: int, start: int, stop: int) -> TensorType:
    return TensorType((*type.shape[:axis], stop - start, *type.shape[axis + 1 :]), type.dtype)


def _runs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces in the order of their starts, in runs of those that overlap."""
    runs: list[list[Piece]] = []
    end = 0
    for piece in pieces:
        if runs and piece[0] < end:
            runs[-1].append(piece)
        else:
            runs.append([piece])
        end = max(end, piece[1]) if len(runs[-1]) > 1 else piece[1]
    return runs


def _overlaid(b: Builder, run: Sequence[Piece], axis: int) -> Piece:
    """Pieces that overlap as one: those that do not meet in one layer, then the layers added."""
    layers: list[list[Piece]] = []
    for piece in run:
        free = next((layer for layer in layers if layer[-1][1] <= piece[0]), None)
        if free is None:
            layers.append([piece])
        else:
            free.append(piece)
    start, stop = run[0][0], max(piece[1] for piece in run)
    total = _in_line(b, layers[0], axis, start, stop)
    for layer in layers[1:]:
        total = b("+", total, _in_line(b, layer, axis, start, stop))
    return start, stop, total


def _in_line(b: Builder, pieces: Sequence[Piece], axis: int, start: int, stop: int) -> Value:
    """Pieces that do not meet, one after the other from ``start`` to ``stop``, with zeros between them."""
    (first, last, value), type = pieces[0], pieces[0][2].type
    if len(pieces) == 1:
        widths = tuple((first - start, stop - last) if i == axis else (0, 0) for i in range(type.rank))
        return b("pad", value, widths=widths, value=0) if (first, last) != (start, stop) else value
    line, at = [], start
    for first, last, value in pieces:
        line += [b.full(0, _cut(type, axis, at, first))] if at < first else []
        line.append(value)
        at = last
    line += [b.full(0, _cut(type, axis, at, stop))] if at < stop else []
    return b("concat", *line, axis=axis)


# -- rows and elements that were looked up ----------------------------------------------------------------------------


def scattered(b: Builder, parts: Sequence[Value]) -> Value:
    """The sum of scatters of one kind: one of all their updates, unless these are larger than the results, or more than
    an axis may have."""
    size = sum(p.args[0].type.size for p in parts)
    if size < len(parts) * parts[0].type.size and sum(p.args[1].type.size for p in parts) <= MAX_DIM:
        return SCATTERS[parts[0].op](b, parts)
    total = parts[0]
    for p in parts[1:]:
        total = b("+", total, p)
    return total


def _one_list(b: Builder, values: Sequence[Value], axis: int) -> Value:
    """Indices of any integer dtypes as one tensor: of i64 if they differ."""
    dtypes = {v.type.dtype for v in values}
    return b("concat", *(b("cast", v, dtype="i64") if len(dtypes) > 1 else v for v in values), axis=axis)


def _rows(b: Builder, parts: Sequence[Value]) -> Value:
    row = parts[0].type.shape[1:]
    updates = b("concat", *(b("reshape", p.args[0], shape=(p.args[1].type.size, *row)) for p in parts), axis=0)
    ids = _one_list(b, [b("reshape", p.args[1], shape=(p.args[1].type.size,)) for p in parts], 0)
    return b("scatter-rows", updates, ids, **parts[0].attrs)


def _along(b: Builder, parts: Sequence[Value]) -> Value:
    axis = parts[0].attrs["axis"]
    updates = b("concat", *(p.args[0] for p in parts), axis=axis)
    ids = [b("broadcast", p.args[1], shape=p.args[0].type.shape) for p in parts]
    return b("scatter-along", updates, _one_list(b, ids, axis), **parts[0].attrs)


SCATTERS: dict[str, Callable[[Builder, Sequence[Value]], Value]] = {"scatter-rows": _rows, "scatter-along": _along}
