"""Whole steps of an artifact by the runner's own loop, on the fake GPU, the CPU or the NumPy interpreter: the rows that
its generator makes, and all that the steps report and leave. A process of its own, as it loads the fake driver.

python -m tests.cuda_on_cpu.training_steps ARTIFACT DATA OUT.npz cuda|plain|cpu|numpy

``plain`` is cuda without graphs; ``numpy`` interprets DATA/main.sx, with each phase in f64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from artifacts.device.cpu import CpuDevice
from artifacts.device.cuda import CudaDevice
from artifacts.device.interface import Device
from artifacts.format import tarball
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.plan import Plan
from sexpgpu.phases.trace_run import trace_run
from tests.runner_loop import generated, interpreted, steps

STEPS = 4  # the loop's repeats are captured the second time, and replayed from the third on


def plan_of(run: Path) -> Plan:
    report = Report()
    plan = trace_run(load(str(run), report), report)  # type: ignore[arg-type]
    assert plan, report.errors
    return plan


def opened(artifact: tarball.Artifact, kind: str, folder: Path) -> Device:
    if kind == "numpy":
        return interpreted(artifact, plan_of(folder / "main.sx"), wide=True)
    wanted = "cpu" if kind == "cpu" else "cuda"
    target = [t for t in artifact.manifest.targets if t.device == wanted][-1]  # of CPUs, that with the fewest wants
    return CpuDevice(artifact, 2, target.name) if kind == "cpu" else CudaDevice(artifact, target, graphs=kind == "cuda")


def main() -> None:
    path, data, out, kind = sys.argv[1:]
    with tarball.open(path) as artifact:
        folder = Path(data)
        device = opened(artifact, kind, folder)
        rows = {f"generated {n}": row for n, row in enumerate(generated(artifact, device, folder))}
        found = rows | steps(artifact, device, folder, STEPS)
    plain = {k: v.view("uint16") if v.dtype.kind == "V" else v for k, v in found.items()}  # NumPy has no bfloat16
    np.savez(out, allow_pickle=False, **plain)


if __name__ == "__main__":
    main()
