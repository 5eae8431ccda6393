"""How much memory a call of a function takes beyond its inputs, and its kernels for themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import tvm
from attrs import frozen
from tvm import relax, tirx

STORAGE = "relax.memory.alloc_storage"  # planned, shared by intermediates whose lives do not overlap
TENSOR = "relax.builtin.alloc_tensor"  # an output: never planned
GLOBAL = ("", "global")  # storage scopes
STACK = 1024  # bytes from which TVM's CPU runtime takes a kernel's own buffer from the heap
JOINED = "tirx.StorageRewrite"  # TVM's pass after which a program's buffers are those that it asks for


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
    kind = tvm.DataType(str(dtype))
    return math.prod(int(n) for n in shape) * kind.lanes * ((kind.bits + 7) // 8)


@tvm.ir.instrument.pass_instrument
class Workspaces:
    """``found``: program -> the buffers of ``least`` bytes or more that it takes for itself, of the programs that are
    compiled with this among the instruments of the pass context. They are looked at where TVM has cut each down to what
    of it is needed at once, and made one of those that are not needed at the same time. A GPU's launches share no
    stack: what one leaves for the next is memory of the card, whatever its size."""

    def __init__(self, least: int = STACK) -> None:
        self.least = least
        self.found: dict[str, Workspace] = {}

    def run_after_pass(self, module: tvm.IRModule, info: Any) -> None:
        if info.name == JOINED:
            programs = {gv.name_hint: f for gv, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
            self.found |= {name: _workspace(func.body, self.least) for name, func in programs.items()}


def _workspace(stmt: Any, least: int) -> Workspace:
    """Of ``stmt``: what it allocates stands beside the largest of its parts, which follow one another."""
    taken: list[int] = []
    inner: list[Workspace] = []
    for part in parts_of(stmt):
        if not isinstance(part, tirx.AllocBuffer):
            inner.append(_workspace(part, least))
        elif part.buffer.scope() in GLOBAL and (size := _buffer_bytes(part.buffer)) >= least:
            taken.append(size)
    own, task = most(w.own for w in inner), most(w.task for w in inner)
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
        return Workspace((), (*taken, *own, *task))
    return Workspace((*taken, *own), task)


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
