"""What the manifest says of a plan. Each function is given the module artifacts.manifest, whose records it makes, as
``m``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..phases.plan import Bounds, Phase, Plan, Port
from ..phases.run_settings import Loader
from ..planning.memory_plan import Memory
from ..trace.random_draws import UNDRAWN

Pairs = Sequence[tuple[int, int]]
RUNTIME, CUDA_RUNTIME = "runtime/libtvm_runtime.so", "runtime/libtvm_runtime_cuda.so"


def library_member(target: str) -> str:
    return f"code/{target}.so"


def manifest(
    m: Any,
    plan: Plan,
    toolchain: Any,
    in_place: Mapping[str, Pairs],
    libraries: Sequence[Any],
    data: dict[str, dict[str, bytes]],
) -> Any:
    """All but the memory plan and the list of files. ``in_place``: function -> its pairs; ``libraries``: schedules'
    Libraries; ``data``: loader -> member -> bytes."""
    return m.Manifest(
        toolchain=toolchain,
        run=run_record(m, plan),
        parameters=tuple(m.Parameter(p.name, p.type.shape, p.type.dtype, p.is_frozen) for p in plan.parameters),
        optimizer=tuple(m.Tensor(e.name, e.type.shape, e.type.dtype) for e in plan.optimizer),
        phases=tuple(phase_record(m, p, in_place.get(p.function, ())) for p in plan.phases),
        step=step_record(m, plan),
        loaders=tuple(loader_record(m, plan, loader, data) for loader in plan.settings.loaders.values()),
        memory=m.Memory(0, 0, 0, 0, 0, 0, 0),
        targets=tuple(target_record(m, to, library_member(to.name)) for to in libraries),
        runtime=m.Runtime(RUNTIME, CUDA_RUNTIME if any(to.archs for to in libraries) else None),
        files=(),
    )


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
    read = dict.fromkeys(port.name for p in plan.phases for port in p.inputs if port.kind == "generated")
    return m.Step(
        plan.trips,
        (*plan.generated, *(n for n in read if n.startswith(UNDRAWN))),
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
        m.Field(n, t.shape, t.dtype, b.low, b.high, tuple(m.Part(*part) for part in b.parts))
        for n, t in loader.fields.items()
        for b in (plan.bounds.get((loader.name, n), Bounds()),)
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
