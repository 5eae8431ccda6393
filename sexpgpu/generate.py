"""defgenerate: three graphs and the rules of the seed page, docs/generation.md."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from . import codes
from .diagnostics import UserError
from .graph import Value
from .settings import Reader, Settings, trips_of
from .source import Span
from .trace import Tracer, World
from .training import SCALAR, TrainGraph, batch, ctx
from .types import TensorType
from .values import POISON, Closure, Key, describe, plist, sound


@frozen(eq=False)
class Generator:
    """``made``: what joins the batch, name -> type. ``phases``: generate.init, .step and, if given, .finish."""

    trips: int | None
    made: dict[str, TensorType]
    phases: tuple[tuple[str, TrainGraph], ...]


def trace_generator(reader: Reader, settings: Settings) -> Generator | None:
    """The graphs of the generator and its trips; None where :init or :finish has a fault, which is in the report."""
    top, world = reader.world.run.generate, reader.world
    assert top
    trips = reader.attempt(trips_of, reader, top)
    data = settings.loaders[settings.loader]
    t0 = Tracer(world, "generate.init", "generate")
    state = reader.attempt(trace_part, t0, top.keys["init"], (batch(t0, data, {}, {}), ctx(t0)))
    if not state:
        return None
    types = {n: v.type for n, v in state.items()}
    t1 = Tracer(world, "generate.step", "generate")
    given = (state_plist(t1, types), t1.port("trip", "", SCALAR), ctx(t1))
    following = reader.attempt(trace_part, t1, top.keys["step"], given)
    phases = [graph("init", t0, "state", state)]
    if following:
        reader.attempt(same_state, state, following, top.keys["init"].span, top.keys["step"].span)
        phases.append(graph("step", t1, "state", {n: following[n] for n in types if n in following}))
    made = dict(types)
    if "finish" in top.keys:
        t2 = Tracer(world, "generate.finish", "generate")
        last = reader.attempt(trace_part, t2, top.keys["finish"], (state_plist(t2, types), ctx(t2)))
        if not last:
            return None
        phases.append(graph("finish", t2, "generated", last))
        made = {n: v.type for n, v in last.items()}
    reader.attempt(free_names, world, settings, made, top.keys["finish" if "finish" in top.keys else "init"].span)
    return Generator(trips, made, tuple(phases))


def graph(name: str, t: Tracer, kind: str, entries: dict[str, Value]) -> tuple[str, TrainGraph]:
    """A part of the generator as a graph with its name; ``entries`` are its outputs, of one ``kind``."""
    return f"generate.{name}", TrainGraph(t, tuple((kind, n, v) for n, v in entries.items()))


def state_plist(t: Tracer, types: dict[str, TensorType]) -> tuple[Any, ...]:
    """The state as a plist of inputs of the graph of ``t``, which is what :step and :finish are given."""
    return tuple(x for n, type in types.items() for x in (Key(n), t.port("state", n, type)))


def trace_part(t: Tracer, form: Any, args: tuple[Any, ...]) -> dict[str, Value] | None:
    """One lambda's plist of tensors; None where a part of it was poison. E-GEN-001 for anything else."""
    function = sound(t.evaluate(form, None))
    if not isinstance(function, Closure):
        raise UserError(codes.GEN_FORM, form.span, f"{t.form} must be a lambda, not {describe(function)}")
    value = t.call(function, *args, span=form.span)
    if value is POISON:
        return None
    entries = plist(value)
    if not entries:
        raise UserError(
            codes.GEN_STATE, function.body[-1].span, f"{t.form} returns {describe(value)}, not a plist of tensors"
        )
    for name, entry in entries.items():
        if not isinstance(entry, Value):
            raise UserError(
                codes.GEN_STATE,
                function.body[-1].span,
                f"{t.form} returns {describe(entry)} for :{name}, not a tensor",
                hint="make it one with full, cast or constant",
            )
    return entries


def same_state(first: dict[str, Value], following: dict[str, Value], init: Span, step: Span) -> None:
    """E-GEN-002 unless ``:step`` returns the keys, shapes and dtypes that ``:init`` made."""
    for name in {**first, **following}:
        a, b = first.get(name), following.get(name)
        if a is None or b is None:
            who, lacks, value = (":init", ":step", a) if b is None else (":step", ":init", b)
            raise UserError(
                codes.GEN_CHANGE,
                step,
                f"{who} makes :{name}, {value.type if value else ''}, and {lacks} does not",
                (init, ":init is here"),
            )
        if a.type != b.type:
            raise UserError(
                codes.GEN_CHANGE,
                b.span or step,
                f":step returns :{name} as {b.type}, and :init made it {a.type}",
                (a.span or init, f":{name} is made here"),
            )


def free_names(world: World, settings: Settings, made: dict[str, TensorType], span: Span) -> None:
    """E-GEN-003: a generated name may not be a field of the training loader, whose fields every stage's has, or of any
    pass's loader."""
    names = dict.fromkeys([settings.loader, *(p.loader for p in settings.passes)])
    for loader in (settings.loaders[n] for n in names):
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
