"""The graph: values in definition order, each an operator applied to earlier values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from ..language.source import Span
from ..ops import OPS
from ..ops.types import TensorType

MAX_NODES = 200_000


class GraphFull(ValueError):
    """A trace made more than MAX_NODES values; the message is the user's (E-FORM)."""


@frozen(eq=False)
class Value:
    """One tensor of a graph.

    op:     a primitive row of OPS, or "" for an input
    attrs:  the operator's other arguments, in normal form, hashable
    name:   the input's name, "" otherwise
    region: 0, or the number of the ``checkpoint`` body that made it
    """

    op: str
    args: tuple[Value, ...] = field(repr=False)  # a graph as a tree has no bound
    attrs: Mapping[str, Any]
    type: TensorType
    name: str = ""
    span: Span | None = field(default=None, repr=False)
    region: int = 0


@frozen(eq=False)
class Graph:
    """``inputs`` in call order (an input may be unused); ``outputs`` named, in return order."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]

    def values(self) -> list[Value]:
        """Inputs first, then every value an output needs, each after its arguments."""
        return order((*self.inputs, *(v for _, v in self.outputs)))

    def with_outputs(self, outputs: Iterable[tuple[str, Value]]) -> Graph:
        return evolve(self, outputs=tuple(outputs))


def content(v: Value) -> Hashable:
    """What ``v`` computes: equal for values of one operator, one type and the very same arguments. Attributes are
    compared as text, in which 0.0 and -0.0 differ, and 1 and 1.0."""
    return v.op, tuple(map(id, v.args)), repr(sorted(v.attrs.items())), v.type


def order(outs: Iterable[Value]) -> list[Value]:
    """``outs`` and all they need, each after its arguments; the same graph always gives the same order."""
    seen: dict[Value, None] = {}
    for out in outs:
        stack = [(out, iter(out.args))]
        while stack:
            value, rest = stack[-1]
            if value in seen:
                stack.pop()
            elif (following := next((a for a in rest if a not in seen), None)) is not None:
                stack.append((following, iter(following.args)))
            else:
                seen[value] = None
                stack.pop()
    return list(seen)


class Builder:
    """Makes values: looks the row up, puts its attributes in normal form, asks its type rule."""

    def __init__(self) -> None:
        self.span: Span | None = None
        self.region = 0
        self.count = 0
        self.evaluating = False  # a pass: dropout is the identity

    def input(self, name: str, type: TensorType) -> Value:
        return Value("", (), {}, type, name, self.span)

    def __call__(self, op: str, *args: Value, **attrs: Any) -> Value:
        """The value of ``op`` on ``args``; a composite row gives the value of its expansion.

        Raises TypeFault, ShapeFault: the row's own words; GraphFull.
        """
        row = OPS[op]
        if row.normal:
            attrs = row.normal(tuple(a.type for a in args), attrs)
        if row.expand:
            return row.expand(self, *args, **attrs)
        self.count += 1
        if self.count > MAX_NODES:
            raise GraphFull(f"the trace made more than {MAX_NODES} values")
        assert row.type is not None
        return Value(op, args, attrs, row.type(*(a.type for a in args), **attrs), "", self.span, self.region)

    def full(self, value: float | int | bool, like: TensorType) -> Value:
        """A tensor of ``like``'s shape and dtype holding ``value`` everywhere."""
        return self("full", shape=like.shape, value=value, dtype=like.dtype)

    def const(self, value: float | int | bool, dtype: str) -> Value:
        """A scalar."""
        return self("full", shape=(), value=value, dtype=dtype)

    def fit(self, dy: Value, x: Value) -> Value:
        """``dy`` summed down to the shape of ``x``: the gradient of a broadcast."""
        have, want = dy.type.shape, x.type.shape
        if have == want:
            return dy
        lead = len(have) - len(want)
        axes = tuple(i for i, n in enumerate(have) if i < lead or (want[i - lead] == 1 and n != 1))
        out = self("sum", dy, axes=axes, keepdims=False) if axes else dy
        return out if out.type.shape == want else self("reshape", out, shape=want)
