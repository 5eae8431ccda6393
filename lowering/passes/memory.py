"""How much memory a call of a function takes beyond its inputs, and its kernels for themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import tvm
from attrs import frozen
from tvm import relax, s_tir, tirx
from tvm.s_tir import SBlock

STORAGE = "relax.memory.alloc_storage"  # planned, shared by intermediates whose lives do not overlap
TENSOR = "relax.builtin.alloc_tensor"  # an output: never planned
GLOBAL = ("", "global")  # storage scopes
STACK = 1024  # bytes from which TVM's CPU runtime takes a kernel's own buffer from the heap
COMPACT = (
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.CompactBufferAllocation(),
)


@frozen
class Call:
    """Bytes that a call of a function asks for, and the programs that it runs, in order.

    blocks:  for its intermediates, given back when it returns
    outputs: for each tensor that it returns; one that is written in place is not among them
    """

    blocks: tuple[int, ...]
    outputs: tuple[int, ...]
    kernels: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(self.blocks) + sum(self.outputs)


@frozen
class Workspace:
    """Bytes of the buffers that a program takes from the heap and that are live together, in the order it takes them:
    ``own`` once, ``task`` in each thread that has a part of its loops."""

    own: tuple[int, ...] = ()
    task: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """On one thread."""
        return sum(self.own) + sum(self.task)


def planned(module: tvm.IRModule) -> dict[str, Call]:
    """Function -> what a call asks for; after the storages are planned."""
    return {gv.name_hint: _call(func) for gv, func in module.functions_items() if isinstance(func, relax.Function)}


def _call(func: relax.Function) -> Call:
    blocks, outputs, kernels = [], [], []
    for value in (b.value for block in func.body.blocks for b in block.bindings):
        name = getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""
        if name == STORAGE:
            blocks.append(int(value.args[0].values[0]))
        elif name == TENSOR:
            outputs.append(_tensor_bytes(value.args[0].values, value.args[1].value))
        elif isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            kernels.append(value.op.name_hint)
    return Call(tuple(blocks), tuple(outputs), tuple(kernels))


def constants(module: tvm.IRModule) -> tuple[int, ...]:
    """Bytes of each tensor that the functions have in them: equal ones are one in the library."""
    found: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def note(value: Any) -> None:
        data = getattr(value, "value", None)
        if isinstance(data, tvm.runtime.Tensor):
            array = data.numpy()
            found[str(data.dtype), array.shape, array.tobytes()] = array.nbytes

    for _, func in module.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, note)
    return tuple(found.values())


def _tensor_bytes(shape: Any, dtype: Any) -> int:
    return math.prod(int(n) for n in shape) * ((tvm.DataType(str(dtype)).bits + 7) // 8)


def workspaces(module: tvm.IRModule, least: int = STACK) -> dict[str, Workspace]:
    """Program -> the buffers of ``least`` bytes or more that it allocates for itself, each cut down to what is needed
    at once. A GPU's launches share no stack: what one leaves for the next is memory of the card, whatever its size."""
    programs = {gv: f for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    if not programs:
        return {}
    small = tvm.ir.transform.Sequential(COMPACT)(tvm.IRModule(programs))
    return {gv.name_hint: _workspace(func.body, least) for gv, func in small.functions_items()}


def _workspace(stmt: Any, least: int) -> Workspace:
    """Of ``stmt``: what it allocates stands beside the largest of its parts, which follow one another."""
    taken = _taken(stmt, least)
    inner: list[Workspace] = []
    for part in parts_of(stmt):
        if isinstance(part, tirx.AllocBuffer):
            taken += _taken(part, least)
        else:
            inner.append(_workspace(part, least))
    own, task = most(w.own for w in inner), most(w.task for w in inner)
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
        return Workspace((), (*taken, *own, *task))
    return Workspace((*taken, *own), task)


def _taken(stmt: Any, least: int) -> list[int]:
    """Bytes of each buffer that ``stmt`` itself takes from the heap; a schedule's smaller ones are on the stack, and
    those that a GPU's threads share or have for themselves are not there."""
    if isinstance(stmt, SBlock):
        return [_buffer_bytes(buffer) for buffer in stmt.alloc_buffers if buffer.scope() in GLOBAL]
    if isinstance(stmt, tirx.AllocBuffer):
        size = _buffer_bytes(stmt.buffer)
        return [size] if size >= least and stmt.buffer.scope() in GLOBAL else []
    return []


def parts_of(stmt: Any) -> list[Any]:
    """The statements directly in ``stmt``."""
    parts = [getattr(stmt, name, None) for name in ("block", "init", "body", "then_case", "else_case")]
    return [part for part in (*parts, *(getattr(stmt, "seq", None) or ())) if part is not None]


def most(lists: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Of several lists of which one is needed at a time: as many as the longest has, each as large as the largest in
    its place, the largest first. A list that stands alone stays as it is."""
    lists = [sizes for sizes in lists if sizes]
    if len(lists) < 2:
        return tuple(*lists)
    return tuple(map(max, zip_longest(*(sorted(sizes, reverse=True) for sizes in lists), fillvalue=0)))


def _buffer_bytes(buffer: Any) -> int:
    return _tensor_bytes(buffer.shape, buffer.dtype)
