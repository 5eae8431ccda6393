"""What no plan fits: programs written as loops by hand, and blocks of a form that ``stages`` does not read."""

from __future__ import annotations

from typing import Any

import attrs
import tvm
from tvm import s_tir, tirx

from ..tir.builder import PARALLEL, SERIAL, is_int
from ..tir.rewrite import collect, rewrite
from ..tir.thread_cost import MIN_PARALLEL_NANOSECONDS, nanoseconds


@attrs.frozen
class ByHand:
    """A program whose block holds loops of its own: its author chose their order and what may run in parallel."""

    name: str = "by-hand"

    def apply(self, func: Any, target: Any) -> Any:
        leaves = [block for block in collect(func.body, s_tir.SBlock) if not collect(block.body, s_tir.SBlock)]
        if not leaves or not all(collect(block.body, tirx.For) for block in leaves):
            return None
        return func.with_body(rewrite(func.body, [(tirx.For, lambda node: _priced(node, target.lanes))]))


def _priced(node: Any, lanes: int) -> Any:
    """A parallel loop as a serial one where threads cost more than they save."""
    if node.kind != PARALLEL or (not is_int(node.extent, 1) and nanoseconds(node, lanes) >= MIN_PARALLEL_NANOSECONDS):
        return node
    return tirx.For(node.loop_var, node.min, node.extent, SERIAL, node.body)


@attrs.frozen
class Fallback:
    """Every block on its own: its space shared out to threads where that pays, no lanes but those LLVM finds."""

    name: str = "fallback"

    def apply(self, func: Any, target: Any) -> Any:
        body = func.body
        if not isinstance(body, s_tir.SBlockRealize) or body.block.name_hint != "root":
            return func
        schedule = s_tir.Schedule(tvm.IRModule({"main": func}))
        root = schedule.get_sblock("root")
        for block in schedule.get_child_blocks(root):
            _share_out(schedule, block, target.lanes)
        return schedule.mod["main"]


def _share_out(schedule: Any, block: Any, lanes: int) -> None:
    """The outermost loop over the block's space, in parallel, if the block writes only its own point there."""
    loops = schedule.get_loops(block)
    if not loops:
        return
    nodes = [schedule.get(loop) for loop in loops]
    axes = schedule.get(block).iter_vars
    outer = [a for a, v in zip(axes, _bindings(schedule, block), strict=True) if v.same_as(nodes[0].loop_var)]
    pays = nanoseconds(nodes[0], lanes) >= MIN_PARALLEL_NANOSECONDS
    if pays and len(outer) == 1 and outer[0].iter_type == tirx.IterVar.DataPar:
        schedule.parallel(loops[0])


def _bindings(schedule: Any, block: Any) -> list[Any]:
    realize = [
        r for r in collect(schedule.mod["main"].body, s_tir.SBlockRealize) if r.block.same_as(schedule.get(block))
    ]
    return list(realize[0].iter_values) if realize else []
