"""Rows 42 to 46 of docs/conformance.md: curriculum, counters and passes, to which the page on generation points."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.artifacts.support import contents, metrics
from tests.sexpgpu.conformance.support import Case, generate, inputs_of, of_phase, outputs_of, passing, records
from tests.sexpgpu.conformance.test_phase import stopped
from tests.support import run_text

CTX = ("step", "records", "stage", "stage-step", "stage-records")
SEEN = " ".join(f"(metric :c-{k} (cast (getf ctx :{k}) :f32))" for k in CTX)
STAGES = "(defcurriculum (stage a :steps 2) (stage b :records 16 :loader more) (stage c :steps 1))"
MORE = '(defloader more :source "more.npz" :batch 4 :fields (list :y [] :i32 :x [3] :f32))'
OWN = {
    "generate": generate(
        1,
        "(list :s (+ (field batch :x) (random-normal [4 3] :salt (+ (* 64 (getf ctx :step)) (getf ctx :stage-step)))))",
    ),
    "prepare": "(defprepare (batch ctx) (counter :rows 4) (list :x (field batch :s) :y (field batch :y)))",
    "objective": f"(defobjective (inputs ctx) {SEEN} (metric :rows (cast (getf ctx :rows) :f32))"
    " (mean (cross-entropy (model (getf inputs :x)) (getf inputs :y))))",
    "optimizer": "(defoptimizer (adamw :lr (lambda (ctx) (/ 1.0 (+ 8.0 (cast (getf ctx :rows) :f32))))))",
    "passes": passing(own=":prepare (lambda (batch ctx) (list :z (field batch :x))) :objective (lambda (inputs ctx)"
    " (metric :own (mean (getf inputs :z))) (mean (square (model (getf inputs :z)))))") + f"\n{MORE}\n{STAGES}",
    "run": "(defrun r :model m :loader d :seed 3 :steps 6 :microbatches 2 :checkpoint-every 2)",
}  # fmt: skip
DATA = {"more": records(10, 3)}


def test_s42_stages_last_for_steps_or_records_and_have_loaders_of_their_own(tmp_path: Path) -> None:
    """42: and the context says which, and how far."""
    calls = Case.of(tmp_path, run_text(**OWN), **DATA).calls(6)
    want = {"step": [0, 1, 2, 3, 4, 5], "records": [0, 8, 16, 24, 32, 40], "stage": [0, 0, 1, 1, 2, 2],
            "stage-step": [0, 1, 0, 1, 0, 1], "stage-records": [0, 8, 0, 8, 0, 8]}  # fmt: skip
    for key in CTX:
        each = [int(x) for x in outputs_of(calls, "train", f"metric:c-{key}")]
        after = 4 if "records" in key else 0  # the second microbatch has four records before it
        assert each == [x for n in want[key] for x in (n, n + after)], key
    rows = [{tuple(row) for row in x.round(4)} for x in inputs_of(calls, "generate.init", "field:x")]
    own, more = ({tuple(row) for row in records(n, salt)["x"].round(4)} for n, salt in ((22, 1), (10, 3)))
    assert [r <= own for r in rows] == [True] * 4 + [False] * 4 + [True] * 4
    assert [r <= more for r in rows] == [False] * 4 + [True] * 4 + [False] * 4


def test_s43_counters_run_on_and_schedules_read_them(tmp_path: Path) -> None:
    """43: objective sees the total with its own microbatch; the learning rate that of the whole step."""
    calls = Case.of(tmp_path, run_text(**OWN), **DATA).calls(3)
    assert [int(x) for x in outputs_of(calls, "train", "metric:rows")] == [4, 8, 12, 16, 20, 24]
    rates = [1 / (8 + n) for n in (8, 16, 24)]
    np.testing.assert_allclose(outputs_of(calls, "update", "metric:lr"), np.float32(rates), rtol=1e-6)


def test_s44_a_pass_has_a_prepare_and_an_objective_of_its_own(tmp_path: Path) -> None:
    """44: it counts nothing, moves nothing, and its metrics are its own; it reads nothing generated, so nothing is."""
    calls = Case.of(tmp_path, run_text(**OWN), **DATA).calls(2, evaluate=True)
    first, second = of_phase(calls, "eval.p")
    assert set(first.made) == {"metric:loss", "metric:own"} and calls[-2] is first and calls[-1] is second
    x = records(9, 2)["x"]
    np.testing.assert_allclose(
        [first.made["metric:own"], second.made["metric:own"]], [x[:4].mean(), x[4:8].mean()], rtol=1e-5
    )
    updated = outputs_of(calls, "update", "param:m/out/weight")
    np.testing.assert_array_equal(first.given["param:m/out/weight"], updated[-1])


def test_s45_all_of_it_survives_a_stop_anywhere(tmp_path: Path) -> None:
    """45: at every fifth look of six steps, which have six looks each, so that every place of a step has its turn, and
    stages begin and end between: the same checkpoint and the same log."""
    case, whole = Case.of(tmp_path, run_text(**OWN), **DATA), tmp_path / "whole"
    status, looks = stopped(case, whole, 10**9)
    assert status == 0
    for k in range(1, looks + 1, 5):
        out = tmp_path / f"stop-{k}"
        assert stopped(case, out, k) == (143, k) and case.go(out, "--resume") == 0
        assert contents(out, 6) == contents(whole, 6) and metrics(out) == metrics(whole), k


def test_s46_a_run_of_record_numbers_alone_makes_all_of_its_data(tmp_path: Path) -> None:
    """46: no file is read; the numbers key the draws."""
    text = run_text(
        loader="(defloader d :source (indices 64) :batch 4 :fields (list :id [] :i64))",
        generate=generate(2, "(list :s (random-normal [4 3] :salt (getf ctx :records)) :number (field batch :id))"),
        prepare="(defprepare (batch ctx) (list :x (field batch :s)))",
        objective="(defobjective (inputs ctx) (mean (square (model (getf inputs :x)))))",
    )
    calls = Case.of(tmp_path, text).calls(2)
    assert sorted(np.concatenate(inputs_of(calls, "generate.init", "field:id"))) != list(range(8))
    assert len(np.unique(inputs_of(calls, "train", "generated:s"))) == 24
