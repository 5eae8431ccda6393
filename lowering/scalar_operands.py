"""Plain numbers as data: a number is written into the program of what it is added to or multiplied with, so that
hundreds of them are hundreds of programs that differ in nothing else."""

from __future__ import annotations

from sexpgpu.graph.core import Graph, Value
from sexpgpu.ops.create import number_of

MANY = 64  # numbers of a graph, up to which each is written into its program
USERS = ("+", "-", "*", "/")  # operators whose programs are the same for every number


def as_data(graph: Graph) -> set[Value]:
    """The scalars of a graph that are handed over as data, of which there are more than MANY or none."""
    values = graph.values()
    found = {v for v in values if number_of(v) is not None and not v.type.rank and v.type.kind == "float"}
    for v in values:
        if v.op not in USERS:
            found.difference_update(v.args)
    found.difference_update(v for _, v in graph.outputs)
    return found if len(found) > MANY else set()
