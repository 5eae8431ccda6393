"""The evaluator: what expressions mean at trace time, seen through the graphs they make."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.interpret import run
from tests.support import faults, plan_of


def value(expression: str, *defs: str) -> np.ndarray:
    """The expression's value, as the loss of a run whose model is used, times 1, plus the expression."""
    plan = plan_of(
        generate="\n".join(defs),
        objective=f"(defobjective (inputs ctx) (metric :out {expression}) (mean (model (getf inputs :x))))",
    )
    phase = plan.phase("train")
    rng = np.random.default_rng(0)
    feeds = [
        rng.standard_normal(p.type.shape).astype("float32")
        if p.type.dtype == "f32"
        else np.zeros(p.type.shape, "int64" if p.type.dtype == "i64" else "int32")
        for p in phase.inputs
    ]
    return run(phase.graph, feeds)[1]


@pytest.mark.parametrize(
    "expression, want",
    [
        ("(+ 1 2 3.5)", 6.5),
        ("(- 4)", -4),
        ("(- 10 1 2)", 7),
        ("(quot 7 2)", 3),
        ("(mod -7 3)", 2),
        ("(let ((a 1) (b 2)) (- b a))", 1),
        ("(let* ((a 1) (b (+ a 1))) b)", 2),
        ("((lambda (a &key (b 5)) (+ a b)) 1)", 6),
        ("((lambda (a &key (b 5)) (+ a b)) 1 :b 7)", 8),
        ("((lambda (a &key (b (+ a 1))) b) 1)", 2),
        ("((lambda (a &rest more) (length more)) 1 2 3)", 2),
        ("(if nil 1 2)", 2),
        ("(if 0 1 2)", 1),
        ("(cond (false 1) ((= 1 1) 2) (true 3))", 2),
        ("(and 1 2)", 2),
        ("(or nil 3)", 3),
        ("(if (not nil) 1 0)", 1),
        ("(-> 5 (- 1) (* 2))", 8),
        ("(getf (list :a 1 :b 2) :b)", 2),
        ("(getf (list :a 1) :c 9)", 9),
        ("(fold + 0 (range 5))", 10),
        ("(nth 1 (map (lambda (i) (* i i)) (range 4)))", 1),
        ("(first (rest [7 8 9]))", 8),
        ("(length (concat-lists [1 2] (list 3)))", 3),
        ("(dim (zeros [3 5]) -1)", 5),
        ("(rank (zeros [3 5]))", 2),
        ("(nth 0 (shape (zeros [3 5])))", 3),
        ("(if (same? (dtype-of (zeros [2])) :f32) 1 0)", 1),
        ('(if (same? (string :block- 3) "block-3") 1 0)', 1),
        ("(if (same? (format-name :block 3) :block-3) 1 0)", 1),
        ("(if (function? linear) 1 0)", 1),
        ("(sum (+ (iota [3]) 1))", 6),
        ("(mean (where (> (iota [4]) 1) 1.0 0.0))", 0.5),
        ("(sqrt 16)", 4),
    ],
)
def test_an_expression_has_its_value(expression: str, want: float) -> None:
    np.testing.assert_array_equal(value(expression), np.float32(want))


def test_a_definition_is_seen_before_and_after_its_place() -> None:
    assert value("(twice three)", "(defun twice (x) (* 2 x))", "(def three 3)") == 6


def test_a_closure_keeps_what_it_was_made_with() -> None:
    assert value("(fold (lambda (s f) (+ s (f 1))) 0 (map (lambda (i) (lambda (x) (+ x i))) (range 3)))") == 6


def test_and_of_tensors_is_per_element() -> None:
    assert value("(sum (cast (and (> (iota [4]) 0) (< (iota [4]) 3)) :i32))") == 2


def test_an_unused_branch_is_not_traced() -> None:
    assert value('(if true 1 (error "never"))') == 1


def test_one_trace_reports_every_independent_fault() -> None:
    names = "(let* ((a (+ (field batch :x) nope)) (b (field batch :z)) (c (* a b)))"
    body = f"{names} (list :x c :y (cast (field batch :y) :f99)))"
    text = f"(defprepare (batch ctx) {body})"
    places = [("E-NAME-001", "nope"), ("E-CONTRACT-006", ":z"), ("E-CALL-004", ":f99")]
    assert faults(prepare=text) == [f"{code} 3:{text.index(word) + 1}" for code, word in places]


def test_a_parameter_is_shared_between_calls_and_scopes_nest() -> None:
    plan = plan_of(
        model="(defmodel inner (x) (linear x :l 3))\n(defmodel m (x) (scope :a (linear (inner (inner x)) :out 2)))"
    )
    assert [p.name for p in plan.parameters] == ["inner/l/bias", "inner/l/weight", "m/a/out/bias", "m/a/out/weight"]


def test_a_function_of_a_model_declares_in_that_model() -> None:
    plan = plan_of(
        model="(defmodel m () (scope :s (list :head (lambda (x) (linear x :out 2)))))",
        objective="(defobjective (inputs ctx) (mean ((getf (model) :head) (getf inputs :x))))",
    )
    assert [p.name for p in plan.parameters] == ["m/s/out/bias", "m/s/out/weight"]


def test_frozen_parameters_are_neither_trained_nor_given_state() -> None:
    plan = plan_of(
        model="(defmodel m (x) (+ (linear x :out 2) (teacher x)))\n"
        "(defmodel teacher (x) :frozen true (linear x :out 2))",
        optimizer="(defoptimizer (adamw :lr 0.1))",
    )
    assert {p.name: p.is_frozen for p in plan.parameters} == {
        "m/out/bias": False,
        "m/out/weight": False,
        "teacher/out/bias": True,
        "teacher/out/weight": True,
    }
    assert {e.parameter for e in plan.optimizer} == {"m/out/bias", "m/out/weight"}
    assert "teacher/out/weight" not in [p.name for p in plan.phase("update").inputs]


def test_deep_recursion_is_a_diagnostic() -> None:
    assert faults(model="(defun again (n) (+ 1 (again n)))\n(defmodel m (x) (linear x :out (again 2)))")[0].startswith(
        "E-FORM-005"
    )


def test_a_wide_expansion_is_a_diagnostic() -> None:
    defs = "(defun f0 (x) (+ x 1.0))\n" + "\n".join(
        f"(defun f{n} (x) (f{n - 1} (f{n - 1} (f{n - 1} x))))" for n in range(1, 25)
    )
    assert faults(model=defs + "\n(defmodel m (x) (linear (f24 x) :out 2))")[0].startswith("E-FORM-005")
