"""Sentences 25 to 31 of the page on generation: what a generator may not do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.sexpgpu.conformance.support import Case, generate, of_phase, prepare
from tests.support import faults, plan_of, plan_text, run_text

PARTS = ("init", "step", "finish")
KEPT = "(defrun r :model m :loader d :seed 1 :steps 2 :diagnostics (list :{}))"


def part(name: str, form: str) -> str:
    """A generator one of whose parts makes ``:s`` and has ``form`` before."""
    source = "(field batch :x)" if name == "init" else "(getf state :s)"
    return generate(**{"finish": "(list :t (getf state :s))", name: f"(let* () {form} (list :s {source}))"})


@pytest.mark.parametrize("name", PARTS)
def test_s25_a_metric_is_refused_in_every_part(name: str) -> None:
    """25: E-GEN-004, and the mend is the page's."""
    form = "(metric :size (mean (field batch :x)))" if name == "init" else "(metric :size (mean (getf state :s)))"
    _, report = plan_text(run_text(generate=part(name, form)))
    (error,) = report.errors
    assert error.code.name == "E-GEN-004" and f"generate.{name}" in error.message
    assert error.hint == "return the value in the state and report it from objective"


def test_s25_a_metric_of_a_model_that_it_runs_is_refused_too() -> None:
    """25: in objective the same model may report."""
    model = "(defmodel m (x) (metric :size (mean x)) (linear x :out 2))"
    assert faults(model=model) == []
    assert [
        f.split()[0] for f in faults(model=model, generate=generate(init="(list :s (model (field batch :x)))"))
    ] == ["E-GEN-004"]


def test_s25_a_value_in_the_state_is_reported_from_objective(tmp_path: Path) -> None:
    """25: the mend works."""
    text = run_text(
        generate=generate(init="(list :s (mean (field batch :x)))", step="(list :s (* 2.0 (getf state :s)))"),
        prepare=prepare(s="(field batch :s)"),
        objective="(defobjective (inputs ctx) (metric :size (getf inputs :s)) (mean (model (getf inputs :x))))",
    )
    (train,) = of_phase(Case.of(tmp_path, text).calls(), "train")
    np.testing.assert_allclose(train.made["metric:size"], 4 * train.given["field:x"].mean(), rtol=1e-6)


SEES = "(defmodel m (x) (linear (diagnostic :seen x) :out 2))"


def test_s26_a_diagnostic_is_dropped_and_never_selected(tmp_path: Path) -> None:
    """26: where objective runs the same model, the diagnostic that is kept is objective's."""
    text = run_text(
        model=SEES,
        generate=generate(init="(list :s (* 0.0 (mean (model (field batch :x)))))"),
        prepare=prepare(s="(field batch :s)"),
        objective="(defobjective (inputs ctx) (mean (model (+ (getf inputs :x) (getf inputs :s)))))",
        run=KEPT.format("seen"),
    )
    plan, report = plan_text(text)
    assert plan and not report
    assert {p.name for p in plan.phases for o in p.outputs if o.kind == "diagnostic"} == {"train"}
    (train,) = of_phase(Case.of(tmp_path, text).calls(), "train")
    np.testing.assert_array_equal(train.made["diagnostic:seen"], train.given["field:x"] + train.given["generated:s"])


@pytest.mark.parametrize("name", PARTS)
def test_s26_a_diagnostic_of_the_generator_alone_is_dropped_without_a_word(name: str) -> None:
    """26: it cannot be asked for either."""
    form = f"(diagnostic :seen {'(field batch :x)' if name == 'init' else '(getf state :s)'})"
    plan = plan_of(generate=part(name, form))
    assert not [o for p in plan.phases for o in p.outputs if o.kind == "diagnostic"]
    assert [f.split()[0] for f in faults(generate=part(name, form), run=KEPT.format("seen"))] == ["E-NAME-001"]


def test_s27_so_is_an_unselected_diagnostic_anywhere() -> None:
    """27: with all that only it needed."""
    objective = "(defobjective (inputs ctx) (diagnostic :a (exp (getf inputs :x))) (mean (model (getf inputs :x))))"

    def made(run: str) -> tuple[bool, bool]:
        train = plan_of(objective=objective, run=run).phase("train")
        return any(o.kind == "diagnostic" for o in train.outputs), any(v.op == "exp" for v in train.graph.values())

    assert made(KEPT.format("a")) == (True, True)
    assert made("(defrun r :model m :loader d :seed 1 :steps 2)") == (False, False)


@pytest.mark.parametrize("name", PARTS)
def test_s28_a_counter_belongs_to_prepare(name: str) -> None:
    """28: E-CONTRACT-010 in every part."""
    assert [f.split()[0] for f in faults(generate=part(name, "(counter :rows 4)"))] == ["E-CONTRACT-010"]


def test_s28_a_counter_of_a_model_that_it_runs_is_refused_too() -> None:
    """28."""
    model = "(defmodel m (x) (counter :rows 4) (linear x :out 2))"
    found = faults(model=model, generate=generate(init="(list :s (model (field batch :x)))"))
    assert {f.split()[0] for f in found} == {"E-CONTRACT-010"}


@pytest.mark.parametrize(
    "step, words",
    [
        ("(list :s (reshape (getf state :s) [3 4]))", [":s", "f32[3 4]", "f32[4 3]"]),
        ("(list :s (cast (getf state :s) :i32))", [":s", "i32[4 3]", "f32[4 3]"]),
        ("(list :r (getf state :s))", [":s", "f32[4 3]"]),
        ("(list :s (getf state :s) :t (getf state :s))", [":t", "f32[4 3]"]),
    ],
)
def test_s29_step_keeps_keys_shapes_and_dtypes(step: str, words: list[str]) -> None:
    """29: E-GEN-002 names the key, both types and both places."""
    _, report = plan_text(run_text(generate=generate(step=step)))
    (error,) = report.errors
    assert error.code.name == "E-GEN-002" and all(word in error.message for word in words)
    text = run_text(generate=generate(step=step))
    at = text.index("(lambda (state trip ctx)")
    (note,) = error.notes
    assert error.span and error.span.start >= at > note[0].start and note[0].start > text.index("(defgenerate")


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("value", ["3", "(getf state :s)", "(list :s)", "(list :s 3)", "(list 1 2)", "(list :s nil)",
                                   "(concat-lists (list :s tensor) (list :s tensor))", "nil", "(list)",
                                   "model"])  # fmt: skip
def test_s30_each_part_returns_a_plist_of_tensors(name: str, value: str) -> None:
    """30: E-GEN-001 for anything else, pointing into that part."""
    source = "(field batch :x)" if name == "init" else "(getf state :s)"
    value = value.replace("(getf state :s)", source).replace("tensor", source)
    text = run_text(generate=generate(**{"finish": "state", name: value}))
    _, report = plan_text(text)
    (error,) = report.errors
    assert error.code.name == "E-GEN-001" and f"generate.{name}" in error.message
    start = text.index(f":{name} (lambda")
    assert error.span and start < error.span.start < start + len(f":{name} (lambda (state trip ctx) {value}")


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_s31_a_state_entry_keeps_its_dtype_from_trip_to_trip(tmp_path: Path, precision: str) -> None:
    """31: what is made with f32 is f32, in every trip, and a cache made with bf16 is bf16; under either precision."""
    rows = "(model (getf state :rows))"
    step = f"(list :rows (getf state :rows) :f (+ (getf state :f) {rows}) :c (cast {rows} :bf16))"
    text = run_text(
        generate=generate(3, "(list :rows (field batch :x) :f (zeros [4 2]) :c (zeros [4 2] :dtype :bf16))", step),
        prepare="(defprepare (batch ctx) (list :x (field batch :f) :c (field batch :c) :y (field batch :y)))",
        objective="(defobjective (inputs ctx) (+ (mean (+ (getf inputs :x) (cast (getf inputs :c) :f32)))"
        " (mean (model (zeros [4 3])))))",
        run=f"(defrun r :model m :loader d :seed 1 :steps 2 :precision :{precision})",
    )
    trips = of_phase(Case.of(tmp_path, text).calls(), "generate.step")
    for c in trips:
        assert {n: c.made[f"state:{n}"].dtype.name for n in "fc"} == {"f": "float32", "c": "bfloat16"}
    first = trips[0].made["state:f"], trips[0].made["state:c"].astype("f4")
    assert np.array_equal(*first) == (precision == "bf16")  # where the model ran in bf16, no bit is lost in the cache
