"""What a build made for GPUs: its compiled kernels, and what each launch asks of the GPU.

``made`` is compile.Made throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..language import codes
from ..language.diagnostics import UserError
from ..phases.plan import Plan
from ..planning import cost_model
from ..reports.explain import table

SHOWN = 40  # launches that the report names
HEAD = ["moves the most", "blocks", "threads", "shared B", "turns", "stride", "moved MiB", "Mflop"]
GRAPHS, NO_GRAPHS = "a CUDA graph each", "one by one: no CUDA graphs, by --graphs off"
NAME = 38  # columns for a launch's name


def kernel_member(key: str, arch: str) -> str:
    """The kernels of one CUDA text, which is what the runner is asked for by ``key``."""
    return f"kernels/{key}.{arch}.{'ptx' if arch.startswith('compute_') else 'cubin'}"


def kernel_fault(library: str, fault: Any) -> UserError:
    """What lowering's KernelFault says to the user."""
    if fault.unbound:
        named = [f"{k} ({'; '.join(why)})" if why else k for k, why in fault.unbound.items()]
        what = f"no schedule rule of {library} bound to threads: {', '.join(named)}"
        return UserError(codes.TARGET_UNBOUND, None, what)
    return UserError(codes.TARGET_BOOL, None, f"{', '.join(fault.bool_vectors)} for {library}: bool by vectors")


def data(plan: Plan, made: Any) -> dict[str, Any]:
    """Library -> its CUDA texts, their kernels and bytes, bytes of what these were compiled to, launches of a step
    and calls of phases, each the launch of a CUDA graph if ``graphs``; the same phase by phase."""
    calls = {p.name: n for p in plan.phases if (n := calls_of(plan)[p.function])}
    found = {}
    for library, of in made.kernels.items():
        launches = launches_of(plan, made.compiled[library])
        found[library] = {
            **of_library(made.compiled[library].devices, of),
            "launches": sum(n * launches[name] for name, n in calls.items()),
            "calls": sum(calls.values()),
            "graphs": made.graphs,
            "phases": {name: {"calls": n, "launches": launches[name]} for name, n in calls.items()},
        }
    return found


def calls_of(plan: Plan) -> dict[str, int]:
    """Function -> calls of it in a training step."""
    return {p.function: cost_model.calls(p, plan.phases, plan.settings, plan.trips) for p in plan.phases}


def launches_of(plan: Plan, compiled: Any) -> dict[str, int]:
    """Phase -> launches of a call."""
    of = {p.function: 0 for p in plan.phases}
    for kernel in compiled.kernels:
        for function, n in kernel.calls.items():
            of[function] += n * len(kernel.launches)
    return {p.name: of[p.function] for p in plan.phases}


def of_library(devices: Any, members: Mapping[str, bytes]) -> dict[str, Any]:
    """Counts of one library: CUDA texts, kernels, bytes of the texts, and of what they became by architecture."""
    sizes: dict[str, int] = {}
    for member, content in members.items():
        arch = member.split(".")[1]
        sizes[arch] = sizes.get(arch, 0) + len(content)
    return {
        "texts": len(devices),
        "kernels": sum(len(d.kernels) for d in devices),
        "source": sum(len(d.source) for d in devices),
        "bytes": sizes,
    }


def launches(compiled: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, launch) of all kernels, those that move the most first."""
    found = [
        (short(k.kernel, f" {n + 1}/{len(k.launches)}" if len(k.launches) > 1 else ""), launch)
        for k in compiled.kernels
        for n, launch in enumerate(k.launches)
    ]
    return sorted(found, key=lambda item: (-item[1]["bytes"], item[0]))


def short(kernel: str, place: str) -> str:
    """A kernel's name in NAME columns, with the place of a launch among its launches."""
    most = NAME - len(place)
    return (kernel if len(kernel) <= most else kernel[: most - 3] + "...") + place


def lines(plan: Plan, made: Any) -> list[str]:
    """Nothing where all libraries are for CPUs."""
    return [line for library, of in data(plan, made).items() for line in library_lines(made, library, of)]


def library_lines(made: Any, library: str, of: Mapping[str, Any]) -> list[str]:
    """The report's part about one library; ``of``: its entry in ``data``."""
    sizes = ", ".join(f"{arch} {size:,} bytes" for arch, size in of["bytes"].items())
    found = launches(made.compiled[library])
    faults = [f"{name}: {fault}" for name, launch in found for fault in launch["faults"]]
    return [
        "",
        f"{library}: {of['kernels']} kernels of {of['texts']} CUDA texts ({of['source']:,} bytes), made ahead of time",
        f"  {sizes}",
        f"  {of['launches']} launches a step in {of['calls']} calls, {GRAPHS if of['graphs'] else NO_GRAPHS}",
        *(f"    {name:20} {words(phase)}" for name, phase in of["phases"].items()),
        *table([HEAD, *(cells(name, launch) for name, launch in found[:SHOWN])]),
        *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []),
        *faults,
    ]


def words(phase: Mapping[str, int]) -> str:
    """``6 calls of 27 launches``."""
    calls, launches = phase["calls"], phase["launches"]
    return f"{calls} call{'s' * (calls != 1)} of {launches} launch{'es' * (launches != 1)}"


def cells(name: str, launch: Mapping[str, Any]) -> list[str]:
    """``stride``: elements between neighbouring threads in the largest operand, ? where data say it."""
    strides = [stride for _, stride in launch["operands"].values()]
    stride = "" if not strides else "?" if strides[0] is None else str(strides[0])
    counts = [str(launch[key]) for key in ("blocks", "threads", "shared", "serial")]
    return [name, *counts, stride, f"{launch['bytes'] / 2**20:.2f}", f"{launch['flops'] / 1e6:.2f}"]
