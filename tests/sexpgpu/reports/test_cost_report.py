"""The tables of ``explain --cost`` and of the lowering report, and the data beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sexpgpu.build.report import commonest, family, lowering_data, lowering_text
from sexpgpu.phases.plan import Plan
from sexpgpu.planning.cost_model import Rates, phase_cost
from sexpgpu.planning.memory_plan import Memory
from sexpgpu.planning.microbatch_stacking import stacked
from sexpgpu.reports.cost import cost_data, cost_text, rows
from tests.sexpgpu.phases.test_phases import HELD_OUT, generate
from tests.support import plan_of

RATES = {
    "cpu-a": Rates(flops=1e9, bytes=1e9, threads=2, launch=1e-6, fork=2e-6, call=20e-6, port=1e-6, cache=1e6, far=1e8),
    "cpu-b": Rates(flops=1e8, bytes=1e8, threads=2, launch=1e-6, fork=2e-6, call=20e-3, port=1e-6, cache=1e6, far=1e8),
}
STEP = "(list :s (exp (* 2.0 (getf state :s))))"
WRITES = {"generate": generate(trips="3", step=STEP, finish="state"), "passes": HELD_OUT.format(batch=4)}
TWO = "(defrun r :model m :loader d :seed 1 :steps 2 :microbatches 2)"


def lowered(plan: Plan) -> Any:
    """Made of a lowering of two kernels: one that train and the pass run, one by no rule for cpu-b."""
    calls = {"fused_matmul3_add1": {"train": 3, "eval_p": 1}, "copy7": {"init": 2, "generate_step": 2, "train": 1}}

    def kernel(name: str, rule: str) -> Any:
        return SimpleNamespace(kernel=name, rule=rule, calls=calls[name], workspace=64, failures=(), launches=())

    same = kernel("fused_matmul3_add1", "matmul")
    compiled = {
        "cpu-a": SimpleNamespace(kernels=(kernel("copy7", "elementwise"), same)),
        "cpu-b": SimpleNamespace(kernels=(kernel("copy7", ""), same)),
    }
    functions = dict.fromkeys((p.function for p in plan.phases), 2**20)
    graph = SimpleNamespace(programs=dict.fromkeys(calls), calls=calls, planned=functions)
    return SimpleNamespace(
        compiled=compiled, lowered=graph, libm=("erf",), unscheduled=["copy7"], kernels={}, tuning={}
    )


def taken(plan: Plan) -> Memory:
    phases = dict.fromkeys((p.name for p in plan.phases), 2**20) | {"generate.step": 3 * 2**20}
    return Memory(2**20, 2**21, 2**20, phases, 9 * 2**20)


def test_the_cost_of_a_step_as_a_table() -> None:
    text = cost_text(plan_of(run=TWO, **WRITES), RATES)
    assert text.splitlines()[:11] == [
        "cost of a step of r, by the model; init and passes: of one call",
        "                    calls  kernels  kernels   Mflop  moved MiB    ms a    ms b",
        "phase              a step   a call   a step  a step     a step  a step  a step",
        "generate               10                10    0.00       0.00    0.23  200.06",
        "  generate.init         2        1        2    0.00       0.00    0.05   40.01",
        "  generate.step         6        1        6    0.00       0.00    0.14  120.05",
        "  generate.finish       2        1        2    0.00       0.00    0.05   40.01",
        "train                   2       10       20    0.00       0.00    0.08   40.08",
        "update                  1        2        2    0.00       0.00    0.03   20.01",
        "step                   13                32    0.00       0.00    0.35  260.16",
        "init                 once        2        2    0.00       0.00    0.03   20.01",
    ]
    assert "of 2 threads" in text


def test_sums_are_those_of_the_phases_calls() -> None:
    plan = plan_of(run=TWO, **WRITES)
    made = {r.phase.strip(): r for r in rows(plan, RATES)}
    inner = [r for name, r in made.items() if name.startswith("generate.")]
    generator, step = made["generate"], made["step"]
    parts = [generator, made["train"], made["update"]]
    assert generator.calls == 2 + 6 + 2 and step.calls == 10 + 2 + 1
    for whole, of in ((generator, inner), (step, parts)):
        for name in ("launches", "flops", "bytes"):
            assert getattr(whole, name) == sum(getattr(r, name) for r in of) > 0
        assert all(abs(whole.seconds[t] - sum(r.seconds[t] for r in of)) < 1e-12 for t in RATES)
    writer = made["generate.step"]
    once = phase_cost(plan.phase("generate.step"), RATES["cpu-a"])
    assert (writer.kernels, writer.launches) == (once.kernels, 6 * once.kernels)
    assert (writer.flops, writer.bytes) == (6 * once.flops, 6 * once.bytes)
    assert made["init"].calls == 0 and made["init"].launches == made["init"].kernels


def test_a_run_that_stacks_says_so() -> None:
    plan = plan_of(run=TWO, **WRITES)
    assert rows(plan, RATES)[0].phase == "generate"
    reads = "(defprepare (batch ctx) (list :x (field batch :s) :y (field batch :y)))"
    made = rows(stacked(plan_of(run=TWO, prepare=reads, **WRITES), 2), RATES)
    assert [r.phase for r in made[:2]] == ["generate stacked", "  generate.init*2"] and made[0].calls == 1 + 3 + 1
    by = {r.phase: r for r in made}
    assert by["generate.init"].when == "pass" and by["train*2"].calls == 1  # the pass takes one microbatch at a time
    text = cost_text(stacked(plan, 2), RATES)
    assert "stacking     2 microbatches a call\n" in text and "degree  calls a step" in text
    assert cost_data(stacked(plan, 2), RATES)["stacking"]["offered"][1]["degree"] == 2
    assert "stacking" not in cost_text(plan_of(), RATES)
    assert by["step"].launches == sum(r.calls * (r.kernels or 0) for r in made)


def test_a_plan_without_a_generator_has_no_row_of_it() -> None:
    assert [r.phase for r in rows(plan_of(), RATES)] == ["train", "update", "step", "init"]


def test_the_cost_as_data() -> None:
    made = cost_data(plan_of(run=TWO, **WRITES), RATES)
    assert made["run"] == "r" and made["rates"]["cpu-b"]["call"] == 20e-3
    by = {p["phase"]: p for p in made["phases"]}
    assert by["generate.step"]["calls"] == 6 and "kernels" not in by["step"] and "memory" not in by["train"]
    assert by["init"]["when"] == "once" and by["eval.p"]["when"] == "pass"
    assert by["step"]["seconds"]["cpu-b"] > 13 * 20e-3 > by["step"]["seconds"]["cpu-a"]


def test_the_lowering_report_has_true_kernels_memory_and_rules() -> None:
    plan = plan_of(run=TWO, **WRITES)
    lines = lowering_text(plan, lowered(plan), RATES, taken(plan)).splitlines()
    assert lines[0] == "lowered for cpu-a and cpu-b: 2 kernels" and all(len(line) <= 100 for line in lines)
    cells = {line.split()[0]: line.split() for line in lines[3:12]}
    assert cells["generate.step"][1:4] == ["6", "2", "12"] and cells["generate.step"][-1] == "3.00"
    assert cells["train"][1:4] == ["2", "4", "8"] and cells["step"][1:3] == ["13", "20"]
    assert cells["generate"][-1] == cells["step"][-1] == "3.00" and cells["train"][-1] == "1.00"
    assert "generation   3 trips a microbatch: 10 of 13 calls of a step, 12 of 20 kernels, " in lines[13]
    assert lines[14:16] == [
        "memory       parameters 1.0 MiB, optimizer 2.0 MiB, gradients 1.0 MiB,",
        "             train 1.0 MiB, generation 3.0 MiB; 9.0 MiB in all",
    ]
    assert "libm         the machine's C library decides the bits of erf" in lines
    at = lines.index("train: 4")
    assert lines[at + 1 : at + 3] == ["  matmul              3  3 matmul add", "  elementwise         1  1 copy"]
    assert lines[-2:] == ["no schedule rule took copy7", "copy7: elementwise for cpu-a, NONE for cpu-b"]


def test_launches_that_a_compiler_counts_are_priced() -> None:
    plan = plan_of(run=TWO, **WRITES)
    guess, known = (
        {r.phase: r for r in rows(plan, RATES, kernels)}["train"]
        for kernels in (None, {p.function: 1000 for p in plan.phases})
    )
    more = known.seconds["cpu-a"] - guess.seconds["cpu-a"]
    assert guess.kernels is not None and abs(more - 2 * (1000 - guess.kernels) * 1e-6) < 1e-9


def test_the_lowering_as_data_names_every_kernel() -> None:
    plan = plan_of(run=TWO, **WRITES)
    made = lowering_data(plan, lowered(plan), RATES, taken(plan))
    assert made["kernels"][0] == {
        "kernel": "copy7",
        "rules": {"cpu-a": "elementwise", "cpu-b": ""},
        "calls": {"init": 2, "generate.step": 2, "train": 1},
        "workspace": 64,
        "failures": [],
    }
    assert made["targets"] == ["cpu-a", "cpu-b"] and made["libm"] == ["erf"]
    assert {p["phase"]: p["memory"] for p in made["phases"]}["generate.step"] == 3 * 2**20
    assert made["memory"]["generation"] == 3 * 2**20 and made["memory"]["total"] == 9 * 2**20


def test_kernels_of_one_kind_are_told_as_one() -> None:
    assert family("fused_matmul3_reshape_add1") == "matmul add" and family("reshape2") == "reshape"
    assert family("fused_multiply1_tir_sigmoid") == "multiply sigmoid"
    assert family("fused_" + "subtract1_" * 8 + "add") == "subtract subtract subtract ..."
    assert commonest({"a": 1, "b c": 3}) == "3\xa0b\xa0c, 1\xa0a"
    many = dict.fromkeys("abcdefgh", 2)
    assert commonest(many).endswith("2\xa0f, 4\xa0more")
    assert commonest(dict.fromkeys("abcdefg", 2)).endswith("2\xa0g")  # one more is named as well
