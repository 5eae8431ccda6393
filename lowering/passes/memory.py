"""How much memory a call of a function takes beyond its inputs and the module's constants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir import SBlock

STORAGE = "relax.memory.alloc_storage"  # planned, shared by intermediates whose lives do not overlap
TENSOR = "relax.builtin.alloc_tensor"  # an output: never planned
COMPACT = (
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.CompactBufferAllocation(),
)


def planned(module: tvm.IRModule) -> dict[str, int]:
    """Function -> bytes of its planned intermediates and of its outputs; after StaticPlanBlockMemory."""
    return {
        gv.name_hint: sum(_bytes(b.value) for block in func.body.blocks for b in block.bindings)
        for gv, func in module.functions_items()
        if isinstance(func, relax.Function)
    }


def _bytes(value: Any) -> int:
    name = getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""
    if name == STORAGE:
        return int(value.args[0].values[0])
    if name == TENSOR:
        return _tensor_bytes(value.args[0].values, value.args[1].value)
    return 0


def _tensor_bytes(shape: Any, dtype: Any) -> int:
    return math.prod(int(n) for n in shape) * ((tvm.DataType(str(dtype)).bits + 7) // 8)


STACK = 1024  # bytes from which TVM's CPU runtime takes a kernel's own buffer from the heap


def workspaces(module: tvm.IRModule) -> dict[str, int]:
    """Program -> bytes of the buffers it allocates for itself, each cut down to what is live at once."""
    programs = {gv: f for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    if not programs:
        return {}
    small = tvm.ir.transform.Sequential(COMPACT)(tvm.IRModule(programs))
    return {gv.name_hint: sum(map(_buffer_bytes, _buffers(func.body))) for gv, func in small.functions_items()}


def _buffers(stmt: Any) -> Iterator[Any]:
    """Every buffer that ``stmt`` allocates on the heap; a schedule's smaller ones are on the stack."""
    if isinstance(stmt, tirx.AllocBuffer) and _buffer_bytes(stmt.buffer) >= STACK:
        yield stmt.buffer
    if isinstance(stmt, SBlock):
        yield from stmt.alloc_buffers
    parts = [getattr(stmt, name, None) for name in ("block", "body", "then_case", "else_case")]
    for part in [*parts, *(getattr(stmt, "seq", None) or ())]:
        if part is not None:
            yield from _buffers(part)


def _buffer_bytes(buffer: Any) -> int:
    return _tensor_bytes(buffer.shape, buffer.dtype)
