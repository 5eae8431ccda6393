"""Cumulative sum: a serial scan of each row or column, several of them side by side.

Each sum is computed by one thread, in the order of its terms. f32 sums are accumulated in f64 and rounded when they are
stored, so that a sum of millions of terms keeps its digits.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from sexpgpu.ops.types import TensorType

from .indexing import sizes
from .loop_builder import VECTOR_LANES, accumulator_dtype, build_statement, int64, parallel_pieces, wrapped_sum
from .reduction import dtype_of
from .registry import kernel

COLUMNS_PER_TASK = 64  # columns of one parallel task; no measurement on record
INDEPENDENT_SUMS = 8  # sums in flight on one core, to hide the latency of an addition; no measurement on record


@kernel("cumsum")
def cumsum(x: te.Tensor, out: TensorType, reverse: bool) -> Any:
    """Cumulative sums of x [outer, n, inner], of f32, f64 or integers, along the second axis; from its end if
    ``reverse``. Integers wrap."""
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
    """The loops over the scanned axis; the sums stay in registers."""

    def __init__(self, x: Any, y: Any, n: int, reverse: bool, dtype: str) -> None:
        self.x, self.y, self.n, self.reverse, self.dtype = x, y, n, reverse, dtype

    def columns(self, outer_index: Any, first: Any, width: int) -> None:
        """Scans ``width`` columns from ``first`` on, as vectors."""
        vectors = [(start, min(VECTOR_LANES, width - start)) for start in range(0, width, VECTOR_LANES)]
        sums = [self._zeros(size) for _, size in vectors]
        with T.serial(0, int64(self.n)) as step:
            k = self._position(step)
            for acc, (start, size) in zip(sums, vectors, strict=True):
                with T.vectorized(0, int64(size)) as lane:
                    self._add(acc, lane, (outer_index, k, first + start + lane))

    def rows(self, first: Any, row_count: int, inner: int) -> None:
        """Scans ``row_count`` rows from ``first`` on; each of their columns is a sum of its own."""
        acc = self._zeros(row_count * inner)
        with T.serial(0, int64(self.n)) as t, T.unroll(0, int64(row_count)) as row, T.unroll(0, int64(inner)) as column:
            k, slot = self._position(t), row * inner + column
            self._add(acc, slot, (first + row, k, column))

    def _add(self, acc: Any, slot: Any, index: tuple[Any, ...]) -> None:
        """Adds the term at ``index`` to the sum in ``slot``, and stores the sum at ``index``."""
        acc[slot] = wrapped_sum(acc[slot], self.x[index].astype(accumulator_dtype(self.dtype)))
        self.y[index] = acc[slot].astype(self.dtype)

    def _position(self, t: Any) -> Any:
        return int64(self.n - 1) - t if self.reverse else t

    def _zeros(self, width: int) -> Any:
        dtype = accumulator_dtype(self.dtype)
        acc = T.buffer_proxy(T.alloc_buffer([width], dtype))
        with T.vectorized(0, int64(width)) as c:
            acc[c] = tirx.const(0, dtype)
        return acc
