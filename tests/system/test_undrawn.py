"""Draws from no distribution: each part of a step counts its own, the runner looks, other runs have nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from artifacts import run as runner
from artifacts.describe import describe
from artifacts.format import tarball
from sexpgpu.ops.random import bits_ref
from sexpgpu.reports.explain import explain
from sexpgpu.trace.random_draws import UNDRAWN, place
from tests.artifacts.support import checkpoint, metrics, one_error, steps
from tests.conftest import build
from tests.sexpgpu.conformance.support import TWO, Case, generate, of_phase, passing, prepare, records
from tests.support import plan_of, run_text

X, S = "(field batch :x)", "(getf state :s)"
MODEL = "(defmodel m (x) (linear x :out 3))"
FINE = "(where (= (iota [1 3] :axis 1) 1) (log (* 0.0 {x})) {x})"  # a choice of three that is ruled out
ODD = {
    "NaN": "(log (neg (exp {x})))",
    "one NaN": "(where (= (iota [1 3] :axis 1) 2) (log (neg (exp {x}))) {x})",
    "nothing but -inf": "(log (* 0.0 {x}))",
    "+inf": "(where (= (iota [1 3] :axis 1) 2) (neg (log (* 0.0 {x}))) {x})",
    "NaN in bf16": "(cast (log (neg (exp {x}))) :bf16)",
    "one row": "(where (= (iota [4 1] :axis 0) 3) (log (* 0.0 {x})) {x})",
}
DREW = "random-bernoulli or random-categorical drew in"
PLACES = {
    "init": "the generator", "step": "the generator", "the last trip": "the generator", "finish": "the generator",
    "prepare": "prepare or objective", "objective": "prepare or objective", "a pass": "prepare or objective",
    "update": "the optimizer", "rate": "the optimizer",
}  # fmt: skip
ROWS = {"step": 2, "update": 2, "rate": 3}  # both trips draw, both parameters' updates, and what is logged as the rate
FIRST = {"init": "the :init of m/drawn", "state": "the optimizer's :state"}  # what draws before there is a step
PLAIN = "(- p (* 0.1 g))"
OPTIMIZER = "(defoptimizer (list :state (lambda (p) {state}) :update (lambda (p g s ctx) (list :param {new}{more}))))"


NUMBERS = "(broadcast (cast (getf ctx :step) :f32) [4 3])"


def draw(logits: str, x: str) -> str:
    return f"(random-categorical {logits.format(x=x)} :salt (getf ctx :step))"


def first_text(place: str, logits: str) -> str:
    """A run file whose ``init`` phase draws from ``logits``, for a parameter or for the state of two."""
    drawn = f"(mean (cast (random-categorical {logits.format(x='(random-normal [4 3])')}) :f32))"
    if place == "state":
        return run_text(optimizer=OPTIMIZER.format(state=f"(list :n {drawn})", new=PLAIN, more=" :n (getf s :n)"))
    init = f"(lambda (shape) {drawn})"
    return run_text(model=f"(defmodel m (x) (+ (linear x :out 3) (param :drawn [3] :init {init})))")


def text_of(place: str, logits: str) -> str:
    """A run file that draws from ``logits``, a text with a hole for x [4 3], at that place."""
    own, y = draw(logits, S), "(field batch :y)"
    last = draw(f"(where (= trip 1) {logits} {FINE})", S)
    made = {
        "init": generate(2, f"(list :s {X} :own {draw(logits, X)})"),
        "step": generate(2, f"(list :s {X} :own {y})", f"(list :s {S} :own {own})"),
        "the last trip": generate(2, f"(list :s {X} :own {y})", f"(list :s {S} :own {last})"),
        "finish": generate(2, finish=f"(list :own {own})"),
    }
    parts = {"model": MODEL, "run": TWO, "passes": passing()}
    if place in made:
        parts |= {"generate": made[place], "prepare": prepare(y="(field batch :own)")}
    elif place == "rate":
        parts |= {"optimizer": f"(defoptimizer (sgd :lr (lambda (ctx) (mean (cast {draw(logits, NUMBERS)} :f32)))))"}
    elif place == "update":
        mean = draw(logits, "(broadcast (mean p) [4 3])")
        parts |= {"optimizer": OPTIMIZER.format(state="(list)", new=f"(* p (mean (cast {mean} :f32)))", more="")}
    elif place == "prepare":
        parts |= {"prepare": prepare(y=draw(logits, X)), "passes": ""}
    elif place == "objective":
        picked = draw(logits, "(getf inputs :x)")
        parts |= {"objective": f"(defobjective (inputs ctx) (mean (cross-entropy (model (getf inputs :x)) {picked})))"}
    else:
        parts |= {"passes": passing(own=f":prepare (lambda (batch ctx) (list :x {X} :y {draw(logits, X)}))")}
    return run_text(**parts)


@pytest.mark.parametrize(
    ("place", "when", "stack"),
    [(place, 2 if place == "a pass" else 1, 1) for place in PLACES]
    + [("step", 2, 1), ("step", 1, 2), ("prepare", 1, 2), ("update", 1, 2)],
)
def test_a_draw_from_no_distribution_ends_the_run(
    place: str, when: int, stack: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the second step, or in the pass after it, for which the generator runs too; the step before is kept."""
    logits = f"(where (= (getf ctx :step) {when}) {ODD['one row']} {FINE})"
    case, out = Case.of(tmp_path, text_of(place, logits), stack=stack), tmp_path / "out"
    assert case.go(out) == 6
    text = one_error(capsys.readouterr().err, "E-NUM-002")
    where = "pass p at step 2" if when == 2 else "step 2"
    rows = ROWS.get(place, 1)
    assert f"{where}: {DREW} {PLACES[place]} from rows" in text and f": {rows} of them" in text
    assert steps(out)[-1] == when and str(checkpoint(out, when)) in text
    if PLACES[place] == "the optimizer":  # no pass draws, and the step was all but done
        assert case.go(tmp_path / "short", "--steps", "1") == 0
        assert tensors(out, 1) == tensors(tmp_path / "short", 1)


def tensors(out: Path, step: int) -> list[bytes]:
    """The bytes of the parameters and of the optimizer's state after that step."""
    return [(checkpoint(out, step) / f"{name}.safetensors").read_bytes() for name in ("params", "optim")]


@pytest.mark.parametrize("place", FIRST)
@pytest.mark.parametrize("odd", ["NaN", "nothing but -inf", "one row"])
def test_a_draw_from_no_distribution_before_the_first_step_leaves_nothing(
    place: str, odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even a directory. A run that forks draws too: what its parameters are replaced by is not its optimizer's."""
    other = Case.of(tmp_path, first_text(place, FINE), "other.tar")
    case = Case.of(tmp_path, first_text(place, ODD[odd]))
    assert other.go(tmp_path / "other") == 0
    rows = (1 if odd == "one row" else 4) * (2 if place == "state" else 1)
    for options in ((), ("--resume=auto",), ("--fork", str(tmp_path / "other"))):
        assert case.go(tmp_path / "out", *options) == 6
        text = one_error(capsys.readouterr().err, "E-NUM-002")
        assert f"before step 1: {DREW} {FIRST[place]} from rows" in text
        assert f": {rows} of them" in text and not (tmp_path / "out").exists()


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_distribution(odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Case.of(tmp_path, text_of("prepare", ODD[odd])).go(tmp_path / "out") == 6
    rows = 1 if odd == "one row" else 4
    assert f"no distribution: {rows} of them" in one_error(capsys.readouterr().err, "E-NUM-002")


@pytest.mark.parametrize(("p", "count"), [("(log (neg (exp {x})))", 12), (ODD["+inf"], 4), ("(* 100.0 {x})", 0)])
def test_a_probability_that_is_not_finite(
    p: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One below 0 is as 0, one above 1 as 1."""
    hits = f"(cast (random-bernoulli [4 3] {p.format(x=X)} :salt (getf ctx :step)) :f32)"
    case, out = Case.of(tmp_path, run_text(prepare=prepare(x=hits))), tmp_path / "out"
    assert case.go(out) == (6 if count else 0)
    shown = capsys.readouterr().err
    assert not count or f"no distribution: {count} of them" in one_error(shown, "E-NUM-002")


@pytest.mark.parametrize("place", ["the last trip", "prepare"])
def test_a_choice_that_is_ruled_out_is_one_and_nothing_of_the_count_is_shown(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, out = Case.of(tmp_path, text_of(place, FINE)), tmp_path / "out"
    assert case.go(out) == 0
    with tarball.open(case.path) as artifact:
        generator = next(line for line in describe(artifact).splitlines() if line.startswith("generator"))
    logged = [set(line["metrics"]) for line in metrics(out)]
    assert logged and not any(UNDRAWN in name for names in logged for name in names)
    assert UNDRAWN not in generator + explain(case.plan).split("\n\n")[0] + capsys.readouterr().out


def test_a_run_without_such_draws_has_no_more_ports() -> None:
    """A draw that needs no distribution counts nothing."""
    noise = "(random-normal [4 3] :salt (getf ctx :step))"
    plan = plan_of(generate=generate(2, f"(list :s (+ {noise} {X}))"), prepare=prepare(s="(field batch :s)"))
    assert not [p.name for phase in plan.phases for p in (*phase.inputs, *phase.outputs) if UNDRAWN in p.name]
    assert plan.generated == ("s",)


def test_the_words_of_a_draw_are_those_that_they_were(tmp_path: Path) -> None:
    """By hand, from the draw's place and salt: counting draws nothing."""
    calls = Case.of(tmp_path, text_of("init", FINE)).calls()
    first = of_phase(calls, "generate.init")[0]
    words = bits_ref(np, np.array([1, 0], "u4"), np.int64(0), (4, 3), place("generate.init", 0))
    u = np.maximum((words >> 8) * 2.0**-24, 2.0**-25)
    logits = first.given["field:x"].astype("f8")
    logits[:, 1] = -np.inf
    np.testing.assert_array_equal(first.made["state:own"], np.argmax(logits - np.log(-np.log(u)), 1))


def compiled_text(init: str = "zeros") -> str:
    """A run whose generator draws from the logarithms of its data, and whose optimizer fails in the fourth step, when
    a GPU replays what it captured. Both draw what is of no consequence, so that all steps before are alike."""
    drawn = draw(f"(where (= (getf ctx :step) 3) {ODD['nothing but -inf']} {FINE})", "(broadcast (mean p) [4 3])")
    return run_text(
        model=f"(defmodel m (x) (+ (linear x :out 3) (param :drawn [3] :init {init})))",
        generate=generate(
            2,
            "(list :s (field batch :x) :own (field batch :y))",
            "(list :s (getf state :s) :own (random-categorical (log (getf state :s)) :salt trip))",
        ),
        prepare=prepare(y="(field batch :own)"),
        optimizer=OPTIMIZER.format(state="(list)", new=f"(- {PLAIN} (* 0.1 (mean (cast {drawn} :f32))))", more=""),
        run=TWO.replace(":steps 2", ":steps 5"),
    )


def compiled_data(folder: Path, x: tuple[float, float, float]) -> tuple[object, ...]:
    """The runner's option for data whose every row is ``x``."""
    folder.mkdir()
    np.savez(folder / "d.npz", **{**records(22, 1), "x": np.tile(np.array(x, "f4"), (22, 1))})  # type: ignore[arg-type]
    return "--data", folder


DATA = {"NaN": (-1, 1, 2), "a later NaN": (1, 2, -1), "nothing": (0, 0, 0)}


def check_compiled(folder: Path, artifact: Path, go: Callable[..., tuple[int, str]]) -> None:
    """What every device does. ``go``: (artifact, options) -> the exit status, and what was said on stderr."""
    for name, x in DATA.items():
        status, said = go(artifact, "--out", folder / f"out {name}", *compiled_data(folder / name, x))
        assert (status, f"step 1: {DREW} the generator" in said) == (6, True), name
    sound = compiled_data(folder / "sound", (0, 1, 2))  # a choice is ruled out
    status, said = go(artifact, "--out", folder / "whole", *sound)
    assert status == 6 and f"E-NUM-002]: step 4: {DREW} the optimizer from rows" in said
    assert go(artifact, "--out", folder / "short", "--steps", 3, *sound) == (0, "")
    assert tensors(folder / "whole", 3) == tensors(folder / "short", 3)


def check_compiled_init(folder: Path, artifact: Path, go: Callable[..., tuple[int, str]]) -> None:
    status, said = go(artifact, "--out", folder / "out", *compiled_data(folder / "data", (0, 1, 2)))
    assert status == 6 and f"before step 1: {DREW} the :init of m/drawn from rows" in said
    assert not (folder / "out").exists()


ODD_INIT = "(lambda (shape) (cast (random-categorical (log (* 0.0 (random-normal [3 3])))) :f32))"
COMPILED = [("zeros", check_compiled), (ODD_INIT, check_compiled_init)]


@pytest.mark.build
@pytest.mark.parametrize(("init", "check"), COMPILED, ids=("in steps", "in init"))
def test_a_draw_from_no_distribution_ends_a_compiled_run(
    init: str, check: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.sx").write_text(compiled_text(init))
    artifact = build(tmp_path / "run.sx", tmp_path / "run.tar")

    def go(*arguments: object) -> tuple[int, str]:
        return runner.main([*map(str, arguments), "-q"]), capsys.readouterr().err

    check(tmp_path, artifact, go)
