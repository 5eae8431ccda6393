"""Whole steps of an artifact by the runner's own loop, on the fake GPU or the CPU: the rows that its generator makes,
and all that the steps report and leave. A process of its own, as it loads the fake driver.

python -m tests.cuda_on_cpu.whole ARTIFACT DATA OUT.npz cuda|plain|cpu: ``plain`` is cuda without graphs
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from attrs import evolve

from artifacts import tarball
from artifacts.cpu import CpuDevice
from artifacts.cuda import CudaDevice
from artifacts.device import Device
from tests.loops import loop_of
from tests.test_oracle import generated

STEPS = 4  # the loop's repeats are captured the second time, and replayed from the third on


def opened(artifact: tarball.Artifact, kind: str) -> Device:
    targets = artifact.manifest.targets
    target = next(t for t in targets if t.device == ("cpu" if kind == "cpu" else "cuda"))
    return CpuDevice(artifact, 2, target.name) if kind == "cpu" else CudaDevice(artifact, target, graphs=kind == "cuda")


def steps(artifact: tarball.Artifact, device: Device, folder: Path) -> dict[str, np.ndarray]:
    """What STEPS steps and a batch of the passes after them report, the last gradients, parameters and state."""
    manifest = artifact.manifest
    with loop_of(artifact, device, folder) as (loop, _):
        now, out = loop.initial(), {}
        for n in range(STEPS):
            result = loop.step(now)
            reports = {"loss": result.loss, "norm": result.grad_norm, **result.metrics, **now.cursor.counters}
            out |= {f"{n} {name}": np.array(value) for name, value in reports.items()}
            out |= {f"{n} {name}": np.array(device.numpy(tensor)) for name, tensor in result.diagnostics.items()}
        out |= {f"gradient {name}": np.array(device.numpy(tensor)) for name, tensor in loop._gradients.items()}
        for p in manifest.step.passes:
            held = loop.evaluate(now, evolve(p, batches=1))
            out |= {f"{p.name} {name}": np.array(value) for name, value in {"loss": held.loss, **held.metrics}.items()}
    for kind, tensors in zip(("param", "optimizer"), loop.arrays(now), strict=True):
        out |= {f"{kind} {name}": np.array(value) for name, value in tensors.items()}
    return out


def main() -> None:
    path, data, out, kind = sys.argv[1:]
    with tarball.open(path) as artifact:
        device = opened(artifact, kind)
        rows = {f"generated {n}": row for n, row in enumerate(generated(artifact, device, Path(data)))}
        found = rows | steps(artifact, device, Path(data))
    plain = {k: v.view("uint16") if v.dtype.kind == "V" else v for k, v in found.items()}  # NumPy has no bfloat16
    np.savez(out, allow_pickle=False, **plain)


if __name__ == "__main__":
    main()
