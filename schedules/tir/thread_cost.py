"""Cost model of loops on one CPU thread, in nanoseconds, from their statements.

It decides only whether a loop is parallelized. That changes no bit, as its iterations write different elements,
or are reduced in an order that the nest fixed before. A wrong estimate costs time only.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod
from typing import Any

import attrs
from tvm import s_tir, tirx

from .builder import VECTOR, Call, Expr, Load, Stmt, is_int, shape_of, value_of
from .inline import InlinedStages
from .rewrite import collect, rewrite
from .stages import Stage, variables

# Launching TVM's threads takes 1.3 us where they are awake and the cores are free, and some 5 us where the cores have
# other work (both measured on two cores). On two threads, 6 us of work then gain a quarter in the first case, and lose
# a third in the second. A lower bound would lose on busy machines, a higher one leaves cores idle.
MIN_PARALLEL_NANOSECONDS = 6000  # on one thread

# Nanoseconds of a vector (or scalar) operation on a core at 3 GHz, fitted to times of the examples' kernels: 124 of 147
# come within a factor of 2 (docs/schedules.md). A wrong number makes a loop parallel too early or too late: it costs
# time only.
OPERATION, DIVISION, FUNCTION = 0.15, 1.2, 5.0
ACCESS = 0.25
STRIDED_ELEMENT = 0.35  # an element of a gathered or scattered vector
ITERATION = 0.25  # loop overhead
MULTIPLY_ADDS = 4  # vectors of multiply-adds a nanosecond
_OPERATIONS = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Max,
    tirx.Min,
    tirx.Select,
    tirx.Cast,
    tirx.And,
    tirx.Or,
    tirx.Not,
    tirx.EQ,
    tirx.NE,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.LShift,
    tirx.RShift,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.Shuffle,
)
_DIVISIONS = (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)
_LIGHT = {"prim.if_then_else", "tirx.reinterpret", "tirx.call_llvm_pure_intrin"}
_ROOTS = {"tirx.sqrt"}
# Elements of a buffer that stays in registers, whose accesses are free: four vectors of a reduction. Chosen, not
# measured.
MAX_REGISTER_ELEMENTS = 64


def nanoseconds(stmt: Stmt, lanes: int) -> float:
    """The time of ``stmt`` with vectors of ``lanes`` 4-byte elements. A loop of unknown extent counts once."""
    allocated = [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
    in_registers = frozenset(b for b in allocated if prod(shape_of(b)) <= MAX_REGISTER_ELEMENTS)
    return _CostModel(lanes, in_registers).statement(stmt, None, 1)


def stages_nanoseconds(
    inlined: InlinedStages, stages: Sequence[Stage], products: Container[Stage], lanes: int
) -> float:
    """The time of stages. ``products`` run on register tiles, whose statements say little: only multiply-adds count."""

    def element_cost(stage: Stage) -> float:
        if stage in products:
            return 1 / (MULTIPLY_ADDS * lanes)
        return element_nanoseconds(inlined, [stage], len(stage.reads) + 1, lanes)

    return sum(s.points * s.depth * element_cost(s) for s in stages)


def element_nanoseconds(inlined: InlinedStages, stages: Sequence[Stage], accesses: int, lanes: int) -> float:
    """Nanoseconds an element of ``stages``, vectorized, with so many ``accesses``."""
    return (sum(inlined.cost(s) + 1 for s in stages) * OPERATION + accesses * ACCESS) / lanes


@attrs.frozen
class _CostModel:
    """``lanes``: 4-byte elements of a vector. ``register_buffers``: buffers whose accesses are free."""

    lanes: int
    register_buffers: frozenset[Any]

    def statement(self, stmt: Stmt, lane: Any, width: int) -> float:
        """Nanoseconds of a statement in a vector loop over ``lane`` of ``width``; outside these are None, 1."""
        if isinstance(stmt, tirx.SeqStmt):
            return sum(self.statement(part, lane, width) for part in stmt.seq)
        if isinstance(stmt, tirx.For):
            return self._loop(stmt, lane, width)
        if isinstance(stmt, tirx.IfThenElse):
            return self._branch(stmt, lane, width)
        if isinstance(stmt, s_tir.SBlockRealize):
            return self.statement(stmt.block.body, lane, width)
        if isinstance(stmt, tirx.BufferStore):
            return self._expression(stmt.value, lane, width) + self._access(stmt.buffer, stmt.indices, lane, width)
        return self._expression(stmt.value, lane, width) if isinstance(stmt, tirx.Bind) else 0.0

    def _branch(self, stmt: Any, lane: Any, width: int) -> float:
        """The dearer branch: of chunks, the full are many and the shorter is the last. A branch without an else is
        taken half of the time."""
        branches = [
            self.statement(branch, lane, width) for branch in (stmt.then_case, stmt.else_case) if branch is not None
        ]
        return ITERATION + max(branches) / (3 - len(branches))

    def _loop(self, stmt: Any, lane: Any, width: int) -> float:
        iterations = _max_extent(stmt.extent)
        if stmt.kind == VECTOR:
            return self.statement(stmt.body, stmt.loop_var, iterations)
        return iterations * (ITERATION + self.statement(stmt.body, lane, width))

    def _expression(self, value: Expr, lane: Any, width: int) -> float:
        """Loads and operations. Index arithmetic is not counted: most of it is hoisted."""
        reads: dict[Any, Any] = {}

        # A load that occurs twice is done once, and what stands in its indices is no arithmetic of the value.
        def replace_load(node: Any) -> Any:
            return reads.setdefault(node, tirx.Var("x", str(node.ty.dtype)))

        without_loads = rewrite(value, [(Load, replace_load)], order="pre")
        changing = {lane} | {name for x, name in reads.items() if lane in variables(list(x.indices))}
        operations = collect(without_loads, (*_OPERATIONS, *_DIVISIONS, Call))
        arithmetic = sum(
            _operation_cost(node, changing) * self._vectors(str(node.ty.dtype), width) for node in operations
        )
        return arithmetic + sum(self._access(x.source, x.indices, lane, width) for x in reads)

    def _vectors(self, dtype: str, width: int) -> int:
        element, _, lanes = dtype.partition("x")
        bits = 8 if element == "bool" else int(element.lstrip("abcdefghijklmnopqrstuvwxyz") or 32)
        return -(-width * int(lanes or 1) * bits // (32 * self.lanes))

    def _access(self, buffer: Any, indices: Any, lane: Any, width: int) -> float:
        """A scalar, a contiguous vector, or a gathered vector."""
        if buffer in self.register_buffers:
            return 0.0
        depends_on_lane = [lane is not None and lane in variables(index) for index in indices]
        if any(depends_on_lane) and (not depends_on_lane[-1] or _is_strided(indices[-1], lane)):
            return STRIDED_ELEMENT * width
        vector_lanes = max((int(str(index.ty.dtype).partition("x")[2] or 1) for index in indices), default=1)
        return ACCESS * self._vectors(str(buffer.dtype), width * vector_lanes if any(depends_on_lane) else vector_lanes)


def _operation_cost(node: Any, changing: set[Any]) -> float:
    """Nanoseconds of an operation. A division or function of a loop invariant is hoisted: it costs nothing."""
    cost = OPERATION
    if isinstance(node, _DIVISIONS):
        cost = OPERATION if is_int(node.b) else DIVISION
    elif isinstance(node, Call) and node.op.name not in _LIGHT:
        cost = DIVISION if node.op.name in _ROOTS else FUNCTION
    return cost if cost == OPERATION or None in changing or variables(node) & changing else 0.0


def _is_strided(index: Expr, lane: Any) -> bool:
    """Is ``lane`` multiplied or divided in ``index``?"""
    return any(lane in variables(node) for node in collect(index, (tirx.Mul, tirx.FloorDiv)))


def _max_extent(extent: Expr) -> int:
    """An upper bound of a loop's extent; 1 where nothing is known."""
    if is_int(extent):
        return value_of(extent)
    return max(_max_extent(extent.a), _max_extent(extent.b)) if isinstance(extent, tirx.Min) else 1
