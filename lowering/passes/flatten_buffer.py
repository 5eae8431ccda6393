"""TVM's pass FlattenBuffer, in a time that does not grow with the square of a kernel's loops.

It simplifies every access of a buffer under the ranges of all loops that it has come to, those that it has left too:
nine tenths of compiling a large kernel, whose loops mostly stand beside each other. So loops of which none stands in
another have one variable while it runs. What is made of an access follows from the loops around it: the programs are
the same, to the name (tests/lowering/test_flatten.py).
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
    """A pass that gives what FlattenBuffer gives."""

    @tvm.transform.module_pass(opt_level=0, name="lowering.FlattenBuffer")
    def run(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return tirx.transform.ConvertSSA()(ORIGINAL()(_each_shared(module)))

    return run


def _each_shared(module: tvm.IRModule) -> tvm.IRModule:
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            module.update_func(gv, func.with_body(shared(func.body)))
    return module


def shared(body: Any) -> Any:
    """``body`` with one variable for all loops of one name and range in which equally many stand in one another."""
    loops = _loops(body)
    heights: list[int] = []
    first: dict[Any, Any] = {}
    new: dict[Any, Any] = {}
    for loop in loops:
        inside = len(_loops(loop.body))
        heights.append(1 + max(heights[len(heights) - inside :], default=0) if inside else 1)
        if loop.thread_binding is None and isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm):
            var = loop.loop_var
            key = (heights[-1], var.name, str(var.ty), loop.min.value, loop.extent.value)
            if not (one := first.setdefault(key, var)).same_as(var):
                new[var] = one
    if not new:
        return body
    return tvm_ffi.structural_map(body, [(tirx.Var, lambda var: new.get(var, var))], order="post")


def _loops(body: Any) -> list[Any]:
    """Those of ``body``, each behind what stands in it."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.For, found.append)], order="post")
    return found
