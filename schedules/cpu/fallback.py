"""Rules for programs without a plan: explicit loops, and blocks that are no plain stages.

``explicit-loops`` keeps the loops as their author wrote them, and makes parallel ones serial where threads do not pay.
``fallback`` takes the rest: the outer loop of each block in parallel, vectors where LLVM finds some. The order of sums
is that of the program.
"""

from __future__ import annotations

from typing import Any

import attrs
import tvm
from tvm import s_tir, tirx

from ..tir.builder import PARALLEL, SERIAL, is_int
from ..tir.rewrite import collect, leaf_blocks, rewrite
from ..tir.thread_cost import MIN_PARALLEL_NANOSECONDS, nanoseconds


@attrs.frozen
class ExplicitLoopsRule:
    """Programs whose blocks hold loops of their own: the author chose their order, and what may run in parallel."""

    name: str = "explicit-loops"

    def apply(self, func: Any, target: Any) -> Any:
        leaves = leaf_blocks(func)
        if not leaves or not all(collect(block.body, tirx.For) for block in leaves):
            return None
        return func.with_body(rewrite(func.body, [(tirx.For, lambda node: _serial_unless_pays(node, target.lanes))]))


def _serial_unless_pays(node: Any, lanes: int) -> Any:
    """A parallel loop, made serial if threads cost more time than they save."""
    if node.kind != PARALLEL:
        return node
    if not is_int(node.extent, 1) and nanoseconds(node, lanes) >= MIN_PARALLEL_NANOSECONDS:
        return node
    return tirx.For(node.loop_var, node.min, node.extent, SERIAL, node.body)


@attrs.frozen
class FallbackRule:
    """Every block on its own: its outer loop in parallel if that pays, no vectors but those that LLVM finds."""

    name: str = "fallback"

    def apply(self, func: Any, target: Any) -> Any:
        body = func.body
        if not isinstance(body, s_tir.SBlockRealize) or body.block.name_hint != "root":
            return func
        schedule = s_tir.Schedule(tvm.IRModule({"main": func}))
        root = schedule.get_sblock("root")
        for block in schedule.get_child_blocks(root):
            _parallelize(schedule, block, target.lanes)
        return schedule.mod["main"]


def _parallelize(schedule: Any, block: Any, lanes: int) -> None:
    """The outer loop in parallel, if it is a spatial axis: its iterations then write different elements."""
    loops = schedule.get_loops(block)
    if not loops:
        return
    nodes = [schedule.get(loop) for loop in loops]
    axes = schedule.get(block).iter_vars
    bindings = zip(axes, _axis_values(schedule, block), strict=True)
    outer_axes = [axis for axis, value in bindings if value.same_as(nodes[0].loop_var)]
    pays = nanoseconds(nodes[0], lanes) >= MIN_PARALLEL_NANOSECONDS
    if pays and len(outer_axes) == 1 and outer_axes[0].iter_type == tirx.IterVar.DataPar:
        schedule.parallel(loops[0])


def _axis_values(schedule: Any, block: Any) -> list[Any]:
    """What the block's axes are bound to."""
    node = schedule.get(block)
    realizes = [r for r in collect(schedule.mod["main"].body, s_tir.SBlockRealize) if r.block.same_as(node)]
    return list(realizes[0].iter_values) if realizes else []
