"""Integer expressions of a scheduled program, worked out for the lanes of one warp at once."""

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
class Value:
    """A number a lane. ``data``: lanes of one number here depend on the same data; None: on none at all.
    ``active``: the lanes that have it."""

    of: Any
    data: Any
    active: Any

    def stride(self, wide: int) -> int | None:
        """The commonest distance of active neighbours, in pieces of ``wide``; None if data decides for most."""
        pairs = self.active[1:] & self.active[:-1]
        if not pairs.any():
            return 0
        apart = np.abs(np.diff(self.of))[pairs]
        if self.data is not None:
            same = (self.data[1:] == self.data[:-1])[pairs]
            if not same.any():
                return None
            apart = apart[same]
        values, counts = np.unique(apart, return_counts=True)
        return -(-int(values[np.argmax(counts)]) // wide)


def _fixed(value: int) -> Any:
    return np.full(LANES, value, dtype=np.int64)


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
    "tirx.bitwise_and": np.bitwise_and, "tirx.bitwise_or": np.bitwise_or, "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift, "tirx.shift_right": np.right_shift,
}  # fmt: skip


class Lanes:
    """What variables and the threads' own integers are, lane by lane."""

    def __init__(self) -> None:
        self.variables: dict[Any, tuple[Any, Any]] = {}
        self.held: dict[Any, tuple[Any, Any]] = {}  # buffer of a thread's own -> what was stored last
        self.active = np.ones(LANES, dtype=bool)

    def thread(self, var: Any, tag: str, extent: int, before: int) -> None:
        """An axis of blocks, in the middle; or of threads, of which ``before`` of earlier axes make one of this."""
        if tag.startswith("blockIdx"):
            self.variables[var] = (_fixed(extent // 2), None)
            return
        places = np.arange(LANES, dtype=np.int64)
        self.variables[var] = (places // before % extent, None)
        self.active = self.active & (places < before * extent)

    def bind(self, var: Any, value: Any) -> None:
        self.variables[var] = self._of(value)

    def store(self, buffer: Any, indices: Sequence[Any], value: Any) -> None:
        if "float" not in str(buffer.dtype):
            self.held[buffer] = self._of(value)

    def most(self, extent: Any) -> int:
        return int(self._of(extent)[0].max())

    def truth(self, condition: Any) -> Any:
        """The lanes for which it holds; None where data decides."""
        found, data = self._of(condition)
        return None if data is not None else found != 0

    def flat(self, buffer: Any, indices: Sequence[Any]) -> Value:
        """Where an access is, in elements of the buffer."""
        at, data = _fixed(0), None
        for index, extent in zip(indices, shape_of(buffer), strict=True):
            here, more = self._of(index)
            at, data = at * extent + here, _either(data, more)
        return Value(at, data, self.active)

    def _of(self, node: Any) -> tuple[Any, Any]:
        """The numbers of an integer expression, and on which data they depend."""
        if isinstance(node, tirx.IntImm):
            return _fixed(int(node.value)), None
        if isinstance(node, tvm.ir.Var):
            return self.variables.get(node, (_fixed(0), _fixed(0)))
        if isinstance(node, tirx.Cast):
            return self._of(node.value)
        if isinstance(node, tirx.Not):
            value, data = self._of(node.a)
            return value == 0, data
        if type(node) in _BINARY:
            (a, of_a), (b, of_b) = self._of(node.a), self._of(node.b)
            return _BINARY[type(node)](a, b), _either(of_a, of_b)
        if isinstance(node, tirx.Select):
            return self._choose(node.condition, node.true_value, node.false_value)
        if isinstance(node, tirx.Let):
            self.bind(node.var, node.value)
            return self._of(node.body)
        if isinstance(node, Load):
            return self._read(node)
        return self._call(node)

    def _read(self, node: Any) -> tuple[Any, Any]:
        if node.source in self.held:
            return self.held[node.source]
        at = self.flat(node.source, node.indices)
        return _fixed(0), at.of if at.data is None else _either(at.of, at.data)

    def _call(self, node: Any) -> tuple[Any, Any]:
        name = str(node.op.name) if isinstance(node, Call) else ""
        if name == "tirx.if_then_else":
            return self._choose(*node.args)
        if name in _CALLS and all("int" in str(a.ty.dtype) for a in node.args):
            (a, of_a), (b, of_b) = (self._of(a) for a in node.args)
            return _CALLS[name](a, b), _either(of_a, of_b)
        return _fixed(0), np.arange(LANES, dtype=np.int64)

    def _choose(self, condition: Any, yes: Any, no: Any) -> tuple[Any, Any]:
        (test, of_test), (a, of_a), (b, of_b) = self._of(condition), self._of(yes), self._of(no)
        return np.where(test, a, b), _either(of_test, _either(of_a, of_b))


def _either(a: Any, b: Any) -> Any:
    """Lanes that have both in common."""
    if a is None or b is None:
        return a if b is None else b
    return a * 1_000_003 + b
