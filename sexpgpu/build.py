"""The driver: the one module that joins the language, the lowering, the schedules and the artifact."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from . import __version__, codes, interrupt
from .cost import Rates
from .diagnostics import UserError
from .identity import document
from .members import data_members, source_members
from .memory import Memory, check_limit, estimate, measured
from .phases import Phase, Plan, Port
from .settings import Loader


def build(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Plan to artifact at ``options.output``; what was made, for the command line to print."""
    started = time.monotonic()
    targets = find_targets(options.target)
    from artifacts import tarball

    tarball.check_output(options.output, options.force, [options.file])
    check_limit(estimate(plan), options.memory_limit, options.file)
    data = data_members(plan)
    runtime = runtime_library(targets, options.runtime)
    made = compile_plan(plan, targets, options)
    memory = run_memory(plan, made)
    members = {
        **source_members(plan),
        **{member: content for files in data.values() for member, content in files.items()},
        **{library_member(name): library for name, library in made.libraries.items()},
        "runtime/libtvm_runtime.so": runtime,
        "report.txt": report_text(plan, made, targets, memory).encode(),
        "identity.json": document(plan.run),
    }
    manifest = with_memory(make_manifest(plan, made, targets, data), memory)
    check_limit(memory, options.memory_limit, options.file, asked_of_machine(manifest))
    interrupt.check()
    digest = tarball.write(options.output, manifest, members, options.force, [options.file])
    return {
        "hash": digest,
        "targets": [t.name for t in targets],
        "kernels": len(made.lowered.programs),
        "unscheduled": made.unscheduled,
        "bytes": Path(options.output).stat().st_size,
        "seconds": round(time.monotonic() - started, 1),
        "spent": {what: round(seconds, 2) for what, seconds in made.spent.items()},
    }


def library_member(target: str) -> str:
    return f"code/{target}.so"


def need_extra() -> None:
    """E-ENV-001 where the compiler is not installed."""
    for package in ("apache-tvm", "ziglang"):
        try:
            version(package)
        except PackageNotFoundError:
            raise UserError(
                codes.ENV_MISSING, None, f"building needs {package}", hint="pip install 'sexpgpu[build]'"
            ) from None


def find_targets(names: str) -> tuple[Any, ...]:
    """The targets of ``--target``, a list with commas, the one to prefer first. ``cpu``: all of this architecture."""
    need_extra()
    from schedules import TARGETS, default

    wanted: list[str] = []
    for name in names.split(","):
        if name not in TARGETS and name != "cpu":
            known = " ".join(("cpu", *TARGETS))
            raise UserError(codes.TARGET_NAME, None, f"there is no target {name}", hint=f"one of {known}")
        wanted += [t.name for t in default()] if name == "cpu" else [name]
    chosen = tuple(t for t in TARGETS.values() if t.name in wanted)
    machines = dict.fromkeys(t.machine for t in chosen)
    if len(machines) > 1:
        raise UserError(
            codes.TARGET_MIXED, None, f"{names} is for {' and '.join(machines)}, and an artifact is for one"
        )
    return chosen


def targets() -> dict[str, str]:
    need_extra()
    from schedules import TARGETS, default

    rows = {n: f"{t.machine}, needs {' '.join(t.cpu_flags)}" for n, t in TARGETS.items()}
    return {"cpu": f"{' and '.join(t.name for t in default())} in one artifact: the default", **rows}


def rates_of(targets: Sequence[Any]) -> dict[str, Rates]:
    """Name -> what the cost model reckons with for each of the schedules' targets."""
    return {t.name: Rates(**asdict(t.rates)) for t in targets}


def rates_named(names: str) -> dict[str, Rates]:
    """Those of the targets of ``--target``."""
    return rates_of(find_targets(names))


@frozen
class Made:
    """What the lowering made of a plan.

    lowered:   lowering's Lowered, for all targets
    compiled:  target -> lowering's Compiled
    libraries: target -> the library's bytes
    libm:      the C library's functions that they call
    spent:     seconds of processor by kind of work, those of all processes added up; of the link, by the clock
    """

    lowered: Any
    compiled: Mapping[str, Any]
    libraries: Mapping[str, bytes]
    libm: tuple[str, ...]
    spent: Mapping[str, float]

    @property
    def unscheduled(self) -> list[str]:
        """Kernels that no schedule rule took, for some target."""
        return sorted({row.kernel for made in self.compiled.values() for row in made.kernels if not row.rule})

    @property
    def inside(self) -> dict[str, int]:
        """Function -> bytes of a call's intermediates and its hungriest kernel's workspace, of the hungriest target."""
        planned = self.lowered.planned
        most = {f: max(made.memory[f] for made in self.compiled.values()) for f in planned}
        return {f: size - sum(planned[f].outputs) for f, size in most.items()}


def runtime_library(targets: Sequence[Any], given: str | None) -> bytes:
    """The runtime that the artifact will hold, E-TARGET if it is not that of the targets' machine."""
    from lowering import export

    try:
        return export.runtime_library(targets[0].machine, given)
    except export.RuntimeFault as fault:
        raise UserError(codes.TARGET_RUNTIME, None, str(fault)) from None


def compile_plan(plan: Plan, targets: Sequence[Any], options: argparse.Namespace) -> Made:
    """What is common to all targets once, then the kernels for each of them, then the libraries."""
    started = time.process_time()
    with compilers(plan, options.jobs) as compile_all:
        from lowering import codegen, emit, export, pipeline

        pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
        lowered = pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs, options.dump)
        interrupt.check()
        spent = {"lower": time.process_time() - started}
        parts = codegen.parts(lowered)
        jobs = [(part, t.name, options.dump and f"{options.dump}/{t.name}") for t in targets for part in parts]
        done = compile_all(jobs)
    of = {t.name: done[n * len(parts) : (n + 1) * len(parts)] for n, t in enumerate(targets)}
    compiled = {t.name: codegen.join(lowered, t.tvm, of[t.name]) for t in targets}
    spent |= {what: sum(part.seconds[what] for part in done) for what in ("schedule", "compile")}
    started = time.monotonic()
    libraries = {t.name: export.library(compiled[t.name], t.machine) for t in targets}
    spent["link"] = time.monotonic() - started
    libm = sorted({function for library in libraries.values() for function in export.libm(library)})
    made = Made(lowered, compiled, libraries, tuple(libm), spent)
    if made.unscheduled and options.strict_schedules:
        raise UserError(codes.TARGET_SCHEDULE, None, f"no schedule rule took {', '.join(made.unscheduled)}")
    return made


MOST_JOBS = 8  # processes, where nobody says how many: each takes some 300 MB
WORTH_IT = 100  # values in a plan's graphs, from which on a second process saves more than it takes to start


@contextlib.contextmanager
def compilers(plan: Plan, jobs: int | None) -> Iterator[Callable[[Sequence[Any]], list[Any]]]:
    """A function that does ``compile_part`` for a list of its arguments: here, or in processes, whose server loads the
    compiler while this one lowers. The answers are the same."""
    count = jobs or min(len(os.sched_getaffinity(0)), MOST_JOBS)
    if count == 1 or sum(len(p.graph.values()) for p in plan.phases) < WORTH_IT:
        yield lambda all_jobs: [compile_part(*job) for job in all_jobs]
        return
    from lowering.workers import Workers

    with Workers(count, ("lowering.codegen", "schedules", __name__)) as workers:
        yield lambda all_jobs: workers.map(compile_part, all_jobs)


def compile_part(part: str, name: str, dump: str | None) -> Any:
    """Some kernels for the target ``name``, in whatever process: lowering's Part."""
    import attrs

    import schedules
    from lowering import codegen, elementary

    target = attrs.evolve(schedules.TARGETS[name], functions=elementary.STEPS)

    def choose(func: Any, _: Any) -> Any:
        interrupt.check()
        return schedules.first(func, target)

    return codegen.compile_part(part, target.tvm, choose, dump)


def report_text(plan: Plan, made: Made, targets: Sequence[Any], memory: Memory) -> str:
    """report.txt: the plan, then what was made of it."""
    from .explain import explain
    from .lowering_report import lowering_text

    return explain(plan) + "\n" + lowering_text(plan, made, rates_of(targets), memory)


def explain_cost(plan: Plan, options: argparse.Namespace) -> str:
    """``sexpgpu explain --cost``: the cost model's figures, by default for all targets of this architecture."""
    from .cost_report import cost_data, cost_text

    rates = rates_named(options.target or "cpu")
    return json.dumps(cost_data(plan, rates)) + "\n" if options.output_format == "json" else cost_text(plan, rates)


def explain_lowered(plan: Plan, options: argparse.Namespace) -> str:
    """``sexpgpu explain --target``: what a build for these targets would report."""
    from .lowering_report import lowering_data

    targets = find_targets(options.target)
    made = compile_plan(plan, targets, options)
    memory = run_memory(plan, made)
    if options.output_format == "json":
        return json.dumps(lowering_data(plan, made, rates_of(targets), memory)) + "\n"
    return report_text(plan, made, targets, memory)


def make_manifest(plan: Plan, made: Made, targets: Sequence[Any], data: dict[str, dict[str, bytes]]) -> Any:
    """artifacts.manifest.Manifest, but for the list of files, which the writer makes."""
    from artifacts import manifest as m

    tools = ("apache-tvm", "apache-tvm-ffi", "ziglang")
    tvm, ffi, zig = map(version, tools)
    return m.Manifest(
        toolchain=m.Toolchain(__version__, tvm, ffi, f"ld.lld of ziglang {zig}"),
        run=run_record(m, plan),
        parameters=tuple(m.Parameter(p.name, p.type.shape, p.type.dtype, p.is_frozen) for p in plan.parameters),
        optimizer=tuple(m.Tensor(e.name, e.type.shape, e.type.dtype) for e in plan.optimizer),
        phases=tuple(phase_record(m, p, made) for p in plan.phases),
        step=step_record(m, plan),
        loaders=tuple(loader_record(m, plan, loader, data) for loader in plan.settings.loaders.values()),
        memory=m.Memory(0, 0, 0, 0, 0, 0, 0),
        targets=tuple(target_record(m, t) for t in targets),
        runtime=m.Runtime("runtime/libtvm_runtime.so", None),
        files=(),
    )


def target_record(m: Any, target: Any) -> Any:
    flags = tuple(target.cpu_flags)
    return m.Target(target.name, library_member(target.name), target.machine, flags, "cpu", (), False)


def run_record(m: Any, plan: Plan) -> Any:
    s, identity = plan.settings, m.Identity(**plan.identity)
    return m.Run(
        s.name, s.seed, s.steps, s.microbatches, s.precision, s.log_every, s.checkpoint_every, identity
    )  # fmt: skip


def step_record(m: Any, plan: Plan) -> Any:
    s = plan.settings
    made = {port.name for p in plan.phases for port in p.outputs if port.kind == "diagnostic"}
    return m.Step(
        plan.trips,
        plan.generated,
        tuple(m.Pass(p.name, p.loader, p.every, p.batches, plan.evaluates[p.name]) for p in s.passes),
        tuple(m.Stage(t.name, t.steps, t.records, t.loader) for t in s.stages),
        tuple(n for n in plan.diagnostics if n in made),
    )


def run_memory(plan: Plan, made: Made) -> Memory:
    """The memory plan of what was compiled: that of the target that needs the most."""
    from artifacts.rehearsal import rehearse

    manifest = make_manifest(plan, made, (), {})
    taken = [rehearse(manifest, asked(plan, compiled)) for compiled in made.compiled.values()]
    return measured(plan, made.inside, max(t.device for t in taken), max(t.thread for t in taken))


def with_memory(manifest: Any, memory: Memory) -> Any:
    import attrs

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


def asked_of_machine(manifest: Any) -> int:
    """Bytes that a runner asks of its machine, with one thread."""
    from artifacts.memory import OVERHEAD, wanted

    return wanted(manifest, 1).total + OVERHEAD


def asked(plan: Plan, compiled: Any) -> dict[str, Any]:
    """Phase -> artifacts.rehearsal.Asked of its function."""
    from artifacts.rehearsal import Asked

    def one(call: Any) -> Asked:
        kernels = (compiled.workspaces[name] for name in call.kernels)
        return Asked(call.blocks, tuple((w.own, w.task) for w in kernels))

    return {p.name: one(compiled.lowered.planned[p.function]) for p in plan.phases}


def phase_record(m: Any, phase: Phase, made: Made) -> Any:
    def port(p: Port) -> Any:
        return m.Port(p.kind, p.name, p.type.shape, p.type.dtype)

    done = tuple(tuple(pair) for pair in made.lowered.in_place.get(phase.function, ()))
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


def inspect(path: str, form: str) -> str:
    from artifacts import describe, tarball

    artifact = tarball.open(path)
    return json.dumps(describe.to_json(artifact), indent=1) if form == "json" else describe.describe(artifact)


def verify(path: str) -> str:
    """The hash of an artifact whose every byte is as its manifest says."""
    from artifacts import tarball

    with tarball.open(path) as artifact:
        artifact.verify()
        return artifact.hash


def diff(path: str, other: str) -> str:
    """The first difference of two artifacts in words, or ""."""
    from artifacts import describe, tarball

    return describe.diff(tarball.open(path), tarball.open(other)) or ""
