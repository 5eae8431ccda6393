"""Short constructors of TIR statements, loops and buffers. Extents are static; indices are 64-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call as Call  # re-exported, like Load
from tvm.ir.expr import TensorLoad

from .let_buffers import bind_in_buffers

Expr = Any  # tvm.ir.Expr with arithmetic operators, which its type stub does not show
Stmt = Any
Load = TensorLoad

SERIAL, PARALLEL = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
VECTOR, UNROLLED = tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED


def i64(value: int) -> Expr:
    return tirx.IntImm("int64", value)


def value_of(expr: Expr) -> int:
    """The value of an integer literal."""
    return int(expr.value)


def is_int(expr: Expr, value: int | None = None) -> bool:
    """Is ``expr`` an integer literal (equal to ``value``, if given)?"""
    return isinstance(expr, tirx.IntImm) and (value is None or value_of(expr) == value)


def seq(statements: Sequence[Stmt]) -> Stmt:
    """A sequence of statements. Raises ValueError for none: a loop without a body is our bug."""
    if not statements:
        raise ValueError("a body without statements")
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def loop(extent: int, body: Callable[[Expr], Stmt], kind: Any = SERIAL, name: str = "i") -> Stmt:
    """A loop of ``kind`` over 0 <= i < extent; for an extent of 1 its body alone."""
    # No loop around a single iteration: its index is then a constant, and what depends on it simplifies.
    if extent == 1:
        return body(i64(0))
    var = tirx.Var(name, "int64")
    return tirx.For(var, i64(0), i64(extent), kind, bind_in_buffers(body(var)))


def grid(extents: Sequence[int], body: Callable[[list[Expr]], Stmt]) -> Stmt:
    """Serial loops, the first outermost."""
    if not extents:
        return body([])
    return loop(extents[0], lambda i: grid(extents[1:], lambda rest: body([i, *rest])))


def unravel(flat: Expr, extents: Sequence[int]) -> list[Expr]:
    """The indices of element number ``flat`` of a row-major array."""
    indices, stride = [], prod(extents)
    for dim, extent in enumerate(extents):
        stride //= extent
        index = flat if stride == 1 else tirx.floordiv(flat, i64(stride))
        if extent == 1:
            index = i64(0)
        # The first index needs no modulo, as ``flat`` is below the product of all extents.
        elif dim and any(e > 1 for e in extents[:dim]):
            index = tirx.floormod(index, i64(extent))
        indices.append(index)
    return indices


def load(buffer: Any, *indices: Expr) -> Expr:
    return tirx.BufferLoad(buffer, list(indices))


def store(buffer: Any, value: Expr, *indices: Expr) -> Stmt:
    return tirx.BufferStore(buffer, value, list(indices))


def scratch(extents: Sequence[int], dtype: str, name: str) -> Any:
    """A buffer of the kernel's own. A ``tirx.AllocBuffer`` statement has to allocate it."""
    return tirx.decl_buffer([i64(e) for e in extents], dtype, name)


def shape_of(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)
