"""Parts of tensor programs that are written as loops: pieces for threads, vectors with a tail, sums that wrap.

The loops are a CPU's. The block says in ``by_hand`` which program it is, and what else a schedule for another machine
needs that the tensors do not show.

A program takes LANES elements in one vector on every target; a machine of fewer lanes takes several steps.
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
    """The statement that ``body`` of the buffers makes; it may be several loops."""
    with IRBuilder() as ib, T.serial(0, int64(1)):  # a builder takes one statement
        body(*(T.buffer_proxy(buffer) for buffer in (*ins, *outs)))
    return ib.get()


def parallel_pieces(extent: int, size: int, others: int, body: Callable[[Any, Any, int], None]) -> None:
    """``body(other, start, length)`` for pieces of ``size`` of ``extent`` and a last shorter one, to threads where the
    schedule thinks it worth while."""
    full, remainder = divmod(extent, size)
    if full:
        with T.parallel(0, int64(others * full)) as p:
            body(p // full, p % full * size, size)
    if remainder:
        with T.parallel(0, int64(others)) as other:
            body(other, int64(full * size), remainder)


def vectorized_loop(width: int, body: Callable[[Any], None]) -> None:
    """``body`` at every place below ``width``, as vectors."""
    full, remainder = divmod(width, VECTOR_LANES)
    if full:
        with T.serial(0, int64(full)) as v, T.vectorized(0, int64(VECTOR_LANES)) as lane:
            body(v * VECTOR_LANES + lane)
    if remainder:
        with T.vectorized(0, int64(remainder)) as lane:
            body(lane + full * VECTOR_LANES)


def accumulator_dtype(dtype: str) -> str:
    """The dtype in which a running sum of ``dtype`` is carried, both TVM's names."""
    return "float64" if dtype == "float32" else dtype


def wrapped_sum(x: Any, y: Any) -> Any:
    """x + y; signed integers are added unsigned, since LLVM takes their overflow for impossible."""
    dtype = str(x.ty.dtype)
    if dtype not in ("int32", "int64"):
        return x + y
    total: Any = tirx.reinterpret("u" + dtype, x)
    return tirx.reinterpret(dtype, total + tirx.reinterpret("u" + dtype, y))
