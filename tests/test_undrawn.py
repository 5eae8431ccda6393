"""Draws from no distribution: each part of a step counts its own, the runner looks, other runs have nothing of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artifacts import run as runner
from artifacts import tarball
from artifacts.describe import describe
from sexpgpu.draws import UNDRAWN, place
from sexpgpu.explain import explain
from sexpgpu.ops.random import bits_ref
from tests.conftest import build
from tests.runner.support import checkpoint, metrics, one_error, steps
from tests.seed.support import TWO, Case, generate, of_phase, passing, prepare, records
from tests.support import plan_of, run_text

X, S = "(field batch :x)", "(getf state :s)"
MODEL = "(defmodel m (x) (linear x :out 3))"
FINE = "(where (= (iota [1 3] :axis 1) 1) (log (* 0.0 {x})) {x})"  # a choice of three that is ruled out
ODD = {
    "NaN": "(log (neg (exp {x})))",
    "one NaN": "(where (= (iota [1 3] :axis 1) 2) (log (neg (exp {x}))) {x})",
    "nothing but -inf": "(log (* 0.0 {x}))",
    "+inf": "(where (= (iota [1 3] :axis 1) 2) (neg (log (* 0.0 {x}))) {x})",
    "NaN in bf16": "(cast (log (neg (exp {x}))) :bf16)",
    "one row": "(where (= (iota [4 1] :axis 0) 3) (log (* 0.0 {x})) {x})",
}
PLACES = {
    "init": "the generator", "step": "the generator", "the last trip": "the generator", "finish": "the generator",
    "prepare": "prepare or objective", "objective": "prepare or objective", "a pass": "prepare or objective",
}  # fmt: skip


def draw(logits: str, x: str) -> str:
    return f"(random-categorical {logits.format(x=x)} :salt (getf ctx :step))"


def text_of(place: str, logits: str) -> str:
    """A run file that draws from ``logits``, a text with a hole for x [4 3], at that place."""
    own, y = draw(logits, S), "(field batch :y)"
    last = draw(f"(where (= trip 1) {logits} {FINE})", S)
    made = {
        "init": generate(2, f"(list :s {X} :own {draw(logits, X)})"),
        "step": generate(2, f"(list :s {X} :own {y})", f"(list :s {S} :own {own})"),
        "the last trip": generate(2, f"(list :s {X} :own {y})", f"(list :s {S} :own {last})"),
        "finish": generate(2, finish=f"(list :own {own})"),
    }
    parts = {"model": MODEL, "run": TWO, "passes": passing()}
    if place in made:
        parts |= {"generate": made[place], "prepare": prepare(y="(field batch :own)")}
    elif place == "prepare":
        parts |= {"prepare": prepare(y=draw(logits, X)), "passes": ""}
    elif place == "objective":
        picked = draw(logits, "(getf inputs :x)")
        parts |= {"objective": f"(defobjective (inputs ctx) (mean (cross-entropy (model (getf inputs :x)) {picked})))"}
    else:
        parts |= {"passes": passing(own=f":prepare (lambda (batch ctx) (list :x {X} :y {draw(logits, X)}))")}
    return run_text(**parts)


@pytest.mark.parametrize(
    ("place", "when", "stack"),
    [(place, 2 if place == "a pass" else 1, 1) for place in PLACES]
    + [("step", 2, 1), ("step", 1, 2), ("prepare", 1, 2)],
)
def test_a_draw_from_no_distribution_ends_the_run(
    place: str, when: int, stack: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the second step, or in the pass after it, for which the generator runs too; the step before is kept."""
    logits = f"(where (= (getf ctx :step) {when}) {ODD['one row']} {FINE})"
    case, out = Case.of(tmp_path, text_of(place, logits), stack=stack), tmp_path / "out"
    assert case.go(out) == 6
    text = one_error(capsys.readouterr().err, "E-NUM-002")
    where = "pass p at step 2" if when == 2 else "step 2"
    rows = 2 if place == "step" else 1  # both trips draw from it
    assert f"{where}: random-categorical drew in {PLACES[place]} from rows" in text and f": {rows} of them" in text
    assert steps(out)[-1] == when and str(checkpoint(out, when)) in text


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_distribution(odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Case.of(tmp_path, text_of("prepare", ODD[odd])).go(tmp_path / "out") == 6
    rows = 1 if odd == "one row" else 4
    assert f"no distribution: {rows} of them" in one_error(capsys.readouterr().err, "E-NUM-002")


@pytest.mark.parametrize("place", ["the last trip", "prepare"])
def test_a_choice_that_is_ruled_out_is_one_and_nothing_of_the_count_is_shown(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, out = Case.of(tmp_path, text_of(place, FINE)), tmp_path / "out"
    assert case.go(out) == 0
    with tarball.open(case.path) as artifact:
        generator = next(line for line in describe(artifact).splitlines() if line.startswith("generator"))
    logged = [set(line["metrics"]) for line in metrics(out)]
    assert logged and not any(UNDRAWN in name for names in logged for name in names)
    assert UNDRAWN not in generator + explain(case.plan).split("\n\n")[0] + capsys.readouterr().out


def test_a_run_without_such_draws_has_no_more_ports() -> None:
    """A draw that needs no distribution counts nothing."""
    noise = "(random-normal [4 3] :salt (getf ctx :step))"
    plan = plan_of(generate=generate(2, f"(list :s (+ {noise} {X}))"), prepare=prepare(s="(field batch :s)"))
    assert not [p.name for phase in plan.phases for p in (*phase.inputs, *phase.outputs) if UNDRAWN in p.name]
    assert plan.generated == ("s",)


def test_the_words_of_a_draw_are_those_that_they_were(tmp_path: Path) -> None:
    """By hand, from the draw's place and salt: counting draws nothing."""
    calls = Case.of(tmp_path, text_of("init", FINE)).calls()
    first = of_phase(calls, "generate.init")[0]
    words = bits_ref(np, np.array([1, 0], "u4"), np.int64(0), (4, 3), place("generate.init", 0))
    u = np.maximum((words >> 8) * 2.0**-24, 2.0**-25)
    logits = first.given["field:x"].astype("f8")
    logits[:, 1] = -np.inf
    np.testing.assert_array_equal(first.made["state:own"], np.argmax(logits - np.log(-np.log(u)), 1))


@pytest.mark.build
def test_a_draw_from_no_distribution_ends_a_compiled_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One artifact on three sets of data: the logits are logarithms of its numbers."""
    log = "(random-categorical (log (getf state :s)) :salt trip)"
    parts = {
        "model": "(defmodel m (x) (linear x :out 3))",
        "generate": generate(
            2, "(list :s (field batch :x) :own (field batch :y))", f"(list :s (getf state :s) :own {log})"
        ),
        "prepare": prepare(y="(field batch :own)"),
    }
    (tmp_path / "run.sx").write_text(run_text(**parts))
    artifact = build(tmp_path / "run.sx", tmp_path / "run.tar")
    data = records(22, 1)
    for name, x in {"some ruled out": [0, 1, 2], "NaN": [-1, 1, 2], "nothing": [0, 0, 0]}.items():
        np.savez(tmp_path / "d.npz", **{**data, "x": np.tile(np.array(x, "f4"), (22, 1))})  # type: ignore[arg-type]
        status = runner.main([str(artifact), "--out", str(tmp_path / name), "--data", str(tmp_path), "-q"])
        told = "E-NUM-002]: step 1: random-categorical drew in the generator" in capsys.readouterr().err
        assert (status, told) == ((0, False) if name == "some ruled out" else (6, True)), name
