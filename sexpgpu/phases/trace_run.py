"""A run file traced into the plan of a run: a graph for each phase."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from ..graph.core import Graph, Value
from ..graph.simplify import simplify
from ..graph.table_products import looked_up
from ..graph.verify import verify
from ..language import codes
from ..language.diagnostics import Report, UserError
from ..language.form_queries import closest
from ..language.runfile import RunFile
from ..trace import builtins  # noqa: F401  (fills BUILTINS)
from ..trace.evaluator import RECURSION, Tracer
from ..trace.name_resolution import check_names, diagnostics_named
from ..trace.world import World
from .generation import Generator, trace_generator
from .identity import identity
from .index_ranges import Demand, add_all, bounds_of, field_demands
from .optimizer import trace_init, trace_update
from .plan import PORT_KINDS, Bounds, Phase, Plan, Port
from .run_settings import Loader, Reader, Settings, read_settings
from .training import TrainGraph, trace_pass, trace_train


def trace_run(run: RunFile, report: Report, diagnostics: Iterable[str] = ()) -> Plan | None:
    """The plan of a run, or None with every fault in ``report``. ``diagnostics``: kept beside the run's own."""
    sys.setrecursionlimit(max(RECURSION, sys.getrecursionlimit()))
    if report.full:
        return None
    check_names(run, report)
    world = World(run, report)
    settings = read_settings(world)
    world.precision = settings.precision
    kept = tuple(dict.fromkeys((*settings.diagnostics, *diagnostics)))
    reader = Reader(world)
    generator = trace_generator(reader, settings) if run.generate else Generator(None, unmade(report), ())
    t = Tracer(world, "train", "objective")
    train = reader.attempt(trace_train, t, settings, generator.made, kept, form=t.form)
    world.counters = train.counters if train else ()
    tracers = {p.name: Tracer(world, f"pass/{p.name}", "pass") for p in settings.passes}
    passes = {
        p.name: reader.attempt(trace_pass, own, settings, p, generator.made, kept, form=own.form)
        for p, own in zip(settings.passes, tracers.values(), strict=True)
    }
    known_diagnostics(world, settings, kept, [t, *tracers.values()])
    trained = train.trained if train else untrained(world)
    is_weighed = train is not None and train.is_weighed
    updates = reader.attempt(trace_update, world, settings, trained, is_weighed, form="update")
    init = reader.attempt(trace_init, world, updates.entries, form="init") if updates and not report else None
    if report or not (train and updates and init and generator.made is not None):
        assert report, "a phase is missing and no fault was found"
        report.sort()
        return None
    graphs = [("init", init), *generator.phases, ("train", train), ("update", updates)]
    phases = tuple(finish(name, graph) for name, graph in (*graphs, *((f"eval.{n}", g) for n, g in passes.items())))
    evaluates = {n: bool(g.runs_generator) for n, g in passes.items()}
    return Plan(
        run,
        settings,
        phases,
        generator.trips,
        tuple(generator.made),
        tuple(world.parameters.found[n] for n in sorted(world.parameters.found)),
        updates.entries,
        evaluates,
        loader_bounds(phases, settings, evaluates),
        identity(run),
        kept,
    )


def unmade(report: Report) -> dict[str, Any] | None:
    """What is made by a generator that is not there: nothing, unless it was left out for a fault."""
    return None if report.may_be_lost("", "defgenerate") else {}


def untrained(world: World) -> tuple[str, ...]:
    """What the optimizer is tried on where the loss has a fault: the parameters that were met."""
    return tuple(sorted(n for n, p in world.parameters.found.items() if not p.is_frozen))


def known_diagnostics(world: World, settings: Settings, kept: tuple[str, ...], tracers: list[Tracer]) -> None:
    """E-NAME-001 for each of ``kept``, of defrun or the command line, that no graph makes. What is called by something
    with a fault may not have been reached."""
    known = {n for t in tracers for n in t.diagnostics}
    if world.run.run is None:
        return
    if world.report:
        named = diagnostics_named(world.run)
        if world.report.lost or named is None:
            return
        known |= named
    for name in (n for n in kept if n not in known):
        what = f"there is no diagnostic {name} in prepare, objective or a pass"
        span = world.run.run.keys["diagnostics"].span if name in settings.diagnostics else None
        where, hint = "" if span else world.run.path, closest(name, known)
        world.report.add(UserError(codes.NAME_UNKNOWN, span, what, hint=hint, where=where))


def finish(name: str, made: TrainGraph) -> Phase:
    """A traced graph simplified and verified, its unused inputs dropped, its ports in their fixed order."""
    t, outputs = made.tracer, made.outputs
    keys = sorted(t.inputs, key=lambda k: (PORT_KINDS.index(k[0]), k[1]))
    symbol = re.sub(r"[^A-Za-z0-9]", "_", name)
    graph = Graph(symbol, tuple(t.inputs[k] for k in keys), tuple((f"{kind}:{n}", v) for kind, n, v in outputs))
    verified: set[Value] = set()
    verify(graph, f"tracing {name}", verified)
    graph = looked_up(graph)
    verify(graph, f"looking rows up in {name}", verified)
    graph = simplify(graph)
    verify(graph, f"simplifying {name}", verified)
    needed = used(graph)
    kept = [(k, v) for k, v in zip(keys, graph.inputs, strict=True) if v in needed]
    graph = Graph(symbol, tuple(v for _, v in kept), graph.outputs)
    inputs = tuple(Port(k[0], k[1], v.type) for k, v in kept)
    ports = tuple(Port(kind, n, v.type) for (kind, n, _), (_, v) in zip(outputs, graph.outputs, strict=True))
    return Phase(name, graph, inputs, ports, pairs(graph, inputs, ports))


def used(graph: Graph) -> set[Value]:
    """The values that the outputs need, inputs among them."""
    return set(Graph("", (), graph.outputs).values())


def pairs(graph: Graph, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> tuple[tuple[int, int], ...]:
    """Outputs that replace an input of the same kind and name. Of the generator's state only what a trip returns as it
    got it: that is then the tensor it was, and is not copied."""
    at = {(p.kind, p.name): i for i, p in enumerate(inputs) if p.kind in ("param", "optimizer", "gradient", "state")}
    found = [(o, at[(p.kind, p.name)]) for o, p in enumerate(outputs) if (p.kind, p.name) in at]
    return tuple((o, i) for o, i in found if inputs[i].kind != "state" or graph.outputs[o][1] is graph.inputs[i])


def loader_bounds(
    phases: tuple[Phase, ...], settings: Settings, evaluates: dict[str, bool]
) -> dict[tuple[str, str], Bounds]:
    """Bounds by loader: what train and the generator ask of the training loaders, and each pass, with the
    generator where it runs, of its own."""
    by_name = {p.name: p for p in phases}
    generator = [p for n, p in by_name.items() if n.startswith("generate.")]
    out: dict[tuple[str, str], Demand] = {}

    def ask(loader: Loader, phases: list[Phase]) -> None:
        for name, demand in field_demands(phases).items():
            add_all(out, (loader.name, name), demand)

    for stage in settings.stages:
        ask(settings.loaders[stage.loader], [*generator, by_name["train"]])
    for p in settings.passes:
        ask(settings.loaders[p.loader], [*(generator if evaluates[p.name] else ()), by_name[f"eval.{p.name}"]])
    return {
        (loader, name): bounds_of(demand, settings.loaders[loader].fields[name].shape)
        for (loader, name), demand in out.items()
    }
