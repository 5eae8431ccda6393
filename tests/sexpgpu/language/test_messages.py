"""What a message says to do about a slip that the language itself cannot name."""

from __future__ import annotations

import pytest

from sexpgpu.language.codes import IO_WRITE
from sexpgpu.language.diagnostics import UserError, clause
from sexpgpu.trace.operator_call import ABSENT
from tests.support import plan_text, run_text


def test_where_there_is_no_text_to_point_at_the_code_says_what_to_do() -> None:
    assert UserError(IO_WRITE, None, "gone").line() == f"error[{IO_WRITE.name}]: gone ({clause(IO_WRITE.fix)})"
    assert UserError(IO_WRITE, None, "gone", hint="look").hint == "look"


def errors(**parts: str) -> list[str]:
    """The line of every fault of PARTS with some replaced, without its place."""
    _, report = plan_text(run_text(**parts))
    return [f"{e.code.name} {e.message} ({e.hint})" for e in report.errors]


@pytest.mark.parametrize("call", ["(* 2.0 {})", "(+ (getf inputs :x) {})", "(max {} 1)", "(exp {})"])
def test_a_key_that_is_not_there_is_what_made_a_nil(call: str) -> None:
    text = errors(objective=f"(defobjective (inputs ctx) (mean {call.format('(getf inputs :xx)')}))")
    name = call[1:].split()[0]
    assert text == [f"E-TYPE-004 {name} needs a tensor, not nil ({ABSENT})"] and "getf" in ABSENT


def test_a_function_of_the_language_says_it_too() -> None:
    text = errors(objective="(defobjective (inputs ctx) (dim (getf inputs :xx) 0))")
    assert text == [f"E-CALL-004 dim needs a tensor, not nil ({ABSENT})"]


@pytest.mark.parametrize("counter", ["(counter :n (mean (field batch :x)))", "(counter :n (sum (field batch :xx)))"])
def test_a_counter_with_a_fault_is_no_second_one_where_it_is_read(counter: str) -> None:
    reads = "(cast (getf ctx :n) :f32)"
    text = errors(
        prepare=f"(defprepare (batch ctx) {counter} (list :x (field batch :x)))",
        objective=f"(defobjective (inputs ctx) (metric :n {reads}) (mean (model (getf inputs :x))))",
        passes="(defpass p :loader d :every 1)",
        optimizer=f"(defoptimizer (sgd :lr (lambda (ctx) {reads})))",
    )
    assert len(text) == 1 and text[0].startswith("E-CONTRACT-00")


def test_a_loss_of_the_wrong_type_says_how_to_make_one() -> None:
    loss = "(defobjective (inputs ctx) {})"
    [text] = errors(objective=loss.format("(model (getf inputs :x))"))
    assert text == "E-CONTRACT-002 objective returns f32[4 2], not a scalar f32 (reduce it with mean or sum)"
    [text] = errors(objective=loss.format("(cast (mean (model (getf inputs :x))) :f64)"))
    assert text.endswith("(cast it to :f32)")


def test_a_group_that_no_parameter_is_in_is_a_slip() -> None:
    groups = '(sgd :lr 0.1 :groups (list (list :match "{}" :optimizer (sgd :lr 1.0))))'
    [text] = errors(optimizer=f"(defoptimizer {groups.format('*/biass')})")
    assert text.startswith("E-CONTRACT-003 no trained parameter") and "*/biass" in text and "m/out/bias" in text
    assert errors(optimizer=f"(defoptimizer {groups.format('*/bias')})") == []


def test_a_diagnostic_that_is_not_there_is_a_slip() -> None:
    objective = "(defobjective (inputs ctx) (mean (diagnostic :guess (model (getf inputs :x)))))"
    run = "(defrun r :model m :loader d :steps 2 :diagnostics (list :{}))"
    assert errors(objective=objective, run=run.format("guess")) == []
    want = "E-NAME-001 there is no diagnostic gues in prepare, objective or a pass (did you mean guess?)"
    assert errors(objective=objective, run=run.format("gues")) == [want]
    _, report = plan_text(run_text(objective=objective), ("gues",))  # asked for on the command line
    assert [e.where.rpartition("/")[2] for e in report.errors] == ["run.sx"]


def test_the_field_with_the_fault_is_named() -> None:
    [text] = errors(loader='(defloader d :source "d.npz" :batch 4 :fields (list :x [3] :f32 :y [2 2] :i16))')
    assert text.startswith("E-FORM-009 :fields has :y [2 2] :i16 where") and ":i32" in text


def test_a_vector_is_shown_as_it_is() -> None:
    [text] = errors(objective="(defobjective (inputs ctx) (mean (reshape (model (getf inputs :x)) [2 4.0])))")
    assert text.startswith("E-CALL-004 shape must be ") and "not [2 4.0]" in text


@pytest.mark.parametrize("call", ["warmup :steps 3", "warmup-cosine :peak 0.1", "step-decay :peak 0.1", "inverse-sqrt"])
def test_a_schedule_asks_for_what_it_needs(call: str) -> None:
    [text] = errors(optimizer=f"(defoptimizer (sgd :lr ({call})))")
    assert text.startswith(f"E-CALL-005 {call.split()[0]} needs :")


@pytest.mark.parametrize("ending", ["csv", "pkl"])
def test_data_of_a_kind_that_is_not_read_is_refused_before_a_build(ending: str) -> None:
    loader = '(defloader d :source (list "d.npz" "e.{}") :batch 4 :fields (list :x [3] :f32 :y [] :i32))'
    [text] = errors(loader=loader.format(ending))
    assert text.startswith(f"E-DATA-001 e.{ending} is of a kind") and ".jsonl" in text
    assert errors(loader=loader.format("d")) == []  # a folder may end so
