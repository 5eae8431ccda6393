"""The driver: the one module that joins the language, the lowering, the schedules and the artifact."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attrs import frozen

from . import __version__, codes, interrupt
from .diagnostics import UserError
from .members import data_members, source_members
from .phases import Phase, Plan, Port
from .settings import Loader


def build(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Plan to artifact at ``options.output``; what was made, for the command line to print."""
    started = time.monotonic()
    target = find_target(options.target)
    from artifacts import tarball

    tarball.check_output(options.output, options.force, [options.file])
    data = data_members(plan)
    made = compile_plan(plan, target, options)
    members = {
        **source_members(plan),
        **{member: content for files in data.values() for member, content in files.items()},
        "code/phases.so": made.library,
        "runtime/libtvm_runtime.so": made.runtime,
        "report.txt": report_text(plan, made, target).encode(),
    }
    manifest = make_manifest(plan, made.compiled, target, data)
    interrupt.check()
    digest = tarball.write(options.output, manifest, members, options.force, [options.file])
    return {
        "hash": digest,
        "target": target.name,
        "kernels": len(made.compiled.kernels),
        "unscheduled": unscheduled(made.compiled),
        "bytes": Path(options.output).stat().st_size,
        "seconds": round(time.monotonic() - started, 1),
    }


def need_extra() -> None:
    """E-ENV-001 where the compiler is not installed."""
    for package in ("apache-tvm", "ziglang"):
        try:
            version(package)
        except PackageNotFoundError:
            raise UserError(
                codes.ENV_MISSING, None, f"building needs {package}", hint="pip install 'sexpgpu[build]'"
            ) from None


def find_target(name: str | None) -> Any:
    need_extra()
    from schedules import TARGETS, host_default

    if name is not None and name not in TARGETS:
        raise UserError(codes.TARGET_NAME, None, f"there is no target {name}", hint="one of " + " ".join(TARGETS))
    return TARGETS[name] if name else host_default()


def targets() -> dict[str, str]:
    need_extra()
    from schedules import TARGETS

    return {n: f"{t.machine}, needs {' '.join(t.cpu_flags)}" for n, t in TARGETS.items()}


@frozen
class Made:
    """lowering's Compiled, the library's bytes, the runtime library's, and the C library's functions that it calls."""

    compiled: Any
    library: bytes
    runtime: bytes
    libm: tuple[str, ...]


def unscheduled(compiled: Any) -> list[str]:
    """Kernels that no schedule rule took."""
    return sorted(row.kernel for row in compiled.kernels if not row.rule)


def compile_plan(plan: Plan, target: Any, options: argparse.Namespace) -> Made:
    import attrs
    import tvm

    import schedules
    from lowering import elementary, emit, export, pipeline

    try:
        runtime = export.runtime_library(target.machine, options.runtime)
    except export.RuntimeFault as fault:
        raise UserError(codes.TARGET_RUNTIME, None, str(fault)) from None
    module = emit.emit([p.graph for p in plan.phases])
    pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
    aimed = attrs.evolve(target, functions=elementary.STEPS)

    def choose(func: Any, _: Any) -> Any:
        interrupt.check()
        return schedules.first(func, aimed)

    compiled = pipeline.compile(module, tvm.target.Target(dict(target.tvm)), choose, pairs, options.dump)
    missed = unscheduled(compiled)
    if missed and options.strict_schedules:
        raise UserError(codes.TARGET_SCHEDULE, None, f"no schedule rule took {', '.join(missed)}")
    library = export.library(compiled, target.machine)
    return Made(compiled, library, runtime, export.libm(library))


def report_text(plan: Plan, made: Made, target: Any) -> str:
    """report.txt: the plan, then every kernel with the rule that took it and its calls in each phase."""
    from .explain import explain, table

    compiled = made.compiled
    rows: list[tuple[str, ...]] = [("kernel", "rule", "calls")]
    for row in compiled.kernels:
        uses = " ".join(f"{function}:{n}" for function, n in row.calls.items())
        rows.append((clipped(row.kernel), row.rule or "NONE", clipped(uses)))
    lines = [explain(plan), f"lowered for {target.name}: {len(compiled.kernels)} kernels", *table(rows), ""]
    lines += [f"{row.kernel}: {failure}" for row in compiled.kernels for failure in row.failures]
    lines += ["memory a call", *(f"  {name:24} {n / 2**20:10.2f} MiB" for name, n in sorted(compiled.memory.items()))]
    if made.libm:
        lines.append(f"the machine's C library decides the bits of {' '.join(made.libm)}")
    return "\n".join(lines) + "\n"


def clipped(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def make_manifest(plan: Plan, compiled: Any, target: Any, data: dict[str, dict[str, bytes]]) -> Any:
    """artifacts.manifest.Manifest, but for the list of files, which the writer makes."""
    from artifacts import manifest as m

    tools = ("apache-tvm", "apache-tvm-ffi", "ziglang")
    tvm, ffi, zig = map(version, tools)
    return m.Manifest(
        toolchain=m.Toolchain(__version__, tvm, ffi, f"ld.lld of ziglang {zig}"),
        run=run_record(m, plan),
        parameters=tuple(m.Parameter(p.name, p.type.shape, p.type.dtype, p.is_frozen) for p in plan.parameters),
        optimizer=tuple(m.Tensor(e.name, e.type.shape, e.type.dtype) for e in plan.optimizer),
        phases=tuple(phase_record(m, p, compiled) for p in plan.phases),
        step=step_record(m, plan),
        loaders=tuple(loader_record(m, plan, loader, data) for loader in plan.settings.loaders.values()),
        memory=memory_record(m, plan, compiled),
        targets=(m.Target(target.name, "code/phases.so", target.machine, tuple(target.cpu_flags)),),
        runtime=m.Runtime("runtime/libtvm_runtime.so"),
        files=(),
    )


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


def memory_record(m: Any, plan: Plan, compiled: Any) -> Any:
    generator = [p.function for p in plan.phases if p.name.startswith("generate.")]
    return m.Memory(
        sum(p.type.nbytes for p in plan.parameters),
        sum(e.type.nbytes for e in plan.optimizer),
        sum(port.type.nbytes for port in plan.phase("train").outputs if port.kind == "gradient"),
        compiled.memory["train"],
        max((compiled.memory[f] for f in generator), default=0),
    )


def phase_record(m: Any, phase: Phase, compiled: Any) -> Any:
    def port(p: Port) -> Any:
        return m.Port(p.kind, p.name, p.type.shape, p.type.dtype)

    done = tuple(tuple(pair) for pair in compiled.in_place.get(phase.function, ()))
    return m.Phase(
        phase.name,
        phase.function,
        1,
        tuple(map(port, phase.inputs)),
        tuple(map(port, phase.outputs)),
        done,
        compiled.memory[phase.function],
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
