"""The driver: the one module that joins the language, the lowering, the schedules and the artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..phases.identity import document
from ..phases.plan import Plan
from ..planning.memory_plan import Memory, check_room, estimate, measured
from ..reports.output import line
from . import interrupt
from . import manifest as manifest_records
from . import tuning_records as tuning
from .archive_members import data_members, source_members
from .compile import Made, asked_of, compile_plan, make_manifest
from .manifest import library_member
from .options import BuildOptions
from .targets import find_targets, rates_of, runtime_members


def build(plan: Plan, options: BuildOptions) -> dict[str, Any]:
    """Plan to artifact at ``options.output``; what was made, for the command line to print."""
    from artifacts.base.clock import Clock

    with Clock(ticks=True) as clock:
        return _build(plan, options, clock)


def _build(plan: Plan, options: BuildOptions, clock: Any) -> dict[str, Any]:
    started = clock.now()
    targets = find_targets(options.target)
    from artifacts.format import tar_writer

    tar_writer.check_output(options.output, options.force, [options.file])
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
    digest = tar_writer.write(options.output, manifest, members, options.force, [options.file])
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


def report_text(plan: Plan, made: Made, targets: Sequence[Any], memory: Memory) -> str:
    """report.txt: the plan, then what was made of it."""
    from ..reports.explain import explain
    from .report import lowering_text

    return explain(plan) + "\n" + lowering_text(plan, made, rates_of(targets), memory)


def run_memory(plan: Plan, made: Made) -> Memory:
    """The memory plan of what was compiled: that of the target that needs the most."""
    from artifacts.loop.memory_simulation import simulate

    manifest, constants = make_manifest(plan, made.lowered, (), {}), made.lowered.constants
    taken = [
        simulate(manifest, asked(plan, compiled), constants, made.graphs if name in made.kernels else None)
        for name, compiled in made.compiled.items()
    ]
    return measured(plan, made.inside, max(t.device for t in taken), max(t.thread for t in taken))


def asked(plan: Plan, compiled: Any) -> dict[str, Any]:
    """Phase -> artifacts.loop.memory_simulation.CallMemory of its function."""
    from artifacts.loop.memory_simulation import CallMemory

    def one(call: Any) -> CallMemory:
        kernels = (compiled.workspaces[name] for name in call.kernels)
        return CallMemory(call.blocks, tuple((w.own, w.task) for w in kernels))

    return {p.name: one(compiled.lowered.planned[p.function]) for p in plan.phases}


def inspect(path: str, form: str) -> str:
    from artifacts import describe
    from artifacts.format import tarball

    artifact = tarball.open(path)
    return line(describe.to_json(artifact)) if form == "json" else describe.describe(artifact)


def verify(path: str) -> str:
    """The hash of an artifact whose every byte is as its manifest says, and whose libraries are of that manifest."""
    from artifacts.format import library_signature, tarball

    with tarball.open(path) as artifact:
        artifact.verify()
        for target in artifact.manifest.targets:
            library_signature.checked(artifact, target)
        return artifact.hash


def diff(path: str, other: str) -> str:
    """The differences of two artifacts in words, a line each, or ""."""
    from artifacts import describe
    from artifacts.format import tarball

    return describe.diff(tarball.open(path), tarball.open(other)) or ""
