"""Tensor programs of the index rows.

Indices are clamped or tested here, so that no program reads or writes outside a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .loop_builder import number
from .reduction import dtype_of
from .registry import dims, kernel

Ints = Sequence[int]


def clamp(i: Any, n: int) -> Any:
    """``i``, of any integer dtype, as an index in [0, n)."""
    return tirx.max(tirx.min(i.astype("int64"), number(n - 1)), number(0))


def sizes(x: te.Tensor) -> tuple[int, ...]:
    """The shape of ``x``, which is static."""
    return tuple(int(n) for n in x.shape)


def broadcast_at(x: te.Tensor, at: Sequence[Any]) -> Any:
    """The element of ``x`` at ``at``, an axis of size 1 read at 0."""
    return x(*(number(0) if n == 1 else i for n, i in zip(sizes(x), at, strict=True)))


@kernel("gather")
def gather(table: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    """table [n ...], ids of any shape -> [ids... ...]; ids are clamped."""
    rank, n = len(ids.shape), sizes(table)[0]
    return te.compute(out.shape, lambda *at: table(clamp(ids(*at[:rank]), n), *at[rank:]), "gather")


@kernel("take-along")
def take_along(x: te.Tensor, ids: te.Tensor, out: TensorType, axis: int) -> Any:
    """Along ``axis`` at ``ids``, clamped; other axes of one element, of either, are repeated."""
    n = sizes(x)[axis]

    def element(*at: Any) -> Any:
        there = [number(0) if m == 1 else i for m, i in zip(sizes(x), at, strict=True)]
        there[axis] = clamp(broadcast_at(ids, at), n)
        return x(*there)

    return te.compute(out.shape, element, "take_along")


@kernel("scatter-one")
def scatter_one(dy: te.Tensor, ids: te.Tensor, out: TensorType, axis: int) -> Any:
    """Zeros with dy, of one element along ``axis``, at the place that its index says."""
    n = out.shape[axis]

    def element(*at: Any) -> Any:
        there = [*at[:axis], number(0), *at[axis + 1 :]]
        hit = clamp(broadcast_at(ids, there), n).equal(at[axis])
        return tirx.Select(hit, dy(*there), tirx.const(0, dtype_of(dy)))

    return te.compute(out.shape, element, "scatter_one")


def window_start(at: te.Tensor, starts: Ints, axis: int, whole: Ints, part: Ints) -> list[Any]:
    """The first index of a window on each axis: ``starts``, along ``axis`` moved by the scalar ``at`` and clamped."""
    out = [number(i) for i in starts]
    moved = number(starts[axis]) + at().astype("int64")
    out[axis] = tirx.max(tirx.min(moved, number(whole[axis] - part[axis])), number(0))
    return out


@kernel("write-window")
def write_window(x: te.Tensor, part: te.Tensor, at: te.Tensor, out: TensorType, starts: Ints, axis: int) -> Any:
    """``x`` with ``part`` where the window is."""
    first = window_start(at, starts, axis, sizes(x), sizes(part))

    def element(*i: Any) -> Any:
        there = [a - b for a, b in zip(i, first, strict=True)]
        inside = tirx.all(*(tirx.all(k >= 0, k < n) for k, n in zip(there, sizes(part), strict=True)))
        return tirx.if_then_else(inside, part(*there), x(*i))

    return te.compute(out.shape, element, "write_window")


@kernel("read-window")
def read_window(x: te.Tensor, at: te.Tensor, out: TensorType, starts: Ints, axis: int) -> Any:
    """The window of the size of ``out``."""
    first = window_start(at, starts, axis, sizes(x), out.shape)
    return te.compute(out.shape, lambda *i: x(*(a + b for a, b in zip(i, first, strict=True))), "read_window")


@kernel("parts")
def parts(x: te.Tensor, axis: int, spans: Sequence[tuple[int, int]]) -> list[Any]:
    """The slices of ``x`` along ``axis``, each from, to: a result each."""
    rest = sizes(x)

    def part(start: int, stop: int) -> Any:
        shape = [number(n) for n in (*rest[:axis], stop - start, *rest[axis + 1 :])]
        return te.compute(shape, lambda *at: x(*at[:axis], at[axis] + number(start), *at[axis + 1 :]), "part")

    return [part(*span) for span in spans]


@kernel("concat")
def concat(*xs: te.Tensor, out: TensorType, axis: int) -> Any:
    """The parts one after another along ``axis``."""
    ends = list(itertools.accumulate(int(x.shape[axis]) for x in xs))

    def element(*at: Any) -> Any:
        def part(x: te.Tensor, start: int) -> Any:
            return x(*at[:axis], at[axis] - start, *at[axis + 1 :])

        value = part(xs[-1], ends[-2])
        for x, start, end in reversed([*zip(xs, [0, *ends], ends, strict=False)][:-1]):
            value = tirx.if_then_else(at[axis] < end, part(x, start), value)
        return value

    return te.compute(dims(out), element, "concat")
