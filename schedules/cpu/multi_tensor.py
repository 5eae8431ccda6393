"""Horizontal fusion on a CPU: the tensors of an optimizer step in one parallel loop over pieces of them.

Taken: programs of several tensors (or with donated buffers) whose stages differ only in buffers and lengths. The form
of tasks and tables, and the order of sums, are those of ``tir/multi_tensor.py``.
"""

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


def multi_tensor_nests(program: Program, target: Any, tensor_list: Members) -> list[Stmt] | None:
    """The loop over all pieces, then the final reductions and the scalars made of them.

    None for a form with both sums and elementwise outputs, and with donated buffers if a stored value would be loaded
    after an earlier store of the same element, which may have changed it."""
    groups: list[TensorGroup] = []
    for form in dict.fromkeys(m.form for m in tensor_list.members):
        members = [m for m in tensor_list.members if m.form is form]
        groups.append(make_group(program, target, form, members, groups[-1].end if groups else 0))
    if any(g.partial and g.outputs for g in groups):
        return None
    nanoseconds = sum(m.length * g.element_nanoseconds for g in groups for m in g.members)
    ctx = groups[0].ctx
    tasks = parallel_loop(ctx, groups[-1].end, lambda task: _dispatch(groups, task), nanoseconds)
    # Values are bound before the stores, but for bools (``tir/inline.py``), which are loaded at a store.
    if program.pairs and any(g.rereads(tasks) for g in groups):
        return None
    materialized = [s for s in tensor_list.after if not program.owns(s.buffer)]
    after = [point_stores(ctx, tensor_list.after, [], {}, materialized)] if materialized else []
    return [*(s for g in groups for s in g.tables()), tasks, *(s for g in groups for s in g.results()), *after]


def _dispatch(groups: Sequence[TensorGroup], task: Expr) -> Stmt:
    """The code of ``task``: that of the group in whose range it is."""
    head, *rest = groups
    return tirx.IfThenElse(task < i64(head.end), head.run(task), _dispatch(rest, task)) if rest else head.run(task)
