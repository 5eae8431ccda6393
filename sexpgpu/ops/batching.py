"""How a row becomes one operator on k copies of its arguments: the values of its ``stack`` column.

A copy's tensor has the shape s; the k copies of it stand in one tensor [k, *s]. What is the same in all copies is
SHARED and stays as it is, so that k copies of a layer read one weight. A rule gives each copy the bits of the operator
on it alone: it moves the axes of the operator, never the order in which the elements of one result are folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attrs import frozen

from .type_rules import int_range
from .types import TensorType

LONG = 32_768  # elements of one sum from which on the compiler cuts it or not by how many results there are
FEW = 16  # results below which it does

Attrs = dict[str, Any]


@frozen(eq=False)
class Lane:
    """One argument of a rule: ``type`` of one copy; ``value`` has the copies in front of it, unless ``shared``."""

    value: Any
    type: TensorType
    shared: bool


@frozen(eq=False)
class Stacker:
    """What a rule works with: a Builder and the number of copies."""

    b: Any
    k: int

    def copies(self, x: Lane, *front: int) -> Any:
        """[k, *front, *shape]; a shared value is repeated."""
        shape = (self.k, *front, *x.type.shape)
        if x.shared:
            return self.b("broadcast", x.value, shape=shape)
        return self.b("reshape", x.value, shape=shape) if front else x.value

    def beside(self, x: Lane, rank: int) -> Any:
        """``x`` as it broadcasts against copies of ``rank`` axes each."""
        return x.value if x.shared else self.copies(x, *(1,) * (rank - x.type.rank))

    def one(self, x: Lane) -> Any:
        """``x`` with an axis in front, of 1 where it is shared."""
        return self.b("reshape", x.value, shape=(1, *x.type.shape)) if x.shared else x.value

    def part(self, x: Lane, c: int) -> Any:
        """The ``c``-th copy alone."""
        if x.shared:
            return x.value
        return self.b("reshape", self.b("slice", x.value, axis=0, start=c, stop=c + 1), shape=x.type.shape)

    def joined(self, parts: list[Any]) -> Any:
        """Tensors of one type as copies."""
        return self.b("concat", *(self.b("reshape", p, shape=(1, *p.type.shape)) for p in parts), axis=0)

    def rows(self, x: Lane) -> Any:
        """[k, n, ...] -> [k*n, ...]."""
        n, *rest = x.type.shape
        return self.b("reshape", self.copies(x), shape=(self.k * n, *rest))

    def places(self, ids: Lane, n: int, drop: bool) -> Any:
        """i64 [k, *ids]: where the rows ``ids`` of each copy stand among k times n rows. An id out of range is clamped,
        or with ``drop`` made -1, which every copy's is out of range of."""
        at = self.b("cast", ids.value, dtype="i64")
        zero, last = self.b.const(0, "i64"), self.b.const(n - 1, "i64")
        low, high = int_range(ids.type.dtype)
        first = self.b("iota", shape=(self.k, *(1,) * ids.type.rank), axis=0, dtype="i64")
        first = self.b("*", first, self.b.const(n, "i64"))
        if drop:
            inside = self.b("and", self.b(">=", at, zero), self.b("<=", at, last))
            return self.b("where", inside, self.b("+", at, first), self.b.const(-1, "i64"))
        at = self.b("max", at, zero) if low < 0 else at
        at = self.b("min", at, last) if high > n - 1 else at
        return self.b("+", at, first)


Rule = Callable[[Stacker, str, tuple[Lane, ...], Attrs], Any]


def one_by_one(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """The operator on each copy by itself: right for every row."""
    return s.joined([s.b(op, *(s.part(x, c) for x in xs), **attrs) for c in range(s.k)])


def pointwise(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """Rows that compute each element from the elements at its place, and broadcast."""
    rank = max(x.type.rank for x in xs)
    return s.b(op, *(s.beside(x, rank) for x in xs), **attrs)


def moved(attrs: Attrs) -> Attrs:
    """``axis`` and ``axes`` one further on."""
    out = dict(attrs)
    if "axis" in out:
        out["axis"] += 1
    if "axes" in out:
        out["axes"] = tuple(a + 1 for a in out["axes"])
    return out


def shifted(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """Rows that work along ``axis`` or ``axes`` of tensors of one rank."""
    return s.b(op, *(s.copies(x) for x in xs), **moved(attrs))


def summed(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """Rows that add along ``axis`` or ``axes``. A sum so long that its order is another one for many results than for
    few is taken copy by copy where the copies make many of few."""
    x = xs[0].type
    axes = (attrs["axis"],) if "axis" in attrs else attrs["axes"]
    depth = math.prod(x.shape[a] for a in axes)
    results = x.size // depth
    if depth >= LONG and results < FEW <= results * s.k:
        return one_by_one(s, op, xs, attrs)
    return shifted(s, op, xs, attrs)


def changed(change: Callable[[int, Attrs], Attrs]) -> Rule:
    """The operator on the copies, with the attributes ``change(k, attrs)``."""

    def rule(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
        return s.b(op, *(s.copies(x) for x in xs), **change(s.k, attrs))

    return rule


def spread(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """broadcast."""
    (x,) = xs
    return s.b(op, s.beside(x, len(attrs["shape"])), shape=(s.k, *attrs["shape"]))


def as_given(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """barrier: the result is its first argument, shared where that is."""
    return s.b(op, *(x.value for x in xs), **attrs)


def product(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """matmul: leading axes broadcast; a shared matrix meets the rows of all copies in one product."""
    rank = max(x.type.rank for x in xs)
    return s.b(op, *(s.beside(x, rank) for x in xs), **attrs)


def looked_up(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """gather."""
    table, ids = xs
    if table.shared:
        return s.b(op, table.value, ids.value)
    return s.b(op, s.rows(table), s.places(ids, table.type.shape[0], drop=False))


def added_at(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """scatter-add: copies are rows of one taller base, so that each sum keeps its order."""
    base, ids, updates = xs
    n, *rest = base.type.shape
    made = s.b(op, s.rows(base), s.places(ids, n, drop=True), s.copies(updates))
    return s.b("reshape", made, shape=(s.k, n, *rest))


def added_rows(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """scatter-rows, as scatter-add."""
    updates, ids = xs
    n = attrs["n"]
    made = s.b(op, s.copies(updates), s.places(ids, n, drop=False), n=s.k * n)
    return s.b("reshape", made, shape=(s.k, n, *made.type.shape[1:]))


def taken(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """take-along: axes broadcast."""
    return s.b(op, *(s.one(x) for x in xs), **moved(attrs))


def added_along(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """scatter-along: the ids broadcast to dy."""
    dy, ids = xs
    return s.b(op, s.copies(dy), s.one(ids), **moved(attrs))


def windowed(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """write-window and read-window: one window for all copies, unless each moves its own."""
    *tensors, at = xs
    if not at.shared:
        return one_by_one(s, op, xs, attrs)
    here = {**moved(attrs), "starts": (0, *attrs["starts"])}
    if "sizes" in here:
        here["sizes"] = (s.k, *here["sizes"])
    return s.b(op, *(s.copies(x) for x in tensors), at.value, **here)


def attended(s: Stacker, op: str, xs: tuple[Lane, ...], attrs: Attrs) -> Any:
    """attend and its gradients: a copy is more heads; the mask broadcasts."""
    rank = xs[0].type.rank
    return s.b(op, *(s.beside(x, rank) if x.type.kind == "bool" else s.copies(x) for x in xs), **attrs)
