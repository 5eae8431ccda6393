"""One run of check reports every fault that does not depend on another, each once. In these files ``;!`` is followed by
the codes of the faults on its line."""

from __future__ import annotations

import re

import pytest

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run

WHOLE = """
(def width 8)
(defun head (x out) (linear x :head out))
(defmodel student (x) (-> x (linear :first width) (gelu) (head 2)))
(defmodel teacher (x) :frozen true (-> x (linear :first width) (gelu) (head 2)))
(defloader rows :source "rows.npz" :batch 4 :fields (list :x [3] :f32 :label [] :i32))
(defloader held :source "held.npz" :batch 2 :fields (list :x [3] :f32 :label [] :i32))
(defgenerate :trips 2
  :init (lambda (batch ctx) (list :row (field batch :x)))
  :step (lambda (state trip ctx) (list :row (* 2.0 (getf state :row))))
  :finish (lambda (state ctx) (list :given (getf state :row))))
(defprepare (batch ctx)
  (counter :seen 4)
  (list :x (field batch :x) :label (field batch :label)))
(defobjective (inputs ctx)
  (let* ((logits (model (getf inputs :x)))
         (given (teacher (getf inputs :x))))
    (diagnostic :logits logits)
    (metric :gap (mean (- logits given)))
    (mean (cross-entropy logits (getf inputs :label)))))
(defoptimizer (adamw :lr 1e-3 :groups (list (list :match "*/bias" :optimizer (sgd :lr 0.1)))))
(defpass held :loader held :every 5)
(defcurriculum (stage one :steps 3) (stage two :steps 4))
(defrun whole :model student :loader rows :microbatches 2 :diagnostics (list :logits))
"""


def changed(*names: str) -> str:
    """WHOLE with the changes of these faults, each a text that it has once, and what takes its place."""
    text, changes = WHOLE, [FAULTS[name] for name in names]
    for old, new in (pair for each in changes for pair in zip(each[::2], each[1::2], strict=True)):
        assert WHOLE.count(old) == 1, old
        text = text.replace(old, new)
    return text


def wanted(text: str) -> list[tuple[int, str]]:
    rows = ((n, match[1].split()) for n, line in enumerate(text.split("\n"), 1) if (match := re.search(";!(.*)", line)))
    return sorted((n, code) for n, codes in rows for code in codes)


def reported(tmp_path, text: str) -> list[tuple[int, str]]:
    path = tmp_path / "run.sx"
    path.write_text(text)
    report = Report()
    run = load(str(path), report)
    if run and trace_run(run, report):
        assert not report
    assert all("poison" not in str(e) for e in report.errors)
    return sorted((e.span.line_column()[0] if e.span else 0, e.code.name) for e in report.errors)


FAULTS = {
    "misspelt name": ("(gelu) (head 2)))\n(defmodel t", "(geluu) (head 2))) ;! E-NAME-001\n(defmodel t"),
    "name in what nothing calls": ("(def width 8)", "(def width 8) (defun idle (x) (nope x)) ;! E-NAME-001\n"),
    "shape in a frozen model": ("(defmodel teacher (x) :frozen true (-> x",
                                "(defmodel teacher (x) :frozen true (-> (reshape x [5 7]) ;! E-SHAPE-001\n"),
    "field of a loader": (':source "held.npz" :batch 2', ':source "held.npz" :batch 0 ;! E-FORM-009\n'),
    "dtype of a field": (':batch 4 :fields (list :x [3] :f32', ':batch 4 :fields (list :x [3] :f33 ;! E-FORM-009\n'),
    "lacks a key": (":every 5", ";! E-FORM-002\n"),
    "trips": (":trips 2", ":trips 0 ;! E-GEN-005\n"),
    "state": ("(list :row (* 2.0 (getf state :row)))",
              "(list :row (cast (* 2.0 (getf state :row)) :i32)) ;! E-GEN-002\n"),
    "finish": ("(list :given (getf state :row))", "(list :given 3) ;! E-GEN-001\n"),
    "no such field": ("(field batch :label)", "(field batch :lable) ;! E-CONTRACT-006\n"),
    "counter": ("(counter :seen 4)", "(counter :step 4) ;! E-CONTRACT-004\n"),
    "metric": ("(metric :gap (mean (- logits given)))", "(metric :gap logits) ;! E-CONTRACT-004\n"),
    "loss": ("(defobjective (inputs ctx)\n  (let*", "(defobjective (inputs ctx)\n  (let* ;! E-CONTRACT-002\n",
             "(mean (cross-entropy logits (getf inputs :label)))", "(square logits)"),
    "optimizer": ("(adamw :lr 1e-3", "(adamw :lr 1e-3 :betta 0.9 ;! E-CALL-002\n"),
    "pass": ("(defpass held :loader held", "(defpass held :loader hold ;! E-NAME-001\n"),
    "stage": ("(stage two :steps 4)", "(stage two) ;! E-FORM-002\n"),
    "run": (":microbatches 2", ":microbatches (- 2 2) ;! E-FORM-009\n"),
    "diagnostic": ("(list :logits)", "(list :logitz) ;! E-NAME-001\n"),
    "number": ("(def width 8)", "(def width .8) ;! E-READ-012\n"),
    "unclosed": ("(defun head (x out) (linear x :head out))",
                 "(defun head (x out) (linear x :head out) ;! E-READ-003\n"),
    "arguments": ("(defun head (x out)", "(defun head (x out out) ;! E-NAME-002\n"),
    "escape": ('"rows.npz"', '"rows\\q.npz" ;! E-READ-012\n'),
}  # fmt: skip


# Those that others hide, or that change the same text.
OVERLAP = ("pass", "dtype of a field", "misspelt name", "number", "name in what nothing calls", "unclosed", "arguments")


def test_the_whole_file_has_no_fault(tmp_path) -> None:
    assert reported(tmp_path, WHOLE) == []


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_is_reported_once_and_none_that_follows_from_it(tmp_path, name: str) -> None:
    text = changed(name)
    assert reported(tmp_path, text) == wanted(text)


@pytest.mark.parametrize(
    "names",
    [
        ("misspelt name", "trips", "no such field"),
        ("trips", "shape in a frozen model", "optimizer", "run"),
        ("name in what nothing calls", "field of a loader", "state", "metric", "stage"),
        ("shape in a frozen model", "finish", "counter", "loss", "pass", "diagnostic"),
        ("number", "trips", "no such field", "optimizer", "stage"),
        ("unclosed", "field of a loader", "state", "counter", "run"),
        ("arguments", "lacks a key", "shape in a frozen model", "finish", "stage"),
        ("escape", "misspelt name", "state", "counter", "optimizer"),
        ("dtype of a field", "no such field", "shape in a frozen model", "trips"),
        tuple(name for name in FAULTS if name not in OVERLAP),
    ],
)
def test_faults_of_all_stages_are_reported_in_one_round(tmp_path, names: tuple[str, ...]) -> None:
    text = changed(*names)
    assert reported(tmp_path, text) == wanted(text)
