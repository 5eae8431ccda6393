"""Boxes of a tensor's elements, and the ``origins`` column: where what an operator moves comes from.

    (value, box) -> (argument, box of the argument's elements), ... that stand in ``box`` of the value

What the operator computes, or chooses by what the data say, has no origin. ``value`` is a graph's Value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

Box = tuple[tuple[int, int], ...]  # (start, stop) on each axis; none is empty
MAX_RUNS = 64  # pieces that a box may fall into; more are taken for all that lies between them


def whole(value: Any) -> Box:
    return tuple((0, n) for n in value.type.shape)


def covers(box: Box, other: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(box, other, strict=True))


def overlap(box: Box, other: Box) -> Iterator[Box]:
    """The elements of both, if there are any."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True))
    if all(a < b for a, b in both):
        yield both


def without(box: Box, other: Box) -> Iterator[Box]:
    """The elements of ``box`` that are not of ``other``, as boxes."""
    if not any(overlap(box, other)):
        yield box
        return
    for axis, ((a, b), (c, d)) in enumerate(zip(box, other, strict=True)):
        for part in ((a, min(b, c)), (max(a, d), b)):
            if part[0] < part[1]:
                yield (*box[:axis], part, *box[axis + 1 :])
        box = (*box[:axis], (max(a, c), min(b, d)), *box[axis + 1 :])


def joined(box: Box, other: Box) -> Box | None:
    """The box of the elements of both; None where these are no box."""
    differ = [axis for axis, (a, b) in enumerate(zip(box, other, strict=True)) if a != b]
    if len(differ) != 1:
        return None if differ else box
    (a, b), (c, d) = box[differ[0]], other[differ[0]]
    return on_axis(box, differ[0], (min(a, c), max(b, d))) if c <= b and a <= d else None


def moved(box: Box, by: Iterable[int]) -> Box:
    return tuple((a + n, b + n) for (a, b), n in zip(box, by, strict=True))


def on_axis(box: Box, axis: int, part: tuple[int, int]) -> Box:
    return (*box[:axis], part, *box[axis + 1 :])


Origins = Iterator[tuple[Any, Box]]


def same_origins(value: Any, box: Box) -> Origins:
    yield value.args[0], box


def cast_origins(value: Any, box: Box) -> Origins:
    if value.args[0].type.kind in ("int", "uint"):
        yield value.args[0], box


def transpose_origins(value: Any, box: Box) -> Origins:
    perm = value.attrs["perm"]
    yield value.args[0], tuple(box[perm.index(axis)] for axis in range(len(perm)))


def spread(x: Any, box: Box) -> Box:
    """What of ``x`` stands in ``box`` of what it is broadcast to."""
    inner = box[len(box) - x.type.rank :]
    return tuple((0, 1) if n == 1 else side for n, side in zip(x.type.shape, inner, strict=True))


def broadcast_origins(value: Any, box: Box) -> Origins:
    yield value.args[0], spread(value.args[0], box)


def slice_origins(value: Any, box: Box) -> Origins:
    axis, start = value.attrs["axis"], value.attrs["start"]
    a, b = box[axis]
    yield value.args[0], on_axis(box, axis, (a + start, b + start))


def flip_origins(value: Any, box: Box) -> Origins:
    for axis in value.attrs["axes"]:
        n, (a, b) = value.type.shape[axis], box[axis]
        box = on_axis(box, axis, (n - b, n - a))
    yield value.args[0], box


def pad_origins(value: Any, box: Box) -> Origins:
    inner = moved(box, (-before for before, _ in value.attrs["widths"]))
    yield from ((value.args[0], both) for both in overlap(inner, whole(value.args[0])))


def concat_origins(value: Any, box: Box) -> Origins:
    axis, at = value.attrs["axis"], 0
    for part in value.args:
        a, b = box[axis]
        inner = on_axis(box, axis, (a - at, b - at))
        yield from ((part, both) for both in overlap(inner, whole(part)))
        at += part.type.shape[axis]


def reshape_origins(value: Any, box: Box) -> Origins:
    """Axes fall into the smallest groups of equal size; within each the box is cut into runs."""
    (x,) = value.args
    made: list[Box] = [()]
    for old, new, part in _groups(x.type.shape, value.type.shape, box):
        pieces = [piece for run in _runs(new, part) for piece in _boxes(old, run)]
        made = [(*before, *piece) for before in made for piece in pieces]
    yield from ((x, each) for each in made)


Shape = tuple[int, ...]


def _groups(old: Shape, new: Shape, box: Box) -> Iterator[tuple[Shape, Shape, Box]]:
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while prod(old[a:i]) != prod(new[b:j]) or (i < len(old) and j == len(new)) or (i == len(old) and j < len(new)):
            if prod(old[a:i]) < prod(new[b:j]) and i < len(old) or j == len(new):
                i += 1
            else:
                j += 1
        yield old[a:i], new[b:j], box[b:j]


def _runs(shape: Shape, box: Box) -> list[tuple[int, int]]:
    """(start, stop) in the elements of ``shape`` in order."""
    runs = [(0, 1)]
    for n, (a, b) in zip(shape, box, strict=True):
        if (a, b) == (0, n):
            runs = [(p * n, q * n) for p, q in runs]
        elif sum(q - p for p, q in runs) <= MAX_RUNS:
            runs = [(i * n + a, i * n + b) for p, q in runs for i in range(p, q)]
        else:
            runs = [(p * n + a, (q - 1) * n + b) for p, q in runs]
    return runs


def _boxes(shape: Shape, run: tuple[int, int]) -> Iterator[Box]:
    """The boxes of ``shape`` whose elements are those of a run."""
    start, stop = run
    if len(shape) < 2:
        yield (run,) * len(shape)
        return
    inner = prod(shape[1:])
    first, last = -(-start // inner), stop // inner
    if first > last:  # all within one row
        within = start - last * inner, stop - last * inner
        yield from (((last, last + 1), *rest) for rest in _boxes(shape[1:], within))
        return
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    if start < first * inner:
        row = first - 1
        yield from (((row, first), *rest) for rest in _boxes(shape[1:], (start - row * inner, inner)))
    if last * inner < stop:
        yield from (((last, last + 1), *rest) for rest in _boxes(shape[1:], (0, stop - last * inner)))

