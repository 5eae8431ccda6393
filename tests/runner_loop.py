"""An artifact's run as the runner's own loop, for tests that look at what a step makes and leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve

from artifacts.data.loaders import Training, open_records
from artifacts.device.interface import Device, HostDevice
from artifacts.format import tarball
from artifacts.loop.step import Loop
from sexpgpu.graph.interpreter import run
from sexpgpu.phases.plan import Plan
from sexpgpu.planning.microbatch_stacking import stacked


class RecordingLoop(Loop):
    """A loop that shows the gradients of its last step, of one microbatch too, which nothing sums. They are copies: a
    tensor that is held would be memory that a run does not take."""

    gradients: dict[str, np.ndarray]

    def _keep(self, gradients: dict[str, Any]) -> None:
        self.gradients = {name: np.array(self.device.numpy(tensor)) for name, tensor in gradients.items()}
        super()._keep(gradients)


@contextmanager
def loop_of(artifact: tarball.Artifact, device: Device, folder: Path) -> Iterator[tuple[RecordingLoop, Training]]:
    """The loop on ``device`` with the data that lie in ``folder``, and its training data."""
    manifest = artifact.manifest
    records = {n: open_records(manifest.loader(n), str(folder), artifact) for n in manifest.loaders_used()}
    training = Training(manifest, records)
    try:
        yield RecordingLoop(manifest, device, training, records, lambda: None), training
    finally:
        training.close()


def interpreted(artifact: tarball.Artifact, plan: Plan, wide: bool = False) -> Device:
    """The interpreter as the artifact's device. ``wide``: a phase computes in f64, and rounds what it hands on."""
    phases = stacked(plan, artifact.manifest.degree).phases
    functions = {p.name: (lambda *inputs, graph=p.graph: run(graph, inputs, wide)) for p in phases}
    return HostDevice(artifact.manifest, functions)


def generated(artifact: tarball.Artifact, device: Device, folder: Path) -> list[np.ndarray]:
    """All that the generator makes from its first batch."""
    manifest = artifact.manifest
    name = manifest.training_loaders()[0]
    with loop_of(artifact, device, folder) as (loop, training):
        now = loop.initial()
        env = loop._env(now, now.cursor.ctx(0, 0), dict(now.cursor.counters))
        loop._add_fields(env, training.next(name, 0, lambda: None))
        loop._generate(env)
    return [np.array(device.numpy(env["generated", n])) for n in manifest.step.generated]


def steps(
    artifact: tarball.Artifact, device: Device, folder: Path, count: int, batches: int = 1
) -> dict[str, np.ndarray]:
    """All that ``count`` steps, and ``batches`` batches of each pass after them, make: reports, counters and
    diagnostics by step, the last gradients, and the parameters and the optimizer's entries that are left."""
    manifest = artifact.manifest
    with loop_of(artifact, device, folder) as (loop, _):
        now, out = loop.initial(), {}
        for n in range(count):
            result = loop.step(now)
            reports = {"loss": result.loss, "norm": result.grad_norm, "rate": result.rate, **result.metrics}
            reports = {**reports, **now.cursor.counters}
            out |= {f"{n} {name}": np.array(value) for name, value in reports.items() if value is not None}
            out |= {f"{n} {name}": np.array(device.numpy(tensor)) for name, tensor in result.diagnostics.items()}
        out |= {f"gradient {name}": value for name, value in loop.gradients.items()}
        for p in manifest.step.passes:
            held = loop.evaluate(now, evolve(p, batches=batches))
            out |= {f"{p.name} {name}": np.array(value) for name, value in {"loss": held.loss, **held.metrics}.items()}
    for kind, tensors in zip(("param", "optimizer"), loop.arrays(now), strict=True):
        out |= {f"{kind} {name}": np.array(value) for name, value in tensors.items()}
    return out
