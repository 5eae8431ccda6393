"""The plain values of a run file: defrun, loaders, passes, stages."""

from __future__ import annotations

import pytest

from tests.support import PARTS, faults, plan_of

SECOND = '(defloader e :source "e.npz" :batch {batch} :fields (list :x [3] :f32 :y [] :i32))'


def run(text: str) -> str:
    return f"(defrun r :model m :loader d :seed 1 {text})"


def codes(**parts: str) -> list[str]:
    return [f.split()[0] for f in faults(**parts)]


def test_defaults_are_those_the_page_states() -> None:
    s = plan_of(run="(defrun r :model m :loader d :steps 3)").settings
    assert (s.seed, s.microbatches, s.precision, s.log_every, s.checkpoint_every) == (0, 1, "f32", 10, 100)
    loader = s.loaders["d"]
    assert (loader.shuffle, loader.epochs, loader.embed, loader.count) == (True, None, False, None)


def test_values_are_evaluated() -> None:
    plan = plan_of(generate="(def n 4)", run=run(":steps (* n 3) :microbatches (quot n 2)"))
    assert (plan.settings.steps, plan.settings.microbatches) == (12, 2)


def test_a_curriculum_gives_the_steps_and_the_loaders() -> None:
    stages = "(defcurriculum (stage a :steps 3) (stage b :steps 4 :loader e))"
    s = plan_of(passes=SECOND.format(batch=4) + stages, run=run("")).settings
    assert s.steps == 7
    assert [(t.name, t.steps, t.records, t.loader) for t in s.stages] == [("a", 3, None, "d"), ("b", 4, None, "e")]


def test_without_a_curriculum_there_is_one_stage() -> None:
    assert [(t.steps, t.records, t.loader) for t in plan_of().settings.stages] == [(None, None, "d")]


@pytest.mark.parametrize(
    "passes, code",
    [
        ("(defcurriculum (stage a))", "E-FORM-002"),
        ("(defcurriculum (stage a :steps 3 :records 4))", "E-FORM-002"),
        ("(defcurriculum (stage a :records 4))", "E-FORM-002"),
        ("(defcurriculum (stage a :steps 3) (stage b :records 4))", "E-FORM-002"),
        (SECOND.format(batch=4).replace("[3]", "[4]") + "(defcurriculum (stage a :steps 3 :loader e))", "E-FORM-009"),
        (SECOND.format(batch=8) + "(defcurriculum (stage a :steps 3 :loader e))", "E-FORM-009"),
    ],
)
def test_a_stage_that_cannot_be(passes: str, code: str) -> None:
    assert codes(passes=passes, run=run("")) == [code]


@pytest.mark.parametrize(
    "text",
    [":steps 0", ":steps 2.5", ":steps -1", ":steps 2 :microbatches 0", ":steps 2 :precision :f64",
     ':steps 2 :precision "bf16"',
     ":steps (not nil)", ":steps 2147483648", ":steps (* 65536 32768)", ":steps 2 :checkpoint-every 0",
     ":steps 2 :diagnostics (list 1)", ":steps 2 :log-every nil", ":steps 2 :diagnostics :a", ":steps (+ 1 1.5)"],
)  # fmt: skip
def test_a_count_out_of_range(text: str) -> None:
    assert codes(run=run(text)) == ["E-FORM-009"]


@pytest.mark.parametrize(
    "loader, code",
    [
        ("(defloader d :source 3 :batch 4 :fields (list :x [3] :f32))", "E-FORM-009"),
        ('(defloader d :source "a" :batch 4 :fields (list :x [3]))', "E-FORM-009"),
        ('(defloader d :source "a" :batch 4 :fields (list :x [3] :f99))', "E-FORM-009"),
        ('(defloader d :source "a" :batch 4 :fields (list :x [3] :f32 :x [3] :f32))', "E-FORM-003"),
        ('(defloader d :source "a" :batch 4 :fields (list :x [0] :f32))', "E-SHAPE-001"),
        ("(defloader d :source (indices 8) :batch 4 :fields (list :x [3] :f32))", "E-DATA-002"),
        ("(defloader d :source (indices 0) :batch 4 :fields (list :x [] :i64))", "E-CALL-004"),
        ("(defloader d :source (indices 8) :batch 4 :fields (list :x [] :i32))", "E-DATA-002"),
        ('(defloader d :source "a" :batch 4 :shuffle (+ 1 2) :fields (list :x [3] :f32))', "E-FORM-009"),
        ('(defloader d :source "a" :batch 4 :fields (list :x [3] :f32 :y [3]))', "E-FORM-009"),
        ('(defloader d :source "a" :batch 4 :fields (list :x 3 :f32))', "E-FORM-009"),
        ("(defloader d :source (list) :batch 4 :fields (list :x [3] :f32))", "E-FORM-009"),
        ("(defloader d :source (indices 3) :batch 4 :fields (list :x [] :i64))", "E-DATA-001"),
    ],
)
def test_a_loader_that_cannot_be(loader: str, code: str) -> None:
    assert code in codes(loader=loader)


def test_a_run_on_record_numbers_makes_its_own_data() -> None:
    plan = plan_of(
        loader="(defloader d :source (indices 96) :batch 4 :shuffle false :fields (list :index [] :i64))",
        prepare="(defprepare (batch ctx) (list :x (random-uniform [4 3] :salt (getf ctx :step))))",
        objective="(defobjective (inputs ctx) (mean (square (model (getf inputs :x)))))",
    )
    assert plan.settings.loaders["d"].count == 96
    assert [p.kind for p in plan.phase("train").inputs] == ["param", "param", "ctx", "seed"]


def test_every_part_of_the_base_file_is_needed() -> None:
    for name in ("model", "loader", "prepare", "objective", "optimizer", "run"):
        assert PARTS[name] and faults(**{name: ""})


def test_a_fault_in_a_setting_stops_before_the_phases() -> None:
    assert faults(loader='(defloader d :source "a" :batch 4 :fields (list :x [3]))') == ["E-FORM-009 2:43"]


def test_steps_that_are_stated_hold_over_those_of_the_stages() -> None:
    stages = "(defcurriculum (stage a :steps 3) (stage b :records 2000000000))"
    s = plan_of(passes=stages, run=run(":steps 9")).settings
    assert s.steps == 9 and [(t.steps, t.records) for t in s.stages] == [(3, None), (None, 2_000_000_000)]
    assert plan_of(passes="(defcurriculum (stage a :steps 3))", run=run(":steps 9")).settings.steps == 9


def test_a_pass_is_read_as_written() -> None:
    plan = plan_of(passes=SECOND.format(batch=4) + "(defpass p :loader e :every 3 :batches 2)", run=run(":steps 4"))
    assert [(p.name, p.loader, p.every, p.batches) for p in plan.settings.passes] == [("p", "e", 3, 2)]


def test_a_batch_of_a_field_has_the_records_first() -> None:
    plan = plan_of()
    assert {n: str(t) for n, t in plan.settings.loaders["d"].batched().items()} == {"x": "f32[4 3]", "y": "i32[4]"}


def test_as_many_record_numbers_as_a_batch_are_enough() -> None:
    plan = plan_of(
        loader="(defloader d :source (indices 4) :batch 4 :fields (list :index [] :i64))",
        prepare="(defprepare (batch ctx) (list :x (zeros [4 3])))",
        objective="(defobjective (inputs ctx) (mean (model (getf inputs :x))))",
    )
    assert plan.settings.loaders["d"].count == 4


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_a_seed_is_any_number_of_63_bits(seed: int) -> None:
    assert plan_of(run=f"(defrun r :model m :loader d :seed {seed} :steps 2)").settings.seed == seed
    assert plan_of(run=f"(defrun r :model m :loader d :seed (+ {seed} 0) :steps 2)").settings.seed == seed
