"""The evaluator: what expressions mean at trace time, seen through the graphs they make."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.graph.interpreter import run
from sexpgpu.trace.evaluator import Tracer
from sexpgpu.trace.parameter_inits import initial
from tests.support import faults, plan_of, plan_text, run_text


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
        ("(floordiv -7 2)", -4),
        ("(floordiv 1.0 0.1)", 9.0),
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
        ("(let ((a 1)) (let ((a 2) (b a)) b))", 1),
        ("(cond (nil 1) (3))", 3),
        ("(cond (" * 60 + "3" + "))" * 60, 3),  # each test is evaluated once
        ("(and 1 2)", 2),
        ("(if (and) 1 0)", 1),
        ("(if (or) 1 0)", 0),
        ("(if (first []) 1 0)", 0),
        ("(nth -1 [7 8 9])", 9),
        ("(length (range 1 10 3))", 3),
        ("(dim (zeros [3 5 7]) -2)", 5),
        ("(length (rest [7 8 9]))", 2),
        ("(sum (cast (or false (> (iota [4]) 1)) :i32))", 2),
        ("(sum (cast (and (> (iota [4]) 1) true) :i32))", 2),
        ("(/ 4)", 0.25),
        ("(if (same? (dtype-of (sum 1)) :i32) 1 0)", 1),
        ("(if (same? (dtype-of (sum 1.5)) :f32) 1 0)", 1),
        ("(nth 0 (map (lambda (x) 3.5) [(+ (zeros [2]) 3.4028235e38)]))", 3.5),
        ("(sum (- (iota [3])))", -3),
        ("(sum (/ (full [2] 4.0)))", 0.5),
        ("(sum (+ (iota [3])))", 3),
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


def wide(body: str, deep: int) -> str:
    """Functions f0 to f``deep``, each three calls of the one before."""
    more = "\n".join(f"(defun f{n} (x) (f{n - 1} (f{n - 1} (f{n - 1} x))))" for n in range(1, deep + 1))
    return f"(defun f0 (x) {body})\n{more}"


def test_a_wide_expansion_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexpgpu.graph.core.MAX_NODES", 2000)
    text = run_text(model=wide("(+ x 1.0)", 24) + "\n(defmodel m (x) (linear (f24 x) :out 2))")
    found = [(e.code.name, e.message) for e in plan_text(text)[1].errors]
    assert found == [("E-FORM-005", "the trace made more than 2000 values")]


def test_a_wide_expansion_that_makes_no_value_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexpgpu.trace.evaluator.MAX_STEPS", 5000)
    text = run_text(model=wide("x", 9) + "\n(defmodel m (x) (linear (f9 x) :out 2))")
    assert {(e.code.name, "expands" in e.message) for e in plan_text(text)[1].errors} == {("E-FORM-005", True)}


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each evaluation."""
    found, evaluate = [], Tracer.evaluate_seq
    monkeypatch.setattr(Tracer, "evaluate_seq", lambda *args: found.append(1) or evaluate(*args))
    return found


@pytest.mark.parametrize("passes", [0, 1, 8])
def test_graphs_with_a_fault_are_looked_at_so_far_and_no_further_all_together(
    monkeypatch: pytest.MonkeyPatch, looked: list[int], passes: int
) -> None:
    monkeypatch.setattr("sexpgpu.trace.evaluator.FAULTY_STEPS", 500)
    text = run_text(
        model=wide("x", 9) + "\n(defmodel m (x) (linear (+ nope (f9 x)) :out 2))",
        passes="\n".join(f"(defpass p{n} :loader d :every 1)" for n in range(passes)),
    )
    assert [e.code.name for e in plan_text(text)[1].errors] == ["E-NAME-001"]
    assert len(looked) == 501


@pytest.mark.parametrize(
    "call, message",
    [
        ("(cross-entropy {})", "cross-entropy has too many arguments"),
        ("(reshape {} :shape [2])", "reshape has too many arguments"),
        ("(-> x (exp) (sqrt {}))", "sqrt has too many arguments"),
        ("(dim {})", "dim got 100 arguments"),
        ("(f0 {})", "f0 takes 1 arguments and got 100"),
        ("(model {})", "m takes 1 arguments and got 100"),
        ("((lambda (x) x) {})", "lambda takes 1 arguments and got 100"),
    ],
)
def test_that_arguments_are_far_too_many_is_told_before_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, looked: list[int], call: str, message: str
) -> None:
    monkeypatch.setattr("sexpgpu.trace.evaluator.FAULTY_STEPS", 500)
    text = run_text(
        model=wide("x", 5) + "\n(defmodel m (x) (linear x :out 2))",
        objective=f"(defobjective (inputs ctx) (let ((x (getf inputs :x))) {call.format('(f5 x) ' * 100)}))",
    )
    assert [e.message for e in plan_text(text)[1].errors] == [message]
    assert len(looked) == 501


def test_arguments_that_are_too_many_have_their_own_faults() -> None:
    names = " ".join(f"n{i}" for i in range(20))
    objective = f"(defobjective (inputs ctx) (dim {names}))"
    assert sorted(f.split()[0] for f in faults(objective=objective)) == ["E-CALL-001"] + ["E-NAME-001"] * 20
    objective = "(defobjective (inputs ctx) (dim " + "(getf 1 :a) " * 20 + "))"
    assert sorted(f.split()[0] for f in faults(objective=objective)) == ["E-CALL-001"] + ["E-CALL-004"] * 20


def test_a_graph_without_a_fault_is_looked_at_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexpgpu.trace.evaluator.FAULTY_STEPS", 10)
    assert plan_of(passes="(defpass p :loader d :every 1)")


@pytest.mark.parametrize(
    "body, again",
    [
        ("{} (mean (model (getf inputs :x)))", "(model (getf inputs :x))"),
        ("{} (mean (model (getf inputs :x)))", "(let ((a 1)) (model (getf inputs :x)) (f9 a))"),
        ("(let* ({}) (mean a))", "(a (model (getf inputs :x)))"),
    ],
)
def test_what_is_said_again_to_no_effect_is_looked_at_once(looked: list[int], body: str, again: str) -> None:
    counts = []
    for n in (1, 50):
        looked.clear()
        plan_of(
            model=wide("x", 5) + "\n(defun f9 (x) (f5 x))\n(defmodel m (x) (linear (f1 x) :out 2))",
            objective=f"(defobjective (inputs ctx) {body.format(again * n)})",
        )
        counts.append(len(looked))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "body, codes",
    [
        ("(metric :a 1.0) (metric :a 1.0)", ["E-CONTRACT-004"]),
        ("(error :no) (error :no)", ["E-CALL-005"] * 2),
        ("(zeros [1]) (zeros [1.0])", ["E-CALL-004"]),
        ("(zeros [1.0]) (zeros [1.0])", ["E-CALL-004"] * 2),
        ("(diagnostic :a nope) (diagnostic :a nope)", ["E-NAME-001"] * 2),
    ],
)
def test_what_a_body_says_again_has_its_faults_again(body: str, codes: list[str]) -> None:
    objective = f"(defobjective (inputs ctx) {body} (mean (model (getf inputs :x))))"
    assert [f.split()[0] for f in faults(objective=objective)] == codes


def test_a_binding_of_itself_is_made_again() -> None:
    assert value("(let* ((a 1) (a (+ a a)) (a (+ a a)) (a (+ a a))) a)") == 8


def test_what_a_body_draws_again_is_drawn_again() -> None:
    """So the draws after it keep their places."""
    body = "(defobjective (inputs ctx) {} (mean (* (random-normal [4 2]) (model (getf inputs :x)))))"
    plans = [plan_of(objective=body.format("(random-normal [3]) " * n)) for n in (0, 1, 2)]
    draws = [[v.attrs["place"] for v in p.phase("train").graph.values() if v.op == "philox"] for p in plans]
    assert len({tuple(each) for each in draws}) == 3


TWICE = "(defobjective (inputs ctx) (mean (+ (model (getf inputs :x)) (model (* 2.0 (getf inputs :x))))))"


@pytest.mark.parametrize(
    "model",
    [
        "(defmodel m (x) (linear x :out 2))",
        "(defmodel m (x) (linear x :out 2 :init (normal 0.02)))",
        "(defmodel m (x) (let ((sd [1 2.0])) (linear x :out 2 :init (lambda (shape) (* (first sd) (ones shape))))))",
        "(defmodel m (x) (* (dim x 0) (param :w [2] :init 0.5) (param :v [2] :init ones)))",
        "(defmodel m (x) (scope :a (* (dim x 0) (param :w [2] :init (uniform 0.0 1.0)))))",
    ],
)
def test_an_init_is_made_once_however_often_its_parameter_is_met(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    made: list[str] = []
    watched = "sexpgpu.trace.builtin_reports.initial"
    monkeypatch.setattr(watched, lambda world, p: made.append(p.name) or initial(world, p))
    plan = plan_of(model=model, objective=TWICE, passes="(defpass p :loader d :every 1)")
    assert sorted(made) == [p.name for p in plan.parameters]


@pytest.mark.parametrize(
    "one, other",
    [
        ("(normal 0.1)", "(normal 0.2)"),
        ("(uniform -1.0 0.0)", "(uniform -1.0 0.5)"),
        ("(filled 0.0)", "(filled -0.0)"),
        ("(filled (ones [2]))", "(filled (zeros [2]))"),
        ("(nested 1.0)", "(nested 2.0)"),
        ("(filled (first [1.0 2.0]))", "(filled (first [2.0 1.0]))"),
        ("zeros", "ones"),
        ("0.0", "-0.0"),
    ],
)
def test_inits_that_differ_in_what_they_close_over_clash(one: str, other: str) -> None:
    model = f"""(defun filled (value) (lambda (shape) (+ value (zeros shape))))
(defun nested (value) (filled (+ value 1.0)))
(defmodel m (x) (+ (layer x {one}) (layer x {other})))
(defun layer (x init) (linear x :out 2 :bias false :init init))"""
    assert [f.split()[0] for f in faults(model=model)] == ["E-PARAM-002"]


@pytest.mark.parametrize("limit, place", [(12, "1:17"), (26, "-")])
def test_a_gradient_that_is_too_large_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch, limit: int, place: str) -> None:
    monkeypatch.setattr("sexpgpu.graph.core.MAX_NODES", limit)  # PARTS makes 13 values for the loss, 27 with gradients
    assert faults() == [f"E-FORM-005 {place}"]


OBJECTIVE = "(defobjective (inputs ctx) {} (mean (model (getf inputs :x))))"
LOADER = "(defloader d :source {} :batch 4 :fields (list :x [{}] :f32 :y [] :i32))"
OPTIMIZER = "(defoptimizer (list :state (lambda (p) {}) :update (lambda (p g state ctx) {})))"


@pytest.mark.parametrize(
    "parts",
    [
        {"objective": OBJECTIVE.format("(metric :a (+ 1.0 nope)) (metric :b (+ 1 2))")},
        {"objective": OBJECTIVE.format("(reshape (getf inputs :x) [4 nope])")},
        {"objective": OBJECTIVE.format("(fold + 0 (map (lambda (x) (+ x nope)) (range 3)))")},
        {"objective": OBJECTIVE.format("(fold (lambda (s x) [s nope]) 0 (range 3))")},
        {"objective": OBJECTIVE.format("(fold (lambda (s x) (not nope)) 0 (range 3)) (-> 1 (+ nope) sqrt)")},
        {"objective": OBJECTIVE.format("(if (not nope) (error :never)) (cond ((not nope) (error :never)))")},
        {"objective": OBJECTIVE.format("(and (not nope) (error :never)) (or (not nope) (error :never))")},
        {"objective": OBJECTIVE.format("((lambda (a &key (b (+ 1 nope))) (+ a b)) 1)")},
        {"objective": "(defobjective (inputs ctx) (map (lambda (x) (* x nope)) [1 2]))"},
        {"prepare": "(defprepare (batch ctx) (map (lambda (x) (* x nope)) [1 2]))"},
        {"model": "(defmodel m (x) (+ (param :w [2] :init (lambda (s) (zeros [nope]))) (linear x :out 2)))"},
        {"model": "(defmodel m (x) (linear x :out 2 :init (* 2 nope)))"},
        {"model": "(defmodel m (x) (linear x :out nope))",
         "optimizer": '(defoptimizer (sgd :lr 0.1 :groups (list (list :match "*/bias" :optimizer (sgd :lr 0.0)))))'},
        {"optimizer": "(defoptimizer (sgd :lr nope))"},
        {"optimizer": "(defoptimizer (sgd :lr (lambda (ctx) (* 1.0 nope))))"},
        {"optimizer": OPTIMIZER.format("(list :m (* p nope))", "(list :param p :m p)")},
        {"optimizer": OPTIMIZER.format("(list)", "(list :param (* p nope))")},
        {"run": "(defrun r :model m :loader d :seed 1 :steps (+ nope 1))"},
        {"loader": LOADER.format('(list "a" nope)', "3")},
        {"loader": LOADER.format('"a"', "nope")},
        {"generate": "(defgenerate :trips (+ 1 nope) :init (lambda (batch ctx) (list :s (field batch :x)))"
                     " :step (lambda (state trip ctx) state))"},
        {"generate": "(defgenerate :trips 2 :init (lambda (batch ctx) (list :s (* nope (field batch :x))))"
                     " :step (lambda (state trip ctx) state))"},
    ],
)  # fmt: skip
def test_what_is_made_of_a_fault_is_no_fault_of_its_own(parts: dict[str, str]) -> None:
    assert [f.split()[0] for f in faults(**parts)] == ["E-NAME-001"] * str(parts).count("nope")


@pytest.mark.parametrize("defs", ["(def a (+ a 1))", "(def a (+ b 1)) (def b (+ a 1))", "(def a a)"])
def test_a_def_that_needs_itself_is_a_diagnostic(defs: str) -> None:
    assert [f.split()[0] for f in faults(generate=defs, objective=OBJECTIVE.format("(metric :q a)"))] == ["E-FORM-005"]


@pytest.mark.parametrize(
    "expression, code",
    [
        ("(range 100001)", "E-FORM-005"),
        ("(range -9223372036854775808 9223372036854775807)", "E-FORM-005"),
        ("(range 0 5 0)", "E-CALL-004"),
        ("(fold (lambda (s i) (concat-lists s s)) [1] (range 60))", "E-FORM-005"),
        ('(fold (lambda (s i) (string s s)) "a" (range 60))', "E-FORM-005"),
    ],
)
def test_lists_and_texts_have_a_limit(expression: str, code: str) -> None:
    assert [f.split()[0] for f in faults(objective=OBJECTIVE.format(expression))] == [code]


def test_a_list_may_be_as_long_as_the_limit() -> None:
    assert value("(length (concat-lists (range 50000) (range 50000)))") == value("(length (range 100000))") == 100_000


@pytest.mark.parametrize(
    "pair, want",
    [("1 1.0", 1), ("1 true", 0), ("[1 :a] [1 :a]", 1), ("[1] [true]", 0), ("[1] [1 2]", 0), ("nil false", 0)],
)
def test_same(pair: str, want: int) -> None:
    assert value(f"(if (same? {pair}) 1 0)") == want


def test_a_function_in_a_def_declares_in_the_model_that_calls_it() -> None:
    plan = plan_of(
        generate="(def head (lambda (x) (linear x :l 3)))",
        model="(defmodel n (x) (head x))\n(defmodel m (x) (linear (n (head x)) :out 2))",
    )
    assert [p.name for p in plan.parameters if "/l/" in p.name] == ["m/l/bias", "m/l/weight", "n/l/bias", "n/l/weight"]


def test_a_def_stands_outside_every_model() -> None:
    parts = {"generate": "(def w (param :w [3] :init zeros))", "model": "(defmodel m (x) (linear (+ x w) :out 2))"}
    assert faults(**parts) == ["E-PARAM-001 3:8"]


def test_an_operator_of_the_compiler_alone_is_not_in_the_language() -> None:
    text = run_text(objective=OBJECTIVE.format("(philox 3)"))
    error = plan_text(text)[1].errors[0]
    assert error.code.name == "E-NAME-001" and "philox" not in error.hint


@pytest.mark.parametrize(
    "call", ["(map first [[1]] [[2]])", "(map nth [1])", "(map (lambda (a b) a) [1])", "(map (lambda (a) a) [1] [2])"]
)
def test_a_function_passed_on_is_called_with_its_number_of_arguments(call: str) -> None:
    assert faults(objective=OBJECTIVE.format(call)) == ["E-CALL-001 4:28"]


def test_a_fault_inside_the_prelude_is_shown_at_the_call_that_led_there() -> None:
    error = plan_text(run_text(optimizer="(defoptimizer (adam))"))[1].errors[0]  # adam calls adamw, which asserts
    assert error.code.name == "E-CALL-005" and error.where.endswith("run.sx:5:15")
    assert [span.source.name for span, _ in error.notes] == ["prelude/optimizers.sx"]


def test_a_function_made_in_a_model_declares_where_that_model_calls_it() -> None:
    body = "(let ((f (lambda (y) (linear y :l 3)))) (linear (scope :b (f (scope :a (f x)))) :out 2))"
    names = [p.name for p in plan_of(model=f"(defmodel m (x) {body})").parameters]
    assert [n for n in names if n.endswith("weight")] == ["m/b/a/l/weight", "m/b/l/weight", "m/out/weight"]


def test_two_draws_of_one_form_differ() -> None:
    assert value("(sum (abs (- (random-uniform [4]) (random-uniform [4]))))") > 0


@pytest.mark.parametrize(
    "call, code",
    [
        ("(map (lambda (a &key b) a) [1] [:b])", "E-CALL-002"),
        ("(map (lambda (a &key b) a) [1] [:c] [2])", "E-CALL-002"),
        ("(map (lambda (a &key b) a) [1] [2] [:b])", "E-CALL-002"),
        ("(map (lambda (a &key b) a) [1] [:b] [2] [:b] [3])", "E-FORM-003"),
        ("(map sum [1] [:axes])", "E-CALL-002"),
        ("(map sum [1] [:axis] [0])", "E-CALL-002"),
        ("(map sum [1] [2] [3])", "E-CALL-001"),
        ("(map sum [1] [:axes] [0] [:axes] [0])", "E-FORM-003"),
        ("(map matmul [1])", "E-CALL-001"),
    ],
)
def test_keywords_of_a_function_passed_on(call: str, code: str) -> None:
    assert faults(objective=OBJECTIVE.format(call)) == [f"{code} 4:28"]


@pytest.mark.parametrize("name", ['""', '"a/b"', '"\u00e9"', "3", "nil"])
def test_a_parameter_has_a_plain_name(name: str) -> None:
    assert faults(model=f"(defmodel m (x) (linear x {name} 2))") == ["E-CALL-004 1:17"]


@pytest.mark.parametrize(
    "expression, code",
    [
        ("(nth 3 [7 8 9])", "E-CALL-004"),
        ("(nth -4 [7 8 9])", "E-CALL-004"),
        ("(dim (zeros [3]) 1)", "E-CALL-004"),
        ("(first 3)", "E-CALL-004"),
        ("(string true)", "E-CALL-004"),
        ("(field ctx :x)", "E-CALL-004"),
        ("(assert (zeros [2]))", "E-TYPE-002"),
        ("(assert nil)", "E-CALL-005"),
        ("(exp [1 2])", "E-TYPE-004"),
        ("(abs [-3])", "E-TYPE-004"),
        ("(matmul [] (zeros [2 2]))", "E-TYPE-004"),
        ("(+ [1] [2])", "E-TYPE-004"),
        ("(sqrt -1)", "E-CALL-004"),
        ("(pow 1e200 2)", "E-CALL-004"),
        ("(* 1e200 1e200)", "E-CALL-004"),
        ("(pow -8.0 0.5)", "E-CALL-004"),
        ("(/ 1 0)", "E-CALL-004"),
        ("(* 4294967296 2147483648)", "E-CALL-004"),
        ("(+ (iota [2]) 1.5)", "E-TYPE-003"),
        ("(+ (iota [2]) 2147483648)", "E-TYPE-003"),
        ("(+ (zeros [2]) 1e39)", "E-TYPE-003"),
        ("(+ (zeros [2]) 3.4028235677973366e38)", "E-TYPE-003"),
        ("(+ (iota [2]) (cast (iota [2]) :u8) 1)", "E-TYPE-001"),
        ("(+ (zeros [2]) true)", "E-TYPE-004"),
        ("(+ (zeros [2]) (iota [2]))", "E-TYPE-001"),
        ("(zeros [0])", "E-SHAPE-001"),
        ("(reshape (zeros [2]) nil)", "E-CALL-004"),
        ("(metric :loss 1)", "E-CONTRACT-004"),
        ("(metric :grad_norm 1)", "E-CONTRACT-004"),
        ("(metric :a [1])", "E-TYPE-004"),
        ("(metric :a (zeros [2]))", "E-CONTRACT-004"),
        ("(metric :a (> (zeros []) 1))", "E-CONTRACT-004"),
        ("(metric :a 1) (metric :a 2)", "E-CONTRACT-004"),
        ("(counter :a 1)", "E-CONTRACT-010"),
        ("(scope :a 1)", "E-PARAM-001"),
        ("(nowhere 1)", "E-NAME-001"),
        ("(getf inputs 3)", "E-CALL-004"),
    ],
)
def test_a_fault_has_its_code(expression: str, code: str) -> None:
    assert [f.split()[0] for f in faults(objective=OBJECTIVE.format(expression))] == [code]


def test_a_shape_that_cannot_be_is_shown_where_it_stands() -> None:
    assert faults(objective=OBJECTIVE.format("(zeros [0])")) == ["E-SHAPE-001 4:35"]
    assert faults(model="(defmodel m (x) (+ (param :w [-2] :init zeros) (linear x :out 2)))") == ["E-SHAPE-001 1:30"]
