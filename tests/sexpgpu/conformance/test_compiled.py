"""What of the page on generation is about the compiled code: the bits of its draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artifacts import run as runner
from artifacts.base.json_classes import plain
from artifacts.checkpoint import identity_forms
from artifacts.device.cpu import CpuDevice
from artifacts.format import tarball
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run
from tests.artifacts.support import contents
from tests.conftest import build
from tests.runner_loop import generated, interpreted
from tests.sexpgpu.conformance.support import generate, prepare, records
from tests.support import run_text

pytestmark = pytest.mark.build

SALT = ":salt (+ trip (* 8 (+ (* 65536 (getf ctx :step)) (getf ctx :microbatch))))"
INIT = (
    "(list :s (field batch :x) :bits (zeros [96 257] :dtype :u32) :picks (zeros [96] :dtype :i32) :z (zeros [96 257]))"
)
STEP = f"""(list :s (+ (getf state :s) (* 0.1 (random-normal [4 3] {SALT})))
       :bits (bit-xor (getf state :bits) (random-bits [96 257] {SALT}))
       :picks (+ (getf state :picks) (random-categorical (getf state :z) {SALT}))
       :z (+ (random-normal [96 257] {SALT}) (where (random-bernoulli [96 257] 0.3 {SALT}) 1.0 0.0)))"""
PARTS = {
    "generate": generate(3, INIT, STEP),
    "prepare": prepare(x="(field batch :s)", z="(field batch :z)"),
    "objective": "(defobjective (inputs ctx) (+ (mean (getf inputs :z))"
    " (mean (cross-entropy (model (* (getf inputs :x) (mean (getf inputs :z)))) (getf inputs :y)))))",
    "run": "(defrun r :model m :loader d :seed 9 :steps 4 :microbatches 2 :checkpoint-every 1)",
}


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawing")
    (folder / "run.sx").write_text(run_text(**PARTS))
    np.savez(folder / "d.npz", **records(22, 1))  # type: ignore[arg-type]
    return build(folder / "run.sx", folder / "run.tar")


def go(artifact: Path, out: Path, *more: str) -> int:
    return runner.main([str(artifact), "--out", str(out), "--data", str(artifact.parent), "-q", *more])


def test_s40_an_artifact_has_its_forms(drawing: Path) -> None:
    """40: their digests are the identity, their places relative to the run file."""
    with tarball.open(str(drawing)) as artifact:
        made, identity = identity_forms.read(identity_forms.of_artifact(artifact)), artifact.manifest.run.identity
    assert made and {f.place.split(":")[0].split("/")[0] for f in made.forms} == {"run.sx", "prelude"}
    assert all(made.digest(name) == digest for name, digest in plain(identity).items())


def test_s21_draws_do_not_hang_on_threads(drawing: Path, tmp_path: Path) -> None:
    """21: of any number of threads, and after a resume, the weights and the generated integers are the same bytes;
    the integers are the interpreter's."""
    for threads in ("1", "2", "3"):
        assert go(drawing, tmp_path / threads, "--threads", threads) == 0
    assert go(drawing, tmp_path / "cut", "--threads", "2", "--steps", "1") == 0
    assert go(drawing, tmp_path / "cut", "--threads", "3", "--resume") == 0
    whole = contents(tmp_path / "1", 4)
    assert [contents(tmp_path / n, 4) == whole for n in ("2", "3", "cut")] == [True] * 3
    report = Report()
    plan = trace_run(load(str(drawing.parent / "run.sx"), report), report)  # type: ignore[arg-type]
    assert plan
    with tarball.open(str(drawing)) as artifact:
        oracle = interpreted(artifact, plan)
        made = [generated(artifact, d, drawing.parent) for d in (*(CpuDevice(artifact, n) for n in (1, 2)), oracle)]
    for one, two, want in zip(*made, strict=True):
        np.testing.assert_array_equal(one, two)
        if want.dtype.kind in "iu":
            np.testing.assert_array_equal(one, want)
        else:  # log and cos differ in the last bit
            np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)
