"""Makes a graph smaller without changing one bit of what it computes.

Equal values become one; what no output needs goes; constants are folded where Python's arithmetic is IEEE's; and
identities are applied, of which only those are here that hold for every float: ``x * 1`` and ``x - 0`` are ``x``, but
``x + 0`` is not (``-0.0 + 0.0`` is ``0.0``), and neither are ``x * 0`` and ``x - x`` (NaN).

``stop-gradient`` and ``barrier`` stay: a graph may be simplified before it is differentiated, and a recomputed value
must not become one with the original.

A rule of RULES takes the table and a value whose arguments are in their simplest form, and answers what stands for the
value: another one of its type, or itself.
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from ..ops import OPS
from ..ops.create import number_of
from ..ops.types import TensorType
from .core import Graph, Value, content

Number = float | int | bool


def simplify(graph: Graph) -> Graph:
    """The same function of the same inputs, which keep their order. Spans are kept; of two equal values, the first's.

    Simplifying twice gives the graph of simplifying once.
    """
    table = Table()
    new: dict[Value, Value] = {v: v for v in graph.inputs}
    for v in graph.values():
        if v.op:
            args = tuple(new[a] for a in v.args)
            new[v] = table.make(v if args == v.args else evolve(v, args=args))
    return graph.with_outputs((name, new[v]) for name, v in graph.outputs)


class Table:
    """Every value made so far, by what it is."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}

    def make(self, v: Value) -> Value:
        """``v`` in its simplest form; its arguments are already in theirs."""
        key = content(v)
        if key not in self.values:
            rule = RULES.get(v.op, unchanged)
            self.values[key] = rule(self, v)
        return self.values[key]

    def like(self, v: Value, op: str, *args: Value, **attrs: Any) -> Value:
        """``op`` on ``args`` in the place of ``v``, whose type it has."""
        return self.make(evolve(v, op=op, args=args, attrs=attrs))


def unchanged(t: Table, v: Value) -> Value:
    return v


# -- constants ------------------------------------------------------------------------------------------------------


def constant(v: Value) -> Number | None:
    """The number that fills ``v``, as its dtype holds it; None where ``v`` is not a ``full`` or is of bf16 or f16."""
    number = number_of(v)
    return None if number is None else rounded(number, v.type.dtype)


def rounded(value: Number, dtype: str) -> Number | None:
    """``value`` as ``dtype`` holds it, a float rounded once, as IEEE says; None where Python has no such rounding."""
    if dtype == "f32" and math.isfinite(value):
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    return None if dtype in ("bf16", "f16") else value


def in_range(value: Number, dtype: str) -> bool:
    """Does an integer fit ``dtype``, i32 or i64?"""
    return {"i32": -(2**31) <= value < 2**31, "i64": -(2**63) <= value < 2**63}.get(dtype, False)


def folded(t: Table, v: Value) -> Value | None:
    """The constant that ``v``, of constants, is. Of + - * / and neg alone: a float of twice the digits, rounded, is
    what IEEE's own operation gives (Figueroa 1995); exp and its like are the target's."""
    dtype, row = v.type.dtype, OPS[v.op]
    numbers = [x for a in v.args if (x := constant(a)) is not None and math.isfinite(x)]
    if len(numbers) < len(v.args) or dtype not in ("f32", "f64", "i32", "i64") or row.number is None:
        return None
    if v.op == "/" and not numbers[1]:
        return None
    out = rounded(row.number(*(float(x) if v.type.kind == "float" else x for x in numbers)), dtype)
    if out is None or not (math.isfinite(out) if v.type.kind == "float" else in_range(out, dtype)):
        return None
    return t.like(v, "full", shape=v.type.shape, value=out, dtype=dtype)


# -- identities -----------------------------------------------------------------------------------------------------


def is_number(v: Value, number: Number) -> bool:
    """Does ``number``, which every dtype holds exactly and which is not -0.0, fill ``v``?"""
    return number_of(v) == number and math.copysign(1.0, number_of(v)) > 0


def arithmetic(*identities: tuple[int, int, Number]) -> Callable[[Table, Value], Value]:
    """Folds constants; then, for each (place of x, place of the number, number), gives x where that number stands."""

    def rule(t: Table, v: Value) -> Value:
        if made := folded(t, v):
            return made
        for x, other, number in identities:
            if v.args[x].type == v.type and is_number(v.args[other], number):
                return v.args[x]
        return v

    return rule


def negated(t: Table, v: Value) -> Value:
    (x,) = v.args
    return x.args[0] if x.op == "neg" else folded(t, v) or v


def same_type(t: Table, v: Value) -> Value:
    """What does nothing is its argument."""
    return v.args[0] if v.args[0].type == v.type else v


def relaid(t: Table, v: Value) -> Value:
    """A reshape or broadcast: of a constant, a constant; a reshape of a reshape, one reshape."""
    (x,) = v.args
    if x.type == v.type:
        return x
    if x.op == "full":
        return t.like(v, "full", **{**x.attrs, "shape": v.type.shape})
    if v.op == "reshape" and x.op == "reshape":
        return t.like(v, "reshape", x.args[0], shape=v.type.shape)
    return v


def permuted(t: Table, v: Value) -> Value:
    """A transpose that moves nothing, one of a constant, and one of a transpose."""
    (x,) = v.args
    perm = v.attrs["perm"]
    if perm == tuple(range(len(perm))):
        return x
    if x.op == "full":
        return t.like(v, "full", **{**x.attrs, "shape": v.type.shape})
    if x.op == "transpose":
        return t.like(v, "transpose", x.args[0], perm=tuple(x.attrs["perm"][i] for i in perm))
    return v


def over_no_axes(t: Table, v: Value) -> Value:
    """A reduction over no axes is its argument."""
    return v if v.attrs["axes"] else v.args[0]


def chosen(t: Table, v: Value) -> Value:
    """A choice between equal tensors, or by a constant condition, is one side, if that has the whole's type."""
    condition, x, y = v.args
    if x is y and x.type == v.type:
        return x
    which = constant(condition)
    side = v if which is None else x if which else y
    return side if side.type == v.type else v


def known_cotangent(t: Table, v: Value) -> Value:
    """``strong-zero`` of a number: the gradient, or zeros."""
    number = constant(v.args[0])
    if number is None or number:
        return v if number is None else v.args[1]
    return t.like(v, "full", shape=v.type.shape, value=0.0, dtype=v.type.dtype)


def cotangent_product(t: Table, v: Value) -> Value:
    """``strong-product`` with a finite number other than 0 is a product; with a cotangent of 0, zeros."""
    numbers = [constant(x) for x in v.args]
    if numbers[0] == 0:
        return t.like(v, "full", shape=v.type.shape, value=0.0, dtype=v.type.dtype)
    return t.like(v, "*", *v.args) if any(n and math.isfinite(n) for n in numbers) else v


def swaps_last(v: Value) -> bool:
    """Is ``v`` a transpose of the last two axes alone?"""
    if v.op != "transpose":
        return False
    *lead, a, b = v.attrs["perm"]
    return (*lead, b, a) == tuple(range(v.type.rank))


def product(t: Table, v: Value) -> Value:
    """A transposed matrix is read as it lies."""
    x, y = v.args
    if swaps_last(x):
        return t.like(v, "matmul", x.args[0], y, ta=not v.attrs["ta"], tb=v.attrs["tb"])
    if swaps_last(y):
        return t.like(v, "matmul", x, y.args[0], ta=v.attrs["ta"], tb=not v.attrs["tb"])
    return v


def joined(t: Table, v: Value) -> Value:
    """Parts that are joined themselves along the axis, part by part; neighbours of one tensor as one part of it."""
    axis = v.attrs["axis"]
    parts: list[Value] = []
    for part in (y for x in v.args for y in (x.args if x.op == "concat" and x.attrs == v.attrs else (x,))):
        last = parts[-1] if parts else None
        if last is not None and _goes_on(last, part, axis):
            start, stop = last.attrs["start"], part.attrs["stop"]
            parts[-1] = _part(t, part, part.args[0], axis, start, stop)
        else:
            parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return t.like(v, "concat", *parts, **v.attrs) if tuple(parts) != v.args else v


def _goes_on(one: Value, other: Value, axis: int) -> bool:
    """Are the two slices along ``axis`` of one tensor, the second where the first ends?"""
    same = one.op == other.op == "slice" and one.args == other.args
    return same and one.attrs["axis"] == other.attrs["axis"] == axis and one.attrs["stop"] == other.attrs["start"]


def _part(t: Table, like: Value, x: Value, axis: int, start: int, stop: int) -> Value:
    """The slice of ``x``, in the place of ``like``, of whose type it is but for its size along ``axis``."""
    shape = (*like.type.shape[:axis], stop - start, *like.type.shape[axis + 1 :])
    v = evolve(like, type=TensorType(shape, like.type.dtype))
    return t.like(v, "slice", x, axis=axis, start=start, stop=stop)


def sliced(t: Table, v: Value) -> Value:
    """A slice of all; of a constant; of a slice; of what is joined, where it takes whole parts or lies in one."""
    (x,), axis, start, stop = v.args, v.attrs["axis"], v.attrs["start"], v.attrs["stop"]
    if x.type == v.type:
        return x
    if x.op == "full":
        return t.like(v, "full", **{**x.attrs, "shape": v.type.shape})
    if x.op == "slice" and x.attrs["axis"] == axis:
        first = x.attrs["start"]
        return t.like(v, "slice", x.args[0], axis=axis, start=first + start, stop=first + stop)
    if x.op == "concat" and x.attrs["axis"] == axis:
        return _of_parts(t, v, x.args)
    return v


def _of_parts(t: Table, v: Value, parts: tuple[Value, ...]) -> Value:
    """The slice ``v`` of ``parts`` joined along its axis."""
    axis, start, stop = v.attrs["axis"], v.attrs["start"], v.attrs["stop"]
    ends = [*itertools.accumulate((p.type.shape[axis] for p in parts), initial=0)]
    first, last = bisect.bisect_right(ends, start) - 1, bisect.bisect_left(ends, stop)
    if last - first == 1:
        return t.like(v, "slice", parts[first], axis=axis, start=start - ends[first], stop=stop - ends[first])
    if (ends[first], ends[last]) == (start, stop):
        return t.like(v, "concat", *parts[first:last], axis=axis)
    return v


RULES: Mapping[str, Callable[[Table, Value], Value]] = {
    "+": arithmetic(),
    "-": arithmetic((0, 1, 0)),
    "*": arithmetic((0, 1, 1), (1, 0, 1)),
    "/": arithmetic((0, 1, 1)),
    "neg": negated,
    "concat": joined,
    "slice": sliced,
    "pad": same_type,
    "cast": same_type,
    "broadcast": relaid,
    "reshape": relaid,
    "transpose": permuted,
    "sum": over_no_axes,
    "prod": over_no_axes,
    "reduce-max": over_no_axes,
    "reduce-min": over_no_axes,
    "where": chosen,
    "strong-zero": known_cotangent,
    "strong-product": cotangent_product,
    "matmul": product,
}
