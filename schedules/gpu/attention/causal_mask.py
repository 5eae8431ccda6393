"""Causal mask: finds the pattern of score columns that add nothing; ``_tile_range`` of ``tensor_core.py`` skips them.

It takes a ``KvTiledPlan``. Masked scores are -1e30, so their exp is exactly 0, and so is what is made of it. This is
derived from the stages by abstract interpretation: a value in a masked column is ZERO, MASKED, or unknown (None).
Adding 0 changes no sum, so skipping keeps all bits.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx

from ...tir.builder import Call, Expr, Load
from ...tir.stages import Axis, Stage
from .pass_plan import KvTiledPlan

# What a mask writes: so far below any score that exp(masked - row max) is exactly 0 (float32's exp is 0 below -104). A
# score as low as that would count as masked.
MASKED_SCORE = -1e30
ZERO, MASKED = "zero", "below"
LATER, EARLIER = "later", "earlier"


def masked_columns(kv_plan: KvTiledPlan) -> str:
    """LATER if the columns after a row's own number add nothing to any result, EARLIER if those before it do (in
    gradients a row is a key); "" if neither is known."""
    return next((which for which in (LATER, EARLIER) if _MaskedColumns(kv_plan, which == EARLIER).add_nothing()), "")


def is_row_max(kv_plan: KvTiledPlan, buffer: Any) -> bool:
    """Is it the row max over the unmasked scores? Each query sees the score of its own number at least."""
    maker = next((s for s in kv_plan.ctx.program.stages if s.buffer is not None and s.buffer.same_as(buffer)), None)
    if maker is None or maker.reduction is None or maker.reduction.kind != "max" or len(maker.reduce) != 1:
        return False
    value, query = maker.value, maker.space[-1]
    is_seen = isinstance(value, tirx.Select) and _is_less_equal(value.condition, maker.reduce[0], query)
    return is_seen and _number(value.false_value) == MASKED


@attrs.frozen(eq=False)
class _MaskedColumns:
    kv_plan: KvTiledPlan
    transposed: bool

    def add_nothing(self) -> bool:
        return all(self._adds_nothing(s) for kv_pass in self.kv_plan.passes for s in kv_pass.results)

    def _adds_nothing(self, stage: Stage) -> bool:
        if stage in self.kv_plan.products:
            return self._buffer_value(self.kv_plan.products[stage].a.source) == ZERO
        assert stage.reduction is not None
        if stage.reduction.kind == "max":
            return is_row_max(self.kv_plan, stage.buffer)
        return stage.reduction.kind == "sum" and self._value(stage, stage.value) == ZERO

    def _buffer_value(self, buffer: Any) -> str | None:
        maker = next((s for s in self.kv_plan.score_stages if s.buffer.same_as(buffer)), None)
        return None if maker is None or maker in self.kv_plan.products else self._value(maker, maker.value)

    def _value(self, stage: Stage, x: Expr) -> str | None:
        """The abstract value of ``x`` in a masked column."""

        def part(y: Expr) -> str | None:
            return self._value(stage, y)

        if isinstance(x, Load):
            return self._buffer_value(x.source)
        if isinstance(x, tirx.Select):
            other = part(x.false_value)
            return other if self._is_masked(stage, x.condition) or part(x.true_value) == other else None
        # 0 times an infinity or a NaN is no 0: ops/attention_mask.py in sexpgpu hands over no masked ones.
        if isinstance(x, tirx.Mul):
            return ZERO if ZERO in (part(x.a), part(x.b)) else None
        if isinstance(x, tirx.Div):
            return ZERO if part(x.a) == ZERO else None
        # Only less a max of unmasked scores does it stay far below: masked less masked is 0, and its exp 1.
        if isinstance(x, tirx.Sub):
            is_masked = part(x.a) == MASKED and isinstance(x.b, Load) and is_row_max(self.kv_plan, x.b.source)
            return MASKED if is_masked else None
        if isinstance(x, Call) and x.op.name == "tirx.exp":
            return ZERO if isinstance(x.args[0], tirx.Sub) and part(x.args[0]) == MASKED else None
        return _number(x)

    def _is_masked(self, stage: Stage, condition: Expr) -> bool:
        """Does the condition fail there?"""
        if isinstance(condition, tirx.And):
            return self._is_masked(stage, condition.a) or self._is_masked(stage, condition.b)
        lead = self.kv_plan.fused.lead
        row, column = stage.space[lead - 1], (*stage.space[lead:], *stage.reduce)[0]
        return _is_less_equal(condition, *((row, column) if self.transposed else (column, row)))


def _number(x: Expr) -> str | None:
    if not isinstance(x, tirx.FloatImm):
        return None
    # float32 rounds -1e30, so a little less counts too.
    return ZERO if float(x.value) == 0 else MASKED if float(x.value) <= MASKED_SCORE * 0.999 else None


def _is_less_equal(condition: Expr, first: Axis, last: Axis) -> bool:
    """Is it ``first <= last``?"""
    return isinstance(condition, tirx.LE) and condition.a.same_as(first.var) and condition.b.same_as(last.var)
