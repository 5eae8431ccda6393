"""Sentences 15 to 24 of the page on generation: what a generator may read, and what its draws depend on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.ops.random import philox
from tests.sexpgpu.conformance.support import TWO, Case, generate, inputs_of, of_phase, outputs_of, prepare
from tests.support import faults, plan_of, run_text

CTX = ("step", "microbatch", "records", "stage", "stage-step", "stage-records")
BITS = "(random-bits [6]{})"
EACH = " :salt (+ (* (getf ctx :step) 65536) (getf ctx :microbatch))"
SEEDED = "(defrun r :model m :loader d :seed {} :steps 2 :microbatches 2)"


def kinds(phase) -> set[str]:
    return {p.kind for p in phase.inputs}


def test_s15_the_batch_is_read_in_init_and_the_state_afterwards() -> None:
    """15: step and finish have the state, and no batch."""
    plan = plan_of(generate=generate(finish="(list :t (getf state :s))"), prepare=prepare(t="(field batch :t)"))
    assert [kinds(plan.phase(f"generate.{n}")) for n in ("init", "step", "finish")] == [{"field"}, {"state"}, {"state"}]
    for part in ({"step": "(list :s (field batch :x))"}, {"finish": "(list :t (field batch :x))"}):
        assert [f.split()[0] for f in faults(generate=generate(**part))] == ["E-NAME-001"]


MODELS = """(defmodel inner (x) :frozen true (linear x :in 3))
(defmodel m (x) (linear (inner x) :out 2))"""


def test_s16_every_parameter_may_be_read_frozen_or_not(tmp_path: Path) -> None:
    """16: model, and a frozen model that it calls, run in each part as they do in objective."""
    run = "(list :s (getf state :s) :a (model (getf state :s)) :b (inner (getf state :s)))"
    text = run_text(
        model=MODELS,
        generate=generate(
            1,
            "(list :s (field batch :x) :a (model (field batch :x)) :b (inner (field batch :x)))",
            run,
            "(list :a2 (model (getf state :s)) :b2 (inner (getf state :s)) :a (getf state :a) :b (getf state :b))",
        ),
        prepare=prepare(**{n: f"(field batch :{n})" for n in ("a", "b", "a2", "b2")}),
        objective="(defobjective (inputs ctx) (diagnostic :m (model (getf inputs :x)))"
        " (diagnostic :i (inner (getf inputs :x))) (+ (mean (model (getf inputs :x)))"
        " (* 0.0 (+ (sum (getf inputs :a)) (sum (getf inputs :b)) (sum (getf inputs :a2)) (sum (getf inputs :b2))))))",
        run="(defrun r :model m :loader d :steps 2 :diagnostics (list :m :i))",
    )
    case = Case.of(tmp_path, text)
    assert {p.name for p in case.plan.phase("generate.init").inputs if p.kind == "param"} == {
        "inner/in/bias", "inner/in/weight", "m/out/bias", "m/out/weight",
    }  # fmt: skip
    (train,) = of_phase(case.calls(), "train")
    for name, want in (("a", "m"), ("a2", "m"), ("b", "i"), ("b2", "i")):
        np.testing.assert_array_equal(train.given[f"generated:{name}"], train.made[f"diagnostic:{want}"])


def test_s17_parameters_are_those_that_the_step_started_from(tmp_path: Path) -> None:
    """17: in both microbatches and every trip of a step, those before its update."""
    text = run_text(
        generate=generate(
            2, "(list :s (model (field batch :x)))", "(list :s (+ (getf state :s) (m (getf state :s))))"
        ).replace("(m (getf state :s))", "(* 0.5 (model (concat (getf state :s) (zeros [4 1]) :axis 1)))"),
        prepare=prepare(s="(field batch :s)"),
        objective="(defobjective (inputs ctx) (+ (sum (getf inputs :s)) (mean (square (model (getf inputs :x))))))",
        run=TWO,
    )
    calls = Case.of(tmp_path, text).calls(2)
    weights = [outputs_of(calls, "init", "param:m/out/weight")[0], *outputs_of(calls, "update", "param:m/out/weight")]
    assert not np.array_equal(weights[0], weights[1])
    for phase, each in (("generate.init", 2), ("generate.step", 4), ("train", 2)):
        seen = inputs_of(calls, phase, "param:m/out/weight")
        for n, w in enumerate(seen):
            np.testing.assert_array_equal(w, weights[n // each], err_msg=phase)


def test_s18_the_context_has_the_builtin_keys_and_no_other(tmp_path: Path) -> None:
    """18: in every part, with the microbatch's values; any other key is nil. The trip is step's alone."""
    keys = " ".join(f":{k} (getf ctx :{k})" for k in CTX)
    none = '(let* () (assert (nil? (getf ctx :trip)) "trip") (assert (nil? (getf ctx :epoch)) "epoch") {})'
    text = run_text(
        generate=generate(
            1, none.format(f"(list {keys})"), none.format(f"(list {keys})"), none.format(f"(list {keys})")
        ),
        prepare=prepare(**{f"c-{k}": f"(field batch :{k})" for k in CTX}),
        passes="(defcurriculum (stage a :steps 1) (stage b :steps 9))",
        run=TWO,
    )
    calls = Case.of(tmp_path, text).calls(2)
    want = {"step": [0, 0, 1, 1], "microbatch": [0, 1, 0, 1], "records": [0, 4, 8, 12], "stage": [0, 0, 1, 1],
            "stage-step": [0, 0, 0, 0], "stage-records": [0, 4, 0, 4]}  # fmt: skip
    for phase, kind in (("generate.init", "state"), ("generate.step", "state"), ("generate.finish", "generated")):
        for key in CTX:
            values = outputs_of(calls, phase, f"{kind}:{key}")
            assert [int(v) for v in values] == want[key] and {v.dtype.name for v in values} == {"int64"}


def test_s19_a_counter_is_nil_inside_a_generator(tmp_path: Path) -> None:
    """19: no error, and getf's default applies; objective reads the total."""
    nil = '(assert (nil? (getf ctx :tokens)) "seen") (assert (= 5 (getf ctx :tokens 5)) "seen")'
    text = run_text(
        generate=generate(
            1, f"(let* () {nil} (list :s (field batch :x)))", f"(let* () {nil} state)", f"(let* () {nil} state)"
        ),
        prepare="(defprepare (batch ctx) (counter :tokens 4) (list :x (field batch :s) :y (field batch :y)))",
        objective="(defobjective (inputs ctx) (metric :tokens (cast (getf ctx :tokens) :f32))"
        " (mean (model (getf inputs :x))))",
        run=TWO,
    )
    calls = Case.of(tmp_path, text).calls(2)
    assert [int(n) for n in outputs_of(calls, "train", "metric:tokens")] == [4, 8, 12, 16]


def drawn(folder: Path, bits: str, steps: int = 2, seed: int = 1, **parts: str) -> list[np.ndarray]:
    """A draw of ``:init``, microbatch by microbatch."""
    own = {
        "generate": generate(2, f"(list :s (field batch :x) :a {bits})"),
        "prepare": prepare(s="(field batch :s)", a="(field batch :a)"),
        "run": SEEDED.format(seed),
    }
    return outputs_of(Case.of(folder, run_text(**{**own, **parts})).calls(steps), "generate.init", "state:a")


def test_s21_a_draw_is_a_function_of_seed_place_and_salt(tmp_path: Path) -> None:
    """21: word e of it is word e % 4 of the Philox block of (e // 4, place, salt), keyed by the seed."""
    bits = drawn(tmp_path / "a", BITS.format(" :salt (+ (getf ctx :step) 9)"), seed=2**32 + 5)[3]  # of step 1
    # The place of generate.init's first draw: the first four bytes of sha256("generate.init/0").
    counter = np.array([[block, 0x354FC0DF, 10, 0] for block in (0, 1)], "u4")
    np.testing.assert_array_equal(bits, philox(np, counter, (5, 1)).reshape(-1)[:6])
    two = f"(random-bits [2] :salt 3) :b {BITS.format('')}"  # its place is the second
    other = drawn(tmp_path / "b", two)[0]
    assert not np.array_equal(other[:2], drawn(tmp_path / "c", BITS.format(""))[0][:2])


EDITS = {
    "comments": {"passes": "; a word\n#| and another |#"},
    "model": {"model": "(defmodel m (x) (linear (dropout (linear x :more 5) 0.5) :out 2))"},
    "prepare": {"prepare": prepare(x="(+ (random-uniform [4 3]) (field batch :s))")},
    "objective": {
        "objective": "(defobjective (inputs ctx) (mean (+ (random-uniform [4 2]) (model (getf inputs :x)))))",
    },
    "another part": {"generate": generate(2, f"(list :s (field batch :x) :a {BITS.format(EACH)})",
                                          "(list :s (+ (random-normal [4 3]) (getf state :s)) :a (getf state :a))")},
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_s21_an_edit_elsewhere_leaves_a_draw_as_it_was(tmp_path: Path, edit: str) -> None:
    """21: what stands in other forms, and in the generator's other parts, does not move its place."""
    plain = drawn(tmp_path / "a", BITS.format(EACH))
    np.testing.assert_array_equal(plain, drawn(tmp_path / "b", BITS.format(EACH), **EDITS[edit]))


def test_s21_a_draw_is_the_same_after_a_resume(tmp_path: Path) -> None:
    """21: parameters that hang on salted draws of every step are those of the run that was never stopped."""
    text = run_text(
        generate=generate(2, step=f"(list :s (+ (random-normal [4 3]{EACH}) (getf state :s)))"),
        prepare=prepare(x="(field batch :s)"),
        run=SEEDED.format(1).replace(":steps 2", ":steps 4"),
    )
    case = Case.of(tmp_path, text)
    assert case.go(tmp_path / "whole") == 0
    assert case.go(tmp_path / "cut", "--steps", "1") == 0 and case.go(tmp_path / "cut", "--resume") == 0
    ends = [(tmp_path / n / "checkpoints/step-000000004/params.safetensors").read_bytes() for n in ("whole", "cut")]
    assert ends[0] == ends[1]


def test_s22_an_unsalted_draw_is_the_same_everywhere(tmp_path: Path) -> None:
    """22: at every step and microbatch, and in every trip."""
    bits = BITS.format("")
    text = run_text(
        generate=generate(2, f"(list :s (field batch :x) :a {bits})", f"(list :s (getf state :s) :a {bits})"),
        prepare=prepare(s="(field batch :s)", a="(field batch :a)"),
        run=TWO,
    )
    calls = Case.of(tmp_path, text).calls(2)
    first, trips = outputs_of(calls, "generate.init", "state:a"), outputs_of(calls, "generate.step", "state:a")
    assert (len(first), len(trips)) == (4, 8)
    assert len({a.tobytes() for a in first}) == len({a.tobytes() for a in trips}) == 1
    assert not np.array_equal(first[0], trips[0])  # another part is another place


def test_s23_salted_by_step_and_microbatch_it_is_new_for_every_microbatch(tmp_path: Path) -> None:
    """23: the salt that the page gives."""
    bits = drawn(tmp_path, BITS.format(EACH), steps=3)
    assert len(bits) == 6 and len(np.unique(bits)) == 36


def test_s24_salted_by_the_step_alone_it_is_new_every_step(tmp_path: Path) -> None:
    """24: and the same for the microbatches of a step."""
    bits = drawn(tmp_path, BITS.format(" :salt (getf ctx :step)"), steps=3)
    assert [np.array_equal(a, b) for a, b in zip(bits, bits[1:], strict=False)] == [True, False, True, False, True]
    assert len(np.unique(bits)) == 18
