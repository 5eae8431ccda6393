"""What loops take on one thread, reckoned from their statements.

Nothing but sharing out to threads may follow from it: that changes no bit, as a loop's turns write different elements,
or are summed in an order that the nest fixed before.
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

# A launch of TVM's threads takes 1.3 us where they are awake and the cores are free, and some 5 us where other work
# is on the cores (both measured on two of them). On two threads, 6 us of work then gain a quarter in the first case,
# and lose a third in the second.
MIN_PARALLEL_NANOSECONDS = 6000  # nanoseconds on one thread from which work is shared out

# Nanoseconds on a core at 3 GHz, of one vector or of one number, fitted to the kernels of the examples.
OPERATION, DIVISION, FUNCTION = 0.15, 1.2, 5.0
ACCESS = 0.25
STRIDED_ELEMENT = 0.35  # an element of a vector that does not lie beside the one before
ITERATION = 0.25
MULTIPLY_ADDS = 4  # vectors of them a nanosecond
_OPERATIONS = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Select, tirx.Cast, tirx.And, tirx.Or, tirx.Not, tirx.EQ,
    tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.LShift, tirx.RShift, tirx.BitwiseAnd, tirx.BitwiseOr,
    tirx.BitwiseXor, tirx.Shuffle,
)  # fmt: skip
_DIVISIONS = (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)
_LIGHT = {"prim.if_then_else", "tirx.reinterpret", "tirx.call_llvm_pure_intrin"}
_ROOTS = {"tirx.sqrt"}
MAX_REGISTER_ELEMENTS = 64  # elements of a buffer that stays in registers


def nanoseconds(stmt: Stmt, lanes: int) -> float:
    """What ``stmt`` takes, on vectors of ``lanes`` elements of 4 bytes. A loop of unknown extent counts as one turn."""
    allocated = [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
    in_registers = frozenset(b for b in allocated if prod(shape_of(b)) <= MAX_REGISTER_ELEMENTS)
    return _CostModel(lanes, in_registers).statement(stmt, None, 1)


def stages_nanoseconds(
    virtual: InlinedStages, stages: Sequence[Stage], products: Container[Stage], lanes: int
) -> float:
    """The same of stages; ``products`` run on tiles in registers, whose statements say little of their time."""

    def element_cost(stage: Stage) -> float:
        if stage in products:
            return 1 / (MULTIPLY_ADDS * lanes)
        return element_nanoseconds(virtual, [stage], len(stage.reads) + 1, lanes)

    return sum(s.points * s.depth * element_cost(s) for s in stages)


def element_nanoseconds(virtual: InlinedStages, stages: Sequence[Stage], accesses: int, lanes: int) -> float:
    """Nanoseconds of ``stages`` at one element, by vectors."""
    return (sum(virtual.cost(s) + 1 for s in stages) * OPERATION + accesses * ACCESS) / lanes


@attrs.frozen
class _CostModel:
    """``free``: buffers that are registers."""

    lanes: int
    register_buffers: frozenset[Any]

    def statement(self, stmt: Stmt, lane: Any, width: int) -> float:
        """A statement, inside a vector loop over ``lane`` of ``width`` or (None, 1) in none."""
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
        """The dearer way: whole pieces are many, and a last one is one. With nothing else to do, one in two."""
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
        """What is read, and every operation but those of places."""
        reads: dict[Any, Any] = {}

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
        """One element, a vector of elements side by side, or one of elements apart."""
        if buffer in self.register_buffers:
            return 0.0
        depends_on_lane = [lane is not None and lane in variables(index) for index in indices]
        if any(depends_on_lane) and (not depends_on_lane[-1] or _is_strided(indices[-1], lane)):
            return STRIDED_ELEMENT * width
        vector_lanes = max((int(str(index.ty.dtype).partition("x")[2] or 1) for index in indices), default=1)
        return ACCESS * self._vectors(str(buffer.dtype), width * vector_lanes if any(depends_on_lane) else vector_lanes)


def _operation_cost(node: Any, changing: set[Any]) -> float:
    """Nanoseconds of one operation. A division or function of what is the same in all lanes is done once, before."""
    cost = OPERATION
    if isinstance(node, _DIVISIONS):
        cost = OPERATION if is_int(node.b) else DIVISION
    elif isinstance(node, Call) and node.op.name not in _LIGHT:
        cost = DIVISION if node.op.name in _ROOTS else FUNCTION
    return cost if cost == OPERATION or None in changing or variables(node) & changing else 0.0


def _is_strided(index: Expr, lane: Any) -> bool:
    """Is the lane multiplied or divided in ``index``?"""
    return any(lane in variables(node) for node in collect(index, (tirx.Mul, tirx.FloorDiv)))


def _max_extent(extent: Expr) -> int:
    """Turns of a loop at most; one where nothing is known."""
    if is_int(extent):
        return value_of(extent)
    return max(_max_extent(extent.a), _max_extent(extent.b)) if isinstance(extent, tirx.Min) else 1
