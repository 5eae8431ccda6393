"""The tensors of one launch as one parallel loop over pieces of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64
from ..tir.context import parallel_loop
from ..tir.multi_tensor import TensorGroup, make_group
from ..tir.point_writer import point_stores
from ..tir.stages import Program
from ..tir.tensor_list import Members


def nests(program: Program, target: Any, found: Members) -> list[Stmt] | None:
    """The loop over all pieces, then what is made of the results. None where a store might change what another reads:
    values have names, but for truth values."""
    groups: list[TensorGroup] = []
    for form in dict.fromkeys(m.form for m in found.members):
        members = [m for m in found.members if m.form is form]
        groups.append(make_group(program, target, form, members, groups[-1].end if groups else 0))
    if any(g.partial and g.outputs for g in groups):
        return None
    work = sum(m.length * g.element_nanoseconds for g in groups for m in g.members)
    tasks = parallel_loop(groups[0].ctx, groups[-1].end, lambda task: _choose(groups, task), work)
    if program.pairs and any(g.rereads(tasks) for g in groups):
        return None
    ctx = groups[0].ctx
    keep = [s for s in found.after if not program.owns(s.buffer)]
    after = [point_stores(ctx, found.after, [], {}, keep)] if keep else []
    return [*(s for g in groups for s in g.tables()), tasks, *(s for g in groups for s in g.results()), *after]


def _choose(groups: Sequence[TensorGroup], task: Expr) -> Stmt:
    """What ``task`` does, by the group it falls into."""
    head, *rest = groups
    return tirx.IfThenElse(task < i64(head.end), head.run(task), _choose(rest, task)) if rest else head.run(task)
