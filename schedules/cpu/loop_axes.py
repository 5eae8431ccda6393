"""Loop axes of an elementwise nest: split where an index divides an axis, merged where memory is contiguous.

A reshape reads ``x[c // 12, c % 12]``. Next to a transpose ``c`` has to become two axes, ``h * 12 + d``, as memory is
contiguous along the last of them only. Merged axes give longer vectors. Elementwise stages have no sums: any loops over
the same points give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer, detect_linear_equation

from ..tir.access import Access, mergeable
from ..tir.builder import Expr, Load, Stmt, is_int, load, shape_of, store, value_of
from ..tir.rewrite import collect, rewrite
from ..tir.stages import Axis, substitute

# Chosen, not measured.
MIN_CONTIGUOUS = 4  # elements: the last axis is not split into pieces shorter than that, which would fill no vector
MAX_AXES = 8  # of a nest; splitting stops there
LONG_AXIS = 64  # elements: a last axis as long has full vectors enough, and is not merged at the price of divisions
DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


@attrs.frozen(eq=False)
class Loops:
    """Loops over ``axes``, which replace the stages' own axes.

    ``indices``: of the stages' axes, in terms of ``axes``; ``accesses``: of all stages, in terms of ``axes`` too."""

    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    accesses: tuple[Access, ...]

    def analyzer(self, axis_vars: Sequence[Any] | None = None) -> Any:
        """An analyzer that knows the ranges of the axes (or of ``axis_vars``, a variable an axis)."""
        analyzer = Analyzer()
        for axis, var in zip(self.axes, axis_vars or [a.var for a in self.axes], strict=True):
            low = tirx.IntImm(str(var.ty.dtype), 0)
            analyzer.bind(var, Range.from_min_extent(low, tirx.IntImm(str(var.ty.dtype), axis.extent)))
        return analyzer

    def with_axes(self, first: int, count: int, axes: Sequence[Axis], values: dict[Any, Expr]) -> Loops:
        """``axes`` in place of ``count`` axes from ``first`` on. ``values``: replaced variable -> its value in them."""
        loops = attrs.evolve(self, axes=(*self.axes[:first], *axes, *self.axes[first + count :]))
        analyzer = loops.analyzer()

        def replace(expr: Expr) -> Expr:
            return analyzer.simplify(substitute(expr, values))

        accesses = tuple(Access(a.buffer, tuple(map(replace, a.indices))) for a in self.accesses)
        return attrs.evolve(loops, indices=tuple(map(replace, self.indices)), accesses=accesses)


def plain_loops(axes: Sequence[Axis], accesses: Sequence[Access]) -> Loops:
    """A loop for each axis."""
    return Loops(tuple(axes), tuple(a.var for a in axes), tuple(accesses))


def split_axes(loops: Loops) -> Loops:
    """The axes split where an index divides them."""
    while len(loops.axes) < MAX_AXES and (split := _find_split(loops)):
        position, size = split
        axis = loops.axes[position]
        dtype = str(axis.var.ty.dtype)
        outer = Axis(tirx.Var(f"{axis.var.name}_o", dtype), axis.extent // size)
        inner = Axis(tirx.Var(f"{axis.var.name}_i", dtype), size)
        value = outer.var * tirx.IntImm(dtype, size) + inner.var
        loops = loops.with_axes(position, 1, [outer, inner], {axis.var: value})
    return loops


def _find_split(loops: Loops) -> tuple[int, int] | None:
    """The position of an axis that some index divides, and the divisor."""
    for access in loops.accesses:
        for division in collect(list(access.indices), DIVISIONS):
            for position, axis in enumerate(loops.axes):
                min_size = MIN_CONTIGUOUS if position == len(loops.axes) - 1 else 2
                if not division.a.same_as(axis.var) or not is_int(division.b):
                    continue
                size = value_of(division.b)
                if min_size <= size < axis.extent and axis.extent % size == 0:
                    return position, size
    return None


def merge_axes(loops: Loops) -> Loops:
    """The last axes merged, as far as every access is contiguous from each axis to the next.

    Some accesses may have dimensions of their own for the axes: then their indices divide the merged axis. That is
    accepted until it has LONG_AXIS elements, and for a single division of an index."""
    best, axes = loops, loops.axes
    for count in range(2, len(axes) + 1):
        outer, inner = axes[-count], axes[-count + 1]
        merged = _merge_last(loops, count)
        if not mergeable(outer, inner, loops.accesses):
            if best.axes[-1].extent >= LONG_AXIS or not all(_is_linear(a, outer, inner) for a in loops.accesses):
                break
            if not all(map(_has_simple_divisions, merged.accesses)):
                break
        best = merged
    return best


def _merge_last(loops: Loops, count: int) -> Loops:
    """The last ``count`` axes, merged."""
    tail = loops.axes[-count:]
    extents = [a.extent for a in tail]
    dtype = str(tail[-1].var.ty.dtype)
    merged = Axis(tirx.Var("f", dtype), prod(extents))
    values = {}
    for n, axis in enumerate(tail):
        index = tirx.floordiv(merged.var, tirx.IntImm(dtype, prod(extents[n + 1 :])))
        index = tirx.floormod(index, tirx.IntImm(dtype, axis.extent)) if n else index
        values[axis.var] = index.astype(str(axis.var.ty.dtype))
    return loops.with_axes(len(loops.axes) - count, count, [merged], values)


def _is_linear(access: Access, outer: Axis, inner: Axis) -> bool:
    """Is the stride of ``outer`` the extent of ``inner`` times its stride (perhaps 0)?"""
    strides = list(detect_linear_equation(_flat_offset(access), [outer.var, inner.var]))[:2]
    if len(strides) != 2 or not all(map(is_int, strides)):
        return False
    return value_of(strides[0]) == inner.extent * value_of(strides[1])


def _flat_offset(access: Access) -> Expr:
    """The row-major offset in the buffer, in elements."""
    shape = shape_of(access.buffer)
    offset: Any = tirx.IntImm("int64", 0)
    for n, index in enumerate(access.indices):
        offset = offset + index.astype("int64") * tirx.IntImm("int64", prod(shape[n + 1 :]))
    return offset


def _has_simple_divisions(access: Access) -> bool:
    """Does no index divide what is divided already? Of such, neither TVM nor ``flatten_divided_indices`` sees that
    neighbouring elements are contiguous."""
    return not any(collect(d.a, DIVISIONS) for d in collect(list(access.indices), DIVISIONS))


def flatten_divided_indices(stmt: Stmt, analyzer: Any, is_parameter: Callable[[Any], bool]) -> Stmt:
    """``stmt`` with row-major offsets in place of indices that divide, where the offset does not.

    ``x[f // 40, f // 2 % 20, f % 2]`` becomes ``x[0, 0, f]``, in which TVM sees a vector. ``analyzer``: knows the
    ranges of the variables. Only of parameters: of the kernel's own buffers TVM keeps no more than the part that it
    sees used, dimension by dimension, and offsets would leave it."""

    def flatten(buffer: Any, indices: Sequence[Expr]) -> Sequence[Expr]:
        if len(indices) < 2 or not is_parameter(buffer) or not collect(list(indices), DIVISIONS):
            return indices
        offset = analyzer.simplify(_flat_offset(Access(buffer, tuple(indices))))
        return indices if collect(offset, DIVISIONS) else [*[tirx.IntImm("int64", 0)] * (len(indices) - 1), offset]

    return rewrite(
        stmt,
        [
            (Load, lambda node: load(node.source, *flatten(node.source, node.indices))),
            (tirx.BufferStore, lambda node: store(node.buffer, node.value, *flatten(node.buffer, node.indices))),
        ],
    )
