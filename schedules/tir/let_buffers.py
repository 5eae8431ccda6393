"""Let bindings as one-element buffers, a form that TVM's simplifier leaves alone.

TVM substitutes the value of every ``Bind`` back into its uses: a chain of n values, each used twice, grows to 2^n
terms. So a bound value is stored in a buffer of an element a lane, which LLVM promotes to a register.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import PointerType, Var

from .rewrite import collect, rewrite


def bind_in_buffers(stmt: Any) -> Any:
    """``stmt`` with the values of its ``Bind`` statements in buffers."""
    allocations, body = split_names(stmt, None, 1)
    return tirx.SeqStmt([*allocations, body]) if allocations else body


def split_names(stmt: Any, lane: Any, width: int) -> tuple[list[Any], Any]:
    """Allocations of the buffers, and ``stmt`` without ``Bind``. The buffer of a value that depends on ``lane`` has
    ``width`` elements. Pointers stay bound: a buffer cannot hold them."""
    bindings = [b for b in collect(stmt, tirx.Bind) if not isinstance(b.var.ty, PointerType)]
    if not bindings:
        return [], stmt
    varying = set() if lane is None else {lane}
    slots: dict[Any, tuple[Any, Any]] = {}
    # In program order, so that a value bound from a value that varies is seen to vary.
    for binding in bindings:
        varies = not varying.isdisjoint(collect(binding.value, Var))
        if varies:
            varying.add(binding.var)
        extent = tirx.IntImm("int64", width if varies else 1)
        buffer = tirx.decl_buffer([extent], str(binding.value.ty.dtype), binding.var.name)
        slots[binding.var] = (buffer, lane if varies else tirx.IntImm("int64", 0))

    def load_value(var: Any) -> Any:
        return tirx.BufferLoad(slots[var][0], [slots[var][1]]) if var in slots else var

    def store_value(binding: Any) -> Any:
        slot = slots.get(binding.var)
        return binding if slot is None else tirx.BufferStore(slot[0], binding.value, [slot[1]])

    body = rewrite(rewrite(stmt, [(tirx.Bind, store_value)]), [(Var, load_value)])
    return [tirx.AllocBuffer(buffer) for buffer, _ in slots.values()], body
