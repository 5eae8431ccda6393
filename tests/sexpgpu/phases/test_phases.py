"""The phases of a run: what each reads and makes, and the rules of the seed page."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.graph.interpreter import run
from sexpgpu.phases import optimizer
from sexpgpu.phases.plan import Bounds, Phase, Plan
from tests.support import faults, plan_of, plan_text, run_text

TWICE = "(defgenerate :trips {trips} :init (lambda (batch ctx) {init}) :step (lambda (state trip ctx) {step}){finish})"
KEEPS = "(defrun r :model m :loader d :seed 1 :steps 2 :diagnostics (list :{}))"
HELD_OUT = (
    '(defloader e :source "e.npz" :batch {batch} :fields (list :x [3] :f32 :y [] :i32))\n(defpass p :loader e :every 2)'
)


def generate(trips: str = "2", init: str = "(list :s (field batch :x))", step: str = "state", finish: str = "") -> str:
    return TWICE.format(
        trips=trips, init=init, step=step, finish=f" :finish (lambda (state ctx) {finish})" if finish else ""
    )


def ports(phase: Phase) -> tuple[list[str], list[str]]:
    return [f"{p.kind}:{p.name}" for p in phase.inputs], [f"{p.kind}:{p.name}" for p in phase.outputs]


def call(phase: Phase, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    """The phase in NumPy; feeds by port name with - and / as _, the rest zeros."""
    values = []
    for p in phase.inputs:
        dtype = {"f32": "float32", "i32": "int32", "i64": "int64", "u32": "uint32", "bool": "bool"}[p.type.dtype]
        value = feeds.get((p.name or p.kind).replace("/", "_").replace("-", "_"), np.zeros(p.type.shape))
        values.append(np.broadcast_to(np.asarray(value, dtype), p.type.shape))
    return dict(zip(ports(phase)[1], run(phase.graph, values), strict=True))


def test_only_ports_that_a_phase_uses_appear() -> None:
    plan = plan_of()
    assert [p.name for p in plan.phases] == ["init", "train", "update"]
    assert ports(plan.phase("train")) == (
        ["param:m/out/bias", "param:m/out/weight", "field:x", "field:y"],
        ["metric:loss", "gradient:m/out/bias", "gradient:m/out/weight"],
    )


def test_update_is_in_place_and_scales_by_microbatches() -> None:
    plan = plan_of(run="(defrun r :model m :loader d :seed 1 :steps 2 :microbatches 4)")
    update = plan.phase("update")
    outputs = ports(update)[1]
    assert [(outputs[o], ports(update)[0][i]) for o, i in update.in_place] == [
        (f"param:m/out/{n}",) * 2 for n in ("bias", "weight")
    ]
    made = call(update, m_out_bias=1.0)  # parameter and gradient are both fed 1: 1 - 0.1 * 1/4
    np.testing.assert_allclose(made["param:m/out/bias"], 0.975, rtol=1e-6)
    train = plan.phase("train")
    assert [(ports(train)[1][o], ports(train)[0][i]) for o, i in train.in_place] == [
        (f"gradient:m/out/{n}",) * 2 for n in ("bias", "weight")
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    update = plan_of(optimizer="(defoptimizer (adamw :lr 0.1))").phase("update")
    values = [
        np.full(p.type.shape, bad if p.kind == "gradient" else 0.5, "float32" if p.type.dtype == "f32" else "int64")
        for p in update.inputs
    ]
    made = dict(zip(ports(update)[1], run(update.graph, values), strict=True))
    assert not np.isfinite(made["metric:grad_norm"])
    for name, value in made.items():
        if not name.startswith("metric:"):
            np.testing.assert_array_equal(value, np.float32(0.5), err_msg=name)


def test_the_gradient_norm_is_clipped() -> None:
    update = plan_of(optimizer="(defoptimizer (sgd :lr 1.0 :clip-norm 2.0))").phase("update")
    values = [np.full(p.type.shape, 3.0 if p.kind == "gradient" else 0.0, "float32") for p in update.inputs]
    made = dict(zip(ports(update)[1], run(update.graph, values), strict=True))
    np.testing.assert_allclose(made["metric:grad_norm"], 3.0 * np.sqrt(8), rtol=1e-6)
    moved = np.concatenate([v.ravel() for n, v in made.items() if n.startswith("param:")])
    np.testing.assert_allclose(np.sqrt((moved**2).sum()), 2.0, rtol=1e-6)


def test_groups_give_a_parameter_another_optimizer() -> None:
    groups = '(list (list :match "*/bias" :optimizer (sgd :lr 0.0)))'
    plan = plan_of(optimizer=f"(defoptimizer (adamw :lr 0.1 :groups {groups}))")
    assert [e.name for e in plan.optimizer] == ["m/out/weight/m", "m/out/weight/v"]


def test_a_parameter_starts_the_same_whatever_else_the_file_holds() -> None:
    def first(plan: Plan) -> np.ndarray:
        return call(plan.phase("init"), seed=np.array([1, 0]))["param:m/out/weight"]

    other = plan_of(model="(defmodel a (x) (linear x :l 3))\n(defmodel m (x) (linear (a x) :out 2))")
    np.testing.assert_array_equal(first(plan_of()), first(other))
    changed = call(plan_of().phase("init"), seed=np.array([2, 0]))["param:m/out/weight"]
    assert not np.array_equal(first(plan_of()), changed)


def test_counters_add_up_and_are_read_by_objective_and_schedules() -> None:
    plan = plan_of(
        prepare="(defprepare (batch ctx) (counter :rows 4) (list :x (field batch :x) :y (field batch :y)))",
        objective="(defobjective (inputs ctx) (metric :seen (cast (getf ctx :rows) :f32))"
        " (mean (model (getf inputs :x))))",
        optimizer="(defoptimizer (sgd :lr (lambda (ctx) (cast (getf ctx :rows) :f32))))",
        passes=HELD_OUT.format(batch=4),
    )
    made = call(plan.phase("train"), rows=np.array(8))
    assert (made["counter:rows"], made["metric:seen"]) == (12, 12)
    assert call(plan.phase("update"), rows=np.array(12))["metric:lr"] == 12
    assert ports(plan.phase("eval.p"))[1] == ["metric:loss", "metric:seen"]


def test_ctx_keys_are_scalars_and_absent_ones_nil() -> None:
    plan = plan_of(
        prepare="(defprepare (batch ctx) (list :x (* (field batch :x) (cast (getf ctx :step) :f32))"
        " :y (if (getf ctx :nothing) (field batch :x) (field batch :y))))"
    )
    assert "ctx:step" in ports(plan.phase("train"))[0]


def test_dropout_is_the_identity_in_a_pass() -> None:
    model = "(defmodel m (x) (linear (dropout x 0.5) :out 2))"
    plan = plan_of(model=model, passes=HELD_OUT.format(batch=4))
    assert "seed:" in ports(plan.phase("train"))[0]
    assert "seed:" not in ports(plan.phase("eval.p"))[0]


# -- the generator -------------------------------------------------------------------------------------------------


def test_a_generator_makes_state_and_what_finish_returned_joins_the_batch() -> None:
    plan = plan_of(
        generate=generate(
            init="(list :s (model (field batch :x)))",
            step="(list :s (+ (getf state :s) (cast trip :f32)))",
            finish="(list :half (* 0.5 (getf state :s)))",
        ),
        prepare="(defprepare (batch ctx) (list :x (field batch :x) :y (field batch :y) :h (field batch :half)))",
        objective="(defobjective (inputs ctx) (+ (mean (getf inputs :h)) (mean (model (getf inputs :x)))))",
    )
    assert [p.name for p in plan.phases] == [
        "init",
        "generate.init",
        "generate.step",
        "generate.finish",
        "train",
        "update",
    ]
    assert ports(plan.phase("generate.init")) == (["param:m/out/bias", "param:m/out/weight", "field:x"], ["state:s"])
    assert ports(plan.phase("generate.step")) == (["state:s", "trip:"], ["state:s"])
    assert call(plan.phase("generate.step"), s=1.0, trip=np.array(3))["state:s"][0, 0] == 4
    assert call(plan.phase("generate.finish"), s=3.0)["generated:half"][0, 0] == 1.5
    assert "generated:half" in ports(plan.phase("train"))[0]


def test_without_finish_the_last_state_joins_the_batch() -> None:
    plan = plan_of(
        generate=generate(), prepare="(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))"
    )
    assert plan.generated == ("s",)
    assert "generated:s" in ports(plan.phase("train"))[0]


def test_nothing_is_differentiated_through_the_generator() -> None:
    plan = plan_of(
        generate=generate(init="(list :s (* (mean (model (field batch :x))) (field batch :x)))"),
        prepare="(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))",
    )
    assert [p.name for p in plan.phase("train").inputs if p.kind == "field"] == ["y"]


def test_a_counter_is_nil_inside_the_generator() -> None:
    plan_of(
        generate=generate(step='(if (getf ctx :rows) (error "seen") state)'),
        prepare="(defprepare (batch ctx) (counter :rows 4) (list :x (field batch :s) :y (field batch :y)))",
    )


def test_a_diagnostic_inside_the_generator_is_dropped() -> None:
    parts = {
        "generate": generate(step="(list :s (diagnostic :seen (getf state :s)))"),
        "prepare": "(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))",
    }
    assert all(not o.startswith("diagnostic") for p in plan_of(**parts).phases for o in ports(p)[1])
    assert faults(**parts, run=KEEPS.format("seen")) == ["E-NAME-001 7:60"]  # and cannot be asked for


def test_a_selected_diagnostic_is_kept_and_others_are_dropped() -> None:
    both = "(diagnostic :a (getf inputs :x)) (diagnostic :b (getf inputs :y))"
    objective = f"(defobjective (inputs ctx) {both} (mean (model (getf inputs :x))))"
    assert ports(plan_of(objective=objective).phase("train"))[1][-1] == "gradient:m/out/weight"
    kept = plan_of(objective=objective, run=KEEPS.format("b"))
    assert ports(kept.phase("train"))[1][-1] == "diagnostic:b"


def test_a_metric_of_a_model_that_the_generator_runs_is_an_error() -> None:
    model = "(defmodel m (x) (metric :size (mean x)) (linear x :out 2))"
    codes = faults(model=model, generate=generate(step="(list :s (* (mean (model (getf state :s))) (getf state :s)))"))
    assert [c.split()[0] for c in codes] == ["E-GEN-004"]


def test_a_pass_with_the_training_fields_and_batch_runs_the_generator() -> None:
    parts = {
        "generate": generate(),
        "prepare": "(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))",
    }
    plan = plan_of(**parts, passes=HELD_OUT.format(batch=4))
    assert plan.evaluates == {"p": True}
    assert "generated:s" in ports(plan.phase("eval.p"))[0]
    own = (
        HELD_OUT.format(batch=8)[:-1] + " :prepare (lambda (batch ctx) (list :x (field batch :x) :y (field batch :y))))"
    )
    assert plan_of(**parts, passes=own).evaluates == {"p": False}


@pytest.mark.parametrize("trips", ["0", "-1", "2.5", "1000000000000", "(* 65536 32768)", '"two"'])
def test_row_16_trips(trips: str) -> None:
    assert [c.split()[0] for c in faults(generate=generate(trips=trips))] == ["E-GEN-005"]


@pytest.mark.parametrize(
    "step, code",
    [
        ("(list :s (reshape (getf state :s) [3 4]))", "E-GEN-002"),
        ("(list :t (getf state :s))", "E-GEN-002"),
        ("(list :s (getf state :s) :t (getf state :s))", "E-GEN-002"),
        ("(list :s)", "E-GEN-001"),
        ("(list 1 (getf state :s))", "E-GEN-001"),
        ("(list :s 3)", "E-GEN-001"),
        ("nil", "E-GEN-001"),
    ],
)
def test_rows_15_and_17_the_state(step: str, code: str) -> None:
    assert [c.split()[0] for c in faults(generate=generate(step=step))] == [code]


@pytest.mark.parametrize("shape", ["[1099511627776]", "[1048576 1048576 8]", "[0]", "[-3]", "[1 1 1 1 1 1 1 1 1]"])
def test_row_21_shapes_beyond_any_tensor(shape: str) -> None:
    assert [
        c.split()[0]
        for c in faults(
            objective=f"(defobjective (inputs ctx) (+ (sum (zeros {shape})) (mean (model (getf inputs :x)))))"
        )
    ] == ["E-SHAPE-001"]


# -- bounds of fields ------------------------------------------------------------------------------------------------


def test_an_index_field_is_bound_by_the_table_it_reaches_through_the_generator() -> None:
    plan = plan_of(
        model="(defmodel m (ids) (linear (embedding ids :token 7 3) :out 2))",
        loader='(defloader d :source "d.npz" :batch 4 :fields (list :id [3] :i32 :y [] :i32))',
        generate=generate(
            init="(list :s (field batch :id))",
            step="(list :s (where (= (iota [1 3]) (cast trip :i32)) 0 (getf state :s)))",
        ),
        prepare="(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))",
        objective="(defobjective (inputs ctx)"
        " (mean (cross-entropy (mean (model (getf inputs :x)) :axes [1]) (getf inputs :y))))",
    )
    assert plan.bounds == {("d", "id"): Bounds(0, 7), ("d", "y"): Bounds(0, 2)}


def test_arithmetic_on_a_field_asks_nothing_of_it() -> None:
    plan = plan_of(
        objective="(defobjective (inputs ctx) (mean (cross-entropy (model (getf inputs :x)) (mod (getf inputs :y) 2))))"
    )
    assert plan.bounds == {}


def test_the_text_of_a_plan_names_its_phases_and_fits_100_columns() -> None:
    from sexpgpu.reports.explain import explain

    text = explain(plan_of(generate=generate(), passes=HELD_OUT.format(batch=4)))
    assert all(word in text for word in ("generate.step", "2 trips", "eval.p", "2 parameters"))
    assert max(map(len, text.splitlines())) <= 100


# -- what else a run may not do, and what it may -------------------------------------------------------------------

SHAPED = "(defmodel m (x) (+ {} (linear x :out 2)))"
OPTIMIZER = "(defoptimizer (list :state (lambda (p) {}) :update (lambda (p g state ctx) {}){}))"


@pytest.mark.parametrize(
    "parts, fault",
    [
        ({"model": SHAPED.format("(linear x :out 2 :init ones)")}, "E-PARAM-002 1:49"),
        ({"model": SHAPED.format("(param :w [2] :init 1.0) (param :w [2] :init 2.0)")}, "E-PARAM-002 1:45"),
        ({"model": SHAPED.format("(param :w [2] :init 1.0) (param :w [1] :init 1.0)")}, "E-PARAM-002 1:45"),
        ({"model": SHAPED.format("(param :w [2] :init (lambda (s) (zeros [3])))")}, "E-PARAM-003 1:20"),
        ({"model": SHAPED.format("(param :w [2] :init (lambda (s) (iota [2])))")}, "E-PARAM-003 1:20"),
        ({"model": SHAPED.format("(param :w [2] :init (random-normal [2]))")}, "E-PARAM-003 1:20"),
        ({"model": SHAPED.format("(param :w [3] :init (mean x :axes 0))")}, "E-PARAM-003 1:20"),
        ({"model": SHAPED.format("(param :w [3] :init (lambda (s) (mean x :axes 0)))")}, "E-PARAM-003 1:20"),
        ({"model": SHAPED.format("(param :w [2] :init (* 2.0 (param :v [2] :init 1.0)))")}, "E-PARAM-003 1:20"),
        ({"model": SHAPED.format("(first (map param [:w] [[2]] [:in] [1.0]))")}, "E-CALL-002 1:27"),
        ({"model": "(defmodel m (x) :frozen (not true) (linear x :out 2))"}, "E-FORM-009 1:25"),
        ({"model": "(defmodel m (x) :frozen true (linear x :out 2))"}, "E-CONTRACT-002 4:1"),
        ({"model": "(defmodel m (x) :map 3 (linear x :out 2))"}, "E-PARAM-004 1:22"),
        ({"optimizer": OPTIMIZER.format("(list)", "(list :param (cast p :f16))", "")}, "E-CONTRACT-003 5:15"),
        ({"optimizer": OPTIMIZER.format("(list :m p)", "(list :param p)", "")}, "E-CONTRACT-003 5:15"),
        ({"optimizer": OPTIMIZER.format("(list :m 1)", "(list :param p :m p)", "")}, "E-CONTRACT-003 5:15"),
        ({"optimizer": OPTIMIZER.format("(list)", "(list :param p)", " :lr 1")}, "E-CONTRACT-003 5:15"),
        ({"optimizer": "(defoptimizer (list :state (lambda (p) (list)) :update 3))"}, "E-CONTRACT-003 5:15"),
        ({"optimizer": "(defoptimizer (sgd :lr 0.1 :clip-norm 0))"}, "E-CONTRACT-003 5:15"),
        ({"optimizer": "(defoptimizer (sgd :lr (lambda (ctx) (zeros [2]))))"}, "E-CONTRACT-008 5:15"),
        ({"prepare": "(defprepare (batch ctx) (list :x 3))"}, "E-CONTRACT-001 3:1"),
        ({"objective": "(defobjective (inputs ctx) (cast (mean (model (getf inputs :x))) :f16))"},
         "E-CONTRACT-002 4:28"),
        ({"generate": generate(init="(list :x (field batch :x))")}, "E-GEN-003 3:29"),
        ({"generate": generate(finish="nil")}, "E-GEN-001 3:143"),
        ({"generate": generate().replace("(lambda (batch ctx) (list :s (field batch :x)))", "(+ 1 2)")},
         "E-GEN-006 3:29"),
        ({"prepare": "(defprepare (batch ctx) (list :x (getf batch :x)))"}, "E-CALL-004 3:40"),
    ],
)  # fmt: skip
def test_a_part_that_breaks_its_contract(parts: dict[str, str], fault: str) -> None:
    assert faults(**parts) == [fault]


@pytest.mark.parametrize(
    "groups",
    ["3", "(list 3)",
     '(list (list :match "*" :optimiser (sgd :lr 0.1)))', "(list (list :match 3 :optimizer (sgd :lr 0.1)))",
     '(list (list :match "*/none" :optimizer 3))', '(list (list :match "*" :optimizer (sgd :lr 0.1 :clip-norm 1.0)))',
     '(list (list :match "*" :optimizer (sgd :lr 0.1 :groups (list))))'],
)  # fmt: skip
def test_groups_that_cannot_be(groups: str) -> None:
    assert faults(optimizer=f"(defoptimizer (sgd :lr 0.1 :groups {groups}))") == ["E-CONTRACT-003 5:15"]


@pytest.mark.parametrize("counter", ["(counter :step 1)", "(counter :a 1.5)", "(counter :a 1) (counter :a 1)"])
def test_counters_that_cannot_be(counter: str) -> None:
    text = f"(defprepare (batch ctx) {counter} (list :x (field batch :x) :y (field batch :y)))"
    assert [f.split()[0] for f in faults(prepare=text)] == ["E-CONTRACT-004"]


def test_a_counter_of_another_integer_dtype_is_added_in_i64() -> None:
    text = "(defprepare (batch ctx) (counter :a (sum (field batch :y))) (list :x (field batch :x) :y (field batch :y)))"
    train = plan_of(prepare=text).phase("train")
    assert {p.type.dtype for p in (*train.inputs, *train.outputs) if p.kind == "counter"} == {"i64"}


@pytest.mark.parametrize("look", ["(metric :a 1)", "(counter :a 1)"])
def test_reports_have_their_place(look: str) -> None:
    plain = " (list :x (field batch :x) :y (field batch :y)))"
    code = {"m": "E-CONTRACT-007", "c": "E-CONTRACT-010"}[look[1]]
    assert [f.split()[0] for f in faults(optimizer=f"(defoptimizer (sgd :lr (lambda (ctx) {look} 0.1)))")] == [code]
    found = [f.split()[0] for f in faults(prepare=f"(defprepare (batch ctx) {look}{plain}")]
    assert found == ([code] if look[1] == "m" else [])


def test_a_diagnostic_of_prepare_is_kept() -> None:
    text = "(defprepare (batch ctx) (diagnostic :a (field batch :y)) (list :x (field batch :x) :y (field batch :y)))"
    made = plan_text(run_text(prepare=text), ("a",))[0]
    assert made and made.diagnostics == ("a",)
    assert ports(made.phase("train"))[1][-1] == "diagnostic:a"


def test_checkpoint_bodies_are_regions_and_what_follows_is_none() -> None:
    body = "(let* ((a (checkpoint (sqrt x))) (b (exp (checkpoint (checkpoint (tanh a)) (erf a))))) (linear b :out 2))"
    train = plan_of(model=f"(defmodel m (x) {body})").phase("train")
    first: dict[str, int] = {}
    for v in train.graph.values():
        first.setdefault(v.op, v.region)
    regions = [first[op] for op in ("sqrt", "erf", "exp", "matmul")]
    assert regions[2:] == [0, 0] and 0 not in regions[:2] and regions[0] != regions[1]


def test_draws_of_prepare_objective_and_a_pass_have_places_of_their_own() -> None:
    draw = "(random-uniform [4 3])"
    plan = plan_of(
        model="(defmodel m (x) (+ (linear x :out 2) (linear x :other 2)))",
        prepare=f"(defprepare (batch ctx) (list :x (+ {draw} (field batch :x)) :y (field batch :y)))",
        objective=f"(defobjective (inputs ctx) (+ (mean {draw}) (mean (model (getf inputs :x)))))",
        generate=generate(init=f"(list :s {draw})", step=f"(list :s (+ (getf state :s) {draw}))"),
        passes=HELD_OUT.format(batch=4),
    )
    places = [v.attrs["place"] for p in plan.phases for v in p.graph.values() if v.op == "philox"]
    assert len(places) == len(set(places)) == 2 + 2 + 2 + 2  # init of two weights, generator, train, pass


def test_an_edit_of_prepare_leaves_the_draws_of_the_objective() -> None:
    def places(draws: str) -> list[int]:
        plan = plan_of(
            prepare=f"(defprepare (batch ctx) (list :x (+ {draws} (field batch :x))))",
            objective="(defobjective (inputs ctx) (+ (mean (random-uniform [4])) (mean (model (getf inputs :x)))))",
        )
        return [v.attrs["place"] for v in plan.phase("train").graph.values() if v.op == "philox"]

    one, two = places("(random-uniform [4 3])"), places("(random-uniform [4 3]) (random-uniform [4 3])")
    assert len(one) == 2 and len(two) == 3 and set(one) < set(two)


def test_a_pass_has_its_own_objective_and_reads_the_generator_only_if_it_says_so() -> None:
    own = ":objective (lambda (inputs ctx) (metric :own 1.0) (mean (model (getf inputs :x))))"
    plan = plan_of(generate=generate(), passes=HELD_OUT.format(batch=4)[:-1] + f" {own})")
    assert plan.evaluates == {"p": False}
    assert ports(plan.phase("eval.p"))[1] == ["metric:loss", "metric:own"]
    assert ports(plan.phase("train"))[1][0:2] == ["metric:loss", "gradient:m/out/bias"]


def test_a_generated_name_that_a_pass_does_not_have_is_an_error() -> None:
    text = "(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))"
    found = faults(generate=generate(), prepare=text, passes=HELD_OUT.format(batch=8))
    assert [f.split()[0] for f in found] == ["E-CONTRACT-005"]


def test_a_generated_name_may_be_no_field_of_any_loader_that_is_read() -> None:
    other = HELD_OUT.format(batch=4).replace(":x [3]", ":s [3]")
    own = " :prepare (lambda (batch ctx) (list :x (field batch :s) :y (field batch :y))))"
    assert [f.split()[0] for f in faults(generate=generate(), passes=other[:-1] + own)] == ["E-GEN-003"]


@pytest.mark.parametrize(
    "made, code", [("(cast (getf state :s) :f16)", ["E-GEN-002"]), ("(* 2.0 (getf state :s))", [])]
)
def test_the_state_may_change_only_its_values(made: str, code: list[str]) -> None:
    assert [f.split()[0] for f in faults(generate=generate(step=f"(list :s {made})"))] == code


def test_clipping_leaves_a_small_gradient_as_it_is() -> None:
    update = plan_of(optimizer="(defoptimizer (sgd :lr 1.0 :clip-norm 2.0))").phase("update")
    values = [np.full(p.type.shape, 0.25 if p.kind == "gradient" else 0.0, "float32") for p in update.inputs]
    made = dict(zip(ports(update)[1], run(update.graph, values), strict=True))
    np.testing.assert_array_equal(made["param:m/out/bias"], np.float32(-0.25))


def test_optimizer_state_is_in_place_and_each_phase_else_returns_what_is_new() -> None:
    plan = plan_of(
        generate=generate(),
        optimizer="(defoptimizer (adamw :lr 0.1))",
        run="(defrun r :model m :loader d :seed 1 :steps 2 :microbatches 2)",
    )
    assert {p.name: len(p.in_place) for p in plan.phases} == {
        "init": 0, "generate.init": 0, "generate.step": 1, "train": 2, "update": 6,
    }  # fmt: skip


def test_of_a_generator_s_state_what_a_trip_returns_as_it_got_it_is_in_place() -> None:
    init = "(list :s (field batch :x) :t (field batch :x) :u (field batch :x) :v (field batch :x))"
    step = "(list :s (getf state :s) :t (getf state :u) :u (getf state :t) :v (* 2.0 (getf state :v)))"
    made = plan_of(generate=generate(init=init, step=step)).phase("generate.step")
    assert [(ports(made)[1][o], ports(made)[0][i]) for o, i in made.in_place] == [("state:s", "state:s")]


def test_inputs_stand_in_the_order_of_their_kinds_then_names() -> None:
    plan = plan_of(
        model="(defmodel m (z) (+ (linear z :b 2) (linear z :a 2)))",
        prepare="(defprepare (batch ctx) (counter :n 1) (list :y (field batch :y) :x (dropout (field batch :x) 0.5)))",
        objective="(defobjective (inputs ctx) (metric :s (getf ctx :step)) (metric :r (getf ctx :records))"
        " (mean (cross-entropy (model (getf inputs :x)) (getf inputs :y))))",
    )
    assert ports(plan.phase("train"))[0] == [
        "param:m/a/bias", "param:m/a/weight", "param:m/b/bias", "param:m/b/weight",
        "field:x", "field:y", "ctx:records", "ctx:step", "counter:n", "seed:",
    ]  # fmt: skip


# -- bounds, operator by operator ----------------------------------------------------------------------------------

FIELDS = '(defloader {} :source "d.npz" :batch {} :fields (list :a [3] :i32 :b [3] :i32 :f [3] :f32))'


def bounds(expression: str, **parts: str) -> dict[str, Bounds]:
    """The bounds of d's fields where ``expression``, of the batch's a, b and f, looks up rows of a table of 7."""
    fields = " ".join(f":{n} (field batch :{n})" for n in "abf")
    names = " ".join(f"({n} (getf inputs :{n}))" for n in "abf")
    look = f"(let* ({names}) (sum (gather (zeros [7 2]) {expression})))"
    plan = plan_of(
        loader=FIELDS.format("d", 4),
        prepare=f"(defprepare (batch ctx) (list {fields}))",
        objective=f"(defobjective (inputs ctx) (+ {look} (mean (model (getf inputs :f)))))",
        **parts,
    )
    return {f"{loader}:{n}": bound for (loader, n), bound in plan.bounds.items()}


@pytest.mark.parametrize(
    "expression, names",
    [
        ("a", "a"),
        ("(cast a :i64)", "a"),
        ("(reshape (transpose a [1 0]) [12])", "a"),
        ("(slice a :axis 0 :from 0 :to 2)", "a"),  # any record may be in the first two places
        ("(update-slice a (full [1 1] 1 :dtype :i32) [0 0] :at (cast (getf ctx :step) :i32))", "a"),
        ("(slice (pad a [[0 0] [1 2]]) :axis 1 :from 1)", "a"),
        ("(where (= (cast (iota [3]) :i64) (getf ctx :step)) 0 a)", "a"),
        ("(where (random-bernoulli [4 3] 0.5) 0 a)", "a"),
        ("(where (< (iota [3]) 2) a 0)", ""),
        ("(max a 0)", ""),
        ("(clip a 0 6)", ""),
        ("(mod a 7)", ""),
        ("(flip a 0)", "a"),
        ("(roll a 1 :axis 1)", "a"),
        ("(broadcast (expand-dims a 0) [2 4 3])", "a"),
        ("(concat a b)", "ab"),
        ("(where (> f 0) a b)", ""),
        ("(where (> a 0) b 0)", ""),
        ("(stop-gradient a)", "a"),
        ("(cast f :i32)", ""),
        ("(+ a b)", ""),
        ("(cast (> a 0) :i32)", ""),
    ],
)
def test_a_demand_passes_what_moves_values(expression: str, names: str) -> None:
    assert bounds(expression) == {f"d:{n}": Bounds(0, 7) for n in names}


def test_the_tightest_of_several_demands_holds() -> None:
    for sizes in ((7, 5), (5, 7)):
        more = " ".join(f"(sum (gather (zeros [{n} 2]) a))" for n in sizes)
        assert bounds(
            f"(+ (* 0 (cast (sum (list-sum {more})) :i32)) b)", generate="(defun list-sum (a b) (+ a b))"
        ) == {"d:a": Bounds(0, 5)}


def test_a_look_up_along_an_axis_is_bound_by_that_axis() -> None:
    assert bounds("(cast (take-along (zeros [4 3]) a :axis 1) :i32)") == {"d:a": Bounds(0, 3)}


LOOKING = {
    "model": "(defmodel m (ids) (linear (embedding ids :token 7 3) :out 2))",
    "objective": "(defobjective (inputs ctx) (mean (model (getf inputs :x))))",
}
IDS = '(defloader {} :source "d.npz" :batch {} :fields (list :id [3] :i32 :more [3] :i32))'


def test_every_loader_is_bound_by_what_reads_it() -> None:
    plan = plan_of(
        **LOOKING,
        loader=IDS.format("d", 4),
        prepare="(defprepare (batch ctx) (list :x (field batch :id)))",
        passes=f"{IDS.format('e', 4)}{IDS.format('h', 8)}(defpass p :loader h :every 2)"
        "(defcurriculum (stage one :steps 1) (stage two :steps 2 :loader e))",
    )
    assert plan.bounds == {(loader, "id"): Bounds(0, 7) for loader in "deh"}


@pytest.mark.parametrize("batch, bound", [(4, ["id", "more"]), (8, ["id"])])
def test_a_pass_asks_for_the_generator_where_it_runs(batch: int, bound: list[str]) -> None:
    prepare = "(lambda (batch ctx) (list :x (field batch :{})))"
    plan = plan_of(
        **LOOKING,
        loader=IDS.format("d", 4),
        generate=generate(init="(list :s (field batch :more) :t (gather (zeros [5 2]) (field batch :more)))"),
        prepare="(defprepare (batch ctx) (list :x (concat (field batch :id) (field batch :s))))",
        passes=IDS.format("h", batch)
        + "(defpass p :loader h :every 2"
        + (f" :prepare {prepare.format('id')})" if batch == 8 else ")"),
    )
    assert sorted(name for loader, name in plan.bounds if loader == "h") == bound
    assert sorted(name for loader, name in plan.bounds if loader == "d") == ["id", "more"]


@pytest.mark.parametrize("finish", ["", "(list :s (getf state :s))"])
def test_a_demand_on_what_is_generated_goes_back_through_the_state(finish: str) -> None:
    plan = plan_of(
        **LOOKING,
        loader=IDS.format("d", 4),
        generate=generate(
            init="(list :s (field batch :id) :t (field batch :more))",
            step="(list :s (getf state :t) :t (getf state :t))",
            finish=finish,
        ),
        prepare="(defprepare (batch ctx) (list :x (field batch :s)))",
    )
    assert plan.bounds == {("d", "id"): Bounds(0, 7), ("d", "more"): Bounds(0, 7)}


def test_faults_of_the_generator_and_of_the_objective_are_reported_together() -> None:
    objective = "(defobjective (inputs ctx) (* nope (mean (model (getf inputs :x)))))"
    for part, codes in (
        ({"step": "(list :s 3)"}, ["E-GEN-001", "E-NAME-001"]),
        ({"step": "(list :s nope)"}, ["E-NAME-001", "E-NAME-001"]),
        ({"trips": "(- 1 1)"}, ["E-GEN-005", "E-NAME-001"]),
    ):
        assert [f.split()[0] for f in faults(generate=generate(**part), objective=objective)] == codes


def test_the_generator_makes_at_least_one_value() -> None:
    assert [f.split()[0] for f in faults(generate=generate(init="(list)"))] == ["E-GEN-001"]


def test_after_finish_the_state_is_not_in_the_batch() -> None:
    found = faults(
        generate=generate(finish="(list :half (getf state :s))"),
        prepare="(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))",
    )
    assert [f.split()[0] for f in found] == ["E-CONTRACT-006"]


@pytest.mark.parametrize(
    "step, who",
    [
        ("(list :t (getf state :s))", ":init makes :s, f32[4 3], and :step does not"),
        ("(list :s (getf state :s) :t (getf state :s))", ":step makes :t, f32[4 3], and :init does not"),
    ],
)
def test_a_key_that_comes_or_goes_is_named(step: str, who: str) -> None:
    assert who in plan_text(run_text(generate=generate(step=step)))[1].errors[0].message


def test_a_ctx_key_that_no_counter_has_is_nil_everywhere() -> None:
    plan = plan_of(
        objective="(defobjective (inputs ctx) (if (getf ctx :none) (error :seen)) (mean (model (getf inputs :x))))",
        optimizer="(defoptimizer (sgd :lr (lambda (ctx) (if (getf ctx :none) (error :seen) 0.1))))",
        passes=HELD_OUT.format(batch=4),
    )
    assert not [p for phase in plan.phases for p in phase.inputs if p.kind == "counter"]


def test_a_field_that_is_read_and_then_not_used_is_no_input() -> None:
    plan = plan_of(objective="(defobjective (inputs ctx) (mean (model (getf inputs :x))))")
    assert [p.name for p in plan.phase("train").inputs if p.kind == "field"] == ["x"]


@pytest.mark.parametrize("size, bound", [(5, 5), (9, 7)])
def test_a_loader_of_training_and_of_a_pass_has_the_tighter_bound(size: int, bound: int) -> None:
    own = f"(lambda (inputs ctx) (mean (gather (zeros [{size} 2]) (getf inputs :x))))"
    plan = plan_of(
        **LOOKING,
        loader=IDS.format("d", 4),
        prepare="(defprepare (batch ctx) (list :x (field batch :id)))",
        passes=f"(defpass p :loader d :every 2 :objective {own})",
    )
    assert plan.bounds == {("d", "id"): Bounds(0, bound)}


def test_where_there_is_a_fault_the_optimizer_is_tried_on_one_parameter_of_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No plan comes of it, and its faults over others would be the same. Without a fault, each has its update."""
    tried: list[str] = []
    update_one = optimizer.update_one
    monkeypatch.setattr(optimizer, "update_one", lambda t, own, name, *rest: (
        tried.append(name) or update_one(t, own, name, *rest)
    ))  # fmt: skip
    model = "(defmodel m (x) (-> x (linear :a 3) (linear :b 3) (linear :c 3)))"
    names = [f"m/{layer}/{part}" for layer in "abc" for part in ("bias", "weight")]
    groups = '(defoptimizer (sgd :lr 0.1 :groups (list (list :match "m/b/*" :optimizer (sgd :lr 0.2)))))'
    assert plan_of(model=model, optimizer=groups) and tried == names
    tried.clear()
    wrong = "(defprepare (batch ctx) (list :x (field batch :x) :y (field batch :y) :z (field batch :none)))"
    assert faults(model=model, optimizer=groups, prepare=wrong) == ["E-CONTRACT-006 3:87"]
    assert tried == names[:4]  # those of c are like those of a
