"""A plan compiled for its targets: kernels scheduled and compiled in several processes, and the libraries linked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from attrs import frozen

from surroundings import temporary

from .. import __version__
from ..language import codes
from ..language.diagnostics import UserError
from ..phases.plan import Plan
from . import interrupt
from . import manifest as manifest_records
from . import tuning_records as tuning
from .gpu_report import kernel_fault, kernel_member
from .options import CompileOptions


@frozen
class Made:
    """What the lowering made of a plan.

    lowered:   lowering's Lowered, for all targets
    compiled:  library -> lowering's Compiled; a library's name is its target's, or the level's of its GPUs
    libraries: library -> its bytes
    kernels:   library for GPUs -> member -> the bytes of compiled kernels
    libm:      the C library's functions that they call
    tuning:    library -> what was made of its records (tuning_records.py's Use); empty without --records
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


@temporary.used()
def compile_plan(plan: Plan, targets: Sequence[Any], options: CompileOptions) -> Made:
    """What is common to all targets once, then the kernels for each library, then the libraries."""
    import schedules
    from artifacts.base.clock import Clock

    started, wanted = time.process_time(), schedules.libraries(tuple(targets))
    found = tuning.found([to.name for to in wanted], options)
    with compilers(plan, options.jobs) as run:
        from lowering import emit, pipeline
        from lowering.codegen import objects
        from lowering.link import shared_library

        pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
        lowered = pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs, options.dump)
        interrupt.check()
        spent = {"lower": time.process_time() - started}
        parts = objects.parts(lowered)
        uses = tuning.matched(found, lowered.programs, options.require_tuned)
        done = run(compile_part, tuning.jobs(parts, [to.name for to in wanted], uses, options.dump))
        of = {to.name: done[n * len(parts) : (n + 1) * len(parts)] for n, to in enumerate(wanted)}
        compiled = {to.name: joined(lowered, to, of[to.name]) for to in wanted}
        kernels, spent["kernels"] = compile_kernels(run, wanted, compiled)
    spent |= {what: sum(part.seconds[what] for part in done) for what in ("schedule", "compile")}
    tuning.check_fit(uses, compiled)
    with Clock() as clock:
        began, signed = clock.now(), signatures(plan, lowered, targets)
        libraries = {
            to.name: shared_library.library(compiled[to.name], to.target.machine, signed[to.name]) for to in wanted
        }
        spent["link"] = clock.now() - began
    libm = sorted({function for library in libraries.values() for function in shared_library.libm(library)})
    made = Made(lowered, compiled, libraries, kernels, tuple(libm), uses, options.graphs == "auto", spent)
    if made.unscheduled and options.strict_schedules:
        raise UserError(codes.TARGET_SCHEDULE, None, f"no schedule rule took {', '.join(made.unscheduled)}")
    return made


def joined(lowered: Any, library: Any, parts: Sequence[Any]) -> Any:
    """lowering's Compiled; E-TARGET where its kernels would not run on the library's GPUs, or wrongly."""
    from lowering.codegen import objects

    try:
        return objects.join(lowered, library.target.tvm, parts)
    except objects.KernelFault as fault:
        raise kernel_fault(library.name, fault) from None


def compile_kernels(
    run: Run, libraries: Sequence[Any], compiled: Mapping[str, Any]
) -> tuple[dict[str, dict[str, bytes]], float]:
    """Library for GPUs -> member -> its kernels, compiled for each of its architectures, and the seconds it took."""
    from schedules.cuda import cubin

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
    from artifacts.device.threads import available

    return available()


@contextlib.contextmanager
def compilers(plan: Plan, jobs: int | None) -> Iterator[Run]:
    """What calls a function for a list of its arguments: here, or in processes, whose server loads the compiler while
    this one lowers. The answers are the same."""
    count = jobs or min(cores(), MOST_JOBS)
    if count == 1 or sum(len(p.graph.values()) for p in plan.phases) < WORTH_IT:
        yield lambda call, all_jobs: [call(*job) for job in all_jobs]
        return
    from lowering.codegen.workers import Workers

    with Workers(count, ("lowering.codegen.objects", "schedules", __name__)) as workers:
        yield workers.map


def compile_part(part: str, name: str, dump: str | None, records: Any = None) -> Any:
    """Some kernels for the target ``name``, those with ``records`` by these, in whatever process: lowering's Part."""
    import attrs

    import schedules
    from lowering.codegen import objects
    from lowering.math import elementary
    from schedules.gpu.audit import launch_audit

    target = attrs.evolve(schedules.TARGETS[name], functions=elementary.STEPS)
    target = tuning.replaying(target, records)

    def choose(func: Any, _: Any) -> Any:
        interrupt.check()
        return schedules.first(func, target)

    def audit(func: Any) -> list[Any]:
        return [launch.data for launch in launch_audit.audit(func)]

    return objects.compile_part(part, target.tvm, choose, dump, audit if target.gpu is not None else None)


def compile_kernel(source: str, arch: str, names: tuple[str, ...]) -> tuple[bytes, float]:
    """The kernels of a CUDA text, in whatever process, and the seconds it took."""
    from schedules.cuda import cubin

    interrupt.check()
    started = time.process_time()
    return cubin.kernels(source, arch, names), time.process_time() - started


def signatures(plan: Plan, lowered: Any, targets: Sequence[Any]) -> dict[str, str]:
    """Library -> what it carries, for the runner to compare with the manifest."""
    from artifacts.format import library_signature

    manifest = make_manifest(plan, lowered, targets, {})
    return {target.name: library_signature.of(manifest, target) for target in manifest.targets}


def make_manifest(plan: Plan, lowered: Any, targets: Sequence[Any], data: dict[str, dict[str, bytes]]) -> Any:
    """artifacts.manifest.Manifest, but for the list of files, which the writer makes."""
    import schedules
    from artifacts.format import manifest as m

    tvm, ffi, zig = map(version, ("apache-tvm", "apache-tvm-ffi", "ziglang"))
    tools = m.Toolchain(__version__, tvm, ffi, f"ld.lld of ziglang {zig}")
    return manifest_records.manifest(m, plan, tools, lowered.in_place, schedules.libraries(tuple(targets)), data)


def asked_of(manifest: Any) -> dict[str, int]:
    """Bytes that a runner asks of its machine, with one thread, by "", and of a card, by the name of its library."""
    from artifacts.device import cuda
    from artifacts.device.memory_check import OVERHEAD, wanted

    cards = {t.name: cuda.wanted(manifest, t) for t in manifest.targets if t.device == "cuda"}
    return {"": wanted(manifest, 1).total + OVERHEAD, **cards}
