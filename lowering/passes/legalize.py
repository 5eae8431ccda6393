"""Relax's LegalizeOps, with each operator on given types and constants made into a program once.

TVM writes a program for every call and then finds that the module has it already; in a deep model nearly all have been
written before. The module that comes out is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from attrs import frozen
from tvm import ir, relax

Legalize = Callable[[relax.BlockBuilder, Any], Any]


@frozen
class _Known:
    """A program in the module, which of the call's arguments it takes, in order, and its result's type."""

    program: Any
    takes: tuple[int, ...]
    type: Any


def legalize(module: tvm.IRModule) -> tvm.IRModule:
    """Every operator of Relax by its own legalization, each (operator, types, attributes) worked out once."""
    known: dict[Any, _Known] = {}
    functions = {op.name: op.get_attr("FLegalize") for op in _operators(module)}
    once = {name: _once(function, known) for name, function in functions.items() if function is not None}
    return relax.transform.LegalizeOps(once)(module)


def _operators(module: tvm.IRModule) -> list[Any]:
    functions = [f for _, f in module.functions_items() if isinstance(f, relax.Function)]
    values = [b.value for f in functions for block in f.body.blocks for b in block.bindings]
    ops = {v.op.name: v.op for v in values if isinstance(v, ir.Call) and isinstance(v.op, ir.Op)}
    return [ops[name] for name in sorted(ops)]


def _once(function: Legalize, known: dict[Any, _Known]) -> Legalize:
    def legalized(builder: relax.BlockBuilder, call: Any) -> Any:
        key = _key(call)
        if key in known:
            made = known[key]
            return relax.call_tir(made.program, relax.Tuple([call.args[n] for n in made.takes]), made.type)
        done = function(builder, call)
        made = _program_of(done, list(call.args))
        if made is not None:
            known[key] = made
        return done

    return legalized


def _key(call: Any) -> tuple[Any, ...]:
    """All that a legalization may look at: operator and attributes, types of variables, which of them are one, and
    everything else as it is."""
    args = list(call.args)
    first = [next(m for m, other in enumerate(args) if other.same_as(arg)) for arg in args]
    looks = [arg.ty if isinstance(arg, relax.Var) else arg for arg in args]
    return call.op.name, *map(tvm_ffi.StructuralKey, (call.attrs, *looks)), *first


def _program_of(done: Any, args: list[Any]) -> _Known | None:
    """What ``done`` is, if it is one program's call on arguments of the operator's own."""
    if not isinstance(done, ir.Call) or getattr(done.op, "name", "") != "relax.call_tir" or len(done.args) != 2:
        return None
    takes = [next((n for n, a in enumerate(args) if a.same_as(x)), -1) for x in done.args[1].fields]
    return None if -1 in takes else _Known(done.args[0], tuple(takes), done.ty_args[0])
