"""Stacked phases as graphs: what each copy has of its own, what is shared, and which runs stay unstacked."""

from __future__ import annotations

import pytest
from attrs import evolve

from sexpgpu.language.diagnostics import UserError
from sexpgpu.phases.plan import Phase, Plan, Stacking
from sexpgpu.planning.cost_model import Rates, calls, step_seconds
from sexpgpu.planning.memory_plan import estimate
from sexpgpu.planning.microbatch_stacking import UNDECIDED, degrees, refusal, stack_plan, stacked
from sexpgpu.reports.explain import explain
from tests.support import PARTS, plan_of

GENERATE = """(defgenerate :trips 3
  :init (lambda (batch ctx) (list :z (field batch :x) :n (zeros [4])))
  :step (lambda (state trip ctx)
          (list :z (+ (getf state :z) (random-normal [4 3] :salt (+ (* (getf ctx :step) 8) trip))) :n (getf state :n)))
  :finish (lambda (state ctx) (list :z (getf state :z))))"""
PREPARE = """(defprepare (batch ctx)
  (counter :seen (sum (cast (> (field batch :z) 0) :i64)))
  (list :x (dropout (field batch :z) 0.5 :salt (getf ctx :microbatch)) :y (field batch :y)))"""
OBJECTIVE = """(defobjective (inputs ctx)
  (metric :seen (cast (getf ctx :seen) :f32))
  (diagnostic :x (getf inputs :x))
  (mean (cross-entropy (model (getf inputs :x)) (getf inputs :y))))"""
RUN = "(defrun r :model m :loader d :seed 1 :steps 2 :microbatches {} :diagnostics [:x])"


def run_of(microbatches: int, **parts: str) -> Plan:
    given = {"generate": GENERATE, "prepare": PREPARE, "objective": OBJECTIVE, "run": RUN.format(microbatches)}
    return plan_of(**{**given, **parts})


def ports(phase: Phase) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    return tuple({f"{p.kind}:{p.name}": p.type.shape for p in side} for side in (phase.inputs, phase.outputs))  # type: ignore[return-value]


def test_each_copy_has_its_batch_and_reports_and_the_rest_is_shared() -> None:
    plan = stack_plan(run_of(4), 4)
    assert [p.name for p in plan.phases] == [
        "init", "generate.init*4", "generate.step*4", "generate.finish*4", "train*4", "update",
    ]  # fmt: skip
    given, made = ports(plan.phase("generate.step"))
    assert given == {"state:n": (4, 4), "state:z": (4, 4, 3), "trip:": (), "ctx:step": (), "seed:": (2,)}
    assert made == {"state:z": (4, 4, 3), "state:n": (4, 4)}
    given, made = ports(plan.phase("train"))
    assert given["param:m/out/weight"] == made["gradient:m/out/weight"] == given["gradient:m/out/weight"] == (3, 2)
    assert given["field:y"] == (4, 4) and given["generated:z"] == (4, 4, 3)
    assert given["ctx:microbatch"] == (4,) and given["seed:"] == (2,)
    assert given["counter:seen"] == made["counter:seen"] == ()
    assert made["metric:loss"] == made["metric:seen"] == (4,) and made["diagnostic:x"] == (4, 3)


def test_a_draw_is_made_once_for_all_copies_unless_its_salt_differs() -> None:
    draws = {
        p.role: [v.type.shape for v in p.graph.values() if v.op == "philox"] for p in stack_plan(run_of(4), 4).phases
    }
    assert draws["generate.step"] == [(4, 3), (), (4, 3)]  # a normal draw takes two words, and one for its tails
    assert draws["train"] == [(4, 3)] * 4  # dropout, salted by :microbatch


def test_a_shared_weight_meets_the_rows_of_all_copies_in_one_product() -> None:
    products = [
        tuple(a.type.shape for a in v.args)
        for v in stack_plan(run_of(4), 4).phase("train").graph.values()
        if v.op == "matmul"
    ]
    assert ((4, 4, 3), (3, 2)) in products


@pytest.mark.parametrize(
    ("microbatches", "degree", "expected"),
    [
        (4, 4, {"generate.step*4": 3, "train*4": 1, "update": 1}),
        (4, 2, {"generate.step*2": 6, "train*2": 2, "update": 1}),
        (5, 2, {"generate.step": 3, "generate.step*2": 6, "train": 1, "train*2": 2, "update": 1}),
        (5, 1, {"generate.step": 15, "train": 5, "update": 1}),
    ],
)
def test_calls_of_a_step(microbatches: int, degree: int, expected: dict[str, int]) -> None:
    plan = stack_plan(run_of(microbatches), degree)
    found = {p.name: calls(p, plan.phases, plan.settings, plan.trips) for p in plan.phases}
    assert {
        n: c for n, c in found.items() if n in ("generate.step", "train", "update") or "step*" in n or "train*" in n
    } == expected
    assert found["init"] == 0


def test_a_pass_keeps_the_generator_of_one_batch() -> None:
    passes = "(defpass held :loader d :every 1)"
    names = [p.name for p in stack_plan(run_of(4, passes=passes), 2).phases]
    assert "generate.step" in names and "generate.step*2" in names and "train" not in names


@pytest.mark.parametrize("key", ["microbatch", "records", "stage-records"])
@pytest.mark.parametrize("part", ["init", "step", "finish"])
def test_a_generator_that_reads_what_moves_keeps_the_run_unstacked(key: str, part: str) -> None:
    read = f"(cast (getf ctx :{key}) :f32)"
    was = {"init": "(field batch :x)", "step": "(+ (getf state :z)", "finish": "(list :z (getf state :z))"}[part]
    now = {"init": f"(+ {was} {read})", "step": f"{was} {read}", "finish": f"(list :z (+ (getf state :z) {read}))"}[
        part
    ]
    plan = run_of(4, generate=GENERATE.replace(was, now))
    fault = refusal(plan)
    assert fault and f"generate.{part} reads :{key}" in fault.message
    with pytest.raises(UserError) as caught:
        stack_plan(plan, 2)
    assert caught.value.code.name == "E-STACK-002" and caught.value.span
    assert f"(getf ctx :{key})" in caught.value.span.source.text[caught.value.span.start :].split("\n")[0]


def test_auto_says_which_read_keeps_the_run_unstacked() -> None:
    read = GENERATE.replace("(field batch :x)", "(+ (field batch :x) (cast (getf ctx :records) :f32))")
    plan = stacked(run_of(4, generate=read), None)
    assert plan.stacking.degree == 1
    assert "\nstacking     none: generate.init reads :records, which differs between" in explain(plan)


LAUNCHES = Rates(flops=1e15, bytes=1e15, threads=1, launch=1e-3, fork=0.0, call=1e-3, port=0.0, cache=1e15, far=1e15)
WORK = Rates(flops=1e6, bytes=1e15, threads=1, launch=0.0, fork=0.0, call=0.0, port=0.0, cache=1e15, far=1e15)


def test_auto_takes_the_degree_that_costs_least() -> None:
    plan = run_of(4)
    assert stacked(plan, None, [LAUNCHES]).stacking.degree == 4
    price = {d: step_seconds(stack_plan(plan, d).phases, plan.settings, WORK, plan.trips) for d in degrees(4)}
    assert stacked(plan, None, [WORK]).stacking.degree == min(price, key=lambda d: price[d])
    undecided = stacked(plan, None).stacking
    assert undecided == Stacking(1, UNDECIDED, undecided.offered)


def test_auto_keeps_within_the_memory_that_there_is() -> None:
    plan = run_of(4)
    totals = [estimate(stack_plan(plan, d)).total for d in (1, 2, 4)]
    assert totals == sorted(totals) and totals[1] < totals[2]
    chosen = [stacked(plan, None, [LAUNCHES], limit).stacking.degree for limit in (totals[2], totals[2] - 1, 1)]
    assert chosen == [4, 2, 1]


@pytest.mark.parametrize(
    ("microbatches", "looked_at"), [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (40, [1, 2, 4, 8, 16])]
)
def test_the_degrees_that_auto_looks_at(microbatches: int, looked_at: list[int]) -> None:
    assert degrees(microbatches) == looked_at


def test_the_report_tells_the_degree() -> None:
    assert "\nstacking     2 microbatches a call\n" in explain(stacked(run_of(4), 2))
    offered = stacked(run_of(4), 2).stacking.offered
    assert [row[:2] for row in offered] == [(1, 4 * (1 + 3 + 1 + 1) + 1), (2, 2 * 6 + 1), (4, 6 + 1)]
    kernels = [row[2] for row in offered]
    assert kernels == sorted(kernels, reverse=True) and kernels[2] < kernels[0] / 2
    assert f"\n             4                  7  {kernels[2]:>33}\n" in explain(stacked(run_of(4), 1))
    assert "\nstacking " not in explain(stacked(run_of(1), None))


def test_step_alone_stacks() -> None:
    assert refusal(run_of(4)) is None


def test_a_degree_above_the_microbatches_is_refused() -> None:
    with pytest.raises(UserError, match="--stack is 8, and a step has 4 microbatches") as caught:
        stack_plan(run_of(4), 8)
    assert caught.value.code.name == "E-STACK-001"


def test_a_tensor_of_too_many_axes_is_refused() -> None:
    wide = "(square (reshape (model (getf inputs :x)) [1 1 1 1 1 1 4 2]))"
    parts = {"generate": "", "prepare": PARTS["prepare"], "objective": f"(defobjective (inputs ctx) (mean {wide}))"}
    plan = run_of(4, **parts, run=RUN.format(4).replace(" :diagnostics [:x]", ""))
    with pytest.raises(UserError, match="--stack 2 is too much") as caught:
        stack_plan(plan, 2)
    assert caught.value.code.name == "E-STACK-001"


def test_degree_one_changes_nothing() -> None:
    plan = run_of(4)
    assert stack_plan(plan, 1) is plan and evolve(plan).stacking.degree == 1
