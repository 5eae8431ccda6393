"""Where the elements of a slice, a reshape or a transpose stand in what it is made of: the ``source`` column.

An index is affine in the axes of the result: a constant, and a factor for each axis. So is every strided view of a
tensor, and no other move of elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from attrs import field, frozen


@frozen
class Affine:
    """``const`` + the sum of factor * index over ``factors``: (axis, factor) in the order of the axes, no 0."""

    const: int = 0
    factors: tuple[tuple[int, int], ...] = field(default=(), converter=lambda x: tuple(sorted(x)))

    @classmethod
    def axis(cls, n: int) -> Affine:
        return cls(0, ((n, 1),))

    def plus(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.factors)
        found = dict(self.factors)
        for axis, factor in other.factors:
            found[axis] = found.get(axis, 0) + factor
        return Affine(self.const + other.const, tuple((a, f) for a, f in found.items() if f))

    def times(self, n: int) -> Affine:
        return Affine(self.const * n, tuple((a, f * n) for a, f in self.factors))

    def without(self, axis: int) -> Affine:
        return Affine(self.const, tuple((a, f) for a, f in self.factors if a != axis))


Index = Sequence[Affine]


def of_transpose(shape: Sequence[int], index: Index, perm: Sequence[int], **attrs: Any) -> Index:
    """Axis ``perm[i]`` of the argument is axis i of the result."""
    return [index[list(perm).index(axis)] for axis in range(len(shape))]


def of_slice(shape: Sequence[int], index: Index, axis: int, start: int, **attrs: Any) -> Index:
    return [i.plus(start) if n == axis else i for n, i in enumerate(index)]


def of_reshape(old: Sequence[int], index: Index, shape: Sequence[int], **attrs: Any) -> Index | None:
    """None where an axis of the argument would need a division: axes that are joined, or split and joined anew."""
    found: list[Affine] = []
    for mine, theirs in _alike(old, shape):
        wide = [n for n in mine if n > 1]
        if len(wide) > 1:
            if mine != [shape[n] for n in theirs]:
                return None
            found += [index[n] for n in theirs]
            continue
        flat = Affine()
        for n in theirs:
            flat = flat.times(shape[n]).plus(index[n])
        found += [flat if n > 1 else Affine() for n in mine]
    return found


def _alike(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of ``old``'s extents and of ``new``'s axes with as many elements, each as short as can be."""
    rest, axes = list(old), list(range(len(new)))
    while rest or axes:
        mine, theirs = ([rest.pop(0)] if rest else []), ([axes.pop(0)] if axes else [])
        while (a := prod(mine)) != (b := prod(new[n] for n in theirs)):
            if a < b:
                mine.append(rest.pop(0))
            else:
                theirs.append(axes.pop(0))
        yield mine, theirs
