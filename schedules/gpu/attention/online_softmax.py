"""A softmax in one pass over the columns of its rows.

Powers are of the largest score so far. Where a larger one comes, all that was summed up becomes less by one factor, and
sums of weights are divided at the end by that of the powers: Milakov and Gimelshein 2018 (arXiv 1805.02867); Dao 2023
(FlashAttention-2, arXiv 2307.08691).
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
from .kv_tiled import Pass, Stream


@attrs.frozen(eq=False)
class Softmax:
    """``power``: exp of a score less its row's largest, ``top``; ``whole``: their sum; ``weights``: a power divided by
    that, and so at most 1, or 0 instead."""

    top: Stage
    power: Stage
    whole: Stage
    weights: Stage


def softmax_of(stream: Stream, weights: Stage) -> Softmax | None:
    makers = {s.buffer: s for s in stream.found.stages}
    maker = lambda x: makers.get(x.source) if isinstance(x, Load) else None  # noqa: E731
    value = _unmasked(weights.value)
    power, whole = (maker(value.a), maker(value.b)) if isinstance(value, tirx.Div) else (None, None)
    if power is None or whole is None or not isinstance(power.value, Call) or power.value.op.name != "tirx.exp":
        return None
    (x,) = power.value.args
    top = maker(x.b) if isinstance(x, tirx.Sub) else None
    if (
        top is None
        or top.reduction is None
        or whole.reduction is None
        or (top.reduction.kind, whole.reduction.kind) != ("max", "sum")
    ):
        return None
    same = maker(whole.value) is power and structural_equal(_as_of(top, power, x.a), top.value)
    return Softmax(top, power, whole, weights) if same else None


def in_one_pass(stream: Stream) -> Stream:
    """``stream`` with three passes as one: for a softmax's largest scores, for the sums of its powers, and for sums of
    its weights; unchanged if they are not that."""
    if len(stream.passes) < 3:
        return stream
    first, second, third, *rest = stream.passes
    soft = next((x for s in third.chain if (x := softmax_of(stream, s)) is not None), None)
    if soft is None or (first.sinks, second.sinks) != ((soft.top,), (soft.whole,)):
        return stream
    others = [s for s in third.steps if s not in (soft.power, soft.weights)]
    if not all(_is_linear(stream, soft, s) if s in third.sinks else not _read(stream, soft, s) for s in others):
        return stream
    here, before = load(soft.power.buffer, *soft.power.indices), soft.power.value.args[0]
    score = attrs.evolve(soft.power, value=before.a)
    top = attrs.evolve(soft.top, value=_as_of(soft.top, soft.power, here))
    power = attrs.evolve(soft.power, value=tirx.exp(here - before.b))
    masked, part = soft.weights.value, _unmasked(soft.weights.value).a
    part = tirx.Select(masked.condition, part, masked.false_value) if isinstance(masked, tirx.Select) else part
    made = {soft.power: (score, top, power), soft.weights: (attrs.evolve(soft.weights, value=part),)}
    steps = [x for s in stream.found.stages if s in {*third.steps, soft.whole} for x in made.get(s, (s,))]
    one = Pass(tuple(steps), (top, soft.whole, *third.sinks), top, soft.whole)
    return attrs.evolve(stream, passes=(one, *rest))


def _is_linear(stream: Stream, soft: Softmax, sink: Stage) -> bool:
    """Is it a sum of weights, each by a factor that has nothing to do with them?"""
    if sink in stream.products:
        return stream.products[sink].left.source.same_as(soft.weights.buffer)
    terms = (sink.value.a, sink.value.b) if isinstance(sink.value, tirx.Mul) else ()
    is_sum = sink.reduction is not None and sink.reduction.kind == "sum"
    a_weight = any(isinstance(x, Load) and x.source.same_as(soft.weights.buffer) for x in terms)
    return is_sum and a_weight and _read(stream, soft, sink) == [soft.weights.buffer]


def _read(stream: Stream, soft: Softmax, stage: Stage) -> list[Any]:
    """What of the softmax it reads."""
    own = {s.buffer for s in (soft.top, soft.power, soft.whole, soft.weights)}
    return [r.buffer for r in reads_of(stream.ctx, stage) if r.buffer in own]


def _as_of(top: Stage, power: Stage, x: Expr) -> Expr:
    """``x`` of a power's place, with the axes of the fold along its row."""
    return substitute(x, index_of(power.space, [a.var for a in (*top.space, *top.reduce)]))


def _unmasked(x: Expr) -> Expr:
    """What is 0 elsewhere."""
    zero = isinstance(x, tirx.Select) and isinstance(x.false_value, tirx.FloatImm) and float(x.false_value.value) == 0
    return x.true_value if zero else x
