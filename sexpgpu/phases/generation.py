"""defgenerate: three graphs and the rules of the seed page, docs/generation.md."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..graph.core import Value
from ..language import codes
from ..language.diagnostics import UserError
from ..language.forms import Form
from ..language.source import Span
from ..trace.evaluator import Tracer
from ..trace.values import POISON, Closure, Key, describe, is_poison, plist, sound
from ..trace.world import World
from .run_settings import Reader, Settings, trips_of
from .training import COUNT, SCALAR, UNDRAWN_GENERATOR, TrainGraph, batch, ctx


@frozen(eq=False)
class Generator:
    """``made``: what joins the batch, name -> type, POISON where an entry has a fault; None where it is not known what.
    ``phases``: generate.init, .step and, if given, .finish."""

    trips: int | None
    made: dict[str, Any] | None
    phases: tuple[tuple[str, TrainGraph], ...]


def trace_generator(reader: Reader, settings: Settings) -> Generator:
    """The graphs of the generator and its trips, as far as they have no fault; these are in the report."""
    top, world = reader.world.run.generate, reader.world
    assert top
    trips = reader.attempt(trips_of, reader, top)
    t0, t1, t2 = (Tracer(world, f"generate.{part}", "generate") for part in ("init", "step", "finish"))
    state = traced(reader, t0, top.keys["init"], batch(t0, settings.training, {}), ctx(t0))
    types = None if state is None else type_of(state)
    given = (state_plist(t1, types), t1.port("trip", "", SCALAR), ctx(t1))
    following = traced(reader, t1, top.keys["step"], *given)
    parts = [("init", t0, "state", state)]
    if following is not None and state is not None:
        same_state(t1, state, following, top.keys["init"].span, top.keys["step"].span)
        parts.append(("step", t1, "state", {n: following[n] for n in state if n in following}))
    made, maker = types, "init"
    if "finish" in top.keys:
        last = traced(reader, t2, top.keys["finish"], state_plist(t2, types), ctx(t2))
        parts.append(("finish", t2, "generated", last))
        made, maker = None if last is None else type_of(last), "finish"
    free_names(world, settings, made or {}, top.keys[maker].span)
    if not world.report and any(t.builder.undrawn for _, t, _, _ in parts):
        world.counts_undrawn = True
        parts = [(name, t, kind, with_undrawn(name, t, entries)) for name, t, kind, entries in parts]
    return Generator(trips, made, tuple(graph(name, t, kind, entries or {}) for name, t, kind, entries in parts))


def with_undrawn(name: str, t: Tracer, entries: dict[str, Any] | None) -> dict[str, Any]:
    """``entries`` of the part ``name``, and how many draws had no distribution: up to there, in one more entry."""
    before = () if name == "init" else (t.port("state", UNDRAWN_GENERATOR, COUNT),)
    total = t.builder.undrawn_after(*before)
    return {**(entries or {}), UNDRAWN_GENERATOR: t.builder.const(0.0, "f32") if total is None else total}


def traced(reader: Reader, t: Tracer, form: Form, *args: Any) -> dict[str, Any] | None:
    """``trace_part``; None where its fault is in the report."""
    return reader.attempt(trace_part, t, form, args, form=t.form)


def type_of(entries: dict[str, Any]) -> dict[str, Any]:
    """The types of tensors; POISON stays POISON."""
    return {n: v.type if isinstance(v, Value) else v for n, v in entries.items()}


def graph(name: str, t: Tracer, kind: str, entries: dict[str, Value]) -> tuple[str, TrainGraph]:
    """A part of the generator as a graph with its name; ``entries`` are its outputs, of one ``kind``."""
    return f"generate.{name}", TrainGraph(t, tuple((kind, n, v) for n, v in entries.items()))


def state_plist(t: Tracer, types: dict[str, Any] | None) -> Any:
    """The state as a plist of inputs of the graph of ``t``, which is what :step and :finish are given."""
    if types is None:
        return POISON
    made = {n: POISON if type is POISON else t.port("state", n, type) for n, type in types.items()}
    return tuple(x for n, value in made.items() for x in (Key(n), value))


def trace_part(t: Tracer, form: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """One lambda's plist of tensors, POISON where one has a fault. E-GEN-001 for anything else."""
    function = sound(t.evaluate(form, None))
    if not isinstance(function, Closure):
        raise UserError(codes.GEN_FORM, form.span, f"{t.form} must be a lambda, not {describe(function)}")
    value = t.call(function, *args, span=form.span)
    entries = plist(value)
    if not entries:
        sound(value)
        raise UserError(
            codes.GEN_STATE, function.body[-1].span, f"{t.form} returns {describe(value)}, not a plist of tensors"
        )
    for name, entry in entries.items():
        if not isinstance(entry, Value):
            entries[name] = POISON
        if not isinstance(entry, Value) and not is_poison(entry):
            what = f"{t.form} returns {describe(entry)} for :{name}, not a tensor"
            hint = "make it one with full, cast or constant"
            t.world.fault(UserError(codes.GEN_STATE, function.body[-1].span, what, hint=hint), t.form)
    return entries


def same_state(t: Tracer, first: dict[str, Any], following: dict[str, Any], init: Span, step: Span) -> None:
    """E-GEN-002 unless ``:step`` returns the keys that ``:init`` made, and for each with another shape or dtype."""
    names = [*first, *following]
    alone = [name for name in dict.fromkeys(names) if (name in first) != (name in following)]
    for name in (*alone[:1], *(name for name in first if name in following)):
        t.guarded(step, same_entry, name, first.get(name), following.get(name), init, step)


def same_entry(name: str, a: Any, b: Any, init: Span, step: Span) -> None:
    """``a``: what ``:init`` makes of that name, ``b``: what ``:step`` does; None where it makes none."""
    if POISON in (a, b):
        return
    if a is None or b is None:
        who, lacks = (":init", ":step") if b is None else (":step", ":init")
        made: Any = b if a is None else a
        what = f"{who} makes :{name}, {made.type}, and {lacks} does not"
        raise UserError(codes.GEN_CHANGE, step, what, (init, ":init is here"))
    if a.type != b.type:
        what = f":step returns :{name} as {b.type}, and :init made it {a.type}"
        raise UserError(codes.GEN_CHANGE, b.span or step, what, (a.span or init, f":{name} is made here"))


def free_names(world: World, settings: Settings, made: dict[str, Any], span: Span) -> None:
    """E-GEN-003: a generated name may not be a field of the training loader, whose fields every stage's has, or of any
    pass's loader."""
    names = dict.fromkeys([settings.loader, *(p.loader for p in settings.passes)])
    for loader in (settings.loaders[n] for n in names if n in settings.loaders):
        for name in made:
            if name in loader.fields:
                world.report.add(
                    UserError(
                        codes.GEN_NAME,
                        span,
                        f"the generator makes :{name}, which is a field of {loader.name}",
                        (loader.span, f"{loader.name} has the field :{name}"),
                    )
                )
