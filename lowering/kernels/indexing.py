"""Tensor programs of the indexing operators: gather, slices, windows, concat.

Indices are clamped or tested here, so that no program reads or writes outside a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from sexpgpu.ops.types import TensorType

from .loop_builder import int64
from .reduction import dtype_of
from .registry import dims, kernel

Ints = Sequence[int]


def clamp(i: Any, n: int) -> Any:
    """``i``, of any integer dtype, as an index in [0, n)."""
    return tirx.max(tirx.min(i.astype("int64"), int64(n - 1)), int64(0))


def sizes(x: te.Tensor) -> tuple[int, ...]:
    """The shape of ``x``, which is static."""
    return tuple(int(n) for n in x.shape)


def broadcast_at(x: te.Tensor, index: Sequence[Any]) -> Any:
    """The element of ``x`` at ``index``, an axis of size 1 read at 0."""
    return x(*(int64(0) if n == 1 else i for n, i in zip(sizes(x), index, strict=True)))


@kernel("gather")
def gather(table: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    """table [n ...], ids of any shape -> [ids... ...]; ids are clamped."""
    rank, n = len(ids.shape), sizes(table)[0]
    return te.compute(out.shape, lambda *index: table(clamp(ids(*index[:rank]), n), *index[rank:]), "gather")


@kernel("take-along")
def take_along(x: te.Tensor, ids: te.Tensor, out: TensorType, axis: int) -> Any:
    """Elements of ``x`` along ``axis`` at ``ids``, clamped; other axes of size 1, of either, are broadcast."""
    n = sizes(x)[axis]

    def element(*index: Any) -> Any:
        source = [int64(0) if m == 1 else i for m, i in zip(sizes(x), index, strict=True)]
        source[axis] = clamp(broadcast_at(ids, index), n)
        return x(*source)

    return te.compute(out.shape, element, "take_along")


@kernel("scatter-one")
def scatter_one(dy: te.Tensor, ids: te.Tensor, out: TensorType, axis: int) -> Any:
    """Zeros with dy, which has size 1 along ``axis``, at the index that ``ids`` gives."""
    n = out.shape[axis]

    def element(*index: Any) -> Any:
        source = [*index[:axis], int64(0), *index[axis + 1 :]]
        hit = clamp(broadcast_at(ids, source), n).equal(index[axis])
        return tirx.Select(hit, dy(*source), tirx.const(0, dtype_of(dy)))

    return te.compute(out.shape, element, "scatter_one")


def window_start(offset: te.Tensor, starts: Ints, axis: int, shape: Ints, window_shape: Ints) -> list[Any]:
    """The first index of a window on each axis: ``starts``, moved by the scalar ``offset`` along ``axis`` and
    clamped."""
    first = [int64(i) for i in starts]
    start = int64(starts[axis]) + offset().astype("int64")
    first[axis] = tirx.max(tirx.min(start, int64(shape[axis] - window_shape[axis])), int64(0))
    return first


@kernel("write-window")
def write_window(x: te.Tensor, part: te.Tensor, offset: te.Tensor, out: TensorType, starts: Ints, axis: int) -> Any:
    """``x`` with the window replaced by ``part``."""
    first = window_start(offset, starts, axis, sizes(x), sizes(part))

    def element(*i: Any) -> Any:
        in_window = [a - b for a, b in zip(i, first, strict=True)]
        inside_window = tirx.all(*(tirx.all(k >= 0, k < n) for k, n in zip(in_window, sizes(part), strict=True)))
        return tirx.if_then_else(inside_window, part(*in_window), x(*i))

    return te.compute(out.shape, element, "write_window")


@kernel("read-window")
def read_window(x: te.Tensor, offset: te.Tensor, out: TensorType, starts: Ints, axis: int) -> Any:
    """The window of ``x`` with the shape of ``out``."""
    first = window_start(offset, starts, axis, sizes(x), out.shape)
    return te.compute(out.shape, lambda *i: x(*(a + b for a, b in zip(i, first, strict=True))), "read_window")


@kernel("parts")
def parts(x: te.Tensor, axis: int, spans: Sequence[tuple[int, int]]) -> list[Any]:
    """The slices of ``x`` along ``axis``, one result for each (start, stop) of ``spans``."""
    shape = sizes(x)

    def part(start: int, stop: int) -> Any:
        part_shape = [int64(n) for n in (*shape[:axis], stop - start, *shape[axis + 1 :])]

        def element(*index: Any) -> Any:
            return x(*index[:axis], index[axis] + int64(start), *index[axis + 1 :])

        return te.compute(part_shape, element, "part")

    return [part(*span) for span in spans]


@kernel("concat")
def concat(*xs: te.Tensor, out: TensorType, axis: int) -> Any:
    """The tensors one after the other along ``axis``."""
    ends = list(itertools.accumulate(int(x.shape[axis]) for x in xs))

    def element(*index: Any) -> Any:
        def part(x: te.Tensor, start: int) -> Any:
            return x(*index[:axis], index[axis] - start, *index[axis + 1 :])

        value = part(xs[-1], ends[-2])
        for x, start, end in reversed([*zip(xs, [0, *ends], ends, strict=False)][:-1]):
            value = tirx.if_then_else(index[axis] < end, part(x, start), value)
        return value

    return te.compute(dims(out), element, "concat")
