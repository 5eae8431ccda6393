"""How much memory a call of a function takes beyond its inputs, and the workspaces of its kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import tvm
from attrs import frozen
from tvm import relax, tirx

STORAGE = "relax.memory.alloc_storage"  # planned, shared by intermediates whose lifetimes do not overlap
TENSOR = "relax.builtin.alloc_tensor"  # an output: never planned
GLOBAL = ("", "global")  # storage scopes
MIN_HEAP_BYTES = 1024  # bytes from which TVM's CPU runtime takes a kernel's own buffer from the heap
JOINED = "tirx.StorageRewrite"  # TVM's pass that shares memory between a program's buffers; after it they are final


@frozen
class Call:
    """The bytes that a call of a function allocates, and the programs that it runs, in order.

    blocks:  for its intermediates, freed when it returns
    outputs: for each tensor that it returns, but for those written in place
    """

    blocks: tuple[int, ...]
    outputs: tuple[int, ...]
    kernels: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(self.blocks) + sum(self.outputs)


@frozen
class Workspace:
    """Bytes of the buffers that a program allocates on the heap and that are live together, in order of allocation:
    ``own`` once, ``task`` in each thread that runs a part of its parallel loops."""

    own: tuple[int, ...] = ()
    task: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """On one thread."""
        return sum(self.own) + sum(self.task)


def call_memory(module: tvm.IRModule) -> dict[str, Call]:
    """Function -> what a call allocates; after storage planning."""
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
    """Bytes of each distinct constant tensor of the functions: the library holds equal ones once."""
    sizes: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def note(value: Any) -> None:
        data = getattr(value, "value", None)
        if isinstance(data, tvm.runtime.Tensor):
            array = data.numpy()
            sizes[str(data.dtype), array.shape, array.tobytes()] = array.nbytes

    for _, func in module.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, note)
    return tuple(sizes.values())


def _tensor_bytes(shape: Any, dtype: Any) -> int:
    kind = tvm.DataType(str(dtype))
    return math.prod(int(n) for n in shape) * kind.lanes * ((kind.bits + 7) // 8)


@tvm.ir.instrument.pass_instrument
class Workspaces:
    """A pass instrument that measures the workspaces of the programs that are compiled with it.

    by_program: program -> its buffers of ``min_bytes`` or more. They are read after TVM has shrunk each buffer to what
                is
    live at once, and has merged buffers that are never live together. A GPU's launches share no stack: what one launch
    leaves for the next is device memory, whatever its size, so ``min_bytes`` is 1 there.
    """

    def __init__(self, min_bytes: int = MIN_HEAP_BYTES) -> None:
        self.min_bytes = min_bytes
        self.by_program: dict[str, Workspace] = {}

    def run_after_pass(self, module: tvm.IRModule, info: Any) -> None:
        if info.name == JOINED:
            programs = {gv.name_hint: f for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
            self.by_program |= {name: _workspace(func.body, self.min_bytes) for name, func in programs.items()}


def _workspace(stmt: Any, min_bytes: int) -> Workspace:
    """The workspace of ``stmt``: its own allocations, live together with the largest of its sub-statements, which run
    one after the other."""
    sizes: list[int] = []
    nested: list[Workspace] = []
    for part in parts_of(stmt):
        if not isinstance(part, tirx.AllocBuffer):
            nested.append(_workspace(part, min_bytes))
        elif part.buffer.scope() in GLOBAL and (size := _buffer_bytes(part.buffer)) >= min_bytes:
            sizes.append(size)
    own, task = elementwise_max(w.own for w in nested), elementwise_max(w.task for w in nested)
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
        return Workspace((), (*sizes, *own, *task))
    return Workspace((*sizes, *own), task)


def parts_of(stmt: Any) -> list[Any]:
    """The direct sub-statements of ``stmt``."""
    parts = [getattr(stmt, name, None) for name in ("block", "init", "body", "then_case", "else_case")]
    return [part for part in (*parts, *(getattr(stmt, "seq", None) or ())) if part is not None]


def elementwise_max(lists: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """A list of sizes that has room for each of ``lists``, of which one is live at a time: sorted from the largest on,
    and the maximum taken position by position. A single list keeps its order."""
    lists = [sizes for sizes in lists if sizes]
    if len(lists) < 2:
        return tuple(*lists)
    return tuple(map(max, zip_longest(*(sorted(sizes, reverse=True) for sizes in lists), fillvalue=0)))


def _buffer_bytes(buffer: Any) -> int:
    return _tensor_bytes(buffer.shape, buffer.dtype)
