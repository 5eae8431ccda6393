"""A call of which no element can be a finite number is a fault: x / 0 and its kin."""

from __future__ import annotations

import pytest

from tests.support import faults, plan_of, plan_text, run_text

OBJECTIVE = (
    "(defobjective (inputs ctx)"
    " (let* ((x (model (getf inputs :x))) (n (getf inputs :y)) (z (zeros [2])))"
    " (metric :m (mean (cast {} :f32)))"
    " (mean (cross-entropy x n))))"
)


def objective(call: str) -> str:
    return OBJECTIVE.format(call)


WRONG = [
    "(/ x 0)",
    "(/ x 0.0)",
    "(/ x 2.0 0.0)",
    "(/ x -0.0)",
    "(/ x 1e-50)",
    "(/ 1.0 z)",
    "(/ z)",
    "(/ x (constant [0.0 0.0]))",
    "(/ x (reshape (zeros [2 1]) [1 2]))",
    "(/ (cast x :f16) 1e-9)",
    "(-> x (/ 0.0))",
    "(mod x 0.0)",
    "(mod n 0)",
    "(quot n 0)",
    "(quot n (cast z :i32))",
    "(pow z -1.0)",
    "(pow z -0.5)",
    "(log z)",
    "(log (full [2] -1.0))",
    "(log (constant [-1.0 0.0]))",
    "(log1p (full [2] -1.0))",
    "(sqrt (full [2] -1.0))",
    "(rsqrt z)",
    "(rsqrt (full [2] -2.0))",
]


@pytest.mark.parametrize("call", WRONG)
def test_what_has_no_value_anywhere(call: str) -> None:
    _, report = plan_text(run_text(objective=objective(call)))
    (fault,) = report.errors
    assert fault.code.name == "E-CALL-004"
    assert fault.span is not None and "no element of the result is a number" in fault.message


@pytest.mark.parametrize(
    "call",
    [
        "(/ z x)",
        "(/ x 1e-30)",
        "(/ x (constant [0.0 1.0]))",
        "(where (> x 0) (/ 1.0 x) 0.0)",
        "(mod n 2)",
        "(quot n -1)",
        "(pow z 2.0)",
        "(pow z 0.0)",
        "(pow x -1.0)",
        "(log (constant [0.0 1.0]))",
        "(log1p (full [2] -0.5))",
        "(sqrt z)",
        "(rsqrt (full [2] 0.5))",
    ],
)
def test_what_has_a_value_somewhere(call: str) -> None:
    plan_of(objective=objective(call))


def test_it_is_told_at_the_call_of_the_users_that_the_prelude_serves() -> None:
    optimizer = "(defoptimizer (sgd :lr (step-decay :peak 1.0 :factor 0.5 :every 0)))"
    (fault,) = faults(optimizer=optimizer)
    assert fault == f"E-CALL-004 5:{optimizer.index('(sgd') + 1}"
    plan_of(optimizer="(defoptimizer (sgd :lr (warmup-cosine :peak 1.0 :warmup 0 :steps 10)))")
