"""Running sums, each in the order of its terms by one thread: several rows, or columns, side by side. Those of f32 are
carried in f64 and rounded where they are stored, so that a sum of millions of terms keeps its digits."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from sexpgpu.ops.types import TensorType

from .indexing import sizes
from .loop_builder import VECTOR_LANES, accumulator_dtype, build_statement, int64, parallel_pieces, wrapped_sum
from .reduction import dtype_of
from .registry import kernel

COLUMNS_PER_TASK = 64  # columns that one task carries along
INDEPENDENT_SUMS = 8  # sums that one core keeps going at once, so that it need not wait for each addition


@kernel("cumsum")
def cumsum(x: te.Tensor, out: TensorType, reverse: bool) -> Any:
    """Running sums of x [outer, n, inner], of f32, f64 or integers, along the second axis; from its end if ``reverse``.
    Integers wrap."""
    outer, n, inner = sizes(x)
    dtype = dtype_of(x)

    def body(x: Any, y: Any) -> None:
        scan = _Scan(x, y, n, reverse, dtype)
        if inner >= INDEPENDENT_SUMS:
            parallel_pieces(inner, COLUMNS_PER_TASK, outer, scan.columns)
        else:
            parallel_pieces(outer, max(1, INDEPENDENT_SUMS // inner), 1, lambda _, o, rows: scan.rows(o, rows, inner))

    make = lambda ins, outs: build_statement(ins, outs, body)  # noqa: E731
    block_attrs = {"by_hand": "cumsum", "reverse": int(reverse), "carried": accumulator_dtype(dtype)}
    return te.extern([x.shape], [x], make, "cumsum", dtype, attrs=block_attrs)


class _Scan:
    """The loops over the scanned axis, which add to sums that stay in registers."""

    def __init__(self, x: Any, y: Any, n: int, reverse: bool, dtype: str) -> None:
        self.x, self.y, self.n, self.reverse, self.dtype = x, y, n, reverse, dtype

    def columns(self, o: Any, first: Any, width: int) -> None:
        """``width`` columns from ``first``, as vectors."""
        vectors = [(p, min(VECTOR_LANES, width - p)) for p in range(0, width, VECTOR_LANES)]
        sums = [self._zeros(size) for _, size in vectors]
        with T.serial(0, int64(self.n)) as t:
            k = self._position(t)
            for acc, (p, size) in zip(sums, vectors, strict=True):
                with T.vectorized(0, int64(size)) as c:
                    self._add(acc, c, (o, k, first + p + c))

    def rows(self, first: Any, rows: int, inner: int) -> None:
        """``rows`` rows from ``first``, each of their columns a sum of its own."""
        acc = self._zeros(rows * inner)
        with T.serial(0, int64(self.n)) as t, T.unroll(0, int64(rows)) as r, T.unroll(0, int64(inner)) as c:
            k, slot = self._position(t), r * inner + c
            self._add(acc, slot, (first + r, k, c))

    def _add(self, acc: Any, slot: Any, at: tuple[Any, ...]) -> None:
        """The term ``at`` to the sum in ``slot``, which is stored there."""
        acc[slot] = wrapped_sum(acc[slot], self.x[at].astype(accumulator_dtype(self.dtype)))
        self.y[at] = acc[slot].astype(self.dtype)

    def _position(self, t: Any) -> Any:
        return int64(self.n - 1) - t if self.reverse else t

    def _zeros(self, width: int) -> Any:
        dtype = accumulator_dtype(self.dtype)
        acc = T.buffer_proxy(T.alloc_buffer([width], dtype))
        with T.vectorized(0, int64(width)) as c:
            acc[c] = tirx.const(0, dtype)
        return acc
