"""The text of a plan, and the figures in it."""

from __future__ import annotations

import re

import pytest

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.ops.types import TensorType
from sexpgpu.planning.memory_plan import estimate
from sexpgpu.planning.microbatch_stacking import stack_plan
from sexpgpu.reports.explain import data, explain, histogram, outline, phase_rows
from tests.sexpgpu.phases.test_phases import HELD_OUT, generate
from tests.support import plan_of

b = Builder()


def graph(*outputs: Value) -> Graph:
    return Graph("g", (), tuple((str(n), v) for n, v in enumerate(outputs)))


def test_each_phase_has_its_calls_a_step() -> None:
    plan = plan_of(
        generate=generate(trips="3", finish="state"),
        passes=HELD_OUT.format(batch=4),
        run="(defrun r :model m :loader d :seed 1 :steps 2 :microbatches 2)",
    )
    assert {name: calls for name, calls, *_ in phase_rows(plan, estimate(plan))[1:]} == {
        "init": "once", "generate.init": "2", "generate.step": "6", "generate.finish": "2",
        "train": "2", "update": "1", "eval.p": "pass",
    }  # fmt: skip


def test_the_memory_of_the_run_and_of_each_phase() -> None:
    plan = plan_of(generate=generate(trips="3", finish="state"))
    lines = explain(plan).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("memory       parameters "))
    assert re.fullmatch(
        r" {13}train [0-9.]+ (B|KiB), generation [0-9.]+ (B|KiB); about [0-9.]+ (B|KiB) in all", lines[at + 1]
    )
    found = data(plan)
    by = {p["phase"]: p["memory"] for p in found["phases"]}
    assert found["memory"]["generation"] == max(n for name, n in by.items() if name.startswith("generate."))
    rows = phase_rows(plan, estimate(plan))[1:]
    assert {row[0]: row[-1] for row in rows} == {n: f"{size / 2**20:.2f}" for n, size in by.items()}


def test_a_histogram_shows_the_commonest_operators() -> None:
    value = b.input("x", TensorType((4,), "f32"))
    assert histogram(graph(value)) == "its inputs as they are"
    for op in ("exp", "exp", "sin", "cos", "tanh", "sqrt", "erf", "log"):
        value = b(op, value)
    assert histogram(graph(value)).startswith("2 exp 1 ") and histogram(graph(value)).count(" ") == 13
    assert histogram(graph(b("ceil", value))).endswith(" ...")


def test_the_text_says_what_is_frozen_shuffled_and_in_the_artifact() -> None:
    text = explain(
        plan_of(
            model="(defmodel m (x) (+ (linear x :out 2) (t x)))\n(defmodel t (x) :frozen true (linear x :out 2))",
            loader='(defloader d :source "d.npz" :batch 4 :embed true :fields (list :x [3] :f32 :y [] :i32))',
            passes=HELD_OUT.format(batch=8),
        )
    )
    assert "model        m: 4 parameters, 16 numbers, 8 of them frozen\n" in text
    assert "data         d: d.npz, batches of 4, shuffled, in the artifact: x f32[3] y i32[]\n" in text
    assert "data         e: e.npz, batches of 8: x f32[3] y i32[]\n" in text  # a pass reads in order
    assert "evaluation   p on e every 2 steps\n" in text and "generation" not in text


def test_record_numbers_are_named_as_such() -> None:
    plan = plan_of(
        loader="(defloader d :source (indices 96) :batch 4 :shuffle false :fields (list :index [] :i64))",
        prepare="(defprepare (batch ctx) (list :x (zeros [4 3])))",
        objective="(defobjective (inputs ctx) (mean (model (getf inputs :x))))",
    )
    assert "data         d: 96 record numbers, batches of 4: index i64[]\n" in explain(plan)


@pytest.mark.parametrize(
    ("count", "degree", "heads", "calls"),
    [
        (4, 1, ["for each of 4 microbatches"], [1]),
        (4, 2, ["for each 2 of 4 microbatches"], [2]),
        (4, 4, ["for all 4 microbatches"], [4]),
        (5, 2, ["for each 2 of 5 microbatches", "for the 1 left over"], [2, 1]),
        (8, 3, ["for each 3 of 8 microbatches", "for each of the 2 left over"], [3, 1]),
    ],
)
def test_the_outline_says_how_many_microbatches_a_call_takes(count: int, degree: int, heads, calls) -> None:
    run = f"(defrun r :model m :loader d :seed 1 :steps 2 :microbatches {count})"
    plan = stack_plan(plan_of(generate=generate(trips="3"), run=run), degree)
    lines = outline(plan)
    assert [line for line in lines if line.startswith("for ")] == heads
    trains = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  train ")]
    assert trains == [
        histogram(next(p.graph for p in plan.phases if p.role == "train" and p.stack == k)) for k in calls
    ]
    assert sum("3 trips: " in line for line in lines) == len(calls)
