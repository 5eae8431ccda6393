"""Building blocks of tensor programs that are written as loops: parallel pieces, vector loops with a tail, wrapping
sums.

The loops are for a CPU. The block's attribute ``by_hand`` names the program, and other attributes give what a schedule
for another machine needs and cannot see in the tensors.

A vector has VECTOR_LANES elements on every target; a machine with narrower vectors takes several instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

VECTOR_LANES = 16


def int64(n: int) -> Any:
    """``n`` as an i64 constant."""
    return tirx.const(n, "int64")


def build_statement(ins: Sequence[Any], outs: Sequence[Any], body: Callable[..., None]) -> Any:
    """The statement that ``body`` builds from the buffers; it may be several loops."""
    with IRBuilder() as ib, T.serial(0, int64(1)):  # a builder takes one statement
        body(*(T.buffer_proxy(buffer) for buffer in (*ins, *outs)))
    return ib.get()


def parallel_pieces(extent: int, size: int, others: int, body: Callable[[Any, Any, int], None]) -> None:
    """Parallel loops of ``body(other, start, length)`` over pieces of ``size`` of ``extent`` and a shorter last one,
    for each ``other`` below ``others``. The schedule decides whether threads pay."""
    full, remainder = divmod(extent, size)
    if full:
        with T.parallel(0, int64(others * full)) as p:
            body(p // full, p % full * size, size)
    if remainder:
        with T.parallel(0, int64(others)) as other:
            body(other, int64(full * size), remainder)


def vectorized_loop(width: int, body: Callable[[Any], None]) -> None:
    """Vector loops of ``body(i)`` for i below ``width``."""
    full, remainder = divmod(width, VECTOR_LANES)
    if full:
        with T.serial(0, int64(full)) as v, T.vectorized(0, int64(VECTOR_LANES)) as lane:
            body(v * VECTOR_LANES + lane)
    if remainder:
        with T.vectorized(0, int64(remainder)) as lane:
            body(lane + full * VECTOR_LANES)


def accumulator_dtype(dtype: str) -> str:
    """The dtype of the accumulator of a cumulative sum of ``dtype``, both TVM's names."""
    return "float64" if dtype == "float32" else dtype


def wrapped_sum(x: Any, y: Any) -> Any:
    """x + y; signed integers are added as unsigned ones, since signed overflow is undefined in LLVM."""
    dtype = str(x.ty.dtype)
    if dtype not in ("int32", "int64"):
        return x + y
    total: Any = tirx.reinterpret("u" + dtype, x)
    return tirx.reinterpret(dtype, total + tirx.reinterpret("u" + dtype, y))
