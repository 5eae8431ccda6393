"""Rules for programs that no plan fits: explicit loops, and blocks of a form that ``stages`` does not read.

``ExplicitLoops`` runs the author's parallel loop with a thread an iteration, ``Fallback`` a thread a point of each
block's spatial axes. Both keep the program's own order of sums. They are correct and slow: accesses are rarely
coalesced.
"""

from __future__ import annotations

from typing import Any

import attrs
import tvm
from tvm import s_tir, tirx

from ..tir.bfloat16 import as_bits
from ..tir.builder import is_int, value_of
from ..tir.context import nest_buffers
from ..tir.rewrite import collect, leaf_blocks, rewrite
from .threads.launch import THREADS, WARP, for_device, launch, launch_per_point


@attrs.frozen
class ExplicitLoops:
    """A program whose blocks hold explicit loops: a thread an iteration of the loops marked parallel."""

    name: str = "explicit-loops"

    def apply(self, func: Any, target: Any) -> Any:
        leaves = leaf_blocks(func)
        if not leaves or not all(collect(block.body, tirx.For) for block in leaves):
            return None
        body = rewrite(func.body, [(s_tir.SBlockRealize, lambda r: _without_block(r.block))])
        body = _launches(body)
        # Last, since launches allocate buffers of their own: bfloat16 among them become uint16 (``bfloat16.as_bits``).
        body = as_bits(body, nest_buffers(body))
        return tirx.PrimFunc(list(func.params), body).with_attrs({str(k): v for k, v in func.attrs.items()})


def _without_block(block: Any) -> Any:
    """The body of a block. Its axes have extent 1 and become 0. Raises ValueError for a longer axis."""
    if any(not is_int(axis.dom.extent, 1) for axis in block.iter_vars):
        raise ValueError(f"block {block.name_hint} has axes")
    zero = {axis.var: tirx.IntImm(str(axis.var.ty.dtype), 0) for axis in block.iter_vars}
    body = rewrite(block.body, [(tvm.ir.Var, lambda v: zero.get(v, v))])
    parts = [*(tirx.AllocBuffer(b) for b in block.alloc_buffers), body]
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def _launches(stmt: Any) -> Any:
    """A launch for each statement, in order; allocations stay outside, since launches share them."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_launches(part) for part in stmt.seq])
    if isinstance(stmt, tirx.AllocBuffer):
        return stmt
    if isinstance(stmt, tirx.For) and is_int(stmt.extent):
        extent = value_of(stmt.extent)
        if stmt.kind == tirx.ForKind.PARALLEL:
            # Blocks of a single warp: an iteration is long serial work, and small blocks spread over multiprocessors.
            return for_device(
                launch_per_point(extent, lambda p: rewrite(stmt.body, [(tvm.ir.Var, _substitution(stmt, p))]), WARP)
            )
        if stmt.kind == tirx.ForKind.SERIAL and extent == 1:
            zero = tirx.IntImm(str(stmt.loop_var.ty.dtype), 0)
            return _launches(rewrite(stmt.body, [(tvm.ir.Var, _substitution(stmt, zero))]))
    # What the author did not mark parallel may depend on its own order: a single thread keeps it.
    return for_device(launch(1, 1, lambda b, t: stmt))


def _substitution(loop: Any, value: Any) -> Any:
    return lambda var: value.astype(str(var.ty.dtype)) if var.same_as(loop.loop_var) else var


@attrs.frozen
class Fallback:
    """Every block in a launch of its own, a thread for each point of its spatial axes."""

    name: str = "fallback"

    def apply(self, func: Any, target: Any) -> Any:
        schedule = s_tir.Schedule(tvm.IRModule({"main": func}))
        root = schedule.get_sblock("root")
        for block in schedule.get_child_blocks(root):
            _bind(schedule, block)
        return schedule.mod["main"]


def _bind(schedule: Any, block: Any) -> None:
    loops = schedule.get_loops(block)
    kinds = [axis.iter_type for axis in schedule.get(block).iter_vars]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    if not spatial:
        # A full reduction has no spatial axis: a loop of extent 1 is what block and thread are bound to.
        spatial = [schedule.add_unit_loop(loops[0] if loops else block)]
    # Spatial loops outermost, reduced loops in their order inside a thread: sums keep the program's order.
    schedule.reorder(*spatial)
    fused = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    outer, inner = schedule.split(fused, [None, THREADS])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
