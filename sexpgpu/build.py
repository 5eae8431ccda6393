"""The driver: the one module that joins the language, the lowering, the schedules and the artifact."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from surroundings import temporary

from . import __version__, codes, interrupt, manifest_records, tuning
from .cost import Rates
from .diagnostics import UserError
from .gpu_report import kernel_fault, kernel_member
from .identity import document
from .manifest_records import CUDA_RUNTIME, RUNTIME, library_member
from .members import data_members, source_members
from .memory import Memory, check_room, estimate, measured
from .output import line
from .phases import Plan
from .targets_report import default_row, row, unknown


def build(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Plan to artifact at ``options.output``; what was made, for the command line to print."""
    from artifacts.clock import Clock

    with Clock(ticks=True) as clock:
        return _build(plan, options, clock)


def _build(plan: Plan, options: argparse.Namespace, clock: Any) -> dict[str, Any]:
    started = clock.now()
    targets = find_targets(options.target)
    from artifacts import tarball

    tarball.check_output(options.output, options.force, [options.file])
    check_room(estimate(plan), targets, options.memory_limit, options.file)
    data = data_members(plan)
    runtime = runtime_members(targets, options.runtime)
    made = compile_plan(plan, targets, options)
    memory = run_memory(plan, made)
    members = {
        **source_members(plan),
        **{member: content for files in data.values() for member, content in files.items()},
        **{library_member(name): library for name, library in made.libraries.items()},
        **{member: content for of in made.kernels.values() for member, content in of.items()},
        **runtime,
        "report.txt": report_text(plan, made, targets, memory).encode(),
        "identity.json": document(plan.run),
        **tuning.members(made.tuning),
    }
    manifest = manifest_records.with_memory(make_manifest(plan, made.lowered, targets, data), memory)
    manifest = manifest if options.graphs == "auto" else manifest_records.without_graphs(manifest)
    check_room(memory, targets, options.memory_limit, options.file, asked_of(manifest))
    interrupt.check()
    digest = tarball.write(options.output, manifest, members, options.force, [options.file])
    return {
        "hash": digest,
        "targets": [t.name for t in targets],
        "kernels": len(made.lowered.programs),
        "unscheduled": made.unscheduled,
        "tuning": tuning.data(made.tuning),
        "bytes": Path(options.output).stat().st_size,
        "seconds": round(clock.now() - started, 1),
        "spent": {what: round(seconds, 2) for what, seconds in made.spent.items()},
    }


def need_extra() -> None:
    """E-ENV-001 where the compiler is not installed, or cannot be loaded: TVM then goes on without, and fails later."""
    for package in ("apache-tvm", "ziglang"):
        try:
            version(package)
        except PackageNotFoundError:
            what, hint = f"{package} is not installed", "pip install 'sexpgpu[build]'"
            raise UserError(codes.ENV_MISSING, None, what, hint=hint) from None
    import tvm

    if tvm.get_global_func("ir.PrimType", allow_missing=True) is None:
        hint = "give it more memory (ulimit -v), and unset TVM_USE_RUNTIME_LIB"
        raise UserError(codes.ENV_MISSING, None, "the library of TVM's compiler cannot be loaded", hint=hint)


def need_cuda(targets: Sequence[Any]) -> None:
    """E-ENV-001 where a GPU is among ``targets`` and the compiler of its kernels is not installed."""
    from schedules import nvrtc

    gpus = [t.name for t in targets if t.gpu is not None]
    lacking = nvrtc.lacking() if gpus else None
    if lacking:
        hint = "pip install 'sexpgpu[cuda]'"
        raise UserError(codes.ENV_MISSING, None, f"building for {gpus[0]} needs {lacking}", hint=hint)


def find_targets(names: str, compiles: bool = True) -> tuple[Any, ...]:
    """The targets of ``--target``, a list with commas, the one to prefer first. ``cpu``: all of this architecture.
    ``compiles``: is CUDA's compiler needed, too? E-ENV-001 where one is not installed; E-TARGET-001, E-TARGET-004."""
    need_extra()
    from schedules import TARGETS, default

    wanted: list[str] = []
    for name in names.split(","):
        if name not in TARGETS and name != "cpu":
            what, hint = unknown(name, ("cpu", *TARGETS))
            raise UserError(codes.TARGET_NAME, None, what, hint=hint)
        wanted += [t.name for t in default()] if name == "cpu" else [name]
    chosen = tuple(t for t in TARGETS.values() if t.name in wanted)
    machines = dict.fromkeys(t.machine for t in chosen)
    if len(machines) > 1:
        what = f"{names} is for {' and '.join(machines)}, and an artifact is for one"
        raise UserError(codes.TARGET_MIXED, None, what, hint="build an artifact for each")
    if compiles:
        need_cuda(chosen)
    return chosen


def targets() -> dict[str, dict[str, Any]]:
    """``sexpgpu targets`` as data; see targets_report.py."""
    need_extra()
    from schedules import TARGETS, default, nvrtc

    lacking = nvrtc.lacking()
    return {"cpu": default_row(default()), **{name: row(t, lacking) for name, t in TARGETS.items()}}


def rates_of(targets: Sequence[Any]) -> dict[str, Rates]:
    """Name -> what the cost model reckons with for each of the schedules' targets."""
    return {t.name: Rates(**asdict(t.rates)) for t in targets}


def rates_named(names: str, compiles: bool = True) -> dict[str, Rates]:
    """Those of the targets of ``--target``; see find_targets."""
    return rates_of(find_targets(names, compiles))


@frozen
class Made:
    """What the lowering made of a plan.

    lowered:   lowering's Lowered, for all targets
    compiled:  library -> lowering's Compiled; a library's name is its target's, or the level's of its GPUs
    libraries: library -> its bytes
    kernels:   library for GPUs -> member -> the bytes of compiled kernels
    libm:      the C library's functions that they call
    tuning:    library -> what was made of its records (tuning.py's Use); empty without --records
    graphs:    whether runs on GPUs replay calls of phases as CUDA graphs
    spent:     seconds of processor by kind of work, those of all processes added up; of the link, by the clock
    """

    lowered: Any
    compiled: Mapping[str, Any]
    libraries: Mapping[str, bytes]
    kernels: Mapping[str, Mapping[str, bytes]]
    libm: tuple[str, ...]
    tuning: Mapping[str, tuning.Use]
    graphs: bool
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


def runtime_members(targets: Sequence[Any], given: str | None) -> dict[str, bytes]:
    """The runtime that the artifact will hold, E-TARGET if it is not that of the targets' machine."""
    from lowering import export

    machine, on_gpu = targets[0].machine, any(t.gpu is not None for t in targets)
    try:
        more = {CUDA_RUNTIME: export.runtime_library(machine, given, export.CUDA_RUNTIME)} if on_gpu else {}
        return {RUNTIME: export.runtime_library(machine, given), **more}
    except export.RuntimeFault as fault:
        raise UserError(codes.TARGET_RUNTIME, None, str(fault)) from None


@temporary.used()
def compile_plan(plan: Plan, targets: Sequence[Any], options: argparse.Namespace) -> Made:
    """What is common to all targets once, then the kernels for each library, then the libraries."""
    import schedules
    from artifacts.clock import Clock

    started, wanted = time.process_time(), schedules.libraries(tuple(targets))
    found = tuning.found([to.name for to in wanted], options)
    with compilers(plan, options.jobs) as run:
        from lowering import codegen, emit, export, pipeline

        pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
        lowered = pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs, options.dump)
        interrupt.check()
        spent = {"lower": time.process_time() - started}
        parts = codegen.parts(lowered)
        uses = tuning.matched(found, lowered.programs, options.require_tuned)
        done = run(compile_part, tuning.jobs(parts, [to.name for to in wanted], uses, options.dump))
        of = {to.name: done[n * len(parts) : (n + 1) * len(parts)] for n, to in enumerate(wanted)}
        compiled = {to.name: joined(lowered, to, of[to.name]) for to in wanted}
        kernels, spent["kernels"] = compile_kernels(run, wanted, compiled)
    spent |= {what: sum(part.seconds[what] for part in done) for what in ("schedule", "compile")}
    tuning.check_fit(uses, compiled)
    with Clock() as clock:
        began, signed = clock.now(), signatures(plan, lowered, targets)
        libraries = {to.name: export.library(compiled[to.name], to.target.machine, signed[to.name]) for to in wanted}
        spent["link"] = clock.now() - began
    libm = sorted({function for library in libraries.values() for function in export.libm(library)})
    made = Made(lowered, compiled, libraries, kernels, tuple(libm), uses, options.graphs == "auto", spent)
    if made.unscheduled and options.strict_schedules:
        raise UserError(codes.TARGET_SCHEDULE, None, f"no schedule rule took {', '.join(made.unscheduled)}")
    return made


def joined(lowered: Any, library: Any, parts: Sequence[Any]) -> Any:
    """lowering's Compiled; E-TARGET where its kernels would not run on the library's GPUs, or wrongly."""
    from lowering import codegen

    try:
        return codegen.join(lowered, library.target.tvm, parts)
    except codegen.KernelFault as fault:
        raise kernel_fault(library.name, fault) from None


def compile_kernels(
    run: Run, libraries: Sequence[Any], compiled: Mapping[str, Any]
) -> tuple[dict[str, dict[str, bytes]], float]:
    """Library for GPUs -> member -> its kernels, compiled for each of its architectures, and the seconds it took."""
    from schedules import cubin

    wanted = [(to.name, device, arch) for to in libraries for device in compiled[to.name].devices for arch in to.archs]
    made: dict[str, dict[str, bytes]] = {to.name: {} for to in libraries if to.archs}
    done = run(compile_kernel, [(device.source, arch, device.kernels) for _, device, arch in wanted])
    for (name, device, arch), (data, _) in zip(wanted, done, strict=True):
        made[name][kernel_member(device.key, arch)] = data
    if wanted:
        cubin.prune()
    return made, sum(seconds for _, seconds in done)


MOST_JOBS = 8  # processes, where nobody says how many: each takes some 300 MB
WORTH_IT = 100  # values in a plan's graphs, from which on a second process saves more than it takes to start
Run = Callable[[Callable[..., Any], Sequence[Any]], list[Any]]  # a function, and a list of its arguments


def cores() -> int:
    """That this process may use, as a run counts them."""
    from artifacts.cores import available

    return available()


@contextlib.contextmanager
def compilers(plan: Plan, jobs: int | None) -> Iterator[Run]:
    """What calls a function for a list of its arguments: here, or in processes, whose server loads the compiler while
    this one lowers. The answers are the same."""
    count = jobs or min(cores(), MOST_JOBS)
    if count == 1 or sum(len(p.graph.values()) for p in plan.phases) < WORTH_IT:
        yield lambda call, all_jobs: [call(*job) for job in all_jobs]
        return
    from lowering.workers import Workers

    with Workers(count, ("lowering.codegen", "schedules", __name__)) as workers:
        yield workers.map


def compile_part(part: str, name: str, dump: str | None, records: Any = None) -> Any:
    """Some kernels for the target ``name``, those with ``records`` by these, in whatever process: lowering's Part."""
    import attrs

    import schedules
    import schedules.gpu.audit
    from lowering import codegen, elementary

    target = attrs.evolve(schedules.TARGETS[name], functions=elementary.STEPS)
    target = tuning.replaying(target, records)

    def choose(func: Any, _: Any) -> Any:
        interrupt.check()
        return schedules.first(func, target)

    def audit(func: Any) -> list[Any]:
        return [launch.data for launch in schedules.gpu.audit.audit(func)]

    return codegen.compile_part(part, target.tvm, choose, dump, audit if target.gpu is not None else None)


def compile_kernel(source: str, arch: str, names: tuple[str, ...]) -> tuple[bytes, float]:
    """The kernels of a CUDA text, in whatever process, and the seconds it took."""
    from schedules import cubin

    interrupt.check()
    started = time.process_time()
    return cubin.kernels(source, arch, names), time.process_time() - started


def report_text(plan: Plan, made: Made, targets: Sequence[Any], memory: Memory) -> str:
    """report.txt: the plan, then what was made of it."""
    from .explain import explain
    from .lowering_report import lowering_text

    return explain(plan) + "\n" + lowering_text(plan, made, rates_of(targets), memory)


def signatures(plan: Plan, lowered: Any, targets: Sequence[Any]) -> dict[str, str]:
    """Library -> what it carries, for the runner to compare with the manifest."""
    from artifacts import signature

    manifest = make_manifest(plan, lowered, targets, {})
    return {target.name: signature.of(manifest, target) for target in manifest.targets}


def make_manifest(plan: Plan, lowered: Any, targets: Sequence[Any], data: dict[str, dict[str, bytes]]) -> Any:
    """artifacts.manifest.Manifest, but for the list of files, which the writer makes."""
    import schedules
    from artifacts import manifest as m

    tvm, ffi, zig = map(version, ("apache-tvm", "apache-tvm-ffi", "ziglang"))
    tools = m.Toolchain(__version__, tvm, ffi, f"ld.lld of ziglang {zig}")
    return manifest_records.manifest(m, plan, tools, lowered.in_place, schedules.libraries(tuple(targets)), data)


def run_memory(plan: Plan, made: Made) -> Memory:
    """The memory plan of what was compiled: that of the target that needs the most."""
    from artifacts.rehearsal import rehearse

    manifest, constants = make_manifest(plan, made.lowered, (), {}), made.lowered.constants
    taken = [
        rehearse(manifest, asked(plan, compiled), constants, made.graphs if name in made.kernels else None)
        for name, compiled in made.compiled.items()
    ]
    return measured(plan, made.inside, max(t.device for t in taken), max(t.thread for t in taken))


def asked_of(manifest: Any) -> dict[str, int]:
    """Bytes that a runner asks of its machine, with one thread, by "", and of a card, by the name of its library."""
    from artifacts import cuda
    from artifacts.memory import OVERHEAD, wanted

    cards = {t.name: cuda.wanted(manifest, t) for t in manifest.targets if t.device == "cuda"}
    return {"": wanted(manifest, 1).total + OVERHEAD, **cards}


def asked(plan: Plan, compiled: Any) -> dict[str, Any]:
    """Phase -> artifacts.rehearsal.Asked of its function."""
    from artifacts.rehearsal import Asked

    def one(call: Any) -> Asked:
        kernels = (compiled.workspaces[name] for name in call.kernels)
        return Asked(call.blocks, tuple((w.own, w.task) for w in kernels))

    return {p.name: one(compiled.lowered.planned[p.function]) for p in plan.phases}


def inspect(path: str, form: str) -> str:
    from artifacts import describe, tarball

    artifact = tarball.open(path)
    return line(describe.to_json(artifact)) if form == "json" else describe.describe(artifact)


def verify(path: str) -> str:
    """The hash of an artifact whose every byte is as its manifest says, and whose libraries are of that manifest."""
    from artifacts import signature, tarball

    with tarball.open(path) as artifact:
        artifact.verify()
        for target in artifact.manifest.targets:
            signature.checked(artifact, target)
        return artifact.hash


def diff(path: str, other: str) -> str:
    """The differences of two artifacts in words, a line each, or ""."""
    from artifacts import describe, tarball

    return describe.diff(tarball.open(path), tarball.open(other)) or ""
