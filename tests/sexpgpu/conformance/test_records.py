"""Sentences 1 to 14 of the page on generation (docs/conformance.md numbers them): what a generator makes, and when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artifacts.device.interface import HostDevice
from artifacts.format import tarball
from sexpgpu.graph.core import Graph, Value
from tests.conftest import EXAMPLES
from tests.sexpgpu.conformance.support import (
    TWO,
    Case,
    generate,
    inputs_of,
    loop_of,
    of_phase,
    outputs_of,
    passing,
    prepare,
    records,
)
from tests.support import faults, plan_of, plan_text, run_text

ORDERED = '(defloader d :source "d.npz" :batch 4 :shuffle false :fields (list :x [3] :f32 :y [] :i32))'
TEACHER = "(defmodel m (x) (linear x :out 2))\n(defmodel teacher (x) :frozen true (linear x :out 2))"
COLUMN = "(= (iota [1 5] :axis 1) (cast trip :i32))"


def linear(c, name: str, x: np.ndarray) -> np.ndarray:
    return x @ c.given[f"param:{name}/out/weight"] + c.given[f"param:{name}/out/bias"]


def test_s01_records_are_made_in_the_step_before_its_training_graph(tmp_path: Path) -> None:
    """1: each microbatch of each step generates, then trains."""
    text = run_text(
        generate=generate(2, finish="(list :t (getf state :s))"), prepare=prepare(x="(field batch :t)"), run=TWO
    )
    one = ["generate.init", "generate.step", "generate.step", "generate.finish", "train"]
    assert [c.phase for c in Case.of(tmp_path, text).calls(2)] == ["init", *([*one, *one, "update"] * 2)]


def test_s01_a_student_samples_its_own_labels(tmp_path: Path) -> None:
    """1, the first use it names."""
    parts = {"generate": generate(1, finish="(list :own (argmax (model (getf state :s))))")}
    calls = Case.of(tmp_path, run_text(**parts, prepare=prepare(y="(field batch :own)"))).calls()
    (finish,) = of_phase(calls, "generate.finish")
    want = linear(finish, "m", finish.given["state:s"]).argmax(1)
    np.testing.assert_array_equal(inputs_of(calls, "train", "generated:own")[0], want)


def test_s01_a_frozen_teacher_labels_them(tmp_path: Path) -> None:
    """1, the second use it names: the teacher has no gradient and never moves."""
    parts = {"model": TEACHER, "generate": generate(1, finish="(list :own (argmax (teacher (getf state :s))))")}
    calls = Case.of(tmp_path, run_text(**parts, prepare=prepare(y="(field batch :own)"))).calls(2)
    labels = inputs_of(calls, "train", "generated:own")
    for finish, label in zip(of_phase(calls, "generate.finish"), labels, strict=True):
        np.testing.assert_array_equal(label, linear(finish, "teacher", finish.given["state:s"]).argmax(1))
    first, second = inputs_of(calls, "generate.finish", "param:teacher/out/weight")
    np.testing.assert_array_equal(first, second)
    assert not [n for c in of_phase(calls, "update") for n in c.made if "teacher" in n]


def test_s01_a_pool_is_scored_and_cut_down(tmp_path: Path) -> None:
    """1, the third use it names: of four rows, the two of the greatest loss are trained on."""
    parts = {
        "generate": generate(
            2,
            "(list :score (cross-entropy (model (field batch :x)) (field batch :y)) :x4 (field batch :x)"
            " :y4 (field batch :y) :best (zeros [2] :dtype :i32))",
            "(let* ((top (argmax (getf state :score))))"
            " (list :score (where (= (iota [4]) top) -1.0 (getf state :score))"
            " :x4 (getf state :x4) :y4 (getf state :y4)"
            " :best (where (= (iota [2]) (cast trip :i32)) top (getf state :best))))",
            "(list :bx (gather (getf state :x4) (getf state :best)) :by (gather (getf state :y4) (getf state :best)))",
        ),
        "prepare": "(defprepare (batch ctx) (list :x (field batch :bx) :y (field batch :by)))",
    }
    calls = Case.of(tmp_path, run_text(**parts)).calls()
    score = outputs_of(calls, "generate.init", "state:score")[0]
    rows = inputs_of(calls, "generate.init", "field:x")[0][np.argsort(-score)[:2]]
    np.testing.assert_array_equal(inputs_of(calls, "train", "generated:bx")[0], rows)


def test_s02_no_operator_carries_a_graph() -> None:
    """2: the attributes of every operator of every phase are plain data."""
    plan = plan_of(generate=generate(3, "(list :s (model (field batch :x)))"), prepare=prepare(h="(field batch :s)"))
    held = [x for p in plan.phases for v in p.graph.values() for x in v.attrs.values()]
    assert held and all(isinstance(x, int | float | str | tuple | type(None)) for x in held)
    assert not [x for x in held if isinstance(x, Graph | Value)]


def test_s02_nothing_is_differentiated_through_a_generator(tmp_path: Path) -> None:
    """2: the gradient is, bit for bit, that of the same numbers read from a file."""
    own = {
        "generate": generate(
            2, "(list :s (* (field batch :x) (mean (model (field batch :x)))))", "(list :s (* 0.5 (getf state :s)))"
        )
    }
    calls = Case.of(tmp_path, run_text(loader=ORDERED, **own, prepare=prepare(x="(field batch :s)"))).calls()
    data = {"x": inputs_of(calls, "train", "generated:s")[0], "y": inputs_of(calls, "train", "field:y")[0]}
    other = Case.of(tmp_path / "given", run_text(loader=ORDERED), d=data).calls()
    for name in ("gradient:m/out/weight", "gradient:m/out/bias"):
        np.testing.assert_array_equal(outputs_of(calls, "train", name)[0], outputs_of(other, "train", name)[0])
        assert outputs_of(calls, "train", name)[0].any()


@pytest.mark.parametrize("trips", [1, 3])
def test_s03_step_runs_trips_times(tmp_path: Path, trips: int) -> None:
    """3: in each microbatch."""
    text = run_text(generate=generate(trips), prepare=prepare(x="(field batch :s)"), run=TWO)
    assert len(of_phase(Case.of(tmp_path, text).calls(), "generate.step")) == 2 * trips


@pytest.mark.parametrize("trips", ["0", "-1", "1.0", "true", "nil", "(zeros [] :dtype :i64)"])
def test_s03_trips_are_one_or_more(trips: str) -> None:
    """3: an integer of 1 or more, E-GEN-005 for anything else."""
    assert [f.split()[0] for f in faults(generate=generate(trips))] == ["E-GEN-005"]


def test_s04_init_gets_the_batch_that_prepare_gets(tmp_path: Path) -> None:
    """4: the same records, in the same microbatch, read with ``field``; and the step's context."""
    parts = {
        "generate": generate(1, "(list :s (field batch :x) :n (getf ctx :step))"),
        "prepare": prepare(s="(field batch :s)", n="(field batch :n)"),
        "objective": "(defobjective (inputs ctx)"
        " (metric :same (mean (cast (= (getf inputs :s) (getf inputs :x)) :f32)))"
        " (metric :n (cast (getf inputs :n) :f32)) (mean (model (getf inputs :x))))",
    }
    calls = Case.of(tmp_path, run_text(**parts, run=TWO)).calls(2)
    assert [float(x) for x in outputs_of(calls, "train", "metric:same")] == [1] * 4
    assert [float(x) for x in outputs_of(calls, "train", "metric:n")] == [0, 0, 1, 1]
    assert [f.split()[0] for f in faults(generate=generate(init="(list :s (getf batch :x))"))] == ["E-CALL-004"]


def test_s05_step_gets_the_state_the_trip_and_the_context(tmp_path: Path) -> None:
    """5: the trip is an i64 scalar, from 0."""
    text = run_text(
        generate=generate(
            3,
            "(list :s (field batch :x) :t (zeros [] :dtype :i64) :n (zeros [] :dtype :i64))",
            '(let* () (assert (and (same? (dtype-of trip) :i64) (= (rank trip) 0)) "trip")'
            " (list :s (+ 1.0 (getf state :s)) :t trip :n (getf ctx :step)))",
        ),
        prepare=prepare(x="(field batch :s)", t="(field batch :t)", n="(field batch :n)"),
    )
    calls = Case.of(tmp_path, text).calls(2)
    trips = outputs_of(calls, "generate.step", "state:t")
    assert [int(t) for t in trips] == [0, 1, 2] * 2 and {(t.dtype.name, t.shape) for t in trips} == {("int64", ())}
    assert [int(n) for n in outputs_of(calls, "generate.step", "state:n")] == [0, 0, 0, 1, 1, 1]
    first, last = inputs_of(calls, "generate.init", "field:x")[0], inputs_of(calls, "train", "generated:s")[0]
    np.testing.assert_array_equal(last, first + np.float32(1) + np.float32(1) + np.float32(1))


def test_s06_finish_makes_any_plist_once(tmp_path: Path) -> None:
    """6: with other keys, shapes and dtypes than the state's; once a microbatch, from the last state."""
    finish = "(list :low (reduce-min (getf state :s)) :count (cast (+ 7 (getf ctx :microbatch)) :i32))"
    text = run_text(
        generate=generate(2, step="(list :s (* 2.0 (getf state :s)))", finish=finish),
        prepare=prepare(low="(field batch :low)", count="(field batch :count)"),
        run=TWO,
    )
    calls = Case.of(tmp_path, text).calls()
    ends = of_phase(calls, "generate.finish")
    assert [int(c.made["generated:count"]) for c in ends] == [7, 8]
    for c, x in zip(ends, inputs_of(calls, "generate.init", "field:x"), strict=True):
        assert c.made["generated:low"] == 4 * x.min()


def test_s07_each_microbatch_generates_from_its_own_batch(tmp_path: Path) -> None:
    """7: init once, step as many times as there are trips, finish once, each on what came before."""
    text = run_text(
        generate=generate(2, step="(list :s (+ 1.0 (getf state :s)))", finish="(list :t (getf state :s))"),
        prepare=prepare(x="(field batch :t)"),
        run=TWO,
    )
    calls = Case.of(tmp_path, text).calls(2)
    batches = inputs_of(calls, "generate.init", "field:x")
    assert len(batches) == 4 and len({b.tobytes() for b in batches}) == 4
    for batch, label, sample in zip(
        batches, inputs_of(calls, "train", "field:y"), inputs_of(calls, "train", "generated:t"), strict=True
    ):
        np.testing.assert_array_equal(sample, batch + np.float32(1) + np.float32(1))
        data = records(22, 1)
        at = [int(np.flatnonzero((data["x"] == row).all(1))[0]) for row in batch]
        np.testing.assert_array_equal(label, data["y"][at])  # train has the very records that init had


def test_s07_the_state_stays_on_the_device(tmp_path: Path) -> None:
    """7: the loop asks the device for numbers that it reports, and for no state."""
    text = run_text(
        generate=generate(
            3,
            "(list :s (broadcast (expand-dims (field batch :x) 2) [4 3 7]))",
            finish="(list :t (sum (getf state :s) :axes [2]))",
        ),
        prepare=prepare(x="(field batch :t)"),
        run=TWO,
    )
    case, seen = Case.of(tmp_path, text), []

    class Watched(HostDevice):
        def numpy(self, handle: np.ndarray) -> np.ndarray:
            seen.append(handle.shape)
            return handle

    with tarball.open(case.path) as artifact:
        device = Watched(artifact.manifest, case.device(artifact)._functions)
        loop, training = loop_of(artifact, device)
        now = loop.initial()
        loop.step(now)
        training.close()
    assert seen and set(seen) == {()}


@pytest.mark.parametrize(
    "finish, phase, port",
    [("(list :t (getf state :s))", "generate.finish", "generated:t"), ("", "generate.step", "state:t")],
)
def test_s08_what_finish_returned_or_the_last_state_joins_the_batch(
    tmp_path: Path, finish: str, phase: str, port: str
) -> None:
    """8: prepare reads it with ``field``, as it reads a loader's field."""
    state = "s" if finish else "t"
    text = run_text(
        generate=generate(
            2, f"(list :{state} (field batch :x))", f"(list :{state} (* 3.0 (getf state :{state})))", finish
        ),
        prepare=prepare(x="(field batch :t)"),
    )
    calls = Case.of(tmp_path, text).calls()
    np.testing.assert_array_equal(inputs_of(calls, "train", "generated:t")[0], outputs_of(calls, phase, port)[-1])


@pytest.mark.parametrize("clash", ["training", "pass"])
def test_s09_a_generated_name_is_no_loader_s_field(clash: str) -> None:
    """9: E-GEN-003, with the generator's place and the loader's."""
    passed = """(defloader e :source "e.npz" :batch 4 :fields (list :z [3] :f32 :w [] :i32))
(defpass p :loader e :every 2 :prepare (lambda (batch ctx) (list :x (field batch :z) :y (field batch :w))))"""
    name, owner = ("y", "d") if clash == "training" else ("z", "e")
    _, report = plan_text(run_text(generate=generate(init=f"(list :{name} (field batch :x))"), passes=passed))
    (error,) = report.errors
    assert error.code.name == "E-GEN-003" and f":{name}" in error.message and f"field of {owner}" in error.message
    (note,) = error.notes
    assert f"(defloader {owner}" in note[0].excerpt() and "(lambda (batch ctx)" in error.span.excerpt()  # type: ignore[union-attr]


def test_s10_a_pass_with_the_training_fields_and_batch_size_runs_the_generator(tmp_path: Path) -> None:
    """10: on its own batches."""
    text = run_text(
        generate=generate(2, step="(list :s (* 2.0 (getf state :s)))"),
        prepare=prepare(x="(field batch :s)"),
        passes=passing(),
    )
    calls = Case.of(tmp_path, text).calls(1, evaluate=True)
    assert [c.phase for c in calls[-4:]] == ["generate.init", "generate.step", "generate.step", "eval.p"]
    rows = records(9, 2)["x"]
    for at, x in zip((0, 4), inputs_of(calls, "eval.p", "generated:s"), strict=True):
        np.testing.assert_array_equal(x, 4 * rows[at : at + 4])


OTHER = ":prepare (lambda (batch ctx) (list :x (field batch :{}) :y (field batch :y)))"


@pytest.mark.parametrize("how", ["batch", "fields"])
def test_s11_a_pass_whose_loader_differs_does_not(tmp_path: Path, how: str) -> None:
    """11: with a prepare of its own it reads its loader; one that reads a generated name is E-CONTRACT-005."""

    def text(reads: str) -> str:
        passes = passing(2 if how == "batch" else 4, own=OTHER.format(reads))
        passes = passes.replace(":y [] :i32)", ":y [] :i32 :w [] :f32)") if how == "fields" else passes
        return run_text(generate=generate(), prepare=prepare(x="(field batch :s)"), passes=passes)

    data = {**records(9, 2), "w": np.zeros(9, "f4")}
    calls = Case.of(tmp_path, text("x"), e=data).calls(1, evaluate=True)
    after = [c.phase for c in calls][[c.phase for c in calls].index("update") + 1 :]
    assert set(after) == {"eval.p"}
    _, report = plan_text(text("s"))
    (error,) = report.errors
    assert error.code.name == "E-CONTRACT-005" and ":s" in error.message
    assert "(defloader e" in error.notes[0][0].excerpt()


def test_s12_the_state_has_static_shapes(tmp_path: Path) -> None:
    """12: every port's shape is numbers, every array has it; a shape that hangs on a tensor is refused."""
    text = run_text(
        generate=generate(3, "(list :s (field batch :x) :n (zeros [2] :dtype :i32))"),
        prepare=prepare(n="(field batch :n)"),
    )
    case = Case.of(tmp_path, text)
    shapes = {f"state:{p.name}": p.type.shape for p in case.plan.phase("generate.init").outputs}
    for c in of_phase(case.calls(2), "generate.step"):
        assert {n: x.shape for n, x in c.given.items() if n in shapes}.items() <= shapes.items()
    grows = generate(
        init="(list :n (zeros [2] :dtype :i32))", step="(list :n (zeros [(sum (getf state :n))] :dtype :i32))"
    )
    assert [f.split()[0] for f in faults(generate=grows)] == ["E-CALL-004"]


def test_s13_a_sequence_is_a_tensor_of_its_full_size_written_a_column_a_trip(tmp_path: Path) -> None:
    """13: with ``where`` at the trip's column."""
    step = f"(list :s (where {COLUMN} (+ 10 (* 10 (cast trip :i32))) (getf state :s)))"
    text = run_text(
        generate=generate(5, "(list :s (zeros [4 5] :dtype :i32))", step), prepare=prepare(s="(field batch :s)")
    )
    written = outputs_of(Case.of(tmp_path, text).calls(), "generate.step", "state:s")
    for trip, s in enumerate(written):
        np.testing.assert_array_equal(
            s, np.broadcast_to(np.where(np.arange(5) <= trip, 10 * np.arange(5) + 10, 0), (4, 5))
        )


CACHED = """(defmodel m (row &key cache at)
  (let* ((places (param :position [5 8] :init (normal 0.5)))
         (x (+ (embedding row :token 7 8 :init (normal 1.0)) (if cache (gather places at) places)))
         (made (transformer-block x :block :heads 2 :causal true :cache cache :at at))
         (logits (linear (if cache (getf made :out) made) :out 7)))
    (if cache (list :logits logits :cache (getf made :cache)) logits)))"""
AFTER = "(= (iota [1 5] :axis 1) (+ 1 (cast trip :i32)))"
SALT = "(+ (* (getf ctx :step) 8) trip)"
DRAWN = f"(where {AFTER} (expand-dims (random-categorical {{logits}} :salt {SALT}) 1) (getf state :s))"


def test_s13_a_cache_is_the_same(tmp_path: Path) -> None:
    """13: keys and values written at the trip's column; the rows are those written by the whole row each trip."""
    here = f"(sum (where {COLUMN} (getf state :s) 0) :axes [1] :keepdims true)"
    cached = (
        f"(let* ((made (model {here} :cache (list :k (getf state :k) :v (getf state :v)) :at (cast trip :i32))))"
        f" (list :s {DRAWN.format(logits='(squeeze (getf made :logits) [1])')}"
        " :k (getf (getf made :cache) :k) :v (getf (getf made :cache) :v)))"
    )
    of_column = f"(sum (where (expand-dims {COLUMN} 2) (model (getf state :s)) 0.0) :axes [1])"
    whole = f"(list :s {DRAWN.format(logits=of_column)})"
    start = "(list :s (where (= (iota [1 5] :axis 1) 0) (expand-dims (field batch :y) 1) 0){})"
    empty = " :k (zeros [4 2 5 4]) :v (zeros [4 2 5 4])"
    rows = []
    for name, init, step in (("cached", start.format(empty), cached), ("whole", start.format(""), whole)):
        text = run_text(
            model=CACHED,
            generate=generate(5, init, step),
            prepare=prepare(s="(field batch :s)"),
            objective="(defobjective (inputs ctx) (mean (model (getf inputs :s))))",
        )
        rows.append(inputs_of(Case.of(tmp_path / name, text).calls(2), "train", "generated:s"))
    np.testing.assert_array_equal(*rows)
    assert len(np.unique(rows)) == 7  # it writes everything there is


def test_s14_the_fixture_writes_greedily_and_labels_by_the_rule(tmp_path: Path) -> None:
    """14: examples/tiny-generate: each position is the student's best guess after those before it."""
    text = (EXAMPLES / "tiny-generate/run.sx").read_text()
    text = text.replace("(metric :accuracy", "(diagnostic :guess (argmax logits))\n(metric :accuracy")
    text = text.replace(":log-every 50", ":log-every 50 :diagnostics (list :guess)")
    data = {n: dict(np.load(EXAMPLES / f"tiny-generate/{n}.npz")) for n in ("rows", "held-out")}
    calls = Case.of(tmp_path, text, **data).calls(2)
    for c, first in zip(of_phase(calls, "train"), of_phase(calls, "generate.init"), strict=True):
        sample, label = c.given["generated:sample"], c.given["generated:label"]
        np.testing.assert_array_equal(sample[:, :2], first.given["field:row"][:, :2])
        np.testing.assert_array_equal(sample[:, 2:], c.made["diagnostic:guess"][:, 1:-1])
        np.testing.assert_array_equal(label, np.minimum(sample + first.given["field:stride"][:, None], 31))
    assert len(of_phase(calls, "generate.step")) == 6 * 2 * 2  # one position a trip
