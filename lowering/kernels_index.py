"""Tensor programs of the index rows.

Indices are clamped or tested here, so that no program reads or writes outside a tensor, and what is added at one place
is added in the order of its index by one thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from sexpgpu.types import TensorType

from .kernels import dims, kernel
from .kernels_reduce import dtype_of

Ints = Sequence[int]
SERIAL = 16384  # updates below which starting threads costs more than they save
PANEL = 64  # columns a thread takes at a time


def number(n: int) -> Any:
    return tirx.const(n, "int64")


def clamp(i: Any, n: int) -> Any:
    """``i``, of any integer dtype, as an index in [0, n)."""
    return tirx.max(tirx.min(i.astype("int64"), number(n - 1)), number(0))


def sizes(x: te.Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in x.shape)


def broadcast_at(x: te.Tensor, at: Sequence[Any]) -> Any:
    """The element of ``x`` at ``at``, an axis of size 1 read at 0."""
    return x(*(number(0) if n == 1 else i for n, i in zip(sizes(x), at, strict=True)))


@kernel("gather")
def gather(table: te.Tensor, ids: te.Tensor, out: TensorType) -> Any:
    rank, n = len(ids.shape), sizes(table)[0]
    return te.compute(out.shape, lambda *at: table(clamp(ids(*at[:rank]), n), *at[rank:]), "gather")


@kernel("take-along")
def take_along(x: te.Tensor, ids: te.Tensor, out: TensorType, axis: int) -> Any:
    n = sizes(x)[axis]

    def element(*at: Any) -> Any:
        there = [number(0) if m == 1 else i for m, i in zip(sizes(x), at, strict=True)]
        there[axis] = clamp(broadcast_at(ids, at), n)
        return x(*there)

    return te.compute(out.shape, element, "take_along")


@kernel("scatter-along")
def scatter_along(dy: te.Tensor, ids: te.Tensor, out: TensorType, axis: int) -> Any:
    """Each place along ``axis`` sums, in order, the elements of dy whose index is that place."""
    many, n = sizes(dy)[axis], out.shape[axis]
    acc = "float32" if out.dtype in ("bf16", "f16") else dtype_of(dy)

    def part(at: Sequence[Any], j: Any) -> Any:
        there = [*at[:axis], j, *at[axis + 1 :]]
        hit = clamp(broadcast_at(ids, there), n).equal(at[axis])
        return tirx.Select(hit, dy(*there).astype(acc), tirx.const(0, acc))

    if many == 1:
        return te.compute(out.shape, lambda *at: part(at, number(0)).astype(dtype_of(dy)), "scatter_along")
    j = te.reduce_axis((0, many), "j")
    y: Any = te.compute(out.shape, lambda *at: te.sum(part(at, j.var), axis=j), "scatter_along")
    return y if acc == dtype_of(dy) else te.compute(out.shape, lambda *at: y(*at).astype(dtype_of(dy)), "round")


@kernel("scatter-add")
def scatter_add(base: te.Tensor, ids: te.Tensor, updates: te.Tensor, out: TensorType, columns: int) -> Any:
    """base [rows*columns], ids [count], updates [count*columns] -> [rows*columns]. One thread owns a panel of columns
    and goes through all updates in order. Of f32, f64 or integers."""
    rows, count = sizes(base)[0] // columns, sizes(ids)[0]
    panel = columns if columns * count < SERIAL else max(d for d in range(1, PANEL + 1) if columns % d == 0)

    def program(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        x, at, dy, y = (T.buffer_proxy(buffer) for buffer in (*ins, *outs))
        with IRBuilder() as ib:
            loop = T.serial if panel == columns else T.parallel
            with loop(0, number(columns // panel)) as p:
                first = p * panel
                with T.serial(0, number(rows)) as i, T.serial(0, number(panel)) as c:
                    y[i * columns + first + c] = x[i * columns + first + c]
                with T.serial(0, number(count)) as t:
                    i = at[t].astype("int64")
                    with T.If(tirx.all(i >= 0, i < rows)), T.Then(), T.serial(0, number(panel)) as c:
                        here = i * columns + first + c
                        y[here] = wrapped_sum(y[here], dy[t * columns + first + c])
            return ib.get()

    return te.extern([base.shape], [base, ids, updates], program, "scatter_add", dtype_of(base))


def wrapped_sum(x: Any, y: Any) -> Any:
    """x + y; signed integers are added unsigned, since LLVM takes their overflow for impossible."""
    dtype = dtype_of(x)
    if dtype not in ("int32", "int64"):
        return x + y
    total: Any = tirx.reinterpret("u" + dtype, x)
    return tirx.reinterpret(dtype, total + tirx.reinterpret("u" + dtype, y))


def window_start(at: te.Tensor, starts: Ints, axis: int, whole: Ints, part: Ints) -> list[Any]:
    out = [number(i) for i in starts]
    moved = number(starts[axis]) + at().astype("int64")
    out[axis] = tirx.max(tirx.min(moved, number(whole[axis] - part[axis])), number(0))
    return out


@kernel("write-window")
def write_window(x: te.Tensor, part: te.Tensor, at: te.Tensor, out: TensorType, starts: Ints, axis: int) -> Any:
    first = window_start(at, starts, axis, sizes(x), sizes(part))

    def element(*i: Any) -> Any:
        there = [a - b for a, b in zip(i, first, strict=True)]
        inside = tirx.all(*(tirx.all(k >= 0, k < n) for k, n in zip(there, sizes(part), strict=True)))
        return tirx.if_then_else(inside, part(*there), x(*i))

    return te.compute(out.shape, element, "write_window")


@kernel("read-window")
def read_window(x: te.Tensor, at: te.Tensor, out: TensorType, starts: Ints, axis: int) -> Any:
    first = window_start(at, starts, axis, sizes(x), out.shape)
    return te.compute(out.shape, lambda *i: x(*(a + b for a, b in zip(i, first, strict=True))), "read_window")


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
