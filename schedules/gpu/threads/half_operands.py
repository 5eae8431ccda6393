"""Factors of a product on matrix units: how they lie in memory."""

from __future__ import annotations

from math import prod
from typing import Any

import attrs
from tvm.ir import Var

from ...tir.builder import Expr, load, shape_of, unravel
from ...tir.contraction import Contraction, half_load
from ...tir.point_writer import index_of
from ...tir.stages import Axis, substitute, variables


@attrs.frozen(eq=False)
class Operand:
    """A factor: a load of halves, by its batch, its lines (rows of A, columns of B) and its depth."""

    read: Any
    batch: tuple[Axis, ...]
    lines: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return str(self.read.ty.dtype)

    @property
    def extents(self) -> tuple[int, int]:
        """Lines, and how deep they are."""
        return prod(a.extent for a in self.lines), prod(a.extent for a in self.depth)

    @property
    def by_depth(self) -> bool:
        """Do neighbours in memory differ in their line?"""
        return bool(self.lines) and self.lines[-1].var in variables(self.read.indices[-1])

    @property
    def width(self) -> int:
        """How many halves a copy can take: neighbours of one row or column, at an address that is a multiple."""
        inner = (self.lines if self.by_depth else self.depth)[-1]
        last = self.read.indices[-1]
        if not (isinstance(last, Var) and last.same_as(inner.var)):
            return 1
        if any(inner.var in variables(index) for index in self.read.indices[:-1]):
            return 1
        row = shape_of(self.read.source)[-1]
        return next(w for w in (8, 4, 2, 1) if inner.extent % w == 0 and row % w == 0)

    def element(self, batch: Expr, line: Expr, depth: Expr) -> Expr:
        """The load at flat coordinates."""
        here: dict[Any, Expr] = {}
        for axes, flat in ((self.batch, batch), (self.lines, line), (self.depth, depth)):
            here |= index_of(axes, unravel(flat, [a.extent for a in axes]))
        return load(self.read.source, *(substitute(index, here) for index in self.read.indices))


def operands(one: Contraction) -> tuple[Operand, Operand] | None:
    """A and B, if both are halves of one dtype as they lie in memory."""
    reads = half_load(one.a), half_load(one.b)
    if any(read is None for read in reads) or len({str(read.ty.dtype) for read in reads}) > 1:
        return None
    depth = one.stage.reduce
    a, b = Operand(reads[0], one.batch, one.rows, depth), Operand(reads[1], one.batch, one.columns, depth)
    return a, b
