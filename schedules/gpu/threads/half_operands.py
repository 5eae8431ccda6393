"""Operands of a tensor-core matmul: 16-bit tensors as they lie in memory.

A (m by k) and B (k by n) may lie either way round. As in CuTe, an operand is *k-major* if neighbours in memory differ
in k, and *mn-major* if they differ in m (of A) or n (of B).
"""

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
class HalfOperand:
    """A load of bfloat16 or float16, by its axes: batch, m or n (``mn_axes``), and k."""

    read: Any
    batch: tuple[Axis, ...]
    mn_axes: tuple[Axis, ...]
    k_axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return str(self.read.ty.dtype)

    @property
    def extents(self) -> tuple[int, int]:
        """Of m or n, and of k."""
        return prod(a.extent for a in self.mn_axes), prod(a.extent for a in self.k_axes)

    @property
    def mn_major(self) -> bool:
        """Do neighbours in memory differ in m (of A) or n (of B)?"""
        return bool(self.mn_axes) and self.mn_axes[-1].var in variables(self.read.indices[-1])

    @property
    def copy_width(self) -> int:
        """Elements of a ``cp.async``: 8 (16 bytes), 4, 2, or 1 (a plain copy).

        They are neighbours along the contiguous axis, and their address is a multiple of the width.
        """
        contiguous = (self.mn_axes if self.mn_major else self.k_axes)[-1]
        last = self.read.indices[-1]
        # An index that is computed (a shift, a reversal) may leave neighbours apart or misaligned: then elements are
        # copied singly.
        if not (isinstance(last, Var) and last.same_as(contiguous.var)):
            return 1
        if any(contiguous.var in variables(index) for index in self.read.indices[:-1]):
            return 1
        row = shape_of(self.read.source)[-1]
        # The axis must hold whole copies, and so must a row of the tensor: else every other row is misaligned.
        return next(width for width in (8, 4, 2, 1) if contiguous.extent % width == 0 and row % width == 0)

    def element(self, batch: Expr, mn: Expr, k: Expr) -> Expr:
        """The load at flat coordinates."""
        coords: dict[Any, Expr] = {}
        for axes, flat in ((self.batch, batch), (self.mn_axes, mn), (self.k_axes, k)):
            coords |= index_of(axes, unravel(flat, [a.extent for a in axes]))
        return load(self.read.source, *(substitute(index, coords) for index in self.read.indices))


def half_operands(contraction: Contraction) -> tuple[HalfOperand, HalfOperand] | None:
    """A and B, if both are plain loads of the same 16-bit dtype."""
    reads = half_load(contraction.a), half_load(contraction.b)
    if any(read is None for read in reads) or len({str(read.ty.dtype) for read in reads}) > 1:
        return None
    batch, k_axes = contraction.batch, contraction.stage.reduce
    a = HalfOperand(reads[0], batch, contraction.rows, k_axes)
    b = HalfOperand(reads[1], batch, contraction.columns, k_axes)
    return a, b
