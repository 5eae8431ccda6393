"""Phases: the graphs of a step, each a pure function of named ports. The last thing that knows no TVM.

A run is: init once; then for each microbatch generate.init, generate.step x trips, generate.finish, train; then update
once a step; eval.NAME for each pass. ``trace_run`` makes them all from a RunFile.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

from attrs import frozen

from . import codes
from .bounds import field_bounds
from .diagnostics import Report, UserError
from .generate import Generator, trace_generator
from .graph import Graph, Value
from .identity import identity
from .optimize import OptimizerEntry, trace_init, trace_update
from .parameters import Parameter
from .runfile import RunFile
from .settings import Loader, Reader, Settings, read_settings
from .simplify import simplify
from .trace import RECURSION, World
from .training import TrainGraph, trace_pass, trace_train
from .types import TensorType
from .verify import verify

PORT_KINDS = (
    "param",
    "optimizer",
    "gradient",
    "field",
    "generated",
    "state",
    "trip",
    "ctx",
    "counter",
    "seed",
    "metric",
    "diagnostic",
)


@frozen
class Port:
    """One argument or result of a phase; ``kind`` is one of PORT_KINDS."""

    kind: str
    name: str
    type: TensorType


@frozen(eq=False)
class Phase:
    """``in_place``: (output, input) pairs; the compiler writes that output into that input's memory where it can.
    ``stack``: microbatches in one call; of more than one, the name is ``ROLE*stack``."""

    name: str
    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    in_place: tuple[tuple[int, int], ...]
    stack: int = 1

    @property
    def role(self) -> str:
        """What it does, whatever its degree: ``train``."""
        return self.name.partition("*")[0]

    @property
    def function(self) -> str:
        """Its symbol in the library."""
        return self.graph.name


@frozen
class Stacking:
    """``degree``: microbatches in one call. ``reason``: why it is 1 in a run that has more, or "". ``offered``: each
    degree that was looked at, with the calls and the kernels of its step, these counted from the graphs."""

    degree: int = 1
    reason: str = ""
    offered: tuple[tuple[int, int, int], ...] = ()


@frozen(eq=False)
class Plan:
    """A checked run: everything that the compiler, the interpreter and the manifest need.

    ``bounds``: (loader, field) -> (low, high), what an integer field must satisfy, low <= x < high, so that no look-up
    leaves its table. ``evaluates``: pass name -> whether the generator runs on its batches.
    """

    run: RunFile
    settings: Settings
    phases: tuple[Phase, ...]
    trips: int | None
    generated: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    optimizer: tuple[OptimizerEntry, ...]
    evaluates: dict[str, bool]
    bounds: dict[tuple[str, str], tuple[int, int]]
    identity: dict[str, str]
    diagnostics: tuple[str, ...]
    stacking: Stacking = Stacking()

    def phase(self, name: str) -> Phase:
        """The phase of that name; of a role that only runs stacked, that one."""
        return next(p for p in sorted(self.phases, key=lambda p: p.stack) if name in (p.name, p.role))


def trace_run(run: RunFile, report: Report, diagnostics: Iterable[str] = ()) -> Plan | None:
    """The plan of a run, or None with every fault in ``report``. ``diagnostics``: kept beside the run's own."""
    sys.setrecursionlimit(max(RECURSION, sys.getrecursionlimit()))
    world = World(run, report)
    settings = read_settings(world)
    if settings is None:
        return None
    world.precision = settings.precision
    kept = tuple(dict.fromkeys((*settings.diagnostics, *diagnostics)))
    reader = Reader(world)
    generator = reader.attempt(trace_generator, reader, settings) if run.generate else Generator(None, {}, ())
    train = reader.attempt(trace_train, world, settings, generator.made, kept) if generator else None
    world.counters = train.counters if train else ()
    made = generator.made if generator else {}
    watched = settings.passes if generator else ()
    passes = {p.name: reader.attempt(trace_pass, world, settings, p, made, kept) for p in watched}
    if train and not report:
        known_diagnostics(world, settings, kept, [train, *passes.values()])
    updates = reader.attempt(trace_update, world, settings, train) if train else None
    init = reader.attempt(trace_init, world, updates.entries) if updates else None
    if report or not (generator and train and updates and init):
        assert report, "a phase is missing and no fault was found"
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


def known_diagnostics(world: World, settings: Settings, kept: tuple[str, ...], graphs: list[TrainGraph]) -> None:
    """E-NAME-001 for each of ``kept``, of defrun or the command line, that no graph makes."""
    known = {n for g in graphs for n in g.tracer.diagnostics}
    assert world.run.run
    for name in (n for n in kept if n not in known):
        close = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {close[0]}?" if close else ""
        what = f"there is no diagnostic {name} in prepare, objective or a pass"
        span = world.run.run.keys["diagnostics"].span if name in settings.diagnostics else None
        world.report.add(UserError(codes.NAME_UNKNOWN, span, what, hint=hint, where="" if span else world.run.path))


def finish(name: str, made: TrainGraph) -> Phase:
    """A traced graph simplified and verified, its unused inputs dropped, its ports in their fixed order."""
    t, outputs = made.tracer, made.outputs
    keys = sorted(t.inputs, key=lambda k: (PORT_KINDS.index(k[0]), k[1]))
    symbol = re.sub(r"[^A-Za-z0-9]", "_", name)
    graph = Graph(symbol, tuple(t.inputs[k] for k in keys), tuple((f"{kind}:{n}", v) for kind, n, v in outputs))
    verify(graph, f"tracing {name}")
    graph = simplify(graph)
    verify(graph, f"simplifying {name}")
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
) -> dict[tuple[str, str], tuple[int, int]]:
    """Bounds by loader: what train and the generator ask of the training loaders, and each pass, with the
    generator where it runs, of its own."""
    by_name = {p.name: p for p in phases}
    generator = [p for n, p in by_name.items() if n.startswith("generate.")]
    out: dict[tuple[str, str], tuple[int, int]] = {}

    def ask(loader: Loader, phases: list[Phase]) -> None:
        for name, (low, high) in field_bounds(phases).items():
            old = out.get((loader.name, name), (low, high))
            out[(loader.name, name)] = (max(low, old[0]), min(high, old[1]))

    for stage in settings.stages:
        ask(settings.loaders[stage.loader], [*generator, by_name["train"]])
    for p in settings.passes:
        ask(settings.loaders[p.loader], [*(generator if evaluates[p.name] else ()), by_name[f"eval.{p.name}"]])
    return out
