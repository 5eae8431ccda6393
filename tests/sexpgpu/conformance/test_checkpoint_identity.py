"""Sentence 40 of the page on generation: what a checkpoint is bound to, and what a refusal says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artifacts.checkpoint import contents as checkpoint
from artifacts.checkpoint import identity_forms
from tests.artifacts.support import contents, one_error, steps
from tests.sexpgpu.conformance.support import Case, generate, passing, prepare
from tests.support import run_text

Captured = pytest.CaptureFixture[str]
PARTS = {
    "model": "(def width 5)\n(defmodel m (x) (linear (linear x :hidden width) :out 2))",
    "generate": "(def by 2.0)\n" + generate(3, step="(list :s (* by (getf state :s)))"),
    "prepare": prepare(x="(field batch :s)"),
    "passes": passing() + "\n(defcurriculum (stage a :steps 9) (stage b :steps 2))",
    "run": "(defrun r :model m :loader d :seed 1 :steps 4 :checkpoint-every 2 :log-every 2)",
}


def case_and_edited(folder: Path, *edits: tuple[str, str], **parts: str) -> tuple[Case, Case]:
    """The run, and the run with each of the edits made in its text."""
    text = other = run_text(**{**PARTS, **parts})
    for old, new in edits:
        assert other.count(old) >= 1, old
        other = other.replace(old, new)
    return Case.of(folder, text), Case.of(folder, other, "other.tar")


def refusal(folder: Path, capsys: Captured, *edits: tuple[str, str]) -> str:
    """What is said where the edited run would go on from the first one's checkpoint."""
    one, other = case_and_edited(folder, *edits)
    assert one.go(folder / "out", "--steps", "2") == 0 and other.go(folder / "out", "--resume") == 4
    assert steps(folder / "out") == [2]
    text = one_error(capsys.readouterr().err, "E-CKPT-003")
    assert text.endswith("(--fork DIR starts a new run from the weights)")
    return text


def differs(old: str, new: str, where: str) -> str:
    return f"differs in {where}: the checkpoint has {old}, this run has {new}"


@pytest.mark.parametrize(
    "old, new, component, said",
    [
        (":trips 3", "\n:trips 4", "generate", differs(":trips 3 (run.sx:5:21)", ":trips 4 (run.sx:6:8)",
                                                       "defgenerate")),
        ("by 2.0", "by 3.0", "generate", differs("(def by 2.0) (run.sx:4:1)", "(def by 3.0) (run.sx:4:1)", "def by")),
        (":seed 1", ":seed 9", "run", differs(":seed 1 (run.sx:12:36)", ":seed 9 (run.sx:12:36)", "defrun r")),
        (":lr 0.1", ":lr 0.2", "optimizer", differs("(sgd :lr 0.1) (run.sx:8:15)", "(sgd :lr 0.2) (run.sx:8:15)",
                                                    "defoptimizer")),
        ("(def width 5)", "(def width (+ 2 4))", "model", differs("(def width 5) (run.sx:1:1)",
                                                                  "(def width (+ 2 4)) (run.sx:1:1)", "def width")),
        (":batch 4 :fields", ":batch 8 :fields", "data", differs(":batch 4 (run.sx:3:37)", ":batch 8 (run.sx:3:37)",
                                                                 "defloader d")),
        (" (stage b :steps 2)", "", "run", "differs: the checkpoint has stage b (run.sx:11:35), this run has none"),
        (":steps 2))", ":steps 2) (stage c :steps 1))", "run", "differs: the checkpoint has no stage c (run.sx:11:54)"),
    ],
)  # fmt: skip
def test_s40_a_changed_form_is_named_with_both_places(
    tmp_path: Path, capsys: Captured, old: str, new: str, component: str, said: str
) -> None:
    """40: and both values; nothing is run and nothing is changed."""
    text = refusal(tmp_path, capsys, (old, new))
    assert f": {component} {said} (--fork" in text


def test_s40_of_a_long_form_the_part_that_changed_is_shown(tmp_path: Path, capsys: Captured) -> None:
    """40: a form may be long, and the message is a line."""
    text = refusal(
        tmp_path,
        capsys,
        ("(mean (cross-entropy (model (getf inputs :x)) ", "(mean (cross-entropy (model (neg (getf inputs :x))) "),
    )
    assert "objective differs in defobjective: the checkpoint has ..." in text
    assert "(model (getf inputs :x))" in text and "(model (neg (getf inputs :x" in text and len(text) < 500


@pytest.mark.parametrize("spoil", ["absent", "broken", "of another run"])
def test_s40_without_the_old_forms_the_digests_are_shown(tmp_path: Path, capsys: Captured, spoil: str) -> None:
    """40: the digests decide; forms that are not the checkpoint's are not believed."""
    one, other = case_and_edited(tmp_path, (":trips 3", ":trips 4"))
    assert one.go(tmp_path / "out", "--steps", "2") == 0
    kept = tmp_path / "out" / identity_forms.NAME
    if spoil == "absent":
        kept.unlink()
    else:
        kept.write_bytes(b"{" if spoil == "broken" else kept.read_bytes().replace(b":trips 3", b":trips 7"))
    assert other.go(tmp_path / "out", "--resume") == 4
    text = one_error(capsys.readouterr().err, "E-CKPT-003")
    old, new = (case.plan.identity["generate"] for case in (one, other))
    assert f"generate differs: the checkpoint has {old}, this run has {new}" in text


FREE = [
    [(":steps 4", ":steps 6")],
    [(":checkpoint-every 2 :log-every 2", ":checkpoint-every 3 :log-every 1 :diagnostics (list)")],
    [("(defpass p :loader e :every 2)", "(defpass q :loader e :every 1 :batches 1)")],
    [("(defrun r", "\n\n; a word\n(defrun another-name"), ("(list :s (* by", "(list   :s\n(* by")],
]


@pytest.mark.parametrize("edits", FREE)
def test_s40_steps_cadences_passes_and_layout_may_change(tmp_path: Path, edits: list[tuple[str, str]]) -> None:
    """40: the run goes on, to the weights of the one that was never changed; its directory keeps the newer places."""
    one, other = case_and_edited(tmp_path, *edits)
    assert one.go(tmp_path / "whole") == 0
    assert one.go(tmp_path / "out", "--steps", "2") == 0 and other.go(tmp_path / "out", "--resume", "--steps", "4") == 0
    name = "params.safetensors"
    assert contents(tmp_path / "out", 4)[name] == contents(tmp_path / "whole", 4)[name]
    assert b'"place":"run.sx:' in (tmp_path / "out" / identity_forms.NAME).read_bytes()
    if "; a word" in edits[0][1]:
        assert b'"place":"run.sx:16:' in (tmp_path / "out" / identity_forms.NAME).read_bytes()


def test_s40_a_fork_goes_on_from_the_weights_under_a_new_identity(tmp_path: Path) -> None:
    """40: from step 0, with the other's parameters; then it is a run like any other."""
    one, other = case_and_edited(tmp_path, (":trips 3", ":trips 4"))
    assert one.go(tmp_path / "a") == 0
    assert other.go(tmp_path / "b", "--fork", str(tmp_path / "a"), "--steps", "1") == 0
    assert other.go(tmp_path / "scratch", "--steps", "1") == 0
    last, forked, fresh = (
        checkpoint.load(str(tmp_path / name / "checkpoints" / f"step-{step:09d}"))
        for name, step in (("a", 4), ("b", 1), ("scratch", 1))
    )
    assert forked.entry.cursor.step == 1 and forked.entry.identity == fresh.entry.identity != last.entry.identity
    assert len({c.entry.run_id for c in (last, forked, fresh)}) == 3
    far = {n: [np.abs(c.params[n] - last.params[n]).max() for c in (forked, fresh)] for n in last.params}
    assert all(near < fresh_one for near, fresh_one in far.values())
    assert other.go(tmp_path / "b", "--resume") == 0 and steps(tmp_path / "b")[-1] == 4
