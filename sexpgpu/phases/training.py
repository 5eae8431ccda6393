"""The train graph (prepare, objective, backward, accumulation) and the graphs of evaluation passes."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..graph.autodiff import gradients
from ..graph.core import Value
from ..graph.table_products import rewritten
from ..language import codes
from ..language.diagnostics import UserError
from ..language.form_queries import closest
from ..language.runfile import Top
from ..language.source import NOWHERE, Span
from ..ops.types import TensorType
from ..trace.evaluator import Tracer
from ..trace.random_draws import UNDRAWN, places
from ..trace.step_mean import STEP_WEIGHT, Loss, loss_of, reported, value_of
from ..trace.values import (
    CTX_KEYS,
    MISSING,
    POISON,
    Closure,
    Lookup,
    Reported,
    StepMean,
    describe,
    is_poison,
    plist,
    sound,
)
from ..trace.world import World
from .run_settings import Loader, Pass, Settings

SCALAR = TensorType((), "i64")
COUNT = TensorType((), "f32")  # of draws that had no distribution
UNDRAWN_GENERATOR, UNDRAWN_OBJECTIVE = UNDRAWN + "the generator", UNDRAWN + "prepare or objective"


@frozen(eq=False)
class TrainGraph:
    """A traced phase: ``outputs`` are (kind, name, value). ``trained``: the parameters that get a gradient.
    ``is_weighed``: gradients are sums over the step, to be divided by the step's weight."""

    tracer: Tracer
    outputs: tuple[tuple[str, str, Value], ...]
    trained: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    runs_generator: bool = False
    is_weighed: bool = False


def function_of(t: Tracer, top: Top | None) -> Any:
    """A top-level form with a lambda list and a body, as a function; POISON where it is not there, or has a fault."""
    if top is None or top.params is None or t.world.report.is_spoilt(top.form):
        return POISON
    return Closure(top.head, top.params, top.body, None, None, top.form.span)


def place_of(top: Top | None) -> Span:
    return top.form.span if top else NOWHERE


def ctx(t: Tracer, counters: dict[str, Value] | None = None) -> Lookup:
    """The builtin keys, and ``counters``; any other key is absent."""

    def read(name: str, span: Span) -> Any:
        if name in CTX_KEYS:
            return t.port("ctx", name, SCALAR)
        value = MISSING if counters is None else counters.get(name, MISSING)
        if value is MISSING and counters is not None and t.world.report:
            return POISON  # it may be the counter of a prepare with a fault
        return value

    return Lookup("ctx", read)


def batch(
    t: Tracer, loader: Loader | None, made: dict[str, Any] | None, absent: dict[str, Any] | None = None
) -> Lookup:
    """A loader's batch with what the generator made; reading an ``absent`` generated name is E-CONTRACT-005. Where the
    loader, or what is made, is None for a fault, a name that is not known otherwise is POISON."""
    fields = loader.batched() if loader else {}
    is_whole = loader is not None and made is not None
    made, absent = made or {}, absent or {}

    def read(name: str, span: Span) -> Any:
        if name in fields:
            return POISON if fields[name] is POISON else t.port("field", name, fields[name])
        if name in made:
            return POISON if made[name] is POISON else t.port("generated", name, made[name])
        if loader is None or not is_whole:
            return POISON
        if name in absent:
            raise UserError(
                codes.CONTRACT_GENERATED,
                span,
                f":{name} is generated, and the generator does not run on the batches of {loader.name}",
                (loader.span, f"{loader.name} differs from the training loader in its fields or batch size"),
            )
        raise UserError(
            codes.CONTRACT_FIELD,
            span,
            f"the batch of {loader.name} has no field :{name}",
            (loader.span, f"{loader.name} is defined here"),
            hint=closest(name, [*fields, *made], ":"),
        )

    return Lookup("the batch", read)


def trace_loss(
    t: Tracer, prepare: Any, objective: Any, data: Lookup, counters: dict[str, Value], spans: tuple[Span, Span]
) -> Loss:
    """The loss of one batch. ``counters`` gain what prepare declares, unless this is a pass: a pass counts nothing."""
    role = t.role
    t.role, t.builder.places = "prepare", places(f"{t.form}/prepare")
    inputs = t.guarded(spans[0], t.call, prepare, data, ctx(t), span=spans[0])
    entries = t.guarded(spans[0], check_plist, inputs, codes.CONTRACT_PREPARE, "prepare", spans[0])
    inputs = POISON if entries is POISON or (not entries and is_poison(inputs)) else inputs
    if role == "objective":
        for name, (value, _) in t.counters.items():
            total = t.port("counter", name, SCALAR)
            counters[name] = t.builder(
                "+", total, value if value.type.dtype == "i64" else t.builder("cast", value, dtype="i64")
            )
    t.role, t.builder.places = role, places(f"{t.form}/objective")
    loss = t.guarded(spans[1], t.call, objective, inputs, ctx(t, counters), span=spans[1])
    check_reports(t)
    found = loss_of(t.builder, sound(loss))
    if found is None:
        place = objective.body[-1].span if isinstance(objective, Closure) else spans[1]
        what = f"objective returns {describe(loss)}, not a scalar f32"
        raise UserError(codes.CONTRACT_LOSS, place, what, hint=mend(loss))
    return found


def mend(loss: Any) -> str:
    """The hint for a loss that is not a scalar f32: how to make it one, or ""."""
    if not isinstance(loss, Value) or loss.type.kind != "float":
        return ""
    return "reduce it with mean or sum" if loss.type.rank else "cast it to :f32"


def check_plist(value: Any, code: Any, who: str, span: Span) -> dict[str, Value]:
    """A plist of tensors as a dict; poison passes as an empty one, or as an entry."""
    entries = plist(value)
    if entries is None and is_poison(value):
        return {}
    if entries is None:
        raise UserError(code, span, f"{who} returns {describe(value)}, not a plist of tensors")
    for name, entry in entries.items():
        if not isinstance(entry, Value) and entry is not POISON:
            raise UserError(code, span, f"{who} returns {describe(entry)} for :{name}, not a tensor")
    return entries


def trace_train(
    t: Tracer, settings: Settings, made: dict[str, Any] | None, diagnostics: tuple[str, ...]
) -> TrainGraph:
    """The graph of ``train``: prepare, objective, the loss as first output; ``made``: what the generator adds to the
    batch, by name, None where that is not known."""
    world = t.world
    counters: dict[str, Value] = {}
    prepare, objective = world.run.prepare, world.run.objective
    loss = trace_loss(
        t,
        function_of(t, prepare),
        function_of(t, objective),
        batch(t, settings.training, made),
        counters,
        (place_of(prepare), place_of(objective)),
    )
    trained = trained_parameters(world, t, place_of(objective))
    t.builder.region = 0
    several = settings.microbatches > 1
    (total,) = rewritten([loss.total if several else loss.value], halves=False)
    grads = gradients(t.builder, total, [t.inputs["param", n] for n in trained])
    sums = dict(zip(trained, grads, strict=True))
    if several and loss.weight is not None:
        sums[STEP_WEIGHT] = loss.weight
    if several:
        sums = {n: t.builder("+", t.port("gradient", n, g.type), g) for n, g in sums.items()}
    outputs = [*reports(t, loss), *undrawn_in_training(t, t.world.counts_undrawn)]
    outputs += [("counter", n, v) for n, v in counters.items()]
    outputs += [("gradient", n, g) for n, g in sums.items()]
    outputs += selected(t, diagnostics)
    return TrainGraph(t, tuple(outputs), trained, tuple(counters), is_weighed=STEP_WEIGHT in sums)


def reports(t: Tracer, loss: Loss) -> list[tuple[str, str, Value]]:
    """The loss, first, and the metrics, with the weights of those that are means over the step."""
    outputs = reported("loss", loss.value, loss.weight)
    for name, (found, _) in t.metrics.items():
        is_mean = isinstance(found, StepMean)
        outputs += reported(name, value_of(t.builder, found) if is_mean else found, found.weight if is_mean else None)
    return outputs


def undrawn(t: Tracer, name: str) -> list[tuple[str, str, Value]]:
    """How many draws of ``t`` had no distribution, as a metric of that name, which the runner looks at and does not
    report; nothing where there are no such draws."""
    count = t.builder.undrawn_after()
    return [] if count is None else [("metric", name, count)]


def undrawn_in_training(t: Tracer, is_generated: bool) -> list[tuple[str, str, Value]]:
    """``undrawn`` of the graph, behind the generator's where ``is_generated``."""
    generated = [("metric", UNDRAWN_GENERATOR, t.port("generated", UNDRAWN_GENERATOR, COUNT))] if is_generated else []
    return [*generated, *undrawn(t, UNDRAWN_OBJECTIVE)]


def check_reports(t: Tracer) -> None:
    """E-CONTRACT-004 for a metric that is a bool."""
    for name, (value, span) in t.metrics.items():
        if isinstance(value, Value) and value.type.kind == "bool":
            fault = UserError(codes.CONTRACT_METRIC, span, f"metric :{name} is a bool", hint="cast it to :f32")
            t.world.fault(fault, t.form)


def selected(t: Tracer, names: tuple[str, ...]) -> list[tuple[str, str, Value]]:
    """The diagnostics that the build keeps; all others are dropped before lowering."""
    return [("diagnostic", n, t.diagnostics[n][0]) for n in names if n in t.diagnostics]


def trained_parameters(world: World, t: Tracer, span: Span) -> tuple[str, ...]:
    """Names, sorted, of the parameters that are not frozen and that objective reads."""
    names = tuple(sorted(n for kind, n in t.inputs if kind == "param" and not world.parameters.found[n].is_frozen))
    if not names and world.report:
        raise Reported
    if not names:
        raise UserError(codes.CONTRACT_LOSS, span, "the loss reads no parameter that may be trained")
    return names


def trace_pass(
    t: Tracer, settings: Settings, p: Pass, made: dict[str, Any] | None, diagnostics: tuple[str, ...]
) -> TrainGraph:
    """The graph of the pass ``p``; what the generator makes is in its batch if its loader has the training batches."""
    run = t.world.run
    t.builder.evaluating = True
    loader, training = settings.loaders.get(p.loader), settings.training
    runs = made != {} and (loader is None or training is None or loader.same_batches(training))
    data = batch(t, loader if training else None, made if runs else {}, {} if runs else made)
    prepare, objective = (
        pass_function(t, p, key, top) for key, top in (("prepare", run.prepare), ("objective", run.objective))
    )
    counters = known_counters(t, t.world)
    tops = (p.top if "prepare" in p.top.keys else run.prepare, p.top if "objective" in p.top.keys else run.objective)
    loss = trace_loss(t, prepare, objective, data, counters, (place_of(tops[0]), place_of(tops[1])))
    runs = runs and any(k == "generated" for k, _ in t.inputs)
    outputs = [*reports(t, loss), *undrawn_in_training(t, runs and t.world.counts_undrawn), *selected(t, diagnostics)]
    return TrainGraph(t, tuple(outputs), runs_generator=runs)


def pass_function(t: Tracer, p: Pass, key: str, default: Top | None) -> Any:
    """The function of a pass for ``key``, prepare or objective: its own, or that of the form ``default``."""
    return t.attempt(p.top.keys[key], None) if key in p.top.keys else function_of(t, default)


class Counters(dict[str, Value]):
    """Running totals read on demand, for graphs that count nothing themselves."""

    def __init__(self, t: Tracer, names: tuple[str, ...]) -> None:
        super().__init__()
        self.t, self.names = t, names

    def get(self, name: str, default: Any = None) -> Any:  # type: ignore[override]
        return self.t.port("counter", name, SCALAR) if name in self.names else default


def known_counters(t: Tracer, world: World) -> Counters:
    """The counters that ``prepare`` declared, as inputs of the graph of ``t``."""
    return Counters(t, world.counters)
