"""Online softmax: three passes over the score columns become one.

Milakov and Gimelshein 2018 (arXiv 1805.02867); Dao 2023 (FlashAttention-2, arXiv 2307.08691). exp is taken of a
score less the row max so far; when the max grows, sums are rescaled. Outputs are divided by the row sum once, at the
end. It takes a ``KvTiledPlan`` and rewrites its passes; columns are still summed in ascending order.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx
from tvm_ffi import structural_equal

from ...tir.access import reads_of
from ...tir.builder import Call, Expr, Load, load
from ...tir.point_writer import index_of
from ...tir.stages import Stage, substitute
from .pass_plan import KvTiledPlan, Pass


@attrs.frozen(eq=False)
class Softmax:
    """``exp_scores``: exp of a score less its ``row_max``. ``row_sum``: their sum. ``probs``: exp_scores / row_sum, so
    at most 1, or 0 where masked."""

    row_max: Stage
    exp_scores: Stage
    row_sum: Stage
    probs: Stage


def softmax_of(kv_plan: KvTiledPlan, probs: Stage) -> Softmax | None:
    makers = {s.buffer: s for s in kv_plan.fused.stages}

    def maker(x: Expr) -> Stage | None:
        return makers.get(x.source) if isinstance(x, Load) else None

    value = _unmasked(probs.value)
    exp_scores, row_sum = (maker(value.a), maker(value.b)) if isinstance(value, tirx.Div) else (None, None)
    if (
        exp_scores is None
        or row_sum is None
        or not isinstance(exp_scores.value, Call)
        or exp_scores.value.op.name != "tirx.exp"
    ):
        return None
    (x,) = exp_scores.value.args
    row_max = maker(x.b) if isinstance(x, tirx.Sub) else None
    if (
        row_max is None
        or row_max.reduction is None
        or row_sum.reduction is None
        or (row_max.reduction.kind, row_sum.reduction.kind) != ("max", "sum")
    ):
        return None
    # The max must be of the very scores that exp takes: less any other number, exp could overflow.
    same = maker(row_sum.value) is exp_scores and structural_equal(_as_of(row_max, exp_scores, x.a), row_max.value)
    return Softmax(row_max, exp_scores, row_sum, probs) if same else None


def to_online_softmax(kv_plan: KvTiledPlan) -> KvTiledPlan:
    """The passes for row max, row sum and P @ V merged; unchanged if the first three are not these."""
    if len(kv_plan.passes) < 3:
        return kv_plan
    first, second, third, *rest = kv_plan.passes
    softmax = next((x for s in third.score_stages if (x := softmax_of(kv_plan, s)) is not None), None)
    if softmax is None or (first.results, second.results) != ((softmax.row_max,), (softmax.row_sum,)):
        return kv_plan
    # A result that is not linear in probs, or a score stage that reads the softmax, needs the final max and sum: it
    # cannot be rescaled afterwards, and keeps its passes.
    others = [s for s in third.steps if s not in (softmax.exp_scores, softmax.probs)]
    if not all(
        _is_linear(kv_plan, softmax, s) if s in third.results else not _read(kv_plan, softmax, s) for s in others
    ):
        return kv_plan
    score_load, shifted = load(softmax.exp_scores.buffer, *softmax.exp_scores.indices), softmax.exp_scores.value.args[0]
    score = attrs.evolve(softmax.exp_scores, value=shifted.a)
    row_max = attrs.evolve(softmax.row_max, value=_as_of(softmax.row_max, softmax.exp_scores, score_load))
    exp_scores = attrs.evolve(softmax.exp_scores, value=tirx.exp(score_load - shifted.b))
    # probs without their division: the sums are divided once a row at the end, instead of each score in turn.
    masked, unscaled = softmax.probs.value, _unmasked(softmax.probs.value).a
    if isinstance(masked, tirx.Select):
        unscaled = tirx.Select(masked.condition, unscaled, masked.false_value)
    replaced = {
        softmax.exp_scores: (score, row_max, exp_scores),
        softmax.probs: (attrs.evolve(softmax.probs, value=unscaled),),
    }
    steps = [x for s in kv_plan.fused.stages if s in {*third.steps, softmax.row_sum} for x in replaced.get(s, (s,))]
    fused_pass = Pass(tuple(steps), (row_max, softmax.row_sum, *third.results), row_max, softmax.row_sum)
    return attrs.evolve(kv_plan, passes=(fused_pass, *rest))


def _is_linear(kv_plan: KvTiledPlan, softmax: Softmax, stage: Stage) -> bool:
    """Is it linear in probs (a sum of probs times terms without softmax)? Only then may it be rescaled."""
    if stage in kv_plan.products:
        return kv_plan.products[stage].a.source.same_as(softmax.probs.buffer)
    terms = (stage.value.a, stage.value.b) if isinstance(stage.value, tirx.Mul) else ()
    is_sum = stage.reduction is not None and stage.reduction.kind == "sum"
    has_probs = any(isinstance(x, Load) and x.source.same_as(softmax.probs.buffer) for x in terms)
    return is_sum and has_probs and _read(kv_plan, softmax, stage) == [softmax.probs.buffer]


def _read(kv_plan: KvTiledPlan, softmax: Softmax, stage: Stage) -> list[Any]:
    """Buffers of the softmax that it reads."""
    buffers = {s.buffer for s in (softmax.row_max, softmax.exp_scores, softmax.row_sum, softmax.probs)}
    return [r.buffer for r in reads_of(kv_plan.ctx, stage) if r.buffer in buffers]


def _as_of(row_max: Stage, exp_scores: Stage, x: Expr) -> Expr:
    """``x``, written for the axes of exp_scores, with those of the row max."""
    return substitute(x, index_of(exp_scores.space, [a.var for a in (*row_max.space, *row_max.reduce)]))


def _unmasked(x: Expr) -> Expr:
    """The value under a mask that gives 0 elsewhere."""
    zero = isinstance(x, tirx.Select) and isinstance(x.false_value, tirx.FloatImm) and float(x.false_value.value) == 0
    return x.true_value if zero else x
