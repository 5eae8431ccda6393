"""(mean-over-step x :weights w): the loss and the gradient of a step do not depend on how its records are cut."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file

from artifacts.format import tar_writer
from sexpgpu.phases.identity import document
from sexpgpu.planning import microbatch_stacking
from tests.artifacts import toy
from tests.sexpgpu.conformance.support import Case, manifest
from tests.support import plan_text, run_text

MASKS = {
    "three and none": [1, 1, 1, 0, 0, 0, 0, 0],
    "one each": [0, 1, 0, 0, 0, 0, 1, 0],
    "fractions": [0.25, 0, 2, 1, 1, 0.5, 0, 0],
}


def text(batch: int, microbatches: int, loss: str = "(mean-over-step losses :weights (getf inputs :w))") -> str:
    return run_text(
        loader=f'(defloader d :source "d.npz" :batch {batch} :shuffle false '
        ":fields (list :x [3] :f32 :y [] :i32 :w [] :f32))",
        prepare="(defprepare (batch ctx) (list :x (field batch :x) :y (field batch :y) :w (field batch :w)))",
        objective=f"""(defobjective (inputs ctx)
  (let* ((logits (model (getf inputs :x))) (losses (cross-entropy logits (getf inputs :y))))
    (metric :right (mean-over-step (cast (= (argmax logits) (getf inputs :y)) :f32) :weights (getf inputs :w)))
    {loss}))""",
        passes="(defpass p :loader d :every 1)",
        run=f"(defrun r :model m :loader d :seed 1 :steps 1 :microbatches {microbatches})",
    )


def records(mask: list[float]) -> dict[str, np.ndarray]:
    r = np.random.default_rng(0)
    given = {"x": r.normal(size=(8, 3)).astype("f4"), "y": r.integers(0, 2, 8).astype("i4")}
    return {**given, "w": np.array(mask, "f4")}


def finished(folder: Path, case: Case) -> tuple[dict[str, np.ndarray], dict, dict]:
    """The parameters after a step, and the lines of the step and of the pass."""
    assert case.go(folder / "out") == 0
    lines = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    step = next(line for line in lines if "grad_norm" in line)
    (params,) = (folder / "out/checkpoints").glob("step-*/params.safetensors")
    return load_file(params), step, next(line for line in lines if line.get("pass"))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("batch", "microbatches"), [(4, 2), (2, 4), (1, 8)])
def test_as_one_batch(tmp_path: Path, mask: str, batch: int, microbatches: int) -> None:
    data = records(MASKS[mask])
    whole = finished(tmp_path / "whole", Case.of(tmp_path / "whole", text(8, 1), d=data))
    parts = finished(tmp_path / "parts", Case.of(tmp_path / "parts", text(batch, microbatches), d=data))
    for name, want in whole[0].items():  # sums of 8 terms, in another order: some roundings of numbers of size 1
        np.testing.assert_allclose(parts[0][name], want, rtol=0, atol=2e-7)
    for a, b in zip(whole[1:], parts[1:], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)
        assert a["metrics"] == {"right": pytest.approx(b["metrics"]["right"], rel=1e-6)}


def test_no_record_counts(tmp_path: Path) -> None:
    params, step, _ = finished(tmp_path, Case.of(tmp_path, text(4, 2), d=records([0] * 8)))
    assert step["loss"] == 0 and step["grad_norm"] == 0 and all(np.isfinite(p).all() for p in params.values())


def test_what_does_not_count_may_be_anything(tmp_path: Path) -> None:
    data = records(MASKS["three and none"])
    want = finished(tmp_path / "a", Case.of(tmp_path / "a", text(4, 2), d=data))[0]
    infinite = "(* 10.0 (full [4] 1e38))"
    seen = f"(where (= 0.0 (getf inputs :w)) {infinite} losses)"
    loss = f"(mean-over-step {seen} :weights (* 2.0 (getf inputs :w)))"
    got = finished(tmp_path / "b", Case.of(tmp_path / "b", text(4, 2, loss), d=data))[0]
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=2e-7)


def test_stacked_microbatches_have_the_same_bits(tmp_path: Path) -> None:
    data = records(MASKS["one each"])
    case = Case.of(tmp_path, text(2, 4), d=data)
    plan = microbatch_stacking.stack_plan(case.plan, 2)
    path = str(tmp_path / "stacked.tar")
    tar_writer.write(path, manifest(plan), {**toy.MEMBERS, "identity.json": document(plan.run)}, force=True)
    want = finished(tmp_path, case)
    (tmp_path / "out").rename(tmp_path / "single")
    got = finished(tmp_path, attrs.evolve(case, plan=plan, path=path))
    assert {n: p.tobytes() for n, p in got[0].items()} == {n: p.tobytes() for n, p in want[0].items()}
    assert got[1]["loss"] == want[1]["loss"]


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        ("(* 2.0 (mean-over-step losses))", "E-TYPE-004"),
        ("(mean-over-step (getf inputs :y))", "E-TYPE-001"),
        ("(mean-over-step losses :weights (ones [3]))", "E-SHAPE-001"),
        ("(mean-over-step losses :weight (getf inputs :w))", "E-CALL-002"),
        ("(mean-over-step losses :weights)", "E-CALL-002"),
        ("(list (metric :right/weight 1.0) losses)", "E-CONTRACT-004"),
    ],
)
def test_faults(loss: str, code: str) -> None:
    _, report = plan_text(text(4, 2, loss))
    assert [e.code.name for e in report.errors] == [code]
