"""Cotangents of one value put together: those of its parts as one tensor, each element written once.

A slice's cotangent is zero outside of its place, and so is that of a row that was looked up. Made whole and added,
those of T slices would take T times the tensor. Here places that do not meet stand side by side in one ``concat``, and
rows are added by one ``scatter``; only where places overlap is anything added. What is whole is added from left to
right.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ops import OPS
from ..ops.partial_cotangents import Padded
from ..ops.types import MAX_DIM, TensorType
from .core import Builder, Value


def together(b: Builder, parts: Sequence[Value]) -> Value:
    """The sum of ``parts``, of one type: those of one kind that do not fill it as one, the others one after the other,
    in the order in which a first one of each comes."""
    if len(parts) == 1:
        return parts[0]
    groups: dict[object, list[Value]] = {}
    places: dict[Value, Padded] = {}
    for n, part in enumerate(parts):
        place = placed(b, part)
        if place is not None:
            places[part] = place
        kind = "place" if place else (part.op, *part.attrs.values()) if part.op and OPS[part.op].merged else n
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


def placed(b: Builder, v: Value) -> Padded | None:
    """``v`` as a tensor with zeros around it, if it is one."""
    padded = OPS[v.op].padded if v.op else None
    return padded(b, v, placed(b, v.args[0])) if padded else None


def side_by_side(b: Builder, places: Sequence[Padded], type: TensorType) -> Value:
    """The sum of what stands at ``places`` of a tensor of ``type``: axis by axis, equal places first."""
    axis = next((i for i, n in enumerate(type.shape) if any(p.box[i] != (0, n) for p in places)), None)
    if axis is None:
        total = places[0].value
        for p in places[1:]:
            total = b("+", total, p.value)
        return total
    spans: dict[tuple[int, int], list[Padded]] = {}
    for p in places:
        inner = (*p.box[:axis], (0, p.box[axis][1] - p.box[axis][0]), *p.box[axis + 1 :])
        spans.setdefault(p.box[axis], []).append(Padded(p.value, inner))
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
    merged, size = OPS[parts[0].op].merged, sum(p.args[0].type.size for p in parts)
    if merged and size < len(parts) * parts[0].type.size and sum(p.args[1].type.size for p in parts) <= MAX_DIM:
        return merged(b, parts)
    total = parts[0]
    for p in parts[1:]:
        total = b("+", total, p)
    return total
