"""Which scores count for nothing: those of keys that come after their query, where attention is causal.

They are far below all others, so that their powers are 0, and what is made of these. It is read off the stages: what
each makes where the comparison fails is worked out as 0, as far below, or as unknown.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Call, Expr, Load
from ...tir.stages import Axis, Stage
from .kv_tiled import Stream

FAR = -1e30  # what no score comes near: exp of it less one is exactly 0
ZERO, BELOW = "zero", "below"
LATER, EARLIER = "later", "earlier"


def hidden_columns(stream: Stream) -> str:
    """LATER if the columns after a row's own number add nothing to any fold or product, EARLIER if those before it do,
    where a row is a key's; "" if there are none that are known."""
    return next((which for which in (LATER, EARLIER) if _Hidden(stream, which == EARLIER).whole()), "")


def largest(stream: Stream, buffer: Any) -> bool:
    """Is it the largest score that each query sees, of which there is one at least: at its own number?"""
    maker = next((s for s in stream.ctx.program.stages if s.buffer is not None and s.buffer.same_as(buffer)), None)
    if maker is None or maker.reduction is None or maker.reduction.kind != "max" or len(maker.reduce) != 1:
        return False
    value, query = maker.value, maker.space[-1]
    is_seen = isinstance(value, tirx.Select) and _is_up_to(value.condition, maker.reduce[0], query)
    return is_seen and _number(value.false_value) == BELOW


@attrs.frozen(eq=False)
class _Hidden:
    stream: Stream
    turned: bool

    def whole(self) -> bool:
        return all(self._adds_nothing(s) for one in self.stream.passes for s in one.sinks)

    def _adds_nothing(self, sink: Stage) -> bool:
        if sink in self.stream.products:
            return self._matrix(self.stream.products[sink].left.source) == ZERO
        assert sink.reduction is not None
        if sink.reduction.kind == "max":
            return largest(self.stream, sink.buffer)
        return sink.reduction.kind == "sum" and self._value(sink, sink.value) == ZERO

    def _matrix(self, buffer: Any) -> str | None:
        maker = next((s for s in self.stream.chain if s.buffer.same_as(buffer)), None)
        return None if maker is None or maker in self.stream.products else self._value(maker, maker.value)

    def _value(self, stage: Stage, x: Expr) -> str | None:
        """What ``x`` is in a column that is hidden."""
        part = lambda y: self._value(stage, y)  # noqa: E731
        if isinstance(x, Load):
            return self._matrix(x.source)
        if isinstance(x, tirx.Select):
            other = part(x.false_value)
            return other if self._is_hidden(stage, x.condition) or part(x.true_value) == other else None
        if isinstance(x, tirx.Mul):
            return ZERO if ZERO in (part(x.a), part(x.b)) else None
        if isinstance(x, tirx.Div):
            return ZERO if part(x.a) == ZERO else None
        if isinstance(x, tirx.Sub):
            known = part(x.a) == BELOW and isinstance(x.b, Load) and largest(self.stream, x.b.source)
            return BELOW if known else None
        if isinstance(x, Call) and x.op.name == "tirx.exp":
            return ZERO if isinstance(x.args[0], tirx.Sub) and part(x.args[0]) == BELOW else None
        return _number(x)

    def _is_hidden(self, stage: Stage, condition: Expr) -> bool:
        """Does the condition fail there?"""
        if isinstance(condition, tirx.And):
            return self._is_hidden(stage, condition.a) or self._is_hidden(stage, condition.b)
        lead = self.stream.found.lead
        row, column = stage.space[lead - 1], (*stage.space[lead:], *stage.reduce)[0]
        return _is_up_to(condition, *((row, column) if self.turned else (column, row)))


def _number(x: Expr) -> str | None:
    if not isinstance(x, tirx.FloatImm):
        return None
    return ZERO if float(x.value) == 0 else BELOW if float(x.value) <= FAR * 0.999 else None


def _is_up_to(condition: Expr, first: Axis, last: Axis) -> bool:
    """Is it ``first <= last``?"""
    return isinstance(condition, tirx.LE) and condition.a.same_as(first.var) and condition.b.same_as(last.var)
