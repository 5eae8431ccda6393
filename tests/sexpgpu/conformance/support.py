"""Runs of the language in NumPy: a run file's phases by the interpreter, under the runner's own loop and options."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
from attrs import frozen

from artifacts import run as runner
from artifacts.data.loaders import Training, open_records
from artifacts.device.interface import HostDevice
from artifacts.format import manifest as m
from artifacts.format import tar_writer, tarball
from artifacts.loop.step import Loop
from sexpgpu.build import manifest as manifest_records
from sexpgpu.graph.interpreter import run
from sexpgpu.phases.identity import document
from sexpgpu.phases.plan import Phase, Plan
from sexpgpu.planning.microbatch_stacking import stack_plan
from tests.artifacts import toy
from tests.support import plan_text

GENERATE = (
    "(defgenerate :trips {trips} :init (lambda (batch ctx) {init}) :step (lambda (state trip ctx) {step}){finish})"
)
TWO = "(defrun r :model m :loader d :seed 1 :steps 2 :microbatches 2)"
PASS = """(defloader e :source "e.npz" :batch {batch} :fields (list :x [3] :f32 :y [] :i32))
(defpass p :loader e :every {every}{own})"""


def generate(
    trips: int | str = 2, init: str = "(list :s (field batch :x))", step: str = "state", finish: str = ""
) -> str:
    """A defgenerate whose lambdas have these bodies."""
    last = f" :finish (lambda (state ctx) {finish})" if finish else ""
    return GENERATE.format(trips=trips, init=init, step=step, finish=last)


def prepare(**entries: str) -> str:
    """A defprepare that gives ``:x`` and ``:y`` of the batch, and these entries."""
    fields = {"x": "(field batch :x)", "y": "(field batch :y)", **entries}
    return f"(defprepare (batch ctx) (list {' '.join(f':{n} {form}' for n, form in fields.items())}))"


def passing(batch: int = 4, every: int = 2, own: str = "") -> str:
    """A loader with the training loader's fields, and a pass over it."""
    return PASS.format(batch=batch, every=every, own=f" {own}" if own else "")


def records(count: int, salt: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(salt)
    return {"x": r.normal(size=(count, 3)).astype("f4"), "y": r.integers(0, 2, count).astype("i4")}


@frozen
class Call:
    """One call of a phase: its arrays by ``kind:name``."""

    phase: str
    given: dict[str, np.ndarray]
    made: dict[str, np.ndarray]


def names(ports: tuple[m.Port, ...]) -> list[str]:
    return [f"{p.kind}:{p.name}" for p in ports]


@frozen(eq=False)
class Case:
    """A run file with its data and an artifact whose phases are the interpreter's."""

    plan: Plan
    path: str

    @staticmethod
    def of(folder: Path, text: str, name: str = "run.tar", stack: int = 1, **data: dict[str, np.ndarray]) -> Case:
        """``data``: loader's file, without its ending, to its arrays; d and e are there unless given. ``stack``:
        microbatches a call."""
        folder.mkdir(exist_ok=True)
        for source, arrays in {"d": records(22, 1), "e": records(9, 2), **data}.items():
            np.savez(folder / f"{source}.npz", **arrays)  # type: ignore[arg-type]
        plan, report = plan_text(text)
        assert plan, "\n".join(map(str, report.errors))
        plan = stack_plan(plan, stack)
        path = str(folder / name)
        members = {**toy.MEMBERS, "identity.json": document(plan.run)}
        tar_writer.write(path, manifest(plan), members, force=True)
        return Case(plan, path)

    def device(self, artifact: tarball.Artifact, threads: int | None = None) -> HostDevice:
        functions = {p.name: (lambda *inputs, graph=p.graph: run(graph, inputs)) for p in self.plan.phases}
        return HostDevice(artifact.manifest, functions)

    def go(self, out: Path, *more: str) -> int:
        """The exit status of the runner's command line."""
        folder = str(Path(self.path).parent)
        return runner.main([self.path, "--out", str(out), "--data", folder, "-q", *more], device=self.device)

    def calls(self, steps: int = 1, evaluate: bool = False) -> list[Call]:
        """Every call of ``steps`` steps from the start, and, if wanted, of the passes after them."""
        with tarball.open(self.path) as artifact:
            device, calls = self.device(artifact), []
            device._functions = {p.name: watched(p, artifact.manifest, calls) for p in self.plan.phases}
            loop, training = loop_of(artifact, device)
            now = loop.initial()
            for _ in range(steps):
                loop.step(now)
            for one in artifact.manifest.step.passes if evaluate else ():
                loop.evaluate(now, one)
            training.close()
        return calls


def loop_of(artifact: tarball.Artifact, device: HostDevice) -> tuple[Loop, Training]:
    made, folder = artifact.manifest, str(Path(artifact.path).parent)
    data = {entry.name: open_records(entry, folder, artifact) for entry in made.loaders}
    training = Training(made, data)
    return Loop(made, device, training, data, lambda: None), training


def watched(phase: Phase, made: m.Manifest, calls: list[Call]):
    """The phase's function, noting copies of what it is given and what it makes."""
    record = made.phase(phase.name)
    assert record

    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        given = dict(zip(names(record.inputs), [np.array(x) for x in inputs], strict=True))
        outputs = run(phase.graph, inputs)
        calls.append(Call(phase.name, given, dict(zip(names(record.outputs), map(np.array, outputs), strict=True))))
        return outputs

    return call


def manifest(plan: Plan) -> m.Manifest:
    """What a build writes of the plan, but for what only a compiler knows."""
    return attrs.evolve(
        toy.manifest(),
        run=manifest_records.run_record(m, plan),
        parameters=tuple(m.Parameter(p.name, p.type.shape, p.type.dtype, p.is_frozen) for p in plan.parameters),
        optimizer=tuple(m.Tensor(e.name, e.type.shape, e.type.dtype) for e in plan.optimizer),
        phases=tuple(manifest_records.phase_record(m, p, p.in_place) for p in plan.phases),
        step=manifest_records.step_record(m, plan),
        loaders=tuple(manifest_records.loader_record(m, plan, loader, {}) for loader in plan.settings.loaders.values()),
    )


def of_phase(calls: list[Call], name: str) -> list[Call]:
    return [c for c in calls if c.phase == name]


def inputs_of(calls: list[Call], phase: str, port: str) -> list[np.ndarray]:
    """One input of a phase, call by call."""
    return [c.given[port] for c in of_phase(calls, phase)]


def outputs_of(calls: list[Call], phase: str, port: str) -> list[np.ndarray]:
    """One output of a phase, call by call."""
    return [c.made[port] for c in of_phase(calls, phase)]
