"""A run of five microbatches built at degrees 1, 2 and 4 (each with a rest of one): gradients, parameters, optimizer
entries, metrics, counters and diagnostics have the same bytes, stopped and resumed at another degree too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.device.cpu import CpuDevice
from artifacts.format import tarball
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.plan import Plan
from sexpgpu.phases.trace_run import trace_run
from tests.conftest import EXAMPLES, build, called
from tests.runner_loop import interpreted, steps

pytestmark = pytest.mark.build

RUN = Path(__file__).parents[1] / "runs/stacked.sx"
DEGREES, STEPS = (1, 2, 4), 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of five microbatches, its data, and an artifact a degree."""
    made = tmp_path_factory.mktemp("stacked")
    draws = np.random.default_rng(3)
    row, weight = draws.integers(0, 16, (60, 8)).astype("i4"), draws.uniform(0.5, 1.5, 60).astype("f4")
    np.savez(made / "rows.npz", row=row, weight=weight)
    (made / "run.sx").write_text(RUN.read_text().replace(":microbatches 4", ":microbatches 5"))
    for degree in DEGREES:
        build(made / "run.sx", made / f"{degree}.tar", "--stack", degree)
    return made


def plan_of(folder: Path) -> Plan:
    report = Report()
    plan = trace_run(load(str(folder / "run.sx"), report), report)  # type: ignore[arg-type]
    assert plan, report.errors
    return plan


def compiled(folder: Path, degree: int, threads: int = 2) -> dict[str, np.ndarray]:
    with tarball.open(str(folder / f"{degree}.tar")) as artifact:
        assert artifact.manifest.degree == degree
        return steps(artifact, CpuDevice(artifact, threads), folder, STEPS, 2)


def oracle(folder: Path, degree: int) -> dict[str, np.ndarray]:
    with tarball.open(str(folder / f"{degree}.tar")) as artifact:
        return steps(artifact, interpreted(artifact, plan_of(folder)), folder, STEPS, 2)


def unequal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> list[str]:
    assert got.keys() == want.keys()
    return [name for name, value in want.items() if got[name].tobytes() != value.tobytes()]


@pytest.mark.parametrize("degree", DEGREES[1:])
def test_the_bits_are_those_of_one_microbatch_at_a_time(folder: Path, degree: int) -> None:
    assert unequal(compiled(folder, degree), compiled(folder, 1)) == []


@pytest.mark.parametrize("degree", DEGREES[1:])
def test_the_interpreter_runs_stacked_phases(folder: Path, degree: int) -> None:
    got, want = oracle(folder, degree), oracle(folder, 1)
    for name, value in want.items():
        if value.dtype.kind in "iu":
            np.testing.assert_array_equal(got[name], value, err_msg=name)
        # NumPy adds in an order that follows the whole shape, and Adam makes of the sign of a gradient near 0 a whole
        # step, of 1e-2 at most; there are four.
        bound = 4e-2 if name.startswith(("param", "optimizer")) else 1e-3
        np.testing.assert_allclose(got[name], value, rtol=bound, atol=bound, err_msg=name)


def sexpgpu_run(*args: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "artifacts.run", *map(str, args)], capture_output=True, text=True)


def trained(folder: Path, out: str, degree: int, *more: Any) -> None:
    done = sexpgpu_run(folder / f"{degree}.tar", "--out", folder / out, "--data", folder, "-q", *more)
    assert done.returncode == 0, done.stderr


def final_state(folder: Path, out: str) -> tuple[Any, ...]:
    """The tensors of the last checkpoint, and the log without times."""
    last = folder / out / f"checkpoints/step-{STEPS:09d}"
    log = [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in log]
    return *((last / f"{name}.safetensors").read_bytes() for name in ("params", "optim")), lines


def test_a_run_goes_on_at_another_degree(folder: Path) -> None:
    trained(folder, "whole", 1)
    trained(folder, "parts", 1, "--steps", 1)
    trained(folder, "parts", 4, "--steps", 3, "--resume")
    trained(folder, "parts", 2, "--resume")
    want = final_state(folder, "whole")
    # The log of the parts has a pass after each part's last step; the steps' lines are the same.
    got = final_state(folder, "parts")
    assert got[:2] == want[:2]
    assert [x for x in got[2] if "pass" not in x] == [x for x in want[2] if "pass" not in x]


def test_an_example_whose_microbatches_all_stack(tmp_path: Path, tiny: Path) -> None:
    """tiny-generate takes two a step, and auto takes them in one call: no training phase of one alone is left."""
    run = EXAMPLES / "tiny-generate/run.sx"
    build(run, tmp_path / "1.tar", "--stack", 1)
    digests = []
    for artifact in (tiny, tmp_path / "1.tar"):
        done = sexpgpu_run(artifact, "--out", tmp_path / artifact.stem, "--data", run.parent, "--steps", 20)
        assert done.returncode == 0, done.stderr
        digests.append(next(line for line in done.stdout.splitlines() if line.startswith("params sha256")))
    assert digests[0] == digests[1]
    with tarball.open(str(tiny)) as artifact:
        assert artifact.manifest.degree == 2
        assert artifact.manifest.phase("train") is None and artifact.manifest.phase("train*2")


@pytest.mark.parametrize(
    ("degree", "status", "words"),
    [
        ("9", 2, "E-STACK-001"),
        ("0", 2, "E-CLI-001"),
        ("many", 2, "E-CLI-001"),
    ],
)
def test_a_degree_that_does_not_fit(folder: Path, degree: str, status: int, words: str) -> None:
    for command in (("build", "-o", folder / "no.tar"), ("explain",)):
        done = called(command[0], folder / "run.sx", *command[1:], "--stack", degree)
        assert done.returncode == status and f"error[{words}]" in done.stderr and not (folder / "no.tar").exists()
