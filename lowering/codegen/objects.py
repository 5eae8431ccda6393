"""Compiles tensor programs to object code for one target, a part at a time.

Parts may be compiled in any process and in any order; the bytes are the same.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from attrs import frozen
from tvm import tirx
from tvm_ffi.serialization import from_json_graph_str

from .. import pipeline
from ..math import elementary
from ..passes import flatten_buffer, fma_contraction
from ..passes.apply_schedules import Kernel, Scheduler, schedule
from ..passes.buffer_donation import Pair
from ..passes.memory_usage import MIN_HEAP_BYTES, Workspace, Workspaces
from ..pipeline import Lowered
from . import cuda_source as device
from .cuda_source import Device
from .temp_space import require_free_space

# disable_cse_tir: TVM's common subexpression elimination binds vectors of bool, which its own analyzer then refuses;
# LLVM eliminates common subexpressions anyway. disable_assert: each kernel would check the shapes of all its arguments,
# which is most of the code; a phase's arguments fit by the manifest (artifacts/format/manifest_checks.py).
CONFIG = {"tirx.disable_cse_tir": True, "tirx.disable_assert": True}
# Few enough that the parts load all processes evenly, enough that the fixed cost of an object is small beside them.
# No measurement on record; it changes no code, only how it is cut into objects.
KERNELS_PER_OBJECT = 8


class KernelFault(RuntimeError):
    """Kernels that would not run on the target's GPU, or would compute wrong results.

    ``unbound``: programs that no rule bound to threads, and the failures of the rules that tried;
    ``bool_vectors``: kernels with vector accesses to bool arrays
    """

    def __init__(self, unbound: Mapping[str, Sequence[str]], bool_vectors: Sequence[str]) -> None:
        self.unbound, self.bool_vectors = dict(unbound), tuple(bool_vectors)
        super().__init__(f"not bound to threads: {self.unbound}; bool by vectors: {self.bool_vectors}")


@frozen
class Part:
    """Some compiled kernels for one target.

    object:     their object file; for a GPU it launches them
    outcomes:   program -> (rule, failures)
    workspaces: program -> its workspace
    seconds:    processor time by kind of work
    device:     for a GPU, the kernels themselves
    unbound:    programs that no rule bound to threads; if there are any, nothing was compiled
    launches:   program -> the audit's figures of each launch
    """

    object: bytes
    outcomes: Mapping[str, tuple[str, tuple[str, ...]]]
    workspaces: Mapping[str, Workspace]
    seconds: Mapping[str, float]
    device: Device | None = None
    unbound: tuple[str, ...] = ()
    launches: Mapping[str, tuple[Mapping[str, Any], ...]] = {}


@frozen
class Compiled:
    """The code for one target, and its records for the build.

    lowered:    the functions and programs that it was compiled from
    workspaces: program -> its workspace
    kernels:    one row for each compiled tensor program, by name
    devices:    for a GPU: the CUDA text of each part
    """

    target: tvm.target.Target
    lowered: Lowered
    objects: tuple[bytes, ...]
    workspaces: Mapping[str, Workspace]
    kernels: tuple[Kernel, ...]
    devices: tuple[Device, ...] = ()

    @property
    def host(self) -> Any:
        """The tvm.target.Target of the library's own code."""
        return self.target if self.target.host is None else self.target.host

    @property
    def in_place(self) -> Mapping[str, tuple[Pair, ...]]:
        return self.lowered.in_place

    @property
    def memory(self) -> dict[str, int]:
        """Function -> bytes of a call beyond its inputs: planned intermediates, outputs, and the largest workspace of a
        kernel on one thread."""
        return {
            name: call.bytes + max((self.workspaces[k].bytes for k in call.kernels), default=0)
            for name, call in sorted(self.lowered.planned.items())
        }


def parts(lowered: Lowered) -> tuple[str, ...]:
    """The programs in parts, as TVM's JSON. Programs with neighbouring names take about the same time to compile, so
    they go to different parts."""
    programs = lowered.programs
    names = list(programs)
    count = max(1, -(-len(names) // KERNELS_PER_OBJECT))
    return tuple(tvm.ir.save_json(tvm.IRModule({n: programs[n] for n in names[i::count]})) for i in range(count))


def hosted(target: Any) -> tvm.target.Target:
    """The target with itself as the host, so that the building machine never is."""
    as_target = tvm.target.Target(dict(target)) if isinstance(target, Mapping) else target
    return as_target if as_target.host is not None else as_target.with_host(as_target)


Audit = Callable[[tirx.PrimFunc], Sequence[Mapping[str, Any]]]
Outcomes = dict[str, tuple[str, tuple[str, ...]]]  # program -> the rule that took it, and failures of rules before it


def compile_part(
    part: str, target: Any, scheduler: Scheduler, dump: str | None = None, audit: Audit | None = None
) -> Part:
    """Schedule and compile ``part``, one of ``parts``.

    target:    a tvm.target.Target or the dictionary of one
    scheduler: asked once for each program, see passes/apply_schedules.py
    dump:      a folder that gets each program as it was scheduled, and the CUDA text
    audit:     asked once for each scheduled program of a GPU, for the report
    """
    started = time.process_time()
    elementary.install()
    target = hosted(target)
    module: Any = from_json_graph_str(part)  # load_json would first rewrite it for older versions
    with target, tvm.transform.PassContext(config=CONFIG):
        module, outcomes = schedule(module, target, scheduler)
        if dump is not None:
            _write(module, Path(dump))
        scheduled = time.process_time()
        unbound = device.unbound(module) if target.kind.name == "cuda" else ()
        launches = _run_audit(module, audit, outcomes) if audit is not None and not unbound else {}
    workspaces = Workspaces(1 if target.kind.name == "cuda" else MIN_HEAP_BYTES)
    with target, tvm.transform.PassContext(config=CONFIG, instruments=[workspaces]):
        data, kernels = (b"", None) if unbound else _build(module, target)
    if dump is not None and kernels is not None:
        (Path(dump) / f"{kernels.key}.cu").write_text(kernels.source, encoding="utf-8")
    seconds = {"schedule": scheduled - started, "compile": time.process_time() - scheduled}
    return Part(data, outcomes, workspaces.by_program, seconds, kernels, unbound, launches)


def _run_audit(module: tvm.IRModule, audit: Audit, outcomes: Outcomes) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Program -> the figures of ``audit``. A failure is added to ``outcomes``: a report may lack a line, a build goes
    on."""
    launches = {}
    for gv, func in module.functions_items():
        try:
            launches[gv.name_hint] = tuple(audit(func))
        except Exception as error:  # noqa: BLE001  (any failure of the audit)
            rule, failures = outcomes[gv.name_hint]
            failure = f"audit: {type(error).__name__}: {' '.join(str(error).split())[-200:]}"
            outcomes[gv.name_hint] = rule, (*failures, failure)
    return launches


def prepare_for_codegen(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Scheduled programs in the form that TVM may compile: in SSA form, since fusion and schedules copy a program's
    body together with its let variables, and with FMA contraction made explicit. Also installs our pass in TVM's
    pipelines (flatten_buffer.py)."""
    flatten_buffer.install()
    return fma_contraction.explicit(tirx.transform.ConvertSSA()(module), target)


def _build(module: tvm.IRModule, target: tvm.target.Target) -> tuple[bytes, Device | None]:
    """The object of scheduled programs, and the GPU kernels that it launches."""
    with device.as_text():
        built = tirx.build(prepare_for_codegen(module, target), target=target)
    return _object(built), device.device(built)


def _object(module: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        require_free_space(folder)
        path = Path(folder) / "part.o"
        module.write_to_file(str(path), "o")
        return path.read_bytes()


def _write(module: tvm.IRModule, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for gv, func in module.functions_items():
        (folder / f"{gv.name_hint[:200]}.py").write_text(func.script(show_meta=True), encoding="utf-8")


def join(lowered: Lowered, target: Any, parts: Sequence[Part]) -> Compiled:
    """The compiled ``parts`` of ``lowered`` for ``target`` together, in the order of ``parts``. Raises KernelFault."""
    devices = tuple(part.device for part in parts if part.device is not None)
    unbound = {name: part.outcomes[name][1] for part in parts for name in part.unbound}
    vectors = sorted(name for device_module in devices for name in device.bool_vectors(device_module.source))
    if unbound or vectors:
        raise KernelFault(unbound, vectors)
    outcomes = {name: outcome for part in parts for name, outcome in part.outcomes.items()}
    workspaces = {name: workspace for part in parts for name, workspace in part.workspaces.items()}
    launches = {name: audited for part in parts for name, audited in part.launches.items()}
    kernels = tuple(
        Kernel(
            name,
            rule,
            failures,
            dict(sorted(lowered.calls.get(name, {}).items())),
            workspaces[name].bytes,
            launches.get(name, ()),
        )
        for name, (rule, failures) in sorted(outcomes.items())
    )
    return Compiled(hosted(target), lowered, tuple(part.object for part in parts), workspaces, kernels, devices)


def compile(
    module: tvm.IRModule,
    target: Any,
    scheduler: Scheduler,
    in_place: Mapping[str, Sequence[Pair]] | None = None,
    dump: Path | str | None = None,
) -> Compiled:
    """Lowers, schedules and compiles ``module`` for one target, in this process."""
    lowered = pipeline.lower(module, in_place, dump)
    return join(lowered, target, [compile_part(part, target, scheduler) for part in parts(lowered)])
