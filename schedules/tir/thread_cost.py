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
WORTH = 6000  # nanoseconds on one thread from which work is shared out

# Nanoseconds on a core at 3 GHz, of one vector or of one number, fitted to the kernels of the examples.
OPERATION, DIVISION, FUNCTION = 0.15, 1.2, 5.0
ACCESS = 0.25
APART = 0.35  # an element of a vector that does not lie beside the one before
TURN = 0.25
MULTIPLY_ADDS = 4  # vectors of them a nanosecond
_OPERATIONS = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Select, tirx.Cast, tirx.And, tirx.Or, tirx.Not, tirx.EQ,
    tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.LShift, tirx.RShift, tirx.BitwiseAnd, tirx.BitwiseOr,
    tirx.BitwiseXor, tirx.Shuffle,
)  # fmt: skip
_DIVISIONS = (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)
_LIGHT = {"prim.if_then_else", "tirx.reinterpret", "tirx.call_llvm_pure_intrin"}
_ROOTS = {"tirx.sqrt"}
SMALL = 64  # elements of a buffer that stays in registers


def nanoseconds(stmt: Stmt, lanes: int) -> float:
    """What ``stmt`` takes, on vectors of ``lanes`` elements of 4 bytes. A loop of unknown extent counts as one turn."""
    made = [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
    return _Price(lanes, frozenset(b for b in made if prod(shape_of(b)) <= SMALL)).of(stmt, None, 1)


def stages_take(virtual: InlinedStages, stages: Sequence[Stage], products: Container[Stage], lanes: int) -> float:
    """The same of stages; ``products`` run on tiles in registers, whose statements say little of their time."""

    def takes(stage: Stage) -> float:
        if stage in products:
            return 1 / (MULTIPLY_ADDS * lanes)
        return element_takes(virtual, [stage], len(stage.reads) + 1, lanes)

    return sum(s.points * s.depth * takes(s) for s in stages)


def element_takes(virtual: InlinedStages, stages: Sequence[Stage], accesses: int, lanes: int) -> float:
    """Nanoseconds of ``stages`` at one element, by vectors."""
    return (sum(virtual.cost(s) + 1 for s in stages) * OPERATION + accesses * ACCESS) / lanes


@attrs.frozen
class _Price:
    """``free``: buffers that are registers."""

    lanes: int
    free: frozenset[Any]

    def of(self, stmt: Stmt, lane: Any, width: int) -> float:
        """A statement, inside a vector loop over ``lane`` of ``width`` or (None, 1) in none."""
        if isinstance(stmt, tirx.SeqStmt):
            return sum(self.of(part, lane, width) for part in stmt.seq)
        if isinstance(stmt, tirx.For):
            return self._loop(stmt, lane, width)
        if isinstance(stmt, tirx.IfThenElse):
            return self._branch(stmt, lane, width)
        if isinstance(stmt, s_tir.SBlockRealize):
            return self.of(stmt.block.body, lane, width)
        if isinstance(stmt, tirx.BufferStore):
            return self._value(stmt.value, lane, width) + self._access(stmt.buffer, stmt.indices, lane, width)
        return self._value(stmt.value, lane, width) if isinstance(stmt, tirx.Bind) else 0.0

    def _branch(self, stmt: Any, lane: Any, width: int) -> float:
        """The dearer way: whole pieces are many, and a last one is one. With nothing else to do, one in two."""
        ways = [self.of(way, lane, width) for way in (stmt.then_case, stmt.else_case) if way is not None]
        return TURN + max(ways) / (3 - len(ways))

    def _loop(self, stmt: Any, lane: Any, width: int) -> float:
        turns = _most(stmt.extent)
        if stmt.kind == VECTOR:
            return self.of(stmt.body, stmt.loop_var, turns)
        return turns * (TURN + self.of(stmt.body, lane, width))

    def _value(self, value: Expr, lane: Any, width: int) -> float:
        """What is read, and every operation but those of places."""
        reads: dict[Any, Any] = {}

        def note(node: Any) -> Any:
            return reads.setdefault(node, tirx.Var("x", str(node.ty.dtype)))

        bare = rewrite(value, [(Load, note)], order="pre")
        changing = {lane} | {name for x, name in reads.items() if lane in variables(list(x.indices))}
        found = collect(bare, (*_OPERATIONS, *_DIVISIONS, Call))
        own = sum(_each(node, changing) * self._vectors(str(node.ty.dtype), width) for node in found)
        return own + sum(self._access(x.source, x.indices, lane, width) for x in reads)

    def _vectors(self, dtype: str, width: int) -> int:
        element, _, lanes = dtype.partition("x")
        bits = 8 if element == "bool" else int(element.lstrip("abcdefghijklmnopqrstuvwxyz") or 32)
        return -(-width * int(lanes or 1) * bits // (32 * self.lanes))

    def _access(self, buffer: Any, indices: Any, lane: Any, width: int) -> float:
        """One element, a vector of elements side by side, or one of elements apart."""
        if buffer in self.free:
            return 0.0
        inside = [lane is not None and lane in variables(index) for index in indices]
        if any(inside) and (not inside[-1] or _leaps(indices[-1], lane)):
            return APART * width
        wide = max((int(str(index.ty.dtype).partition("x")[2] or 1) for index in indices), default=1)
        return ACCESS * self._vectors(str(buffer.dtype), width * wide if any(inside) else wide)


def _each(node: Any, changing: set[Any]) -> float:
    """Nanoseconds of one operation. A division or function of what is the same in all lanes is done once, before."""
    each = OPERATION
    if isinstance(node, _DIVISIONS):
        each = OPERATION if is_int(node.b) else DIVISION
    elif isinstance(node, Call) and node.op.name not in _LIGHT:
        each = DIVISION if node.op.name in _ROOTS else FUNCTION
    return each if each == OPERATION or None in changing or variables(node) & changing else 0.0


def _leaps(index: Expr, lane: Any) -> bool:
    """Is the lane multiplied or divided in ``index``?"""
    return any(lane in variables(node) for node in collect(index, (tirx.Mul, tirx.FloorDiv)))


def _most(extent: Expr) -> int:
    """Turns of a loop at most; one where nothing is known."""
    if is_int(extent):
        return value_of(extent)
    return max(_most(extent.a), _most(extent.b)) if isinstance(extent, tirx.Min) else 1
