"""What an integer field must satisfy so that no look-up leaves its table: the runner checks it before any kernel runs.

Demands travel backwards from each look-up through operators that only move or choose values, and between phases along
the generator's state, until nothing changes. A value computed by arithmetic demands nothing of a field: look-ups clamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .graph import Value

if TYPE_CHECKING:
    from .phases import Phase

Bound = tuple[int, int]  # low <= x < high
Ports = dict[tuple[str, str], Bound]

LOOKUPS: dict[str, Callable[[Value], tuple[Value, int]]] = {
    "gather": lambda v: (v.args[1], v.args[0].type.shape[0]),
    "take-along": lambda v: (v.args[1], v.args[0].type.shape[v.attrs["axis"]]),
}
MOVES = {
    "reshape": (0,),
    "transpose": (0,),
    "expand-dims": (0,),
    "squeeze": (0,),
    "broadcast": (0,),
    "slice": (0,),
    "flip": (0,),
    "roll": (0,),
    "repeat": (0,),
    "cast": (0,),
    "stop-gradient": (0,),
    "where": (1, 2),
}


def field_bounds(phases: list[Phase]) -> dict[str, Bound]:
    """Field name -> bound, over phases of one step taken together."""
    wanted: Ports = {}
    finished = any(p.name == "generate.finish" for p in phases)
    while True:
        before = dict(wanted)
        for (kind, name), bound in before.items():
            if kind == "generated" and not finished:  # the last state joins the batch as it is
                tighten(wanted, ("state", name), bound)
        for phase in phases:
            demands(phase, wanted)
        if wanted == before:
            return {name: bound for (kind, name), bound in wanted.items() if kind == "field"}


def demands(phase: Phase, wanted: Ports) -> None:
    """Add what ``phase`` asks of its inputs, given what is asked of its outputs."""
    need: dict[Value, Bound] = {}
    for port, (_, value) in zip(phase.outputs, phase.graph.outputs, strict=True):
        asked = wanted.get((port.kind, port.name))
        if asked and port.kind in ("state", "generated"):
            tighten(need, value, asked)
    for value in reversed(phase.graph.values()):
        if value.op in LOOKUPS:
            ids, size = LOOKUPS[value.op](value)
            tighten(need, ids, (0, size))
        if value in need and value.op == "cast" and value.args[0].type.kind not in ("int", "uint"):
            continue
        if value in need:
            for at in MOVES.get(value.op, range(len(value.args)) if value.op == "concat" else ()):
                tighten(need, value.args[at], need[value])
    for port, value in zip(phase.inputs, phase.graph.inputs, strict=True):
        if value in need and value.type.kind in ("int", "uint"):
            tighten(wanted, (port.kind, port.name), need[value])


def tighten(table: dict, key: object, bound: Bound) -> None:
    """Narrow ``table[key]``, in place, to what it and ``bound`` both allow; without an entry it becomes ``bound``."""
    low, high = table.get(key, bound)
    table[key] = (max(low, bound[0]), min(high, bound[1]))
