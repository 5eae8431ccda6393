"""Which values of a graph will be one kernel: a plain account of the compiler's fusion, made from the graph alone.

Fusion joins a value to its one user; a value whose users are all in one kernel counts as having one user. Elementwise
values join whatever is done to them element by element, and a sum; moves of elements (transpose, slice, gather) join
elementwise values alone; a product takes the elementwise values after it; attention reads through moves of
elements and writes a transpose of its result (ops/strided_views.py). The update of all parameters is one kernel,
and so are the norms it needs (lowering/passes/horizontal_fusion.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, frozen

from ..graph.core import Graph, Value
from ..ops import OPS
from ..ops.strided_views import Views

ELEMENTWISE, MOVE, REDUCTION, PRODUCT, OPAQUE = "elementwise", "move", "reduction", "product", "opaque"


def kind(value: Value) -> str:
    """How fusion treats the operator of ``value``: its row's column ``fusion``, where a view counts as a move."""
    fusion = OPS[value.op].fusion
    return MOVE if fusion == "view" else fusion


def is_view(value: Value) -> bool:
    """Whether ``value`` is its argument's memory in another shape."""
    return bool(value.op) and OPS[value.op].fusion == "view"


def is_literal(value: Value) -> bool:
    """Whether ``value`` is numbers, written into whatever reads them."""
    return bool(value.op) and OPS[value.op].literal is not None


@define(eq=False)
class _Group:
    """``anchor``: the kind that decides what else may join; values in reverse order."""

    anchor: str
    values: list[Value]


@frozen(eq=False)
class Kernel:
    """``values``: what one kernel makes, in order. ``reads`` and ``writes``: bytes of its operands and results."""

    values: tuple[Value, ...]
    reads: int
    writes: int


def kernels(graph: Graph, in_place: Sequence[tuple[int, int]] = ()) -> list[Kernel]:
    """The kernels of one call of ``graph``, in order. ``in_place``: its (output, input) pairs."""
    values = graph.values()
    users: dict[Value, list[Value]] = {v: [] for v in values}
    for v in values:
        for a in dict.fromkeys(v.args):
            users[a].append(v)
    outputs = {v for _, v in graph.outputs}
    of: dict[Value, _Group] = {}
    groups = together(graph, values, in_place, of)
    shared: dict[Any, _Group] = {}
    views = Views.of(values, outputs)
    turned = set(views.written.values())
    for v in reversed(values):
        if v.op and not is_literal(v) and v not in of and v not in turned and v not in views.unmade:
            alone = v in outputs or OPS[v.op].strided or any(u in views.unmade for u in users[v])
            group = shared.get(one_call(v)) or (None if alone else joined(v, users, of))
            if group is None:
                groups.append(group := _Group(kind(v), []))
            if OPS[v.op].shares:
                groups.remove(group)
                groups.append(group)  # all of it is made with the first of its values
                shared[one_call(v)] = group
            mine = [views.written[v], v] if v in views.written else [v]
            group.values += mine
            of.update(dict.fromkeys(mine, group))
            group.anchor = PRODUCT if kind(v) == PRODUCT else group.anchor
    made = [measured(g, users, outputs, of) for g in reversed(groups) if any(not is_view(v) for v in g.values)]
    return made + [Kernel((), v.type.nbytes, v.type.nbytes) for v in copied(graph, in_place)]


def one_call(v: Value) -> Any:
    """What values that one call makes have in common, None of any other."""
    shares = OPS[v.op].shares
    return (shares, v.args, repr(sorted(v.attrs.items()))) if shares else None


def joined(v: Value, users: Mapping[Value, Sequence[Value]], of: Mapping[Value, _Group]) -> _Group | None:
    """The kernel that ``v`` joins, if its users are in one and what stands there allows it."""
    found = {id(of[u]): of[u] for u in users[v]}
    if len(found) != 1:
        return None
    group, kinds = next(iter(found.values())), {kind(u) for u in users[v]}
    if kind(v) == ELEMENTWISE:
        return group if kinds <= {ELEMENTWISE, MOVE, REDUCTION} else None
    if kind(v) == MOVE:
        meets = group.anchor == REDUCTION and kinds <= {ELEMENTWISE, MOVE} and is_shared(v, users)
        return group if group.anchor in (ELEMENTWISE, MOVE) or meets else None
    if kind(v) == PRODUCT:
        fits = group.anchor == ELEMENTWISE and all(
            u.type.size == v.type.size for u in group.values if kind(u) == ELEMENTWISE
        )
        return group if fits and kinds == {ELEMENTWISE} else None
    return None


def is_shared(v: Value, users: Mapping[Value, Sequence[Value]]) -> bool:
    """Whether ``v`` moves an elementwise value of several users: what they meet in takes the moves between too."""
    while v.op and kind(v) == MOVE:
        v = v.args[0]
    return bool(v.op) and kind(v) == ELEMENTWISE and len(users[v]) > 1


def together(
    graph: Graph, values: Sequence[Value], in_place: Sequence[tuple[int, int]], of: dict[Value, _Group]
) -> list[_Group]:
    """The kernels, in reverse, of outputs that replace an input and are made of inputs element by element, with the
    sums of whole tensors that they need; ``of`` learns whose they are."""
    ranks: dict[Value, int] = {}  # how many sums stand one after the other before a value
    for v in values:
        if not v.op or (all(a in ranks for a in v.args) and (kind(v) == ELEMENTWISE or is_literal(v) or is_total(v))):
            ranks[v] = max((ranks[a] for a in v.args), default=0) + is_total(v)
    roots = [graph.outputs[o][1] for o, _ in in_place if graph.outputs[o][1] in ranks]
    if len(roots) < 2:
        return []
    last = max(2, *(ranks[r] + 1 for r in roots))
    needed = [v for v in Graph("", (), tuple(("", r) for r in roots)).values() if v.op and not is_literal(v)]
    made: dict[int, _Group] = {}
    for v in reversed(needed):
        of[v] = made.setdefault(last if v.type.rank else max(ranks[v], 1), _Group(OPAQUE, []))
        of[v].values.append(v)
    return [made[rank] for rank in sorted(made, reverse=True)]


def is_total(v: Value) -> bool:
    """Whether ``v`` is the sum of a whole tensor."""
    return v.op == "sum" and not v.type.rank


def measured(group: _Group, users: dict[Value, list[Value]], outputs: set[Value], of: dict[Value, _Group]) -> Kernel:
    """``group`` as a Kernel: bytes of each tensor that comes from outside, once, and of each that is needed outside."""
    inside = set(group.values)
    reads: dict[Value, int] = {}
    for v in group.values:
        for n, a in enumerate(v.args):
            if a not in inside and not is_literal(a):
                part = OPS[v.op].reads_part and n == 0
                reads[a] = max(reads.get(a, 0), min(a.type.nbytes, v.type.nbytes) if part else a.type.nbytes)
    writes = sum(v.type.nbytes for v in group.values if v in outputs or any(u not in inside for u in users[v]))
    return Kernel(tuple(reversed(group.values)), sum(reads.values()), writes)


def copied(graph: Graph, in_place: Sequence[tuple[int, int]]) -> list[Value]:
    """Outputs that no kernel makes: inputs that do not stay where they are, and values returned twice."""
    kept = {o for o, i in in_place if graph.outputs[o][1] is graph.inputs[i]}
    seen, out = set(graph.inputs), []
    for o, (_, v) in enumerate(graph.outputs):
        if v in seen and o not in kept:
            out.append(v)
        seen.add(v)
    return out
