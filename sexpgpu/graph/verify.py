"""What holds of every graph, checked after every transformation. A graph that breaks one of these is our bug.

INVARIANTS, at the end, says in words what each check holds; a check yields a Fault for every value or output that
breaks it, given the graph and its values in no particular order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ..ops import OPS
from ..ops.types import DTYPES, ShapeFault, check_shape
from .core import Graph, Value

Fault = tuple[str, str]  # the value or output at fault, what is wrong with it


class BrokenGraph(AssertionError):
    """Names the invariant, the value and the transformation after which it was found broken."""


def verify(graph: Graph, after: str, verified: set[Value] | None = None) -> Graph:
    """``graph`` itself, if every invariant holds; else BrokenGraph naming the first broken. ``after``: what made it.

    ``verified``: values of graphs that it was made of, which were found sound, and do not change; those of ``graph``
    are added to them.
    """
    values = reachable(graph)
    new = values if verified is None else [v for v in values if v not in verified]
    for name, check in INVARIANTS.items():
        for who, what in check(graph, new if check in OF_A_VALUE else values):
            raise BrokenGraph(f"after {after}, graph {graph.name} breaks {name!r}: {who}: {what}")
    if verified is not None:
        verified.update(new)
    return graph


def reachable(graph: Graph) -> list[Value]:
    """Inputs and all that the outputs need, in no particular order: a cycle must not hang what is to find it."""
    seen: dict[Value, None] = {}
    stack = [*graph.inputs, *(v for _, v in graph.outputs)]
    while stack:
        v = stack.pop()
        if v not in seen:
            seen[v] = None
            stack.extend(v.args)
    return list(seen)


def label(v: Value) -> str:
    """What a fault calls a value: operator or input, type, and place in the run file."""
    where = f" at {v.span.place()}" if v.span else ""
    return f"{v.op or 'input ' + repr(v.name)} {v.type}{where}"


def acyclic(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    """Arguments are made before their use (Kahn 1962)."""
    waiting = {v: len(v.args) for v in values}
    users: dict[Value, list[Value]] = {v: [] for v in values}
    for v in values:
        for a in v.args:
            users[a].append(v)
    ready = [v for v in values if not v.args]
    while ready:
        v = ready.pop()
        del waiting[v]
        for user in users[v]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    for v in waiting:
        yield label(v), "it needs itself"


def listed_inputs(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    known = set(graph.inputs)
    for v in values:
        if not v.op and v not in known:
            yield label(v), "it is used, but is no input of the graph"
        if v.op and v in known:
            yield label(v), "an operator's value is listed as an input"


def bare_inputs(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in graph.inputs:
        if v.args or v.attrs or v.region:
            yield label(v), "an input has arguments, attributes or a region"


def input_names(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for name, count in Counter(v.name for v in graph.inputs).items():
        if count > 1 or not name:
            yield repr(name), f"{count} inputs have this name" if name else "an input has no name"
    for v in values:
        if v.op and v.name:
            yield label(v), f"the name {v.name!r}, which only an input has"


def output_names(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for name, count in Counter(name for name, _ in graph.outputs).items():
        if count > 1 or not name:
            yield repr(name), f"{count} outputs have this name" if name else "an output has no name"


def primitive(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in values:
        row = OPS.get(v.op)
        if v.op and (row is None or row.expand is not None or row.type is None):
            yield label(v), "no operator" if row is None else "a composite operator was not expanded"


def sound_type(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in values:
        if v.type.dtype not in DTYPES or not isinstance(v.type.shape, tuple):
            yield label(v), "no such type"
            continue
        try:
            check_shape(v.type.shape)
        except ShapeFault as fault:
            yield label(v), str(fault)


def plain(attr: Any) -> bool:
    """Whether ``attr`` is made of tuples, numbers, strings and None, and so is hashable and prints as what it is."""
    if isinstance(attr, tuple):
        return all(map(plain, attr))
    return attr is None or type(attr) in (int, float, bool, str)


def plain_attrs(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in values:
        for name, attr in v.attrs.items():
            if not plain(attr):
                yield label(v), f"the attribute {name} is {attr!r}"


def normal_attrs(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in values:
        row = OPS.get(v.op)
        if row and row.normal:
            wanted = row.normal(tuple(a.type for a in v.args), dict(v.attrs))
            if text(wanted) != text(v.attrs):
                yield label(v), f"the attributes are {dict(v.attrs)}, in normal form {wanted}"


def text(attrs: Any) -> str:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0, as equality does not."""
    return repr(sorted(attrs.items()))


def ruled_type(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in values:
        row = OPS.get(v.op)
        if row and row.type:
            wanted = row.type(*(a.type for a in v.args), **v.attrs)
            if wanted != v.type:
                yield label(v), f"the operator's rule gives {wanted}"


def counted_region(graph: Graph, values: list[Value]) -> Iterator[Fault]:
    for v in values:
        if v.region < 0:
            yield label(v), f"the region {v.region}"


# In this order: each may take the ones before it for granted.
INVARIANTS: dict[str, Callable[[Graph, list[Value]], Iterator[Fault]]] = {
    "arguments come before their use": acyclic,
    "every input in use is listed": listed_inputs,
    "inputs are bare": bare_inputs,
    "input names are unique": input_names,
    "output names are unique": output_names,
    "only primitive operators": primitive,
    "types are sound": sound_type,
    "attributes are plain": plain_attrs,
    "attributes are in normal form": normal_attrs,
    "types follow the operator's rule": ruled_type,
    "regions are counted from 0": counted_region,
}
# What these say of a value follows from it and its arguments alone.
OF_A_VALUE = (primitive, sound_type, plain_attrs, normal_attrs, ruled_type, counted_region)
