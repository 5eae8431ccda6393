"""Many parts of one tensor: slices made by a few programs of several results, tensors joined a few at a time.

A slice says in its program where it begins, and so does each part of what is joined in the conditions of all after it:
hundreds of them were hundreds of programs, each compiled and called on its own, and conditions that no schedule can cut
its loops at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen
from tvm import relax

from sexpgpu.graph.core import Graph, Value
from sexpgpu.ops.types import TensorType

MAX_SEPARATE_SLICES = 16  # slices of one tensor along one axis; as many or fewer each join what is made of them
MAX_PARTS = 64  # parts of a program, each of which is code of its own: as many straight boxes as a schedule makes


@frozen
class Cut:
    """Slice ``n`` of those of ``x`` from ``start`` to ``stop`` along ``axis`` that one program makes, which are at
    ``spans`` counted from ``start``."""

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
    """Those slices of a graph that are made together, in the order in which they lie in their tensor."""
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
    """``alone``: no other program takes slices of ``x``, so that it need not be cut beforehand."""
    spans = [(v.attrs["start"], v.attrs["stop"]) for v in group]
    start, stop = (0, x.type.shape[axis]) if alone else (spans[0][0], max(z for _, z in spans))
    relative = tuple((a - start, z - start) for a, z in spans)
    return {v: Cut(x, axis, start, stop, relative, n) for n, v in enumerate(group)}


def chunks(parts: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """``parts`` by at most MOST, so that equal ones make equal programs."""
    return (parts[n : n + MAX_PARTS] for n in range(0, len(parts), MAX_PARTS))


def concat(r: Any, *xs: relax.Expr, axis: int) -> relax.Expr:
    """See kernels_index.concat. More than MOST tensors are joined by as many, then what that makes."""
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
