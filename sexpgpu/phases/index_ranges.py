"""What an integer field must satisfy so that no look-up leaves its table: the runner checks it before any kernel runs.

Demands travel backwards from each look-up, element by element, through operators that only move values, and between
phases along the generator's state, until nothing changes. A value computed by arithmetic, or chosen by another look-up,
demands nothing of a field, and neither does one that ``where`` chooses by what the data say or by place alone: what
would be out of range may be what is not chosen, and look-ups clamp. By the trip's number or a draw, any may be chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.core import Value
from ..ops import OPS
from ..ops.element_boxes import Box, covers, joined, spread, whole
from .plan import Bounds

if TYPE_CHECKING:
    from .plan import Phase

Bound = tuple[int, int]  # low <= x < high
Demand = dict[Box, Bound]  # of the elements of a tensor
Ports = dict[tuple[str, str], Demand]

MAX_BOXES = 64  # of one tensor; more demand nothing


def field_demands(phases: list[Phase]) -> dict[str, Demand]:
    """Field name -> demand on its batch, over phases of one step taken together."""
    wanted: Ports = {}
    finished = any(p.name == "generate.finish" for p in phases)
    while True:
        before = {port: dict(demand) for port, demand in wanted.items()}
        for (kind, name), demand in before.items():
            if kind == "generated" and not finished:  # the last state joins the batch as it is
                add_all(wanted, ("state", name), demand)
        for phase in phases:
            demands(phase, wanted)
        if wanted == before:
            return {name: demand for (kind, name), demand in wanted.items() if kind == "field"}


def demands(phase: Phase, wanted: Ports) -> None:
    """Add what ``phase`` asks of its inputs, given what is asked of its outputs."""
    need: dict[Value, Demand] = {}
    for port, (_, value) in zip(phase.outputs, phase.graph.outputs, strict=True):
        if port.kind in ("state", "generated"):
            add_all(need, value, wanted.get((port.kind, port.name), {}))
    values = phase.graph.values()
    blind = turns(phase, values)
    for value in reversed(values):
        row = OPS.get(value.op)
        if row and row.index_range:
            n, size = row.index_range(*(a.type for a in value.args), **value.attrs)
            add(need, value.args[n], whole(value.args[n]), (0, size))
        for box, bound in need.get(value, {}).items():
            for origin, part in row.origins(value, box) if row and row.origins else ():
                add(need, origin, part, bound)
            if value.op == "where" and value.args[0] in blind:
                for side in value.args[1:]:
                    add(need, side, spread(side, box), bound)
    for port, value in zip(phase.inputs, phase.graph.inputs, strict=True):
        if value.type.kind in ("int", "uint"):
            add_all(wanted, (port.kind, port.name), need.get(value, {}))


def turns(phase: Phase, values: list[Value]) -> set[Value]:
    """The values that change from trip to trip or from step to step, and that no data decide."""
    changing: set[Value] = set()
    steady: set[Value] = set()
    kinds = {value: port.kind for port, value in zip(phase.inputs, phase.graph.inputs, strict=True)}
    for value in values:
        if kinds.get(value) in ("trip", "ctx", "counter", "seed"):
            changing.add(value)
        elif value not in kinds and all(a in changing or a in steady for a in value.args):
            (changing if any(a in changing for a in value.args) else steady).add(value)
    return changing


def add_all(table: dict, key: object, demand: Demand) -> None:
    for box, bound in demand.items():
        add(table, key, box, bound)


def add(table: dict, key: object, box: Box, bound: Bound) -> None:
    """Ask ``bound`` of a ``box`` too, unless that is asked of a box around it."""
    demand = table.setdefault(key, {})
    low, high = demand.get(box, bound)
    bound = max(low, bound[0]), min(high, bound[1])
    if any(covers(b, box) and bound[0] <= o[0] and o[1] <= bound[1] for b, o in demand.items()):
        return
    if box in demand or len(demand) < MAX_BOXES:
        demand[box] = bound


def bounds_of(demand: Demand, shape: tuple[int, ...]) -> Bounds:
    """The demand on a batch as one on its records of ``shape``: any of them may stand anywhere in it."""
    of_record: Demand = {}
    for box, bound in sorted(demand.items()):
        of_record = join(of_record, box[1:], bound)
    full = tuple((0, n) for n in shape)
    low, high = of_record.pop(full, (None, None))
    parts = [(*bound, tuple(a for a, _ in box), tuple(b for _, b in box)) for box, bound in of_record.items()]
    return Bounds(low, high, tuple(sorted(parts)))


def join(demand: Demand, box: Box, bound: Bound) -> Demand:
    """``demand`` with ``bound`` asked of ``box`` too; boxes of one bound that make a box together are one."""
    for other, own in demand.items():
        both = joined(box, other) if own == bound else None
        if both:
            return join({b: o for b, o in demand.items() if b != other}, both, bound)
    out: dict[str, Demand] = {"": dict(demand)}
    add(out, "", box, bound)
    covered = (b for b, o in demand.items() if b != box and covers(box, b) and o[0] <= bound[0] and bound[1] <= o[1])
    return {b: o for b, o in out[""].items() if b not in set(covered)}
