"""What a launch asks of a GPU, read from the scheduled program: nothing is run or measured.

Indices are worked out for the lanes of one warp in the middle of the grid, loops at their first turn. So a stride is
how far apart neighbouring lanes are in memory, whatever the index expression looks like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import tvm
from tvm import tirx

from ...tir.builder import Call, Load, shape_of
from ...tir.rewrite import collect
from ..threads import ptx
from .warp_interpreter import Lanes, Value

MIB = 1 << 20
ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
FUNCTIONS = ("fma", "fmaf", "tirx.exp", "tirx.log", "tirx.sqrt", "tirx.tanh", "tirx.pow", "tirx.sigmoid", "tirx.sin",
             "tirx.cos", "tirx.erf")  # fmt: skip
WORK, RESULTS, BLOCKS = 1 << 18, 64, 64  # work and results from which a launch must have this many blocks


@attrs.frozen
class Operand:
    """A tensor in the device's memory.

    ``bytes``   that the launch moves of it, each element once
    ``stride``  elements between those of neighbouring lanes, over those that a lane takes at once (0: all the same
                one; None: where, follows from data); the most common of the accesses that are made most often
    """

    name: str
    bytes: int
    stride: int | None


@attrs.frozen
class Audit:
    """One launch.

    ``serial``   turns of a thread in its deepest loops
    ``shared``   bytes of shared memory of a block
    ``bytes``    moved of all operands
    ``flops``    arithmetic operations on floats, a function counts as one
    ``work``     elements that all threads read or write
    ``results``  elements written
    ``operands`` the largest first
    """

    blocks: int
    threads: int
    serial: int
    shared: int
    bytes: int
    flops: int
    work: int
    results: int
    operands: tuple[Operand, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Rules that the launch breaks, of launches that move over a mebibyte:

        - neighbouring lanes lie side by side, or share an element, in the largest operand (in all that are as large);
        - there are BLOCKS blocks where the work allows them: at least RESULTS results, and WORK elements read or
          written.
        """
        if self.bytes <= MIB:
            return ()
        found = [
            f"{o.name}: neighbouring threads are {o.stride} elements apart"
            for o in self.operands
            if o.bytes == self.operands[0].bytes and o.stride is not None and o.stride > 1
        ]
        if self.blocks < BLOCKS and self.work >= WORK and self.results >= RESULTS:
            found.append(f"{self.blocks} blocks for {self.results} results of {self.work} elements")
        return tuple(found)

    @property
    def data(self) -> dict[str, Any]:
        """For reports: ``operands`` becomes name -> [bytes, stride]."""
        own = attrs.asdict(self, recurse=False)
        return own | {"operands": {o.name: [o.bytes, o.stride] for o in self.operands}, "faults": list(self.faults)}


def audit(func: Any) -> tuple[Audit, ...]:
    """The launches of a scheduled function in order."""
    found = []
    for stmt in _launches(func.body):
        reader = _Reader()
        reader.stmt(stmt)
        found.append(reader.audit())
    return tuple(found)


def _launches(stmt: Any) -> list[Any]:
    """The outermost loops that are bound to blocks or threads."""
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.THREAD_BINDING:
        return [stmt]
    parts = [*stmt.seq] if isinstance(stmt, tirx.SeqStmt) else [_body(stmt)]
    return [found for part in parts if part is not None for found in _launches(part)]


def _body(stmt: Any) -> Any:
    block = getattr(stmt, "block", None)  # of a block's realization
    return getattr(block if block is not None else stmt, "body", None)


@attrs.define
class _Site:
    """One access in the text: how often all lanes of a warp make it, and where."""

    buffer: Any
    store: bool
    times: float  # of a thread
    at: Value
    wide: int  # elements at once


class _Reader:
    """Walks the statements of a launch."""

    def __init__(self) -> None:
        self.extents: dict[str, int] = {}
        self.lanes = Lanes()
        self.sites: list[_Site] = []
        self.shared, self.serial, self.flops = 0, 1, 0.0
        self.trips, self.part = 1, 1.0  # turns of the loops around, and the part of the lanes that get here
        self.vectors: list[tuple[Any, int]] = []
        self.views: set[Any] = set()  # of memory whose size the program does not say

    def stmt(self, node: Any) -> None:
        if isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self.stmt(part)
        elif isinstance(node, tirx.For):
            self._loop(node)
        elif isinstance(node, tirx.IfThenElse):
            self._branch(node)
        elif isinstance(node, tirx.BufferStore):
            self._store(node)
        elif isinstance(node, tirx.AllocBuffer):
            self._alloc(node.buffer)
        elif isinstance(node, tirx.DeclBuffer):
            self.views.add(node.buffer)
        elif isinstance(node, tirx.Bind):
            self.expr(node.value)
            self.lanes.bind(node.var, node.value)
        elif isinstance(node, tirx.Evaluate):
            self.expr(node.value)
        elif (inner := _body(node)) is not None:
            for buffer in getattr(getattr(node, "block", None), "alloc_buffers", ()):
                self._alloc(buffer)
            self._block_axes(node)
            self.stmt(inner)

    def _block_axes(self, node: Any) -> None:
        block = getattr(node, "block", None)
        if block is not None:
            for axis, value in zip(block.iter_vars, node.iter_values, strict=True):
                self.lanes.bind(axis.var, value)

    def _alloc(self, buffer: Any) -> None:
        if buffer.scope().startswith("shared"):
            self.shared += math.prod(shape_of(buffer)) * tvm.DataType(str(buffer.dtype)).itemsize

    def _loop(self, node: Any) -> None:
        self.expr(node.min)
        self.expr(node.extent)
        extent = self.lanes.most(node.extent)
        if node.kind == tirx.ForKind.THREAD_BINDING:
            tag = str(node.thread_binding.thread_tag)
            self.extents[tag] = extent
            before = math.prod(n for t, n in self.extents.items() if t.startswith("threadIdx") and t != tag)
            self.lanes.thread(node.loop_var, tag, extent, before)
            self.stmt(node.body)
            return
        self.lanes.bind(node.loop_var, node.min)
        vector = node.kind == tirx.ForKind.VECTORIZED
        self.trips *= max(extent, 1)
        self.serial = max(self.serial, self.trips)
        self.vectors += [(node.loop_var, extent)] if vector else []
        self.stmt(node.body)
        self.vectors = self.vectors[:-1] if vector else self.vectors
        self.trips //= max(extent, 1)

    def _branch(self, node: Any) -> None:
        """Both ways are read; one that only some lanes of a warp take, for these lanes."""
        self.expr(node.condition)
        before, part = self.lanes.active, self.part
        taken = self.lanes.truth(node.condition)
        for body, mine in ((node.then_case, taken), (node.else_case, None if taken is None else ~taken)):
            if body is None:
                continue
            if mine is not None and (mine & before).any():
                self.lanes.active = mine & before
                self.part = part * float((mine & before).sum() / before.sum())
            self.stmt(body)
            self.lanes.active, self.part = before, part

    def _store(self, node: Any) -> None:
        for index in node.indices:
            self.expr(index)
        self.expr(node.value)
        if _is_memory(node.buffer):
            self._site(node.buffer, node.indices, True)
        else:
            self.lanes.store(node.buffer, node.indices, node.value)

    def expr(self, node: Any) -> None:
        found = collect(node, (tirx.Let, Load, Call, *ARITHMETIC))
        for let in reversed([n for n in found if isinstance(n, tirx.Let)]):  # outer ones first
            self.lanes.bind(let.var, let.value)
        wide = ptx.width(node)
        for part in found:
            if isinstance(part, Load):
                if _is_memory(part.source):
                    self._site(part.source, part.indices, False, wide)
            elif _is_operation(part):
                self.flops += self.trips * self.part
        self.flops += self.trips * self.part * ptx.operations(node)

    def _site(self, buffer: Any, indices: Sequence[Any], store: bool, wide: int = 1) -> None:
        times = self.trips * self.part * wide
        for var, extent in self.vectors:
            if any(var in collect(index, tvm.ir.Var) for index in indices):
                wide *= extent
        self.sites.append(_Site(buffer, store, times, self.lanes.flat(buffer, indices), wide))

    def audit(self) -> Audit:
        count = lambda kind: math.prod(n for t, n in self.extents.items() if t.startswith(kind))  # noqa: E731
        blocks, threads = count("blockIdx"), count("threadIdx")
        every = blocks * threads
        by_buffer: dict[Any, list[_Site]] = {}
        for site in self.sites:
            by_buffer.setdefault(site.buffer, []).append(site)
        size = {b: math.inf if b in self.views else math.prod(shape_of(b)) for b in by_buffer}
        operands = [_operand(b, s, every, size[b]) for b, s in by_buffer.items()]
        operands.sort(key=lambda o: (-o.bytes, o.name))
        written = [_elements([x for x in s if x.store], every, size[b]) for b, s in by_buffer.items()]
        return Audit(
            blocks, threads, self.serial, self.shared, sum(o.bytes for o in operands), round(self.flops * every),
            round(sum(s.times for s in self.sites) * every), max(written, default=0), tuple(operands),
        )  # fmt: skip


def _is_memory(buffer: Any) -> bool:
    return buffer.scope() in ("", "global")


def _is_operation(node: Any) -> bool:
    """Arithmetic on floats, or a function of one that is worked out."""
    if isinstance(node, ARITHMETIC):
        return "float" in str(node.ty.dtype)
    name = str(node.op.name) if isinstance(node, Call) else ""
    return (str(node.args[0].value) if name == "tirx.call_pure_extern" else name) in FUNCTIONS


def _elements(sites: Sequence[_Site], threads: int, size: float) -> int:
    """That ``threads`` threads touch, of a tensor of ``size`` elements."""
    return round(min(size, sum(s.times for s in sites) * threads))


def _operand(buffer: Any, sites: Sequence[_Site], threads: int, size: float) -> Operand:
    most = max(s.times for s in sites)
    strides = [s.at.stride(s.wide) for s in sites if s.times == most]
    known = [s for s in strides if s is not None]
    moved = _elements(sites, threads, size) * tvm.DataType(str(buffer.dtype)).itemsize
    return Operand(buffer.name, moved, max(known) if known else None)
