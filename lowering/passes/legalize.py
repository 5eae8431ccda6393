"""Relax's LegalizeOps with a cache: each operator is legalized once for given types and constants.

TVM writes a program for every call and then finds that the module has it already. In a deep model that is the case for
nearly all calls. The resulting module is the same.
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
class _Legalized:
    """A program in the module, the positions of the operator's arguments that it takes, in order, its result's type."""

    program: Any
    arg_positions: tuple[int, ...]
    type: Any


def legalize(module: tvm.IRModule) -> tvm.IRModule:
    """Every operator of Relax by its own legalization, which runs once for each (operator, types, attributes)."""
    cache: dict[Any, _Legalized] = {}
    functions = {op.name: op.get_attr("FLegalize") for op in _operators(module)}
    cached = {name: _cached(function, cache) for name, function in functions.items() if function is not None}
    return relax.transform.LegalizeOps(cached)(module)


def _operators(module: tvm.IRModule) -> list[Any]:
    functions = [f for _, f in module.functions_items() if isinstance(f, relax.Function)]
    values = [b.value for f in functions for block in f.body.blocks for b in block.bindings]
    ops = {v.op.name: v.op for v in values if isinstance(v, ir.Call) and isinstance(v.op, ir.Op)}
    return [ops[name] for name in sorted(ops)]


def _cached(function: Legalize, cache: dict[Any, _Legalized]) -> Legalize:
    def legalize_call(builder: relax.BlockBuilder, call: Any) -> Any:
        key = _key(call)
        if key in cache:
            cached = cache[key]
            args = [call.args[n] for n in cached.arg_positions]
            return relax.call_tir(cached.program, relax.Tuple(args), cached.type)
        result = function(builder, call)
        legalized = _legalized(result, list(call.args))
        if legalized is not None:
            cache[key] = legalized
        return result

    return legalize_call


def _key(call: Any) -> tuple[Any, ...]:
    """All that a legalization may depend on: the operator, its attributes, the types of variables, which arguments are
    the same, and every other argument by its structure."""
    args = list(call.args)
    first_equal = [next(m for m, other in enumerate(args) if other.same_as(arg)) for arg in args]
    structure = [arg.ty if isinstance(arg, relax.Var) else arg for arg in args]
    return call.op.name, *map(tvm_ffi.StructuralKey, (call.attrs, *structure)), *first_equal


def _legalized(call: Any, args: list[Any]) -> _Legalized | None:
    """The cache entry of ``call``, if it calls one program on arguments ``args`` of the operator alone."""
    if not isinstance(call, ir.Call) or getattr(call.op, "name", "") != "relax.call_tir" or len(call.args) != 2:
        return None
    arg_positions = [next((n for n, a in enumerate(args) if a.same_as(x)), -1) for x in call.args[1].fields]
    return None if -1 in arg_positions else _Legalized(call.args[0], tuple(arg_positions), call.ty_args[0])
