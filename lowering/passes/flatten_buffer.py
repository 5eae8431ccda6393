"""TVM's pass FlattenBuffer, in time that does not grow with the square of a kernel's loops.

TVM's pass simplifies every buffer access under the ranges of all loops that it has visited, those that it has left too.
That was nine tenths of the time to compile a large kernel, most of whose loops are siblings. So sibling loops share one
variable while the pass runs. The result for an access follows from the loops around it alone: the programs are the
same, names included (tests/lowering/test_flatten.py).
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

ORIGINAL = tirx.transform.FlattenBuffer


def install() -> None:
    """Have TVM's pipelines use ``flatten`` in this process, where they used FlattenBuffer."""
    tirx.transform.FlattenBuffer = flatten


def flatten() -> Any:
    """A pass with the result of FlattenBuffer."""

    @tvm.transform.module_pass(opt_level=0, name="lowering.FlattenBuffer")
    def run(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return tirx.transform.ConvertSSA()(ORIGINAL()(_share_in_programs(module)))

    return run


def _share_in_programs(module: tvm.IRModule) -> tvm.IRModule:
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            module.update_func(gv, func.with_body(share_loop_vars(func.body)))
    return module


def share_loop_vars(body: Any) -> Any:
    """``body`` with one variable for all loops of one name, one range and one height (loops nested in them). Loops of
    one height are never nested in each other."""
    loops = _loops(body)
    heights: list[int] = []
    var_by_key: dict[Any, Any] = {}
    replacement: dict[Any, Any] = {}
    for loop in loops:
        nested_loops = len(_loops(loop.body))
        heights.append(1 + max(heights[len(heights) - nested_loops :], default=0) if nested_loops else 1)
        if loop.thread_binding is None and isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm):
            var = loop.loop_var
            key = (heights[-1], var.name, str(var.ty), loop.min.value, loop.extent.value)
            if not (shared_var := var_by_key.setdefault(key, var)).same_as(var):
                replacement[var] = shared_var
    if not replacement:
        return body
    return tvm_ffi.structural_map(body, [(tirx.Var, lambda var: replacement.get(var, var))], order="post")


def _loops(body: Any) -> list[Any]:
    """The loops of ``body`` in post order: each follows the loops nested in it."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.For, loops.append)], order="post")
    return loops
