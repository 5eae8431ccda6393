"""``sexpgpu runs``: the table of run directories."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from sexpgpu.reports.runs import read_runs
from tests.conftest import called

HEADER = {"schema": "sexpgpu-metrics", "version": 1}


def step(number: int, loss: Any, **metrics: Any) -> dict[str, Any]:
    return {"step": number, "loss": loss, "metrics": metrics, "seconds": 0.5}


def judged(number: int, loss: Any, **metrics: Any) -> dict[str, Any]:
    return {"step": number, "pass": "held-out", "loss": loss, "metrics": metrics, "batches": 2, "seconds": 9.0}


def write(folder: Path, *lines: Any, digest: str = "", seed: str = "7", tail: str = "") -> Path:
    """A run directory with a log, and where there is a ``digest`` a checkpoint of that artifact."""
    folder.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in (HEADER, *lines))
    (folder / "metrics.jsonl").write_text(text + tail)
    (folder / "identity.json").write_text(f'{{"forms":[{{"component":"run","text":":seed {seed}"}}]}}')
    if digest:
        for name, of in (("step-000000001", "0" * 64), ("step-000000002", digest)):
            (folder / "checkpoints" / name).mkdir(parents=True)
            (folder / "checkpoints" / name / "manifest.json").write_text(json.dumps({"artifact": of}))
    return folder


def test_a_line_for_each_run_with_its_numbers(tmp_path: Path) -> None:
    lines = [step(1, 3.0, accuracy=0.1), step(2, 1.0, accuracy=0.5), judged(2, 2.0), step(3, 2.0, accuracy=0.4)]
    write(tmp_path / "runs/a", *lines, digest="ab" * 32)
    write(tmp_path / "runs/b", step(1, "nan"), seed="(+ 1 2)")
    done = called("runs", tmp_path / "runs")
    assert done.returncode == 0 and done.stdout.splitlines()[0].split() == [
        "run", "artifact", "seed", "step", "seconds", "loss", "held-out/loss",
    ]  # fmt: skip
    a, b = (row.split() for row in done.stdout.splitlines()[1:])
    assert a == [str(tmp_path / "runs/a"), "abababab", "7", "3", "1.5", "2", "[1,", "3]", "2", "[2,", "2]"]
    assert b == [str(tmp_path / "runs/b"), "1", "0.5", "nan"]


def test_the_least_and_the_greatest_know_their_first_step(tmp_path: Path) -> None:
    (run,) = read_runs([str(write(tmp_path / "a", *(step(n, x) for n, x in enumerate([2, "nan", 1, 1, 2, "inf"]))))])
    loss = run.numbers["loss"]
    assert (loss.last, loss.min, loss.min_step, loss.max, loss.max_step) == (float("inf"), 1, 2, float("inf"), 5)


def test_a_column_may_be_chosen_and_a_table_is_csv(tmp_path: Path) -> None:
    folder = write(tmp_path / "a, b", step(1, 1.0, accuracy=0.25), judged(1, 2.0, accuracy=0.75), digest="cd" * 32)
    chosen = ["--metric", "held-out/accuracy", "--metric", "accuracy"]
    rows = list(csv.reader(io.StringIO(called("runs", folder, *chosen, "--output-format", "csv").stdout)))
    names = [f"{name}.{kind}" for name in chosen[1::2] for kind in ("last", "min", "max")]
    assert rows[0] == ["run", "artifact", "seed", "step", "seconds", *names]
    assert rows[1] == [str(folder), "cd" * 32, "7", "1", "0.5", *["0.75"] * 3, *["0.25"] * 3]
    (row,) = called("runs", folder, "--output-format", "json").stdout.splitlines()
    assert json.loads(row)["metrics"]["held-out/accuracy"]["last"] == 0.75


@pytest.mark.parametrize(
    "tail", ['{"step": 3, "lo', "\0\0\0", "[1, 2]\n", '{"step": "4"}\n', '{"step": 5, "metrics": 1}', "["]
)
def test_what_is_no_line_of_the_log_is_passed_over(tmp_path: Path, tail: str) -> None:
    (run,) = read_runs([str(write(tmp_path / "a", step(1, 1.0), step(2, 2.0), tail=tail))])
    assert run.numbers["loss"].last == 2.0 and run.step in (2, 5)


def test_what_holds_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, words in ((tmp_path / "empty", "it holds no metrics.jsonl"), (tmp_path / "no", "No such file")):
        done = called("runs", folder)
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
        assert done.stderr.startswith("error[E-READ-001]: ") and words in done.stderr
    write(tmp_path / "a", step(1, 1.0, accuracy=1.0))
    done = called("runs", tmp_path / "a", "--metric", "accurcy")
    assert done.returncode == 1 and "no run has a metric accurcy (there are loss accuracy)" in done.stderr
