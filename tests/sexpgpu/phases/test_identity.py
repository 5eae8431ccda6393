"""A checkpoint's identity: what counts, what does not, and which component says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.reader import read
from sexpgpu.language.runfile import load
from sexpgpu.language.source import Source
from sexpgpu.phases.identity import canonical, identity

BASE = """
(def width 8) (def unused 1)
(defun block (x) "Doc." (linear x :out width))
(defmodel student (x) "Doc." (block x))
(defmodel teacher (x) :frozen true (linear x :out 3))
(defmodel other (x) (linear x :out 4))
(defloader rows :source "rows.npz" :batch 4 :fields (list :x [3] :f32))
(defloader held :source "held.npz" :batch 4 :fields (list :x [3] :f32))
(defgenerate :trips 2 :init (lambda (batch ctx) (list :s (field batch :x)))
             :step (lambda (state trip ctx) state))
(defprepare (batch ctx) (list :x (field batch :x)))
(defobjective (inputs ctx) (mean (square (- (model (getf inputs :x)) (teacher (getf inputs :x))))))
(defoptimizer (sgd :lr 0.1))
(defpass held :loader held :every 5)
(defrun r :model student :loader rows :seed 1 :steps 10 :log-every 1 :checkpoint-every 5)
"""
NAMES = ["language", "model", "data", "prepare", "objective", "generate", "optimizer", "run"]


def digests(folder: Path, text: str, **files: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    for name, content in {"run": text, **files}.items():
        (folder / f"{name}.sx").write_text(content)
    report = Report()
    run = load(str(folder / "run.sx"), report)
    assert run and not report, "\n".join(map(str, report.errors))
    return identity(run)


def changed(folder: Path, *edits: tuple[str, str]) -> list[str]:
    """The components that differ once each edit (old, new) is made in BASE."""
    text = BASE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    a, b = digests(folder, BASE), digests(folder, text)
    return [name for name in NAMES if a[name] != b[name]]


def test_an_identity_has_a_sha256_for_each_component(tmp_path: Path) -> None:
    made = digests(tmp_path, BASE)
    assert list(made) == NAMES and all(len(bytes.fromhex(d)) == 32 for d in made.values())
    assert len(set(made.values())) == len(NAMES)


@pytest.mark.parametrize(
    "old, new",
    [
        ("\n", "\n\n  ; comment\n #| another |#\t"),
        (' "Doc."', ""),
        ('"Doc."', '"Other."'),
        ("(def unused 1)", "(def unused 2) (defun also-unused (x) x)"),
        ("(def width 8) (def unused 1)", "(def unused 1) (def width 8)"),
        ("0.1", "1e-1"),
        ('"rows.npz"', '(list "elsewhere/rows-0.npz" "rows-1.npz") :embed true'),
        (":batch 4 :fields (list :x [3] :f32)", ":shuffle true :fields (list :x [3] :f32) :batch 4"),
        (":seed 1 :steps 10", ":steps 999 :microbatches 1 :precision :f32 :seed 1"),
        (":log-every 1 :checkpoint-every 5", ":log-every 7 :diagnostics (list :a)"),
        ("(defrun r ", "(defrun other-name "),
        (":every 5", ":every 6 :batches 2"),
        ("(defpass held :loader held :every 5)", ""),
        ("(defun block", "(defpass more :loader held :every 1)\n(defun block"),
        ("(lambda (state trip ctx) state)", '(lambda (state trip ctx) "Doc." state)'),
    ],
)
def test_what_does_not_count(tmp_path: Path, old: str, new: str) -> None:
    assert changed(tmp_path, (old, new)) == []


def test_the_name_of_a_training_loader_counts_for_it_keys_the_order_of_records(tmp_path: Path) -> None:
    assert changed(tmp_path, ("defloader rows", "defloader data"), (":loader rows", ":loader data")) == ["data"]


@pytest.mark.parametrize(
    "old, new, parts",
    [
        ("(def width 8)", "(def width 9)", ["model"]),
        ("(def width 8)", "(def width 8.0)", ["model"]),
        ("(block x))", "(block (block x)))", ["model"]),
        (":frozen true", ":frozen false", ["model", "objective"]),
        (":out 3", ":out 4", ["model", "objective"]),
        ('"rows.npz" :batch 4', '"rows.npz" :batch 8', ["data"]),
        ('"rows.npz" :batch 4 :fields (list :x', '"rows.npz" :batch 4 :fields (list :y', ["data"]),
        ('"rows.npz" :batch 4', '"rows.npz" :batch 4 :shuffle false', ["data"]),
        ('"rows.npz" :batch 4', '"rows.npz" :batch 4 :epochs 2', ["data"]),
        ("(list :x (field batch :x)))\n(defobj", "(list :x (neg (field batch :x))))\n(defobj", ["prepare"]),
        ("(mean (square", "(sum (square", ["objective"]),
        (":trips 2", ":trips 3", ["generate"]),
        ("(list :s (field batch :x))", "(list :s (other (field batch :x)))", ["model", "generate"]),
        (":lr 0.1", ":lr 0.2", ["optimizer"]),
        (":seed 1", ":seed 2", ["run"]),
        (":seed 1", ":seed 1 :microbatches 2", ["run"]),
        (":seed 1", ":seed 1 :precision :bf16", ["run"]),
        (":model student", ":model teacher", ["model"]),
        ("(defpass", "(defcurriculum (stage a :steps 3)) (defpass", ["run"]),
        ("(defpass", "(defun linear (x &key out) x) (defpass", ["model", "objective"]),
        ("(defpass", "(defun sgd (&key lr) lr) (defpass", ["optimizer"]),
    ],
)  # fmt: skip
def test_what_counts_and_where(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    assert changed(tmp_path, (old, new)) == parts


def test_a_run_without_a_generator_has_a_digest_of_its_own(tmp_path: Path) -> None:
    text = BASE[: BASE.index("(defgenerate")] + BASE[BASE.index("(defprepare") :]
    made = digests(tmp_path, text)
    assert made["generate"] == "140bedbf9c3f6d56a9846d2ba7088798683f4da0c248231336e6a05679e4fdfe"  # sha256 of "none"
    assert {n: d for n, d in made.items() if n != "generate"} == {
        n: d for n, d in digests(tmp_path, BASE).items() if n != "generate"
    }


def test_the_place_of_a_file_and_its_parts_do_not_count(tmp_path: Path) -> None:
    whole = digests(tmp_path / "a", BASE)
    cut = BASE.index("(defmodel teacher")
    assert digests(tmp_path / "b", '(include "models.sx")\n' + BASE[cut:], models=BASE[:cut]) == whole


def test_a_source_of_record_numbers_counts(tmp_path: Path) -> None:
    def text(source: str) -> str:
        old = ':source "rows.npz" :batch 4 :fields (list :x [3] :f32)'
        return BASE.replace(old, f":source {source} :batch 4 :fields (list :x [] :i64)")

    data = [digests(tmp_path, text(s))["data"] for s in ("(indices 8)", "(indices 9)")]
    data += [
        digests(tmp_path, f"(def records {s})\n" + text("records"))["data"] for s in ("(indices 8)", "(indices 9)")
    ]
    data += [digests(tmp_path, f"(def records {s})\n" + text("records"))["data"] for s in ('"a.npz"', '"b.npz"')]
    assert len(set(data)) == 5 and data[4] == data[5]


def test_the_stages_and_their_loaders_count(tmp_path: Path) -> None:
    def text(stages: str) -> str:
        return BASE + f"(defcurriculum {stages})"

    first = digests(tmp_path, text("(stage a :steps 1) (stage b :steps 2 :loader held)"))
    assert digests(tmp_path, text("(stage x :steps 1) (stage y :steps 2 :loader held)")) == first
    longer = digests(tmp_path, text("(stage a :steps 1) (stage b :steps 3 :loader held)"))
    assert [n for n in NAMES if longer[n] != first[n]] == ["run"]
    other = digests(tmp_path, text("(stage a :steps 1) (stage b :steps 2 :loader rows)"))
    assert [n for n in NAMES if other[n] != first[n]] == ["data", "run"]


def test_canonical_text_tells_different_forms_apart() -> None:
    text = '1 1.0 -0.0 0.0 true "true" :true a "a" (a) [a] (list "a b") (list "a" "b") (list a b) nil () "\\n" "\\\\n"'
    forms = read(Source("x", text), Report())
    assert len({canonical(form) for form in forms}) == len(forms) == 18
