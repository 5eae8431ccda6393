"""An abstract interpreter of a scheduled program's integer expressions, for the 32 lanes of a warp at once.

A value holds an integer for each lane, or is unknown where it depends on data that the program loads. So the distance
in memory between neighbouring lanes (is an access coalesced?) is computed, whatever the index expression looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import tvm
from tvm import tirx

from ...tir.builder import Call, Load, shape_of

LANES = 32


@attrs.frozen(eq=False)
class LaneValues:
    """An integer of each lane.

    ``numbers``  the part that does not depend on loaded data
    ``data``     None if nothing depends on loaded data; else an id a lane: lanes with equal ids depend on the same data
    ``active``   the lanes that compute it
    """

    numbers: Any
    data: Any
    active: Any

    def stride(self, vector: int) -> int | None:
        """The most frequent distance between active neighbours, in vectors of ``vector``; None if most of them depend
        on different data."""
        pairs = self.active[1:] & self.active[:-1]
        if not pairs.any():
            return 0
        distances = np.abs(np.diff(self.numbers))[pairs]
        if self.data is not None:
            same = (self.data[1:] == self.data[:-1])[pairs]
            if not same.any():
                return None
            distances = distances[same]
        values, counts = np.unique(distances, return_counts=True)
        return -(-int(values[np.argmax(counts)]) // vector)


def _constant(value: int) -> Any:
    return np.full(LANES, value, dtype=np.int64)


# Both branches of a condition are computed for all lanes: a divisor that is 0 only in the branch not taken must not
# raise.
def _divide(a: Any, b: Any) -> Any:
    return a // np.where(b == 0, 1, b)


def _modulo(a: Any, b: Any) -> Any:
    return a % np.where(b == 0, 1, b)


_BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.Min: np.minimum, tirx.Max: np.maximum,
    tirx.FloorDiv: _divide, tirx.FloorMod: _modulo, tirx.Div: _divide, tirx.Mod: _modulo,
    tirx.LT: np.less, tirx.LE: np.less_equal, tirx.GT: np.greater, tirx.GE: np.greater_equal, tirx.EQ: np.equal,
    tirx.NE: np.not_equal, tirx.And: np.logical_and, tirx.Or: np.logical_or,
}  # fmt: skip
_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}


class WarpInterpreter:
    """The values of variables and of integer registers, lane by lane."""

    def __init__(self) -> None:
        self.variables: dict[Any, tuple[Any, Any]] = {}
        self.registers: dict[Any, tuple[Any, Any]] = {}  # buffer in registers -> what was stored last
        self.active = np.ones(LANES, dtype=bool)

    def bind_thread(self, var: Any, tag: str, extent: int, inner_threads: int) -> None:
        """An axis of the grid: of blocks, the middle; of threads, ``inner_threads`` of the axes bound before
        make a step of this."""
        if tag.startswith("blockIdx"):
            # The middle of the grid, where no guard of an edge cuts lanes off.
            self.variables[var] = (_constant(extent // 2), None)
            return
        lanes = np.arange(LANES, dtype=np.int64)
        self.variables[var] = (lanes // inner_threads % extent, None)
        self.active = self.active & (lanes < inner_threads * extent)

    def bind(self, var: Any, value: Any) -> None:
        self.variables[var] = self._evaluate(value)

    def store(self, buffer: Any, indices: Sequence[Any], value: Any) -> None:
        # Only integers are followed: no index is made of floats.
        if "float" not in str(buffer.dtype):
            self.registers[buffer] = self._evaluate(value)

    def max_value(self, expr: Any) -> int:
        return int(self._evaluate(expr)[0].max())

    def mask(self, condition: Any) -> Any:
        """The lanes for which it holds; None where data decides."""
        numbers, data = self._evaluate(condition)
        return None if data is not None else numbers != 0

    def offset(self, buffer: Any, indices: Sequence[Any]) -> LaneValues:
        """The offset of an access, in elements from the buffer's beginning."""
        offset, data = _constant(0), None
        for index, extent in zip(indices, shape_of(buffer), strict=True):
            numbers, index_data = self._evaluate(index)
            offset, data = offset * extent + numbers, _joint_data(data, index_data)
        return LaneValues(offset, data, self.active)

    def _evaluate(self, node: Any) -> tuple[Any, Any]:
        """An integer expression's ``numbers`` and ``data`` (LaneValues)."""
        if isinstance(node, tirx.IntImm):
            return _constant(int(node.value)), None
        if isinstance(node, tvm.ir.Var):
            # A variable that is not bound in the launch: unknown, but the same for all lanes.
            return self.variables.get(node, (_constant(0), _constant(0)))
        if isinstance(node, tirx.Cast):
            return self._evaluate(node.value)
        if isinstance(node, tirx.Not):
            value, data = self._evaluate(node.a)
            return value == 0, data
        if type(node) in _BINARY:
            (a, a_data), (b, b_data) = self._evaluate(node.a), self._evaluate(node.b)
            return _BINARY[type(node)](a, b), _joint_data(a_data, b_data)
        if isinstance(node, tirx.Select):
            return self._select(node.condition, node.true_value, node.false_value)
        if isinstance(node, tirx.Let):
            self.bind(node.var, node.value)
            return self._evaluate(node.body)
        if isinstance(node, Load):
            return self._load(node)
        return self._call(node)

    def _load(self, node: Any) -> tuple[Any, Any]:
        if node.source in self.registers:
            return self.registers[node.source]
        # Unknown data: lanes that load the same element depend on the same data, so the offset is its id.
        offset = self.offset(node.source, node.indices)
        return _constant(0), offset.numbers if offset.data is None else _joint_data(offset.numbers, offset.data)

    def _call(self, node: Any) -> tuple[Any, Any]:
        name = str(node.op.name) if isinstance(node, Call) else ""
        if name == "tirx.if_then_else":
            return self._select(*node.args)
        if name in _CALLS and all("int" in str(a.ty.dtype) for a in node.args):
            (a, a_data), (b, b_data) = (self._evaluate(a) for a in node.args)
            return _CALLS[name](a, b), _joint_data(a_data, b_data)
        # Any other call: unknown, and different in every lane.
        return _constant(0), np.arange(LANES, dtype=np.int64)

    def _select(self, condition: Any, true_value: Any, false_value: Any) -> tuple[Any, Any]:
        test, test_data = self._evaluate(condition)
        (a, a_data), (b, b_data) = self._evaluate(true_value), self._evaluate(false_value)
        return np.where(test, a, b), _joint_data(test_data, _joint_data(a_data, b_data))


def _joint_data(a: Any, b: Any) -> Any:
    """The ids of what depends on both: equal for two lanes if both ids are equal.

    The pair is hashed into a number with a large odd factor. Two pairs that collide would count as the same data,
    which can change a stride in the report and no program.
    """
    if a is None or b is None:
        return a if b is None else b
    return a * 1_000_003 + b
