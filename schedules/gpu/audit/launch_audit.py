"""A static audit of launches: coalescing, blocks, bytes and flops, read from the scheduled program without a GPU.

It takes a scheduled function, before code generation. Indices are evaluated for the lanes of a warp in the middle of
the grid, loops at their first iteration (``warp_interpreter.py``): a stride is the distance in memory between
neighbouring lanes. Counts are of a thread times the number of threads.
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
from .warp_interpreter import LaneValues, WarpInterpreter

MIB = 1 << 20
ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
FUNCTIONS = (
    "fma",
    "fmaf",
    "tirx.exp",
    "tirx.log",
    "tirx.sqrt",
    "tirx.tanh",
    "tirx.pow",
    "tirx.sigmoid",
    "tirx.sin",
    "tirx.cos",
    "tirx.erf",
)
# A launch of MIN_WORK elements read or written and of MIN_RESULTS results must have MIN_BLOCKS blocks, about half as
# many as a GPU has multiprocessors. Chosen, not measured. If a number is wrong, so are faults in the report; programs
# stay.
MIN_WORK, MIN_RESULTS, MIN_BLOCKS = 1 << 18, 64, 64


@attrs.frozen
class Operand:
    """A tensor in the device's memory.

    ``bytes``   that the launch moves of it, each element once
    ``stride``  distance in memory between neighbouring lanes, in elements or, of vector loads, in vectors: 1 is
                coalesced, 0 a broadcast, None depends on loaded data. Of the most frequent accesses the largest.
    """

    name: str
    bytes: int
    stride: int | None


@attrs.frozen
class Audit:
    """A launch.

    ``serial``   iterations of a thread in its deepest loop nest
    ``shared``   bytes of shared memory of a block
    ``bytes``    moved of all operands
    ``flops``    arithmetic operations on floats, a function counts as 1
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
        """Rules that the launch breaks, if it moves over a mebibyte:

        - accesses to the largest operand (to all that are as large) are coalesced or broadcast;
        - there are MIN_BLOCKS blocks where the work allows them: at least MIN_RESULTS results, and MIN_WORK elements
          read or written.
        """
        if self.bytes <= MIB:
            return ()
        faults = [
            f"{o.name}: neighbouring threads are {o.stride} elements apart"
            for o in self.operands
            if o.bytes == self.operands[0].bytes and o.stride is not None and o.stride > 1
        ]
        if self.blocks < MIN_BLOCKS and self.work >= MIN_WORK and self.results >= MIN_RESULTS:
            faults.append(f"{self.blocks} blocks for {self.results} results of {self.work} elements")
        return tuple(faults)

    @property
    def data(self) -> dict[str, Any]:
        """For reports: ``operands`` becomes name -> [bytes, stride]."""
        fields = attrs.asdict(self, recurse=False)
        return fields | {"operands": {o.name: [o.bytes, o.stride] for o in self.operands}, "faults": list(self.faults)}


def audit(func: Any) -> tuple[Audit, ...]:
    """The launches of a scheduled function in order."""
    audits = []
    for stmt in _launches(func.body):
        walker = _LaunchWalker()
        walker.stmt(stmt)
        audits.append(walker.audit())
    return tuple(audits)


def _launches(stmt: Any) -> list[Any]:
    """The outermost loops that are bound to blocks or threads: each is a launch."""
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.THREAD_BINDING:
        return [stmt]
    parts = [*stmt.seq] if isinstance(stmt, tirx.SeqStmt) else [_body(stmt)]
    return [launch for part in parts if part is not None for launch in _launches(part)]


def _body(stmt: Any) -> Any:
    block = getattr(stmt, "block", None)  # of a block's realization
    return getattr(block if block is not None else stmt, "body", None)


@attrs.define
class _Access:
    """A load or store in the program's text, by the lanes of the warp.

    ``per_thread``  elements that a thread accesses, in all its iterations
    ``vector``      elements of an access
    """

    buffer: Any
    is_store: bool
    per_thread: float
    offset: LaneValues
    vector: int


class _LaunchWalker:
    """Walks the statements of a launch and counts."""

    def __init__(self) -> None:
        self.extents: dict[str, int] = {}  # thread tag -> extent
        self.warp = WarpInterpreter()
        self.accesses: list[_Access] = []
        self.shared, self.serial, self.flops = 0, 1, 0.0
        self.iterations = 1  # of the loops around the statement
        self.active_share = 1.0  # of the warp's lanes, in the branches around it
        self.vectorized: list[tuple[Any, int]] = []  # variables of vectorized loops around it, and their extents
        self.views: set[Any] = set()  # buffers over memory whose size the program does not say

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
            self.warp.bind(node.var, node.value)
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
                self.warp.bind(axis.var, value)

    def _alloc(self, buffer: Any) -> None:
        if buffer.scope().startswith("shared"):
            self.shared += math.prod(shape_of(buffer)) * tvm.DataType(str(buffer.dtype)).itemsize

    def _loop(self, node: Any) -> None:
        self.expr(node.min)
        self.expr(node.extent)
        extent = self.warp.max_value(node.extent)
        if node.kind == tirx.ForKind.THREAD_BINDING:
            tag = str(node.thread_binding.thread_tag)
            self.extents[tag] = extent
            inner = math.prod(n for t, n in self.extents.items() if t.startswith("threadIdx") and t != tag)
            self.warp.bind_thread(node.loop_var, tag, extent, inner)
            self.stmt(node.body)
            return
        self.warp.bind(node.loop_var, node.min)
        is_vector = node.kind == tirx.ForKind.VECTORIZED
        self.iterations *= max(extent, 1)
        self.serial = max(self.serial, self.iterations)
        self.vectorized += [(node.loop_var, extent)] if is_vector else []
        self.stmt(node.body)
        self.vectorized = self.vectorized[:-1] if is_vector else self.vectorized
        self.iterations //= max(extent, 1)

    def _branch(self, node: Any) -> None:
        """Both branches count: for the lanes that take them, or for all lanes where data decides."""
        self.expr(node.condition)
        active, share = self.warp.active, self.active_share
        taken = self.warp.mask(node.condition)
        for body, mask in ((node.then_case, taken), (node.else_case, None if taken is None else ~taken)):
            if body is None:
                continue
            # A branch that no lane of this warp takes is another warp's: it counts for all lanes.
            if mask is not None and (mask & active).any():
                self.warp.active = mask & active
                self.active_share = share * float((mask & active).sum() / active.sum())
            self.stmt(body)
            self.warp.active, self.active_share = active, share

    def _store(self, node: Any) -> None:
        for index in node.indices:
            self.expr(index)
        self.expr(node.value)
        if _is_global(node.buffer):
            self._access(node.buffer, node.indices, True)
        else:
            self.warp.store(node.buffer, node.indices, node.value)

    def expr(self, node: Any) -> None:
        nodes = collect(node, (tirx.Let, Load, Call, *ARITHMETIC))
        for let in reversed([n for n in nodes if isinstance(n, tirx.Let)]):  # outer ones first
            self.warp.bind(let.var, let.value)
        vector = ptx.copy_width(node)
        for part in nodes:
            if isinstance(part, Load):
                if _is_global(part.source):
                    self._access(part.source, part.indices, False, vector)
            elif _is_flop(part):
                self.flops += self.iterations * self.active_share
        self.flops += self.iterations * self.active_share * ptx.flops(node)

    def _access(self, buffer: Any, indices: Sequence[Any], is_store: bool, vector: int = 1) -> None:
        per_thread = self.iterations * self.active_share * vector
        for var, extent in self.vectorized:
            if any(var in collect(index, tvm.ir.Var) for index in indices):
                vector *= extent
        self.accesses.append(_Access(buffer, is_store, per_thread, self.warp.offset(buffer, indices), vector))

    def audit(self) -> Audit:
        def extent_of(kind: str) -> int:
            return math.prod(n for tag, n in self.extents.items() if tag.startswith(kind))

        blocks, threads = extent_of("blockIdx"), extent_of("threadIdx")
        all_threads = blocks * threads
        by_buffer: dict[Any, list[_Access]] = {}
        for access in self.accesses:
            by_buffer.setdefault(access.buffer, []).append(access)
        size = {b: math.inf if b in self.views else math.prod(shape_of(b)) for b in by_buffer}
        operands = [_operand(b, a, all_threads, size[b]) for b, a in by_buffer.items()]
        operands.sort(key=lambda o: (-o.bytes, o.name))
        written = [_elements([a for a in s if a.is_store], all_threads, size[b]) for b, s in by_buffer.items()]
        work = round(sum(a.per_thread for a in self.accesses) * all_threads)
        return Audit(
            blocks,
            threads,
            self.serial,
            self.shared,
            sum(o.bytes for o in operands),
            round(self.flops * all_threads),
            work,
            max(written, default=0),
            tuple(operands),
        )


def _is_global(buffer: Any) -> bool:
    return buffer.scope() in ("", "global")


def _is_flop(node: Any) -> bool:
    """Arithmetic on floats, or a math function of a float."""
    if isinstance(node, ARITHMETIC):
        return "float" in str(node.ty.dtype)
    name = str(node.op.name) if isinstance(node, Call) else ""
    return (str(node.args[0].value) if name == "tirx.call_pure_extern" else name) in FUNCTIONS


def _elements(accesses: Sequence[_Access], threads: int, size: float) -> int:
    """Elements that ``threads`` threads touch, of a tensor of ``size`` elements."""
    return round(min(size, sum(a.per_thread for a in accesses) * threads))


def _operand(buffer: Any, accesses: Sequence[_Access], threads: int, size: float) -> Operand:
    most_frequent = max(a.per_thread for a in accesses)
    strides = [a.offset.stride(a.vector) for a in accesses if a.per_thread == most_frequent]
    static_strides = [s for s in strides if s is not None]
    moved = _elements(accesses, threads, size) * tvm.DataType(str(buffer.dtype)).itemsize
    return Operand(buffer.name, moved, max(static_strides) if static_strides else None)
