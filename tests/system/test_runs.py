"""Runs unlike the examples, compiled: whole steps against the NumPy interpreter, across the stages of a curriculum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artifacts.device.cpu import CpuDevice
from artifacts.format import tarball
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run
from tests.conftest import build
from tests.runner_loop import generated, interpreted, steps

pytestmark = pytest.mark.build

RUNS = Path(__file__).parents[1] / "runs"


def records() -> dict[str, np.ndarray]:
    """Points in three classes, told apart by a matrix."""
    draws = np.random.default_rng(3)
    x = draws.normal(size=(128, 6)).astype("f4")
    return {"x": x, "y": (x @ draws.normal(size=(6, 3))).argmax(1).astype("i8")}


@pytest.mark.parametrize("name", ["pool", "bandit"])
def test_whole_steps_are_those_of_the_interpreter(name: str, tmp_path: Path) -> None:
    run, report = RUNS / f"{name}.sx", Report()
    np.savez(tmp_path / "rows.npz", **records())  # type: ignore[arg-type]
    plan = trace_run(load(str(run), report), report)  # type: ignore[arg-type]
    assert plan, report.errors
    with tarball.open(str(build(run, tmp_path / "run.tar"))) as artifact:
        compiled, oracle = CpuDevice(artifact, 2), interpreted(artifact, plan)
        made, wanted = (generated(artifact, d, tmp_path) for d in (compiled, oracle))
        got, want = (steps(artifact, d, tmp_path, 3) for d in (compiled, oracle))
    assert got.keys() == want.keys() and len(made) == len(wanted)
    for a, b in zip(made, wanted, strict=True):
        # Draws are the same bits, and the functions made of them (log, cos) differ in the last one.
        np.testing.assert_allclose(a, b, rtol=0 if a.dtype.kind == "i" else 1e-5, atol=1e-5)
    for key, value in want.items():
        # f32 sums in another order: 3e-7 was the most over three steps. No rule divides by a gradient, as Adam does.
        np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
