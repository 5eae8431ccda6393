"""Split and concat of many parts: slices by a few multi-output programs, concatenation a few tensors at a time.

The start of a slice is a constant of its program, and the start of each part of a concat is in the conditions of all
parts after it. Hundreds of slices were hundreds of programs, each compiled and called on its own, and hundreds of parts
were nested conditions at which no schedule can split its loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen
from tvm import relax

from sexpgpu.graph.core import Graph, Value
from sexpgpu.ops.types import TensorType

# Up to so many slices of one tensor along one axis stay separate programs, which fuse into their users.
MAX_SEPARATE_SLICES = 16
# Parts of one program, each of which is code of its own: as many boxes as a schedule makes.
MAX_PARTS = 64


@frozen
class Cut:
    """Slice ``n`` of a group that one program computes: ``x`` from ``start`` to ``stop`` along ``axis``, cut at
    ``spans`` relative to ``start``."""

    x: Value
    axis: int
    start: int
    stop: int
    spans: tuple[tuple[int, int], ...]
    n: int

    @property
    def is_whole(self) -> bool:
        return (self.start, self.stop) == (0, self.x.type.shape[self.axis])


def cuts(graph: Graph) -> dict[Value, Cut]:
    """The slices of a graph that are computed in groups, in the order of their starts."""
    slices_by_axis: dict[tuple[Value, int], list[Value]] = {}
    for v in graph.values():
        if v.op == "slice":
            slices_by_axis.setdefault((v.args[0], v.attrs["axis"]), []).append(v)
    grouped: dict[Value, Cut] = {}
    for (x, axis), slices in slices_by_axis.items():
        if len(slices) > MAX_SEPARATE_SLICES:
            slices.sort(key=lambda v: (v.attrs["start"], v.attrs["stop"]))
            for group in chunks(slices):
                grouped |= _cut(x, axis, group, alone=len(slices) == len(group))
    return grouped


def _cut(x: Value, axis: int, group: Sequence[Value], alone: bool) -> dict[Value, Cut]:
    """``alone``: this group has all slices of ``x``, so that its window need not be sliced out first."""
    spans = [(v.attrs["start"], v.attrs["stop"]) for v in group]
    start, stop = (0, x.type.shape[axis]) if alone else (spans[0][0], max(z for _, z in spans))
    relative = tuple((a - start, z - start) for a, z in spans)
    return {v: Cut(x, axis, start, stop, relative, n) for n, v in enumerate(group)}


def chunks(parts: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """``parts`` in groups of MAX_PARTS and a last smaller one, so that equal groups have equal programs."""
    return (parts[n : n + MAX_PARTS] for n in range(0, len(parts), MAX_PARTS))


def concat(r: Any, *xs: relax.Expr, axis: int) -> relax.Expr:
    """See indexing.concat. More than MAX_PARTS tensors are concatenated in groups, then the results of these."""
    parts: Sequence[relax.Expr] = xs
    while len(parts) > MAX_PARTS:
        parts = [r.bound(_joined(r, group, axis)) for group in chunks(parts)]
    return _joined(r, parts, axis)


def _joined(r: Any, xs: Sequence[relax.Expr], axis: int) -> relax.Expr:
    if len(xs) == 1:
        return xs[0]
    shape = list(r.shape(xs[0]))
    shape[axis] = sum(r.shape(x)[axis] for x in xs)
    return r.program("concat", TensorType(tuple(shape), r.out.dtype), *xs, axis=axis)
