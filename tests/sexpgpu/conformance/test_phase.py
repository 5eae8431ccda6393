"""Sentences 33 to 41 of the page on generation: a phase of the step, its cost, signals, reports and identity."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from artifacts import run as runner
from artifacts import session, signals
from artifacts.device.interface import HostDevice
from artifacts.format import tarball
from artifacts.options import parse
from artifacts.reporting import Console
from artifacts.signals import Stop, Stopped
from sexpgpu.phases.plan import Plan
from sexpgpu.planning.cost_model import Rates, phase_cost, step_seconds
from sexpgpu.planning.memory_plan import estimate, lines
from sexpgpu.reports.explain import explain
from tests.artifacts.support import contents, metrics, steps
from tests.conftest import ONE, called
from tests.sexpgpu.conformance.support import TWO, Case, generate, inputs_of, of_phase, passing, prepare
from tests.support import plan_of, run_text

TRIPS = 3
OWN = {
    "generate": generate(
        TRIPS,
        step="(list :s (+ (getf state :s) (random-normal [4 3]"
        " :salt (+ trip (* 8 (+ (* 64 (getf ctx :step)) (getf ctx :microbatch)))))))",
        finish="(list :t (getf state :s))",
    ),
    "prepare": "(defprepare (batch ctx) (counter :rows 4) (list :x (field batch :t) :y (field batch :y)))",
    "passes": passing(),
    "run": TWO.replace(":steps 2", ":steps 3 :checkpoint-every 2"),
}


class StopAt(Stop):
    """A stop that comes at the k-th look, and how often was looked before each call of a phase."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.left, self.looks = k, 0

    def look(self) -> None:
        self.looks += 1
        self.left -= 1
        if self.left == 0:
            raise Stopped(15)


def stopped(case: Case, out: Path, k: int, *more: str) -> tuple[int, int]:
    """(exit status, looks) of a run that is stopped at its k-th look."""
    stop = StopAt(k)
    options = parse([case.path, "--out", str(out), "--data", str(Path(case.path).parent), "-q", *more])
    return session.run(options, Console(quiet=True), stop, case.device), stop.looks


def test_s33_the_cost_model_prices_generation_and_training_together() -> None:
    """33: a step's seconds are those of all its calls, the trips among them."""
    rates = Rates(flops=1e9, bytes=1e9, threads=2, launch=1e-6, fork=2e-6, call=20e-6, port=1e-6, cache=1e6, far=1e8)

    def step(plan: Plan) -> float:
        return step_seconds(plan.phases, plan.settings, rates, plan.trips)

    plan = plan_of(**OWN)
    once = {p.name: phase_cost(p, rates).seconds for p in plan.phases}
    made = once["generate.init"] + TRIPS * once["generate.step"] + once["generate.finish"]
    assert step(plan) == pytest.approx(2 * (made + once["train"]) + once["update"])
    longer = plan_of(**{**OWN, "generate": OWN["generate"].replace(f":trips {TRIPS}", f":trips {TRIPS + 5}")})
    assert step(longer) - step(plan) == pytest.approx(2 * 5 * once["generate.step"])


WIDE = generate(
    2,
    "(list :s (field batch :x))",
    "(list :s (+ 1.0 (getf state :s)))",
    "(list :w (broadcast (expand-dims (getf state :s) 2) [4 3 5000]))",
)


def test_s34_each_part_is_a_phase_of_the_memory_plan() -> None:
    """34: with the batch, the state, and what it makes, which lives until the training call."""
    memory = estimate(plan_of(generate=WIDE, prepare=prepare(x="(mean (field batch :w) :axes [2])")))
    row, wide = 4 * 4 * 3, 4 * 4 * 3 * 5000  # bytes of the state, and of what finish makes
    assert {f"generate.{n}" for n in ("init", "step", "finish")} < set(memory.phases)
    assert [memory.phases[f"generate.{n}"] for n in ("init", "step")] == [2 * row] * 2  # what it is given, and makes
    assert row + wide <= memory.phases["generate.finish"] and wide <= memory.phases["train"]
    narrow = estimate(
        plan_of(generate=WIDE.replace("5000", "50"), prepare=prepare(x="(mean (field batch :w) :axes [2])"))
    )
    assert memory.phases["train"] - narrow.phases["train"] >= wide - wide // 100


def test_s35_the_memory_line_shows_the_largest_of_them() -> None:
    """35: without a generator there is no such word."""
    memory = estimate(plan_of(generate=WIDE, prepare=prepare(x="(mean (field batch :w) :axes [2])")))
    largest = max(n for name, n in memory.phases.items() if name.startswith("generate."))
    text = " ".join(lines(memory))
    assert text.startswith("memory ") and f"generation {largest / 1024:.1f} KiB" in text
    assert "generation" not in " ".join(lines(estimate(plan_of())))


def test_s36_a_signal_is_looked_for_before_every_trip(tmp_path: Path) -> None:
    """36: one look more a trip."""
    found = []
    for trips in (1, 2, 6):
        text = run_text(generate=generate(trips), prepare=prepare(s="(field batch :s)"), run=TWO)
        status, looks = stopped(Case.of(tmp_path / str(trips), text), tmp_path / f"out-{trips}", 10**9)
        assert status == 0
        found.append(looks)
    assert found[1] - found[0] == 2 * 2 * 1 and found[2] - found[1] == 2 * 2 * 4


def test_s37_a_stop_abandons_the_step_and_the_resume_takes_it_again(tmp_path: Path) -> None:
    """37: stopped at every third look of three steps, which have ten looks each, so that every place of a step has its
    turn, the run ends with the bytes and the log of the one that was never stopped."""
    case, whole = Case.of(tmp_path, run_text(**OWN)), tmp_path / "whole"
    status, looks = stopped(case, whole, 10**9)
    assert status == 0 and looks > 3 * 2 * (TRIPS + 2)
    for k in range(1, looks + 1, 3):
        out = tmp_path / f"stop-{k}"
        assert stopped(case, out, k) == (128 + 15, k)
        if k <= 2 * 2 * (TRIPS + 2):  # the pass comes after step 2
            assert steps(out)[-1] == (k - 1) // (2 * (TRIPS + 2))
        assert case.go(out, "--resume") == 0
        assert contents(out, 3) == contents(whole, 3) and metrics(out) == metrics(whole), k


def test_s37_the_report_says_how_long_a_signal_would_have_waited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """37: the longest time between two looks; by this clock a trip takes a second, and the fourth takes seven."""
    case, clock, trips = Case.of(tmp_path, run_text(**OWN)), [0.0], [0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def device(artifact: tarball.Artifact, threads: int | None) -> HostDevice:
        made = case.device(artifact, threads)
        step = made._functions["generate.step"]

        def slow(*inputs: np.ndarray) -> Sequence[np.ndarray]:
            trips[0] += 1
            clock[0] += 7 if trips[0] == 4 else 1
            return step(*inputs)

        made._functions = {**made._functions, "generate.step": slow}
        return made

    command = [case.path, "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert runner.main(command, device=device) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("done: "))
    assert said.endswith(" s, a signal would have waited 7000.0 ms at most")
    assert runner.main([*command, "--resume", "--steps", "4", "--output-format", "json"], device=device) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["latency"] == 1


def test_s38_explain_lists_the_generator_s_graphs_under_the_training_step() -> None:
    """38: each with its operators, and the trips; no phase that is not there."""
    text = explain(plan_of(**OWN))
    step = text[text.index("training step") :]
    lines = [line.strip() for line in step.splitlines()]
    starts = [
        next(i for i, line in enumerate(lines) if line.startswith(f"generate.{n} ")) for n in ("init", "step", "finish")
    ]
    assert starts == sorted(starts) and starts[-1] < next(
        i for i, line in enumerate(lines) if line.startswith("train ")
    )
    assert f"{TRIPS} trips" in lines[starts[1]] and "philox" in lines[starts[1]]
    assert "generate.finish" not in explain(plan_of(generate=generate(), run=TWO))


@pytest.mark.build
def test_s39_the_lowering_report_has_the_generator_s_rows_and_line(tmp_path: Path) -> None:
    """39: its calls and kernels of a step, and its part of them; a run without one has neither."""
    path = tmp_path / "run.sx"
    path.write_text(run_text(**OWN))
    lines = called("explain", path, "--target", ONE).stdout.splitlines()
    report = lines[next(i for i, line in enumerate(lines) if line.startswith("lowered for ")) :]
    calls = 2 * (1 + TRIPS + 1)
    assert next(line for line in report if line.startswith("generate ")).split()[1] == str(calls)
    assert any(line.startswith(f"generation   {TRIPS} trips a microbatch: {calls} of {calls + 3} ") for line in report)
    path.write_text(run_text(run=TWO))
    assert "generat" not in called("explain", path, "--target", ONE).stdout


def test_s40_a_generator_adds_nothing_to_a_checkpoint(tmp_path: Path) -> None:
    """40: the same files with the same tensors, and the same cursor, as without one."""
    plain = {"prepare": "(defprepare (batch ctx) (counter :rows 4) (list :x (field batch :x) :y (field batch :y)))"}
    found = []
    for name, parts in (("with", OWN), ("without", {**OWN, **plain, "generate": ""})):
        case, out = Case.of(tmp_path / name, run_text(**parts)), tmp_path / f"out-{name}"
        assert case.go(out) == 0
        loaded = session.store.find(str(out), True, print)
        found.append(
            (
                sorted(contents(out, 3)),
                sorted(loaded.params),
                sorted(loaded.optim),
                loaded.entry.cursor,
                sorted(loaded.entry.identity),
            )
        )
    assert found[0] == found[1]


def test_s41_the_trip_is_an_input_like_the_step(tmp_path: Path) -> None:
    """41: one graph, whatever the number of trips; the trip comes to it as a number."""
    few, many = (plan_of(**{**OWN, "generate": OWN["generate"].replace(":trips 3", f":trips {n}")}) for n in (2, 2000))
    a, b = (plan.phase("generate.step") for plan in (few, many))
    assert a.inputs == b.inputs and str([v.op for v in a.graph.values()]) == str([v.op for v in b.graph.values()])
    trips = inputs_of(Case.of(tmp_path, run_text(**OWN)).calls(), "generate.step", "trip:")
    assert [int(t) for t in trips] == [0, 1, 2] * 2 and np.asarray(trips).dtype == np.int64
    assert {"step", "microbatch"} <= {p.name for p in a.inputs if p.kind == "ctx"}


def test_s41_what_a_step_makes_hangs_on_nothing_but_its_inputs(tmp_path: Path) -> None:
    """41: the phases' calls of two runs are the same, one by one."""
    one, two = (Case.of(tmp_path / n, run_text(**OWN)).calls(2) for n in "ab")
    assert [c.phase for c in one] == [c.phase for c in two] and len(of_phase(one, "generate.step")) == 12
    for a, b in zip(one, two, strict=True):
        for name in a.made:
            np.testing.assert_array_equal(a.made[name], b.made[name])
