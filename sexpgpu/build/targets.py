"""The targets of a build: what is asked for by name, what a build for it needs, and its rates."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attrs import asdict

from ..language import codes
from ..language.diagnostics import UserError
from ..planning.cost_model import Rates
from ..reports.targets import default_row, row, unknown
from .manifest import CUDA_RUNTIME, RUNTIME


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
    from schedules.cuda import nvrtc

    gpus = [t.name for t in targets if t.gpu is not None]
    lacking = nvrtc.missing_package() if gpus else None
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
    """``sexpgpu targets`` as data; see reports/targets.py."""
    need_extra()
    from schedules import TARGETS, default
    from schedules.cuda import nvrtc

    lacking = nvrtc.missing_package()
    return {"cpu": default_row(default()), **{name: row(t, lacking) for name, t in TARGETS.items()}}


def rates_of(targets: Sequence[Any]) -> dict[str, Rates]:
    """Name -> what the cost model reckons with for each of the schedules' targets."""
    return {t.name: Rates(**asdict(t.rates)) for t in targets}


def rates_named(names: str, compiles: bool = True) -> dict[str, Rates]:
    """Those of the targets of ``--target``; see find_targets."""
    return rates_of(find_targets(names, compiles))


def runtime_members(targets: Sequence[Any], given: str | None) -> dict[str, bytes]:
    """The runtime that the artifact will hold, E-TARGET if it is not that of the targets' machine."""
    from lowering.link import shared_library

    machine, on_gpu = targets[0].machine, any(t.gpu is not None for t in targets)
    try:
        of_cuda = shared_library.CUDA_RUNTIME
        more = {CUDA_RUNTIME: shared_library.runtime_library(machine, given, of_cuda)} if on_gpu else {}
        return {RUNTIME: shared_library.runtime_library(machine, given), **more}
    except shared_library.RuntimeFault as fault:
        raise UserError(codes.TARGET_RUNTIME, None, str(fault)) from None
