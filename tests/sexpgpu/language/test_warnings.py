"""Warnings: what is no fault, and hardly meant. They change no exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sexpgpu.cli.main import main
from tests.support import plan_text, run_text

MODEL = "(defmodel m (x &key (salt 0)) (linear {} :out 2))"
OBJECTIVE = (
    "(defobjective (inputs ctx) (mean (cross-entropy (m (getf inputs :x) :salt {}) (getf inputs :y))))\n"
    "(defpass p :loader d :every 2)"
)
MASKED = "(where (random-bernoulli [3] 0.5 :salt salt) x 0.0)"


def warnings(model: str, salt: str) -> list[str]:
    plan, report = plan_text(run_text(model=MODEL.format(model), objective=OBJECTIVE.format(salt)))
    assert plan and not report
    return [w.line() for w in report.warnings]


@pytest.mark.parametrize(
    ("model", "salt"),
    [
        ("(dropout x 0.1)", "0"),
        ("(-> x (dropout 0.1))", "0"),
        ("(dropout x 0.1 :salt 7)", "0"),
        ("(dropout x 0.1 :salt salt)", "(getf ctx :microbatch)"),
        ("(dropout x 0.1 :salt salt)", "(full [] 3 :dtype :i64)"),
        (MASKED, "0"),
        ("(where (random-bernoulli [3] 0.5) x 0.0)", "0"),
    ],
)
def test_a_mask_that_is_the_same_in_every_step(model: str, salt: str) -> None:
    (line,) = warnings(model, salt)
    assert line.startswith("warning[W-DRAW-001]: ") and "the same mask in every step" in line
    assert ":salt (getf ctx :step)" in line


@pytest.mark.parametrize(
    ("model", "salt"),
    [
        ("(dropout x 0.1 :salt salt)", "(getf ctx :step)"),
        ("(dropout x 0.1 :salt (+ (* salt 4) 1))", "(getf ctx :records)"),
        ("(dropout x 0.1 :salt salt)", "(+ (* 2 (getf ctx :step)) (getf ctx :microbatch))"),
        ("(dropout x 0.0)", "0"),
        (MASKED, "(getf ctx :stage-step)"),
        ("(+ x (random-normal [3]))", "0"),
        ("x", "0"),
    ],
)
def test_what_changes_or_is_no_mask(model: str, salt: str) -> None:
    assert warnings(model, salt) == []


def test_a_warning_changes_no_status_and_stands_on_standard_error(tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.sx"
    path.write_text(run_text(model=MODEL.format("(dropout x 0.1)"), objective=OBJECTIVE.format("0")))
    assert main(["check", str(path)]) == 0
    out, err = capsys.readouterr()
    assert ": ok: " in out and "warning[" not in out
    assert err.startswith("warning[W-DRAW-001]: ") and "^" in err and "error" not in err
    assert main(["check", str(path), "--output-format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["run"] == "r"
    (line,) = err.splitlines()
    found = json.loads(line)
    assert (found["code"], found["severity"]) == ("W-DRAW-001", "warning") and found["where"].startswith(str(path))
