"""The train graph (prepare, objective, backward, accumulation) and the graphs of evaluation passes."""

from __future__ import annotations

import difflib
from typing import Any

from attrs import frozen

from . import codes
from .diagnostics import UserError
from .draws import places
from .grad import gradients
from .graph import Value
from .runfile import Top
from .settings import Loader, Pass, Settings
from .source import Span
from .trace import Tracer, World
from .types import TensorType
from .values import CTX_KEYS, MISSING, POISON, Closure, Lookup, describe, plist, sound

SCALAR = TensorType((), "i64")


@frozen(eq=False)
class TrainGraph:
    """A traced phase: ``outputs`` are (kind, name, value). ``trained``: the parameters that get a gradient."""

    tracer: Tracer
    outputs: tuple[tuple[str, str, Value], ...]
    trained: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    runs_generator: bool = False


def closure(top: Top) -> Closure:
    """A top-level form with a lambda list and a body, as a function."""
    assert top.params
    return Closure(top.head, top.params, top.body, None, None, top.form.span)


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


def batch(t: Tracer, loader: Loader, made: dict[str, TensorType], absent: dict[str, TensorType]) -> Lookup:
    """A loader's batch with what the generator made; reading an ``absent`` generated name is E-CONTRACT-005."""
    fields = loader.batched()

    def read(name: str, span: Span) -> Any:
        if name in fields:
            return t.port("field", name, fields[name])
        if name in made:
            return t.port("generated", name, made[name])
        if name in absent:
            raise UserError(
                codes.CONTRACT_GENERATED,
                span,
                f":{name} is generated, and the generator does not run on the batches of {loader.name}",
                (loader.span, f"{loader.name} differs from the training loader in its fields or batch size"),
            )
        close = difflib.get_close_matches(name, [*fields, *made], 1)
        raise UserError(
            codes.CONTRACT_FIELD,
            span,
            f"the batch of {loader.name} has no field :{name}",
            (loader.span, f"{loader.name} is defined here"),
            hint=f"did you mean :{close[0]}?" if close else "",
        )

    return Lookup("the batch", read)


def trace_loss(
    t: Tracer, prepare: Any, objective: Any, data: Lookup, counters: dict[str, Value], spans: tuple[Span, Span]
) -> Value:
    """The loss of one batch. ``counters`` gain what prepare declares, unless this is a pass: a pass counts nothing."""
    role = t.role
    t.role, t.builder.places = "prepare", places(f"{t.form}/prepare")
    inputs = t.call(prepare, data, ctx(t), span=spans[0])
    check_plist(inputs, codes.CONTRACT_PREPARE, "prepare", spans[0])
    if role == "objective":
        for name, (value, _) in t.counters.items():
            total = t.port("counter", name, SCALAR)
            counters[name] = t.builder(
                "+", total, value if value.type.dtype == "i64" else t.builder("cast", value, dtype="i64")
            )
    t.role, t.builder.places = role, places(f"{t.form}/objective")
    loss = t.call(objective, inputs, ctx(t, counters), span=spans[1])
    if loss is not POISON and not (isinstance(loss, Value) and loss.type == TensorType((), "f32")):
        place = objective.body[-1].span if isinstance(objective, Closure) else spans[1]
        what = f"objective returns {describe(loss)}, not a scalar f32"
        raise UserError(codes.CONTRACT_LOSS, place, what, hint=mend(loss))
    return loss


def mend(loss: Any) -> str:
    """The hint for a loss that is not a scalar f32: how to make it one, or ""."""
    if not isinstance(loss, Value) or loss.type.kind != "float":
        return ""
    return "reduce it with mean or sum" if loss.type.rank else "cast it to :f32"


def check_plist(value: Any, code: Any, who: str, span: Span) -> dict[str, Value]:
    """A plist of tensors as a dict; poison passes as an empty one."""
    if value is POISON:
        return {}
    entries = plist(value)
    if entries is None:
        raise UserError(code, span, f"{who} returns {describe(value)}, not a plist of tensors")
    for name, entry in entries.items():
        if not isinstance(entry, Value):
            raise UserError(code, span, f"{who} returns {describe(entry)} for :{name}, not a tensor")
    return entries


def trace_train(
    world: World, settings: Settings, made: dict[str, TensorType], diagnostics: tuple[str, ...]
) -> TrainGraph:
    """The graph of ``train``: prepare, objective, the loss as first output; ``made``: what the generator adds to the
    batch, by name."""
    run, t = world.run, Tracer(world, "train", "objective")
    assert run.prepare and run.objective
    counters: dict[str, Value] = {}
    data = batch(t, settings.loaders[settings.loader], made, {})
    loss = trace_loss(
        t,
        closure(run.prepare),
        closure(run.objective),
        data,
        counters,
        (run.prepare.form.span, run.objective.form.span),
    )
    if loss is POISON:
        return TrainGraph(t, ())
    check_reports(t)
    trained = trained_parameters(world, t, loss, run.objective.form.span)
    t.builder.region = 0
    grads = gradients(t.builder, loss, [t.inputs["param", n] for n in trained])
    if settings.microbatches > 1:
        grads = [t.builder("+", t.port("gradient", n, g.type), g) for n, g in zip(trained, grads, strict=True)]
    outputs = [("metric", "loss", loss), *(("metric", n, v) for n, (v, _) in t.metrics.items())]
    outputs += [("counter", n, v) for n, v in counters.items()]
    outputs += [("gradient", n, g) for n, g in zip(trained, grads, strict=True)]
    outputs += selected(t, diagnostics)
    return TrainGraph(t, tuple(outputs), trained, tuple(counters))


def check_reports(t: Tracer) -> None:
    """E-CONTRACT-004 for a metric that is a bool."""
    for name, (value, span) in t.metrics.items():
        if value.type.kind == "bool":
            raise UserError(codes.CONTRACT_METRIC, span, f"metric :{name} is a bool", hint="cast it to :f32")


def selected(t: Tracer, names: tuple[str, ...]) -> list[tuple[str, str, Value]]:
    """The diagnostics that the build keeps; all others are dropped before lowering."""
    return [("diagnostic", n, t.diagnostics[n][0]) for n in names if n in t.diagnostics]


def trained_parameters(world: World, t: Tracer, loss: Value, span: Span) -> tuple[str, ...]:
    """Names, sorted, of the parameters that are not frozen and that objective reads."""
    names = tuple(sorted(n for kind, n in t.inputs if kind == "param" and not world.parameters.found[n].is_frozen))
    if not names:
        raise UserError(codes.CONTRACT_LOSS, span, "the loss reads no parameter that may be trained")
    return names


def trace_pass(
    world: World, settings: Settings, p: Pass, made: dict[str, TensorType], diagnostics: tuple[str, ...]
) -> TrainGraph:
    """The graph of the pass ``p``; what the generator makes is in its batch if its loader has the training batches."""
    run, t = world.run, Tracer(world, f"pass/{p.name}", "pass")
    assert run.prepare and run.objective
    t.builder.evaluating = True
    loader, training = settings.loaders[p.loader], settings.loaders[settings.loader]
    runs = bool(made) and loader.same_batches(training)
    data = batch(t, loader, made if runs else {}, {} if runs else made)
    prepare, objective = (
        pass_function(t, p, key, top) for key, top in (("prepare", run.prepare), ("objective", run.objective))
    )
    counters = known_counters(t, world)
    loss = trace_loss(t, prepare, objective, data, counters, (p.top.form.span, p.top.form.span))
    if loss is POISON:
        return TrainGraph(t, ())
    check_reports(t)
    outputs = [
        ("metric", "loss", loss),
        *(("metric", n, v) for n, (v, _) in t.metrics.items()),
        *selected(t, diagnostics),
    ]
    return TrainGraph(t, tuple(outputs), runs_generator=runs and any(k == "generated" for k, _ in t.inputs))


def pass_function(t: Tracer, p: Pass, key: str, default: Top) -> Any:
    """The function of a pass for ``key``, prepare or objective: its own, or that of the form ``default``."""
    return sound(t.evaluate(p.top.keys[key], None)) if key in p.top.keys else closure(default)


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
