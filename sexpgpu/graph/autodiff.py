"""Reverse mode over a graph, by the rows' ``vjp`` column.

The order of every addition is fixed, because it decides bits. Values are visited from the last definition back to the
first, in the order of ``graph.order``; a visited value adds one cotangent to each of its arguments, first argument
first; a cotangent is a left fold of what arrives: ``((g1 + g2) + g3)``, in which those of parts of a value are one
(``placed``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import evolve

from ..language import codes
from ..language.diagnostics import UserError
from ..ops import OPS
from ..ops.spec import ZERO_GRAD
from .core import Builder, Value, order
from .slice_cotangents import together


def gradients(b: Builder, loss: Value, wrt: Sequence[Value], stop: Collection[Value] = ()) -> list[Value]:
    """d loss / d each of ``wrt``, each of that value's type; zeros where no path leads to ``loss``.

    loss: a float scalar. stop: values taken as constants, whatever they were made from.
    The intermediate values of a ``checkpoint`` body are not kept for the backward pass but computed again.
    Raises UserError E-GRAD-001: an operator without a gradient lies on a path.
    """
    values = order((loss,))
    reach = reached(values, wrt, set(stop))
    parts: dict[Value, list[Value]] = {}
    if loss in reach:
        parts[loss] = [b.full(1.0, loss.type)]
    copies = Copies(b, values)
    kept = b.span, b.region
    b.region = 0
    for y in reversed(values):
        if y in parts:
            b.span = y.span
            parts[y] = [together(b, parts[y])]
            if y.args and y not in stop:
                propagate(b, y, parts, reach, copies)
    b.span, b.region = kept
    return [parts[x][0] if x in parts else b.full(0.0, x.type) for x in wrt]


def reached(values: Sequence[Value], wrt: Sequence[Value], stop: Collection[Value]) -> dict[Value, Value]:
    """Each value that a gradient may flow through, with the first of ``wrt`` that it depends on."""
    reach = {x: x for x in reversed(wrt)}
    for v in values:
        if v in reach or v in stop or v.type.kind != "float" or not v.op or OPS[v.op].vjp is ZERO_GRAD:
            continue
        if source := next((reach[a] for a in v.args if a in reach), None):
            reach[v] = source
    return reach


def propagate(b: Builder, y: Value, parts: dict[Value, list[Value]], reach: dict[Value, Value], copies: Copies) -> None:
    """Adds what ``y`` passes on to the parts of its arguments' cotangents."""
    if not any(a in reach for a in y.args):
        return
    row = OPS[y.op]
    if row.vjp is None:
        raise no_gradient(y, next(reach[a] for a in y.args if a in reach))
    (dy,) = parts[y]
    passed = row.vjp(b, dy, *(copies.of(v, y.region, dy) for v in (y, *y.args)), **y.attrs)
    for arg, part in zip(y.args, passed, strict=True):
        if part is not None and arg in reach:
            parts.setdefault(arg, []).append(part)


def no_gradient(y: Value, source: Value) -> UserError:
    """E-GRAD-001 at ``y``, to be raised; ``source``: the value of ``wrt`` that ``y`` depends on."""
    what = f"parameter {source.name}" if source.name else "the value it is taken with respect to"
    message = f"{y.op} has no gradient, and it lies between {what} and the loss"
    return UserError(codes.GRAD_NONE, y.span, message, hint="wrap its input in stop-gradient, or use another operator")


class Copies:
    """Second copies of ``checkpoint`` bodies, one a body, made when the backward pass first asks for one."""

    def __init__(self, b: Builder, values: Sequence[Value]) -> None:
        self.b, self.values = b, values
        self.made: dict[int, dict[Value, Value]] = {}

    def of(self, v: Value, region: int, dy: Value) -> Value:
        """``v`` as the backward pass of a value made in ``region`` may use it: a body's own value is its copy.
        ``dy`` is the cotangent with which the backward pass stands there."""
        if not region or v.region != region:
            return v
        if region not in self.made:
            self.made[region] = self.copy(region, dy)
        return self.made[region][v]

    def copy(self, region: int, after: Value) -> dict[Value, Value]:
        """Every value of the body computed again, once ``after`` is. What enters the body passes through ``barrier``:
        so no search for equal values takes the copy for the original, and no body is computed again before the
        backward pass has come to it, when the copies of later bodies can be gone."""
        new: dict[Value, Value] = {}
        for v in self.values:
            if v.region != region:
                continue
            for a in v.args:
                if a not in new:
                    new[a] = self.b("barrier", a, after)
            new[v] = evolve(v, args=tuple(new[a] for a in v.args), region=0)
        return new
