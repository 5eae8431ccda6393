"""Names for values, in a form that TVM's simplifier leaves alone.

It puts the value of every ``Bind`` back where the name is used: a chain of values each used twice grows to 2^n terms.
So a named value is kept in a buffer of one element a lane, which LLVM turns back into a register.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import PointerType, Var

from .rewrite import collect, rewrite


def bind_in_buffers(stmt: Any) -> Any:
    """``stmt`` without ``Bind``, its values in buffers of their own."""
    makes, body = split_names(stmt, None, 1)
    return tirx.SeqStmt([*makes, body]) if makes else body


def split_names(stmt: Any, lane: Any, width: int) -> tuple[list[Any], Any]:
    """The buffers' makers and ``stmt`` without ``Bind``. A value that depends on ``lane`` has ``width`` elements.
    Addresses keep theirs."""
    found = [b for b in collect(stmt, tirx.Bind) if not isinstance(b.var.ty, PointerType)]
    if not found:
        return [], stmt
    vary = set() if lane is None else {lane}
    slots: dict[Any, tuple[Any, Any]] = {}
    for bound in found:
        wide = not vary.isdisjoint(collect(bound.value, Var))
        if wide:
            vary.add(bound.var)
        extent = tirx.IntImm("int64", width if wide else 1)
        buffer = tirx.decl_buffer([extent], str(bound.value.ty.dtype), bound.var.name)
        slots[bound.var] = (buffer, lane if wide else tirx.IntImm("int64", 0))

    def use(var: Any) -> Any:
        return tirx.BufferLoad(slots[var][0], [slots[var][1]]) if var in slots else var

    def keep(bound: Any) -> Any:
        slot = slots.get(bound.var)
        return bound if slot is None else tirx.BufferStore(slot[0], bound.value, [slot[1]])

    body = rewrite(rewrite(stmt, [(tirx.Bind, keep)]), [(Var, use)])
    return [tirx.AllocBuffer(buffer) for buffer, _ in slots.values()], body
