"""The checker: each form's grammar, every fault of a form in one go, and what a checked form is taken apart into."""

from __future__ import annotations

import time

import pytest

from sexpgpu.language.codes import CODES
from sexpgpu.language.diagnostics import MAX_FAULTS, Report
from sexpgpu.language.form_parts import PARTS
from sexpgpu.language.forms import Seq
from sexpgpu.language.grammar import FORMS, KINDS
from sexpgpu.language.reader import read
from sexpgpu.language.source import Source
from sexpgpu.language.syntax import check, parse, parse_params, split_body
from sexpgpu.phases.identity import canonical

STEP = ":step (lambda (state trip ctx) state)"
INIT = ":init (lambda (batch ctx) (list))"


def checked(text: str, top: bool = True) -> Report:
    report = Report()
    for form in read(Source("run.sx", text), report):
        check(form, report, top)
    return report


def lines(text: str, top: bool = True) -> list[str]:
    """``CODE column: message (hint)`` of every fault of a text of one line."""
    return [e.line().removeprefix("error[E-").replace("]: run.sx:1:", " ", 1) for e in checked(text, top).errors]


def codes(text: str, top: bool = True) -> list[str]:
    return [f"{e.code.name} {e.span.line_column()[1] if e.span else 0}" for e in checked(text, top).errors]


def single_form(text: str) -> Seq:
    [form] = read(Source("run.sx", text), Report())
    assert isinstance(form, Seq)
    return form


# ---- what is right

RIGHT = [
    '(include "a/b.sx")',
    "(def a 1)",
    "(def a (list :x [1 2] :y nil))",
    '(defun f (x name &key (bias true) init) "Doc." (g x) (h x))',
    "(defun f () nil)",
    '(defun f () "a string alone is the value")',
    '(defmodel m (row) :frozen true :pretrained "w.safetensors" :map (list :a "b") "Doc." row)',
    '(defloader l :source "a.npz" :batch 4 :fields (list :row [8] :i32 :stride [] :i32) :epochs 2)',
    "(defloader l :source (list a b) :batch 4 :fields f :shuffle false :embed true)",
    "(defloader l :source (indices n) :batch (* 2 b) :fields f)",
    f"(defgenerate {STEP} :trips 2147483647 {INIT} :finish f)",
    '(defprepare (batch ctx) "Doc." (counter :rows 1) batch)',
    "(defobjective (inputs &rest more) (metric :a 1) (diagnostic :b 2) inputs)",
    "(defoptimizer (sgd :lr 0.1))",
    "(defpass p :loader l :every 20 :batches 4 :prepare (lambda (batch ctx) batch) :objective obj)",
    "(defrun r :model m :loader l :steps 3 :seed 0 :microbatches 2 :precision :bf16 :checkpoint-every 1 :log-every 1)",
    "(defrun tiny-1.b :model m :loader l :diagnostics (list :a :b))",
    "(defcurriculum (stage a :steps 10) (stage b :records (* 4 n) :loader other))",
    "(def f (lambda (x) (let ((a 1) (b 2)) (let* ((a a) (a b)) (if a b (cond (x 1) (true))))))))"[:-1],
    "(def f (lambda (x) (-> x (g :k 1) h ((lambda (y) y)) (scope-like))))",
    "(def f (lambda (param metric) (param 1) (metric)))",
    "(def f (and (or) (and 1 2 3) (checkpoint x y) (scope :a x)))",
    "(def f (param :w [1 2] :init zeros))",
    "(def f (list :row [8] :i32 :row [8] :i32 :row))",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_form_has_no_fault(text: str) -> None:
    assert lines(text) == []


# ---- what is wrong

WRONG_TOP = [
    ("foo", ["E-FORM-006 1"]),
    ("[1 2]", ["E-FORM-006 1"]),
    ("()", ["E-FORM-006 1"]),
    ("((f) 1)", ["E-FORM-006 1"]),
    ("(let ((a 1)) a)", ["E-FORM-006 1"]),
    ("(stage a :steps 1)", ["E-FORM-006 1"]),
    ("(include a)", ["E-FORM-004 10"]),
    ("(include)", ["E-FORM-002 2"]),
    ('(include "a" "b")', ["E-FORM-004 14"]),
    ("(def)", ["E-FORM-002 2", "E-FORM-002 2"]),
    ("(def a)", ["E-FORM-002 2"]),
    ("(def a 1 (if))", ["E-FORM-004 10", "E-FORM-002 11"]),
    ("(def 1 2)", ["E-FORM-004 6"]),
    ("(def if 2)", ["E-FORM-004 6"]),
    ("(defun metric (x) x)", ["E-FORM-004 8"]),
    ("(defun f x x)", ["E-FORM-002 2"]),
    ("(defun f [x] x)", ["E-FORM-002 2"]),
    ("(defun f (x))", ["E-FORM-002 2"]),
    ("(defun f (x x) x)", ["E-NAME-002 13"]),
    ("(defun f (x &key (y) (z 1 2) x) x)", ["E-FORM-004 18", "E-FORM-004 22", "E-NAME-002 30"]),
    ("(defun f (1 :k &optional y) y)", ["E-FORM-004 11", "E-FORM-004 13", "E-FORM-004 16"]),
    ("(defun f (&rest) 1)", ["E-FORM-004 10"]),
    ("(defun f (x &key k &rest r) 1)", ["E-FORM-004 10"]),
    ("(defun f (&rest a b) 1)", ["E-FORM-004 10"]),
    ("(defun f (&key a &key b) 1)", ["E-FORM-004 18"]),
    ("(defun f (x) :frozen true)", ["E-FORM-004 14"]),
    ("(defun f (x) (g) (defun h (y)))", ["E-FORM-006 19", "E-FORM-002 19"]),
    ("(defmodel a/b (x) x)", ["E-FORM-004 11"]),
    ("(defmodel m (x) :frozen 1 x)", ["E-FORM-009 25"]),
    ('(defmodel m (x) "doc" :frozen true x)', ["E-FORM-004 23"]),
    ('(defmodel m :onnx "t.onnx" :frozen true)', ["E-FORM-001 13"]),
    ('(defloader l "a" :source "a" :batch 0 :felds 1 :fields f)', ["E-FORM-004 14", "E-FORM-009 37", "E-FORM-001 39"]),
    ('(defloader l :source :batch 2 :fields f :shuffle)', ["E-FORM-002 14", "E-FORM-002 41"]),
    ("(defloader)", ["E-FORM-002 2"] * 4),
    ("(defprepare (batch) batch)", ["E-FORM-004 13"]),
    ("(defobjective (a b c) a)", ["E-FORM-004 15"]),
    ("(defoptimizer a b)", ["E-FORM-004 17"]),
    ("(defpass p :loader (l) :every 1.5 :prepare (lambda (x) x))", ["E-FORM-009 20", "E-FORM-009 31", "E-FORM-009 44"]),
    ("(defrun r :model m :loader l :seed -1 :precision :f16)", ["E-FORM-009 36", "E-FORM-009 50"]),
    ("(defcurriculum)", ["E-FORM-002 2"]),
    ("(defcurriculum (stage a) (stage a :steps 1 :records 1) b (stoge))",
     ["E-FORM-002 17", "E-FORM-002 27", "E-NAME-002 33", "E-FORM-004 56", "E-FORM-004 58"]),
]  # fmt: skip

WRONG_INSIDE = [
    ("(let)", ["E-FORM-002 2"] * 2),
    ("(let (a) a)", ["E-FORM-004 7"]),
    ("(let ((a 1) (a 2)) a)", ["E-NAME-002 14"]),
    ("(let* ((let* 1) (:k 1)) 1)", ["E-FORM-004 9", "E-FORM-004 18"]),
    ("(if)", ["E-FORM-002 2"]),
    ("(if a b c d)", ["E-FORM-004 11"]),
    ("(cond a () [b c])", ["E-FORM-004 7", "E-FORM-004 9", "E-FORM-004 12"]),
    ("(lambda)", ["E-FORM-002 2"] * 2),
    ("(-> )", ["E-FORM-002 2"]),
    ("(-> x 1 (let ((a 1)) a) [f] () if)", [f"E-FORM-004 {column}" for column in (7, 9, 25, 29, 32)]),
    ("(scope :a)", ["E-FORM-002 2"]),
    ("(checkpoint)", ["E-FORM-002 2"]),
    ("(f (g (1 2)) (:k 1) ([a] 1))", ["E-CALL-003 8", "E-CALL-003 15", "E-CALL-003 22"]),
    ("(param :w [1])", ["E-FORM-002 2"]),
    ("(param :w [1] :inti zeros :init zeros)", ["E-FORM-001 15"]),
    ("(metric :a)", ["E-FORM-002 2"]),
    ("(counter :a 1 2)", ["E-FORM-004 15"]),
    ("(list :a 1 :b 2 :a 3)", ["E-FORM-003 17"]),
    ("(def a 1)", ["E-FORM-006 2"]),
]


@pytest.mark.parametrize("text, want", WRONG_TOP)
def test_a_wrong_top_level_form_has_every_fault_at_its_place(text: str, want: list[str]) -> None:
    assert codes(text) == want


@pytest.mark.parametrize("text, want", WRONG_INSIDE)
def test_a_wrong_expression_has_every_fault_at_its_place(text: str, want: list[str]) -> None:
    assert codes(text, top=False) == want
    assert len(codes(f"(def outer (f [(if 1 (g {text}))]))")) == len(want)  # wherever it stands


def test_row_13_an_unknown_keyword_names_the_one_meant() -> None:
    assert lines(f"(defgenerate :tirps 6 :trips 6 {INIT} {STEP})") == [
        "GEN-006 14: defgenerate does not take :tirps (did you mean :trips?)"
    ]
    assert codes(f"(defgenerate :tirps 6 {INIT} {STEP})") == ["E-GEN-006 14"]  # and :trips is not called missing
    assert lines("(defpass p :loader l :evry 1 :every 1)") == [
        "FORM-001 22: defpass does not take :evry (did you mean :every?)"
    ]
    assert lines("(deflaoder l)") == ["FORM-006 1: deflaoder is not a top-level form (did you mean defloader?)"]


def test_row_14_a_keyword_given_twice_shows_both_places() -> None:
    report = checked("(defrun r :model m\n  :seed 1 :loader l :seed 2)")
    assert [str(e) for e in report.errors] == [
        "error[E-FORM-003]: run.sx:2:21: :seed is given twice\n"
        "      :seed 1 :loader l :seed 2)\n"
        "                        ^^^^^\n"
        "  note: run.sx:2:3: it is given here first\n"
        "      :seed 1 :loader l :seed 2)\n"
        "      ^^^^^"
    ]


def test_row_15_a_pair_without_its_value() -> None:
    assert lines("(defrun r :model m :loader l :seed)") == ["FORM-002 30: :seed has no value"]
    [line, _] = lines("(defrun r :model m :loader l seed 1)")
    assert line.startswith("FORM-004 30: defrun takes keywords here, not seed")


@pytest.mark.parametrize("trips", ["0", "-1", "2.5", "1000000000000", "true", "nil", '"6"', ":six", "[6]"])
def test_row_16_trips_says_the_value_and_the_range(trips: str) -> None:
    shown = "a vector of 1" if trips == "[6]" else trips
    assert lines(f"(defgenerate :trips {trips} {INIT} {STEP})") == [
        f"GEN-005 21: :trips must be an integer from 1 to 2147483647, not {shown}"
    ]


def test_the_faults_of_defgenerate() -> None:
    assert lines("(defgenerate :init 5 :step (lambda (a b) a) :finish (lambda (a &rest b) a))") == [
        "GEN-006 2: defgenerate lacks :trips, how many times :step runs, 1 or more",
        "GEN-006 20: :init must be a lambda of 2 arguments, not 5",
        "GEN-006 28: :step must be a lambda of 3 arguments, not one of 2",
    ]


def test_onnx_models_are_refused_in_words() -> None:
    assert lines('(defmodel t :onnx "t.onnx")') == [
        "FORM-001 13: defmodel does not take :onnx (models cannot be read from ONNX files in this version)"
    ]


def test_a_form_of_any_depth_and_width_is_checked_in_bounded_time() -> None:
    begin = time.process_time()
    deep = "(def a " + "(list (if " * 100 + "(if)" + "))" * 100 + ")"
    assert len(codes(deep)) > 100 - 1
    assert len(codes("(def a (list " + "(let) " * 20_000 + "))")) == MAX_FAULTS
    assert codes("(def a (list " + "(f x) " * 20_000 + "))") == []
    assert time.process_time() - begin < 5  # linear: about half a second here; a quadratic walk takes a minute


# ---- forms taken apart


def test_parts_of_a_model() -> None:
    parts = parse(single_form('(defmodel m (row &key cache) :frozen true "Doc." (g row) (h row))'))
    assert (parts.name, parts.doc, list(parts.keys)) == ("m", "Doc.", ["frozen"])
    assert parts.params and [s.name for s in parts.params.symbols()] == ["row", "cache"]
    assert [canonical(f) for f in parts.body] == ["(g row)", "(h row)"]


def test_a_lambda_list() -> None:
    params = parse_params(single_form("(x y &key (bias true) init)"))
    assert [s.name for s in params.names] == ["x", "y"]
    assert [(s.name, d and canonical(d)) for s, d in params.keys] == [("bias", "true"), ("init", None)]
    assert params.rest is None and params.takes(2) and not params.takes(1) and not params.takes(3)
    params = parse_params(single_form("(x &rest more)"))
    assert params.rest and params.rest.name == "more"
    assert params.takes(1) and params.takes(3) and not params.takes(0)


def test_a_docstring_stands_first_in_a_body_of_several_forms() -> None:
    assert split_body(single_form('("doc" a)').items)[0] == "doc"
    assert split_body(single_form('("value")').items) == (None, single_form('("value")').items)
    assert split_body(single_form('(a "value")').items)[0] is None


# ---- the table


def test_every_row_is_documented_and_uses_known_parts_and_kinds() -> None:
    for row in FORMS.values():
        assert row.doc.endswith(".") and set(row.parts.split()) <= set(PARTS)
        assert all(key.kind in KINDS and key.doc for key in row.keys)
        assert ("KEYS" in row.parts.split()) == bool(row.keys)
        assert row.fault is None or row.fault.name in CODES
        assert row.signature().startswith(f"({row.name}") and row.signature().count("(") == row.signature().count(")")
