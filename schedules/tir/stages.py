"""A PrimFunc of plain blocks, read as a list of stages: the form on which all schedules work.

A stage is a block. It is elementwise (a value at every point of its space), a reduction (sum, product, max or min
with a neutral start), or serial (any other body without loops, kept as statements). Axes of extent 1 are dropped:
their variable becomes 0. What is not so is refused with NotStaged, and left to other rules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import attrs
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Var

from .builder import Expr, Load, Stmt, is_int, value_of
from .narrow_indices import in_32_bits
from .rewrite import collect, rewrite


class NotStaged(Exception):
    """The function is not a list of plain blocks. The message is the reason."""


@attrs.frozen(eq=False)
class Axis:
    """A loop variable of a stage: 0 <= var < extent."""

    var: Any
    extent: int


@attrs.frozen(eq=False)
class Reduction:
    """The operator of a reduction. ``init`` is neutral for ``kind``: sum, max, min, prod, or first-max and first-min,
    which ``argmax.py`` makes: the smallest index of the extreme value."""

    kind: str
    init: Expr

    def combine(self, a: Expr, b: Expr) -> Expr:
        return {"sum": tirx.Add, "prod": tirx.Mul, "max": tirx.Max, "min": tirx.Min}[self.kind](a, b)


@attrs.frozen(eq=False)
class Stage:
    """``buffer[indices] = value`` over ``space``, combined over ``reduce`` if there is a ``reduction``.

    serial:       the (init, body) statements of a stage of neither kind; buffer and value are None then
    in_order:     the operator promises a sum from the first element to the last (block annotation ``in_order``)
    materialized: each value is computed once and stored, never inlined (block annotation ``kept``)
    """

    name: str
    space: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    buffer: Any
    indices: tuple[Expr, ...]
    value: Expr
    reduction: Reduction | None = None
    serial: tuple[Stmt | None, Stmt] | None = None
    in_order: bool = False
    materialized: bool = False

    @property
    def is_elementwise(self) -> bool:
        return self.reduction is None and self.serial is None

    @property
    def points(self) -> int:
        return prod(axis.extent for axis in self.space)

    @property
    def depth(self) -> int:
        """The number of elements that are reduced into a result."""
        return prod(axis.extent for axis in self.reduce)

    @functools.cached_property
    def reads(self) -> tuple[Any, ...]:
        """Every load of the stage, those of its own accumulator left out."""
        if self.serial is None:
            return *loads(self.value), *(x for index in self.indices for x in loads(index))
        return tuple(x for x in loads(self.serial[1]) if x.source not in self.writes)

    @property
    def writes(self) -> tuple[Any, ...]:
        return (self.buffer,) if self.serial is None else stored(self.serial[1])


@attrs.frozen(eq=False)
class Program:
    """The parameters of a function and its stages in order. Every other buffer is an intermediate of the kernel."""

    func: Any
    params: tuple[Any, ...]
    stages: tuple[Stage, ...]

    @functools.cached_property
    def _param_set(self) -> frozenset[Any]:
        return frozenset(self.params)

    def owns(self, buffer: Any) -> bool:
        return buffer not in self._param_set

    @property
    def aliased(self) -> bool:
        """Is any parameter both read and written?"""
        written = {b for s in self.stages for b in s.writes}
        read = {x.source for s in self.stages for x in s.reads}
        return any(b in written and b in read for b in self.params)

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """(read, written) parameters that may share memory: donated buffers (function attribute ``in_place``)."""
        attribute = self.func.attrs.get("in_place", ()) if self.func.attrs else ()
        return [(self.params[int(read)], self.params[int(write)]) for read, write in attribute]


def loads(node: Any) -> list[Any]:
    """Every BufferLoad inside, inner ones first."""
    return collect(node, Load)


def stored(stmt: Stmt) -> tuple[Any, ...]:
    """The buffers that ``stmt`` writes, each once."""
    return tuple(dict.fromkeys(s.buffer for s in collect(stmt, tirx.BufferStore)))


def binds(stmt: Stmt) -> list[Any]:
    """Every Bind statement inside."""
    return collect(stmt, tirx.Bind)


def variables(expr: Any) -> set[Any]:
    """The variables that occur inside."""
    return set(collect(expr, Var))


def substitute(node: Any, values: dict[Any, Expr]) -> Any:
    """``node`` with variables replaced."""
    if not values:
        return node
    return rewrite(node, [(Var, lambda v: values.get(v, v))])


def read_program(func: Any) -> Program:
    """The stages of ``func``. Raises NotStaged."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or root.block.iter_vars:
        raise NotStaged("no root block")
    body = root.block.body
    parts = statements(body)
    params = tuple(func.params)
    if any(not hasattr(p, "shape") for p in params):
        raise NotStaged("a scalar parameter")
    _check_shapes([*params, *root.block.alloc_buffers])
    return Program(func, params, tuple(_read_stage(part) for part in parts))


def statements(stmt: Stmt) -> list[Stmt]:
    """The parts of a sequence; of any other statement, itself."""
    return [*stmt.seq] if isinstance(stmt, tirx.SeqStmt) else [stmt]


def _check_shapes(buffers: Iterable[Any]) -> None:
    for buffer in buffers:
        # Nests flatten indices row-major, with extents that are numbers.
        if any(not is_int(extent) for extent in buffer.shape) or list(buffer.strides or []):
            raise NotStaged(f"buffer {buffer.name} has no fixed row-major shape")


def _read_stage(stmt: Stmt) -> Stage:
    """Loops around a block, read as a stage."""
    extents: dict[Any, int] = {}
    while isinstance(stmt, tirx.For):
        if not (is_int(stmt.min, 0) and is_int(stmt.extent) and stmt.kind == tirx.ForKind.SERIAL):
            raise NotStaged("a loop that is not serial from 0 to a fixed extent")
        extents[stmt.loop_var] = value_of(stmt.extent)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize):
        raise NotStaged("statements between loops and block")
    return _read_block(stmt, extents)


def _read_block(realize: Any, extents: dict[Any, int]) -> Stage:
    block = realize.block
    if not is_int(realize.predicate, 1) or block.alloc_buffers or block.match_buffers:
        raise NotStaged(f"block {block.name_hint} is not plain")
    space, reduce, unit_axes = [], [], {}
    for iter_var, value in zip(block.iter_vars, realize.iter_values, strict=True):
        # Popped, so that a loop has a single axis: two would run together, along a diagonal of their space.
        extent = 1 if is_int(value, 0) else extents.pop(value, None) if isinstance(value, Var) else None
        if extent is None or extent != int(iter_var.dom.extent) or not is_int(iter_var.dom.min, 0):
            raise NotStaged(f"block {block.name_hint}: an axis that is no plain loop")
        if extent == 1:
            unit_axes[iter_var.var] = tirx.IntImm(str(iter_var.var.ty.dtype), 0)
            continue
        (reduce if iter_var.iter_type == tirx.IterVar.CommReduce else space).append(Axis(iter_var.var, extent))
    if any(extent != 1 for extent in extents.values()):
        raise NotStaged(f"block {block.name_hint}: a loop bound to no axis")
    # Unit axes become 0, so that a shape with extents of 1 gives the same stages as a shape without.
    init = None if block.init is None else substitute(block.init, unit_axes)
    body = in_32_bits(substitute(block.body, unit_axes), {axis.var: axis.extent for axis in (*space, *reduce)})
    stage = _classify(block.name_hint, tuple(space), tuple(reduce), init, body)
    return attrs.evolve(stage, in_order="in_order" in block.annotations, materialized="kept" in block.annotations)


def _classify(name: str, space: tuple[Axis, ...], reduce: tuple[Axis, ...], init: Stmt | None, body: Stmt) -> Stage:
    if isinstance(body, tirx.BufferStore):
        if init is None and not reduce:
            # Its own element may be updated in place. Any other would be read before or after its update, by the order
            # of loops.
            if any(x.source.same_as(body.buffer) for x in loads(body.value)) and not _reads_own_element(body):
                raise NotStaged(f"block {name} reads what it writes at another place")
            return Stage(name, space, (), body.buffer, tuple(body.indices), body.value)
        match = _match_reduction(init, body)
        if match is not None:
            return Stage(name, space, reduce, body.buffer, tuple(body.indices), match[1], match[0])
    if not _is_straight_line(body):
        raise NotStaged(f"block {name} has loops or calls in its body")
    return Stage(name, space, reduce, None, (), None, None, (init, body))


def _reads_own_element(body: Any) -> bool:
    accumulator_reads = [x for x in loads(body.value) if x.source.same_as(body.buffer)]
    return all(tvm_ffi.structural_equal(list(x.indices), list(body.indices)) for x in accumulator_reads)


def _is_straight_line(body: Stmt) -> bool:
    parts = statements(body)
    return all(isinstance(part, tirx.Bind | tirx.BufferStore) for part in parts)


def _match_reduction(init: Stmt | None, body: Any) -> tuple[Reduction, Expr] | None:
    """The reduction and x of ``acc = acc (+) x`` or ``acc = x (+) acc`` with a neutral start; else None."""
    kinds = {tirx.Add: "sum", tirx.Mul: "prod", tirx.Max: "max", tirx.Min: "min"}
    kind = kinds.get(type(body.value))
    if kind is None or not isinstance(init, tirx.BufferStore) or not init.buffer.same_as(body.buffer):
        return None
    for acc, update in ((body.value.a, body.value.b), (body.value.b, body.value.a)):
        is_accumulator = isinstance(acc, Load) and acc.source.same_as(body.buffer)
        if is_accumulator and tvm_ffi.structural_equal(list(acc.indices), list(body.indices)):
            if any(x.source.same_as(body.buffer) for x in loads(update)) or not _is_neutral(kind, init.value):
                return None
            return Reduction(kind, init.value), update
    return None


def _is_neutral(kind: str, init: Expr) -> bool:
    """May the start be combined in more than once, by each lane? Of max and min any may: they are idempotent."""
    if kind in ("max", "min"):
        return isinstance(init, tirx.IntImm | tirx.FloatImm)
    return isinstance(init, tirx.IntImm | tirx.FloatImm) and float(init.value) == (0.0 if kind == "sum" else 1.0)


def intermediate_buffers(program: Program, nests: Sequence[Stmt]) -> list[Any]:
    """The program's intermediate buffers that the nests use and none of them allocates."""
    allocated = {node.buffer for nest in nests for node in collect(nest, (tirx.AllocBuffer, tirx.DeclBuffer))}
    touched = [b for nest in nests for b in (*stored(nest), *(x.source for x in loads(nest)))]
    return [b for b in dict.fromkeys(touched) if b not in allocated and program.owns(b)]
