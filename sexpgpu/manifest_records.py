"""What the manifest says of a plan. Each function is given the module artifacts.manifest, whose records it makes, as
``m``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .memory import Memory
from .phases import Phase, Plan, Port
from .settings import Loader

Pairs = Sequence[tuple[int, int]]


def run_record(m: Any, plan: Plan) -> Any:
    """The manifest's ``run``; ``m`` is the module artifacts.manifest, here and below."""
    s, identity = plan.settings, m.Identity(**plan.identity)
    return m.Run(
        s.name, s.seed, s.steps, s.microbatches, s.precision, s.log_every, s.checkpoint_every, identity
    )  # fmt: skip


def step_record(m: Any, plan: Plan) -> Any:
    """The manifest's ``step``: trips, generated names, passes, stages, and the diagnostics that some phase makes."""
    s = plan.settings
    made = {port.name for p in plan.phases for port in p.outputs if port.kind == "diagnostic"}
    return m.Step(
        plan.trips,
        plan.generated,
        tuple(m.Pass(p.name, p.loader, p.every, p.batches, plan.evaluates[p.name]) for p in s.passes),
        tuple(m.Stage(t.name, t.steps, t.records, t.loader) for t in s.stages),
        tuple(n for n in plan.diagnostics if n in made),
    )


def phase_record(m: Any, phase: Phase, pairs: Pairs) -> Any:
    """A phase with its ports and the ``pairs`` (input, output) that share memory; its bytes are filled in by
    ``with_memory``."""

    def port(p: Port) -> Any:
        return m.Port(p.kind, p.name, p.type.shape, p.type.dtype)

    done = tuple(tuple(pair) for pair in pairs)
    return m.Phase(
        phase.name,
        phase.function,
        phase.stack,
        tuple(map(port, phase.inputs)),
        tuple(map(port, phase.outputs)),
        done,
        0,
    )


def loader_record(m: Any, plan: Plan, loader: Loader, data: dict[str, dict[str, bytes]]) -> Any:
    """A loader with its fields and the range of their integers; ``data``: loader -> member -> bytes of embedded
    files."""
    members = tuple(data.get(loader.name, ()))
    fields = tuple(
        m.Field(n, t.shape, t.dtype, *plan.bounds.get((loader.name, n), (None, None))) for n, t in loader.fields.items()
    )
    return m.Loader(
        loader.name,
        "indices" if loader.count is not None else "files",
        loader.sources,
        members,
        loader.count,
        loader.batch,
        loader.shuffle,
        loader.epochs,
        fields,
    )


def target_record(m: Any, library: Any, member: str) -> Any:
    """Of one of schedules' Libraries. Its GPU kernels may be replayed as graphs: a phase is kernels alone."""
    target, device = library.target, "cuda" if library.archs else "cpu"
    flags = tuple(target.cpu_flags)
    return m.Target(library.name, member, target.machine, flags, device, library.archs, bool(library.archs))


def without_graphs(manifest: Any) -> Any:
    """``manifest`` with the phases of GPUs launched kernel by kernel."""
    return attrs.evolve(manifest, targets=tuple(attrs.evolve(t, graphs=False) for t in manifest.targets))


def with_memory(manifest: Any, memory: Memory) -> Any:
    """``manifest`` with the memory plan, all in bytes."""
    record = attrs.evolve(
        manifest.memory,
        parameters_bytes=memory.parameters,
        optimizer_bytes=memory.optimizer,
        gradients_bytes=memory.gradients,
        train_bytes=memory.train,
        generation_bytes=memory.generation or 0,
        device_bytes=memory.total,
        thread_bytes=memory.thread,
    )
    phases = tuple(attrs.evolve(p, memory_bytes=memory.phases[p.name]) for p in manifest.phases)
    return attrs.evolve(manifest, memory=record, phases=phases)
