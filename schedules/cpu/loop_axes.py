"""The loops of a map nest: the axes of its stages, cut where an index divides them and joined where memory goes on.

A reshape reads ``x[c // 12, c % 12]``. Before or after a transpose these are two axes and not one, and only along the
last of them memory is contiguous: ``c`` becomes ``h * 12 + d``.
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

SHORT = 4  # elements side by side that are better than as many apart
MOST = 8  # loops
DIVIDED = (tirx.FloorDiv, tirx.FloorMod)
LONG = 64  # elements in a row that are worth a loop of their own


@attrs.frozen(eq=False)
class Loops:
    """``places``: where the stages' axes stand, in the variables of ``axes``. ``accesses``: all, in these too."""

    axes: tuple[Axis, ...]
    places: tuple[Expr, ...]
    accesses: tuple[Access, ...]

    def analyzer(self, names: Sequence[Any] | None = None) -> Any:
        """Knows how far the axes go (or ``names``, one an axis)."""
        known = Analyzer()
        for axis, var in zip(self.axes, names or [a.var for a in self.axes], strict=True):
            low = tirx.IntImm(str(var.ty.dtype), 0)
            known.bind(var, Range.from_min_extent(low, tirx.IntImm(str(var.ty.dtype), axis.extent)))
        return known

    def replaced(self, first: int, count: int, axes: Sequence[Axis], values: dict[Any, Expr]) -> Loops:
        """With ``axes`` for ``count`` axes from ``first`` on, which ``values`` says in them."""
        made = attrs.evolve(self, axes=(*self.axes[:first], *axes, *self.axes[first + count :]))
        known = made.analyzer()
        write = lambda expr: known.simplify(substitute(expr, values))  # noqa: E731
        accesses = tuple(Access(a.buffer, tuple(map(write, a.indices))) for a in self.accesses)
        return attrs.evolve(made, places=tuple(map(write, self.places)), accesses=accesses)


def straight(axes: Sequence[Axis], accesses: Sequence[Access]) -> Loops:
    """The axes as they are."""
    return Loops(tuple(axes), tuple(a.var for a in axes), tuple(accesses))


def cut(found: Loops) -> Loops:
    """The axes cut where an index divides them."""
    while len(found.axes) < MOST and (place := _cut(found)):
        n, size = place
        axis = found.axes[n]
        dtype = str(axis.var.ty.dtype)
        outer = Axis(tirx.Var(f"{axis.var.name}_o", dtype), axis.extent // size)
        inner = Axis(tirx.Var(f"{axis.var.name}_i", dtype), size)
        value = outer.var * tirx.IntImm(dtype, size) + inner.var
        found = found.replaced(n, 1, [outer, inner], {axis.var: value})
    return found


def _cut(loops: Loops) -> tuple[int, int] | None:
    """An axis and the size of the pieces that an index wants of it."""
    for access in loops.accesses:
        for node in collect(list(access.indices), DIVIDED):
            for n, axis in enumerate(loops.axes):
                least = SHORT if n == len(loops.axes) - 1 else 2
                if node.a.same_as(axis.var) and is_int(node.b) and _fits(axis.extent, value_of(node.b), least):
                    return n, value_of(node.b)
    return None


def _fits(extent: int, size: int, least: int) -> bool:
    return least <= size < extent and extent % size == 0


def joined(loops: Loops) -> Loops:
    """The last axes as one, as far as every access goes on from one to the next in memory. Where each access has axes
    of its own, places along the joined one are divided: then only until it is LONG, and once."""
    best, axes = loops, loops.axes
    for count in range(2, len(axes) + 1):
        outer, inner = axes[-count], axes[-count + 1]
        made = _as_one(loops, count)
        if not mergeable(outer, inner, loops.accesses):
            if best.axes[-1].extent >= LONG or not all(_goes_on(access, outer, inner) for access in loops.accesses):
                break
            if not all(map(_divides_once, made.accesses)):
                break
        best = made
    return best


def _as_one(loops: Loops, count: int) -> Loops:
    """The last ``count`` axes joined."""
    tail = loops.axes[-count:]
    extents = [a.extent for a in tail]
    dtype = str(tail[-1].var.ty.dtype)
    flat = Axis(tirx.Var("f", dtype), prod(extents))
    values = {}
    for n, axis in enumerate(tail):
        place = tirx.floordiv(flat.var, tirx.IntImm(dtype, prod(extents[n + 1 :])))
        place = tirx.floormod(place, tirx.IntImm(dtype, axis.extent)) if n else place
        values[axis.var] = place.astype(str(axis.var.ty.dtype))
    return loops.replaced(len(loops.axes) - count, count, [flat], values)


def _goes_on(access: Access, outer: Axis, inner: Axis) -> bool:
    """Is the next place along ``outer`` behind the last along ``inner``, or the same place wherever both are?"""
    steps = list(detect_linear_equation(_address(access), [outer.var, inner.var]))[:2]
    return len(steps) == 2 and all(map(is_int, steps)) and value_of(steps[0]) == inner.extent * value_of(steps[1])


def _address(access: Access) -> Expr:
    """The place in memory, in elements."""
    shape = shape_of(access.buffer)
    found: Any = tirx.IntImm("int64", 0)
    for n, index in enumerate(access.indices):
        found = found + index.astype("int64") * tirx.IntImm("int64", prod(shape[n + 1 :]))
    return found


def _divides_once(access: Access) -> bool:
    """Else TVM does not see that neighbouring places lie side by side, nor might ``undivided``."""
    return not any(collect(node.a, DIVIDED) for node in collect(list(access.indices), DIVIDED))


def undivided(stmt: Stmt, known: Any, given: Callable[[Any], bool]) -> Stmt:
    """``stmt`` with places in memory as one number, along the buffer's last axis, where its indices divide and that
    number does not: ``x[f // 40, f // 2 % 20, f % 2]`` is ``x[0, 0, f]``. ``known``: how far the variables go;
    ``given``: is a buffer the caller's? Of the kernel's own TVM keeps what it sees to be used, axis by axis."""

    def one(buffer: Any, indices: Sequence[Expr]) -> Sequence[Expr]:
        if len(indices) < 2 or not given(buffer) or not collect(list(indices), DIVIDED):
            return indices
        place = known.simplify(_address(Access(buffer, tuple(indices))))
        return indices if collect(place, DIVIDED) else [*[tirx.IntImm("int64", 0)] * (len(indices) - 1), place]

    return rewrite(
        stmt,
        [
            (Load, lambda node: load(node.source, *one(node.source, node.indices))),
            (tirx.BufferStore, lambda node: store(node.buffer, node.value, *one(node.buffer, node.indices))),
        ],
    )
