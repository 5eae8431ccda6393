"""``:precision :bf16``: what runs in bf16, and that the file's own dtypes are those of ``:f32``."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from sexpgpu.graph.core import Builder
from sexpgpu.graph.interpreter import run
from sexpgpu.ops import OPS
from sexpgpu.ops.types import TensorType
from sexpgpu.phases.plan import Phase, Plan
from sexpgpu.trace import mixed_precision
from tests.support import plan_of, plan_text, run_text

RUN = "(defrun r :model m :loader d :seed 1 :steps 2 :precision {})"
BF16 = RUN.format(":bf16")
GENERATE = "(defgenerate :trips 2 :init (lambda (batch ctx) {init}) :step (lambda (state trip ctx) {step}))"
FLOAT_CASES = [
    pytest.param(row, case, id=f"{row.name}-{n}")
    for row in OPS.values()
    if not row.internal
    for n, case in enumerate(row.cases)
    if "f32" in [t[0] for t in case[0]] and not {"f64", "bf16", "f16"} & {t[0] for t in case[0]}
]


def dtypes(phase: Phase, *ops: str) -> set[str]:
    """The dtypes of the phase's values of these operators."""
    return {v.type.dtype for v in phase.graph.values() if v.op in ops}


def body(model: str, **parts: str) -> Plan:
    """A run under :bf16 whose model is (defmodel m (x) MODEL)."""
    return plan_of(model=f"(defmodel m (x) {model})", run=BF16, **parts)


# -- the column ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row, case", FLOAT_CASES)
def test_a_row_runs_as_it_says_and_its_result_has_the_files_type(row, case) -> None:
    b = Builder()
    types, attrs = case
    given = [b.input(f"x{n}", TensorType(t[1], t[0])) for n, t in enumerate(types)]
    narrow = [mixed_precision.seen(b, mixed_precision.rounded(b, v)) if v.type.dtype == "f32" else v for v in given]
    if row.group == "draws" or (row.name == "dropout" and attrs["rate"]):
        assert row.precision == "f32" or row.name == "dropout"
        return
    made = mixed_precision.operands(b, row, narrow)
    assert (made is None) == (row.precision == "f32")
    assert (mixed_precision.operands(b, row, given) is None) == (row.precision != "bf16")
    if made is None:
        return
    want, got = b(row.name, *given, **attrs), mixed_precision.seen(b, b(row.name, *made, **attrs))
    for x, y in zip(*(v if isinstance(v, tuple) else (v,) for v in (want, got)), strict=True):
        assert y.type == x.type
        assert y.type.dtype != "f32" or mixed_precision.behind(y), "a bf16 value is seen as f32"


@pytest.mark.parametrize(
    "model, op, dtype",
    [
        ("(linear x :a 2)", "matmul", "bf16"),  # a batch's f32 is rounded for a product
        ("(+ x (param :b [3] :init ones))", "+", "f32"),  # and stays what it is elsewhere
        ("(* 2.5 (param :b [3] :init ones))", "*", "bf16"),  # a number adapts to what stands beside it
        ("(* (param :b [3] :init ones) (cast (> x 0.0) :f32))", "*", "bf16"),  # so does a truth value
        ("(where (> x 0.0) (param :b [3] :init ones) -1e9)", "where", "bf16"),
        ("(where (> x 0.0) (param :b [3] :init ones) -3.4e38)", "where", "f32"),  # which bf16 cannot hold
        ("(normalize (linear x :a 3))", "normalize", "bf16"),
        ("(tanh (linear x :a 3))", "tanh", "bf16"),
        ("(softmax (linear x :a 3))", "softmax", "f32"),
        ("(mean (linear x :a 3) :axes [0])", "sum", "f32"),
        ("(let* ((y (linear x :a 3))) (* y (softmax y)))", "*", "f32"),  # what was computed in f32 is not rounded
        ("(tanh (cast (linear x :a 3) :f32))", "tanh", "f32"),  # nor what the file casts
        ("(sigmoid (tanh (cast (linear x :a 3) :f32)))", "sigmoid", "f32"),
    ],
)
def test_what_an_operator_of_a_model_runs_in(model: str, op: str, dtype: str) -> None:
    plan = body(model, objective="(defobjective (inputs ctx) (reduce-max (model (getf inputs :x))))")
    forward = [v for v in plan.phase("train").graph.values() if v.op == op]
    assert forward[0].type.dtype == dtype


def test_a_comparison_sees_the_number_as_it_is_written() -> None:
    plan = body("(where (> (linear x :a 3) 0.3) 1.0 (param :b [3] :init ones))",
                objective="(defobjective (inputs ctx) (reduce-max (model (getf inputs :x))))")  # fmt: skip
    (test,) = [v for v in plan.phase("train").graph.values() if v.op == ">"]
    assert [a.type.dtype for a in test.args] == ["f32", "f32"]


def test_nothing_outside_a_model_runs_in_bf16() -> None:
    objective = (
        "(defobjective (inputs ctx) (let* ((y (model (getf inputs :x)))) (mean (matmul y (transpose (* 2.0 y))))))"
    )
    plan = plan_of(objective=objective, run=BF16)
    values = [v for v in plan.phase("train").graph.values() if v.op in ("matmul", "*") and v.span]
    assert values[0].type.dtype == "bf16"  # the model's own
    assert {v.type.dtype for v in values if v.type.shape == (4, 4) or v.op == "*"} == {"f32"}
    for name in ("init", "update"):
        assert "bf16" not in {v.type.dtype for v in plan.phase(name).graph.values()}


def test_f32_has_no_bf16() -> None:
    plan = plan_of(run=RUN.format(":f32"))
    assert "bf16" not in {v.type.dtype for p in plan.phases for v in p.graph.values()}


# -- parameters and gradients ----------------------------------------------------------------------------------------


def test_parameters_state_and_gradients_are_f32_and_a_phase_rounds_each_parameter_once() -> None:
    model = "(let* ((layer (lambda (x i) (linear x :all 3)))) (fold layer x (range 5)))"
    plan = body(model, optimizer="(defoptimizer (adamw :lr 0.1))")
    train = plan.phase("train")
    kinds = ("param", "gradient", "optimizer")
    ports = [p for phase in plan.phases for p in (*phase.inputs, *phase.outputs) if p.kind in kinds]
    assert {p.type.dtype for p in ports} == {"f32"}
    casts = Counter(v.args[0].name for v in train.graph.values() if v.op == "cast" and not v.args[0].op)
    assert casts["param:m/all/weight"] == casts["param:m/all/bias"] == 1
    # Five products of the backward pass, one gradient: its sum is of f32.
    gradient = dict(zip(train.outputs, (v for _, v in train.graph.outputs), strict=True))
    total = next(v for p, v in gradient.items() if p.name == "m/all/weight")
    assert (total.op, total.type.dtype) == ("+", "f32")


def test_the_interpreter_rounds_to_bf16_where_the_column_says() -> None:
    plan = body("(* 3.0 (linear x :a 2 :bias false))",
                objective="(defobjective (inputs ctx) (reduce-max (model (getf inputs :x))))")  # fmt: skip
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=(3, 2)).astype("f4")
    train = plan.phase("train")
    loss = run(train.graph, [{"param": w, "field": x}[p.kind] for p in train.inputs])[0]
    half = lambda v: v.astype(ml_dtypes.bfloat16).astype("f4")  # noqa: E731
    want = half(half(half(x) @ half(w)) * np.float32(3)).max()
    assert loss == want != np.float32((x @ w).max() * 3)


# -- the file's dtypes -----------------------------------------------------------------------------------------------

SEEN = '(assert (same? (dtype-of {}) {}) "another dtype")'


def test_the_file_sees_f32() -> None:
    inside = SEEN.format("(linear x :a 3)", ":f32") + SEEN.format("(param :w [3] :init ones)", ":f32")
    outside = SEEN.format("(model (getf inputs :x))", ":f32")
    body(f"{inside} {SEEN.format('(cast x :bf16)', ':bf16')} (linear x :b 2)",
         objective=f"(defobjective (inputs ctx) {outside} (mean (model (getf inputs :x))))")  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [
        "(+ (linear x :a 2) (cast (linear x :b 2) :bf16))",
        "(matmul (linear x :a 2) (transpose (cast (linear x :b 2) :bf16)))",
        "(linear (linear x :a 2) :b 2) (matmul (linear x :c 2) (linear x :d 2))",
        "(+ (linear x :a 2) (linear x :b 3))",
        "(+ (linear x :a 2) 1 (iota [2]))",
        "(gather (linear x :a 2) (linear x :b 2))",
    ],
)
def test_a_fault_is_that_of_f32_in_the_same_words(model: str) -> None:
    texts = []
    for name in (":f32", ":bf16"):
        plan, report = plan_text(run_text(model=f"(defmodel m (x) {model})", run=RUN.format(name)))
        assert plan is None
        texts.append([(e.code.name, e.message, e.hint, e.span and e.span.line_column()) for e in report.errors])
    assert texts[0] == texts[1]


# -- the generator's state -------------------------------------------------------------------------------------------


def state_types(init: str, step: str) -> list[dict[str, str]]:
    plan = plan_of(model="(defmodel m (x) (linear x :out 3))",
                   generate=GENERATE.format(init=init, step=step), run=BF16)  # fmt: skip
    phases = [plan.phase(f"generate.{n}") for n in ("init", "step")]
    return [{p.name: str(p.type) for p in phase.outputs} for phase in phases]


def test_a_state_entry_keeps_the_dtype_it_was_made_with() -> None:
    init = "(list :row (model (field batch :x)) :own (field batch :x) :cache (zeros [4 3] :dtype :bf16))"
    step = (
        "(let* ((next (model (cast (getf state :cache) :f32))))"
        " (list :row (* 2.0 (model (getf state :row))) :own next :cache (cast next :bf16)))"
    )
    made = {"row": "f32[4 3]", "own": "f32[4 3]", "cache": "bf16[4 3]"}
    assert state_types(init, step) == [made, made]


def test_a_cache_of_bf16_is_read_and_written_without_a_step_through_f32() -> None:
    """The prelude's attention with a cache, over one position."""
    model = (
        "(defmodel m (x &key cache at) (let* ((made (self-attention x :a :heads 2 :cache cache :at at)))"
        " (if cache made (linear made :out 2))))"
    )
    empty = "(zeros [4 2 3 2] :dtype :bf16)"
    step = (
        "(let* ((cache (list :k (getf state :k) :v (getf state :v)))"
        " (made (model (zeros [4 1 4]) :cache cache :at (cast trip :i32))))"
        " (list :out (getf made :out) :k (getf (getf made :cache) :k) :v (getf (getf made :cache) :v)))"
    )
    plan = plan_of(
        model=model,
        generate=GENERATE.format(init=f"(list :out (zeros [4 1 4]) :k {empty} :v {empty})", step=step),
        objective="(defobjective (inputs ctx) (mean (model (zeros [4 3 4]))))",
        run=BF16,
    )
    phase = plan.phase("generate.step")
    assert [str(p.type) for p in phase.outputs] == ["f32[4 1 4]", "bf16[4 2 3 2]", "bf16[4 2 3 2]"]
    caches = [v for v in phase.graph.values() if v.type.shape == (4, 2, 3, 2)]
    assert len(caches) == 4 and {v.type.dtype for v in caches} == {"bf16"}


@pytest.mark.parametrize(
    "init, step, found",
    [
        ("(list :s (field batch :x))", "(list :s (cast (model (getf state :s)) :bf16))", ("bf16[4 3]", "f32[4 3]")),
        ("(list :s (zeros [4 3] :dtype :bf16))", "(list :s (model (cast (getf state :s) :f32)))",
         ("f32[4 3]", "bf16[4 3]")),
    ],
)  # fmt: skip
def test_a_state_entry_that_changes_its_dtype_is_named_with_both_types_and_places(init, step, found) -> None:
    text = run_text(model="(defmodel m (x) (linear x :out 3))",
                    generate=GENERATE.format(init=init, step=step), run=BF16)  # fmt: skip
    plan, report = plan_text(text)
    assert plan is None
    (error,) = report.errors
    assert error.code.name == "E-GEN-002"
    assert error.message == ":step returns :s as {}, and :init made it {}".format(*found)
    assert error.span and [note for _, note in error.notes] == [":s is made here"]


def test_draws_are_those_of_f32() -> None:
    model = "(defmodel m (x) (* (random-normal [2]) (linear (dropout x 0.5) :out 2)))"

    def drawn(name: str) -> list[tuple[str, str]]:
        values = plan_of(model=model, run=RUN.format(name)).phase("train").graph.values()
        return [(v.op, str(v.type)) for v in values if v.op in ("philox", "log", "cos", "sqrt")]

    assert drawn(":f32") == drawn(":bf16")
    assert ("cos", "f32[2]") in drawn(":bf16")
