"""Operands that a kernel reads where they already lie: slices, reshapes and transposes that are never made.

A row that is ``strided`` (attention) takes its arguments at any strides, and writes its result with its axes in another
order. So heads are split before it and joined after it without a copy: it reads q, k and v where the product left them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from .affine_index import Affine
from .spec import OPS

Value = Any  # a graph's: graph/core.py imports this package


@frozen
class View:
    """A value of ``shape`` that is no tensor of its own: its element at an index is that of ``source``, seen as a
    tensor of shape ``lies``, at ``index``."""

    source: Value
    shape: tuple[int, ...]
    lies: tuple[int, ...]
    index: tuple[Affine, ...]

    @property
    def key(self) -> Any:
        """All of it but which value it is of."""
        return self.shape, self.lies, self.index


def view_of(value: Value) -> View | None:
    """``value`` as a view of what it is cut, reshaped or transposed from; None where it is not, or its last axis would
    not be the last of memory too, element by element."""
    shape, source, best = value.type.shape, value, None
    index: Any = tuple(map(Affine.axis, range(len(shape))))
    while (row := OPS.get(source.op)) is not None and row.source is not None:
        moves, (inner,) = source.op != "reshape", source.args
        index = row.source(inner.type.shape, index, **source.attrs)
        if index is None:
            break
        source = inner
        if moves:  # reshapes before all other moves cost nothing, as they are
            best = View(source, shape, source.type.shape, tuple(index))
    best = best and _by_lines(best)
    while best is not None and best.source.op == "reshape":
        best = evolve(best, source=best.source.args[0])
    return best


def _by_lines(view: View) -> View | None:
    """The view with the last axis of its memory as long as its own, so that its last index is nothing but that axis."""
    last, line = view.index[-1], view.shape[-1]
    own = len(view.shape) - 1
    rest = last.without(own)
    alone = all(own != axis for index in view.index[:-1] for axis, _ in index.factors)
    if not alone or dict(last.factors).get(own) != 1:
        return None
    if view.lies[-1] == line and rest == Affine():
        return view
    if any(n % line for n in (view.lies[-1], rest.const, *(factor for _, factor in rest.factors))):
        return None
    lines = Affine(rest.const // line, tuple((axis, factor // line) for axis, factor in rest.factors))
    lies = (*view.lies[:-1], view.lies[-1] // line, line)
    return View(view.source, view.shape, lies, (*view.index[:-1], lines, Affine.axis(own)))


@define
class Views:
    """Of one graph: ``reads``, (value, number of its argument) -> the view that it reads instead; ``written``, value ->
    the one transpose of it, which its kernel writes; ``unmade``, values that only views go through; ``calls``, what
    one call of a kernel makes -> the values by their row."""

    reads: dict[tuple[Value, int], View] = field(factory=dict)
    written: dict[Value, Value] = field(factory=dict)
    unmade: set[Value] = field(factory=set)
    calls: dict[Any, dict[str, Value]] = field(factory=dict)

    @classmethod
    def of(cls, values: Sequence[Value], outputs: Collection[Value]) -> Views:
        """Of all ``values`` of a graph, in order."""
        self = cls()
        users: dict[Value, list[tuple[Value, int]]] = {v: [] for v in values}
        for v in values:
            for n, a in enumerate(v.args):
                users[a].append((v, n))
        for v in (v for v in values if v.op and OPS[v.op].strided):
            for n, a in enumerate(v.args):
                if a.type.kind == "float" and (view := view_of(a)) is not None:
                    self.reads[v, n] = view
            self.calls.setdefault(_call(v), {})[v.op] = v
            turned = [u for u, _ in users[v] if u.op == "transpose" and u.attrs["perm"][-1] == v.type.rank - 1]
            if v not in outputs and len(users[v]) == len(turned) == 1:
                self.written[v] = turned[0]
        sources = {view.source for view in self.reads.values()}
        for v in reversed(values):
            through = [use in self.reads or use[0] in self.unmade for use in users[v]]
            moves = v.op and OPS[v.op].source is not None and v not in outputs and v not in sources
            if moves and through and all(through):
                self.unmade.add(v)
        return self

    def orders(self, value: Value) -> tuple[tuple[int, ...] | None, ...]:
        """Of each result of the kernel that makes ``value``, the order in which its axes are written, None: as they
        are."""
        shares = OPS[value.op].shares
        rows = [row.name for row in OPS.values() if row.shares == shares] if shares else [value.op]
        made = [self.written.get(self.calls[_call(value)].get(row)) for row in rows]
        return tuple(None if turned is None else turned.attrs["perm"] for turned in made)


def _call(value: Value) -> Any:
    """What all results of one call of a kernel have in common."""
    return OPS[value.op].shares or value.op, value.args, repr(sorted(value.attrs.items()))
