"""Run files: includes, what is defined twice, what is missing, what names nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sexpgpu.language import runfile
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import RunFile, load, prelude_forms
from sexpgpu.phases.identity import canonical
from tests.support import PARTS, run_text

WHOLE = run_text()


def loaded(folder: Path, **files: str) -> tuple[RunFile | None, list[str]]:
    """The run of ``run.sx``, and its faults without the folder's name; ``__`` in a name is a slash."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.sx"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    report = Report()
    run = load(str(folder / "run.sx"), report)
    return run, [str(e).replace(f"{folder}/", "") for e in report.errors]


def lines(folder: Path, **files: str) -> list[str]:
    return [text.split("\n")[0].removeprefix("error") for text in loaded(folder, **files)[1]]


def test_the_forms_of_a_run_are_sorted(tmp_path: Path) -> None:
    generate = "(defgenerate :trips 1 :init (lambda (b c) b) :step (lambda (s t c) s))"
    extra = run_text(generate=generate, passes="(defpass held :loader d :every 2)\n(defcurriculum (stage a :steps 2))")
    run, found = loaded(tmp_path, run=extra + '(defun f (x &key k) "Doc." (k x))\n(def n 3)')
    assert run and not found
    assert (list(run.loaders), list(run.passes)) == (["d"], ["held"])
    assert run.run and run.run.name == "r" and canonical(run.run.keys["seed"]) == "1"
    assert run.generate and list(run.generate.keys) == ["trips", "init", "step"]
    assert run.prepare and run.prepare.params and [s.name for s in run.prepare.params.names] == ["batch", "ctx"]
    assert run.optimizer and [canonical(f) for f in run.optimizer.body] == ["(sgd :lr 0.1)"]
    assert run.curriculum and [canonical(f) for f in run.curriculum.body] == ["(stage a :steps 2)"]
    f, n, m = (run.definitions[name] for name in "fnm")
    assert (f.kind, n.kind, m.kind) == ("defun", "def", "defmodel") and not f.prelude
    assert f.params and f.params.keys and n.params is None and [canonical(x) for x in n.body] == ["3"]
    assert run.definitions["linear"].prelude


def test_row_2_a_run_file_without_forms(tmp_path: Path) -> None:
    [line] = lines(tmp_path, run="; nothing\n")
    assert line == "[E-READ-002]: run.sx: no forms (a run file is a row of (def...) forms)"


def test_a_run_file_that_cannot_be_read_is_no_run(tmp_path: Path) -> None:
    assert loaded(tmp_path) == (None, ["error[E-READ-001]: run.sx: no such file (check the path and its permissions)"])


def test_the_prelude_has_no_fault_and_only_definitions() -> None:
    report = Report()
    forms = prelude_forms(report)
    assert not report, "\n".join(map(str, report.errors))
    assert {canonical(f.items[0]) for f in forms} <= {"def", "defun"}
    assert len({canonical(f.items[1]) for f in forms}) == len(forms)


def test_a_definition_of_the_user_replaces_the_preludes(tmp_path: Path) -> None:
    run, found = loaded(tmp_path, run=WHOLE + "(defun linear (x &key out) x)")
    assert run and not found and not run.definitions["linear"].prelude


# ---- includes


def test_includes_are_read_in_place_once_and_relative_to_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run, found = loaded(
        tmp_path / "run",
        run='(include "lib/a.sx")\n(include "lib/b.sx")\n(include "lib/../lib/a.sx")\n' + WHOLE,
        lib__a='(include "b.sx")\n(def a (+ b 1))',
        lib__b='(def b 1)\n(include "../../out.sx")',
        **{"..__out": "(def out 2)"},
    )
    assert run and not found
    assert [name for name, _ in run.sources] == ["run.sx", "lib/a.sx", "lib/b.sx", "../out.sx"]
    assert {"a", "b", "out"} <= set(run.definitions)
    assert run.definitions["b"].form.span.place() == f"{tmp_path}/run/lib/b.sx:1:1"


def test_an_include_may_be_empty_and_may_hold_the_whole_run(tmp_path: Path) -> None:
    run, found = loaded(tmp_path, run='(include "empty.sx") (include "whole.sx")', empty="; nothing", whole=WHOLE)
    assert run and not found and run.run


def test_an_include_in_a_cycle_shows_the_way_round(tmp_path: Path) -> None:
    found = lines(tmp_path, run='(include "a.sx")\n' + WHOLE, a='(include "b.sx")', b='\n (include "a.sx")')
    assert [f.replace(f"{tmp_path}/", "") for f in found] == [
        "[E-READ-013]: b.sx:2:11: a.sx includes itself: a.sx -> b.sx -> a.sx"
    ]
    assert len(lines(tmp_path, run='(include "run.sx")\n' + WHOLE)) == 1


def test_a_cycle_through_a_link_is_one(tmp_path: Path) -> None:
    os.symlink("run.sx", tmp_path / "link.sx")
    assert [f.split(":")[0] for f in lines(tmp_path, run='(include "link.sx")\n' + WHOLE)] == ["[E-READ-013]"]


@pytest.mark.parametrize(
    "path, why",
    [
        ("no.sx", "no.sx: no such file (check the path and its permissions)"),
        (".", ".: is a directory (check the path and its permissions)"),
        ("/dev/zero", '"/dev/zero" is not a relative path (an include is relative to its own file)'),
        ("", '"" is not a relative path (an include is relative to its own file)'),
        ("fifo", "fifo: is not a regular file (name a text file of at most 16 MiB)"),
    ],
)
def test_an_include_that_cannot_be_read_points_at_the_include(tmp_path: Path, path: str, why: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    found = lines(tmp_path, run=f'(def a 1)\n(include "{path}")\n' + WHOLE)
    assert [f.replace(f"{tmp_path}", ".").replace("./", "") for f in found] == [f"[E-READ-013]: run.sx:2:10: {why}"]


def test_a_fault_in_an_included_file_is_shown_there(tmp_path: Path) -> None:
    found = lines(tmp_path, run='(include "a.sx")\n(def x .5)\n' + WHOLE, a="(def a 1)\n(def b")
    assert [f.split(" ")[1] for f in found] == ["run.sx:2:8:", "a.sx:2:1:"]


def test_a_chain_of_includes_has_an_end(tmp_path: Path) -> None:
    chain = {f"c{i}": f'(include "c{i + 1}.sx")' for i in range(100)}
    found = lines(tmp_path, run='(include "c0.sx")\n' + WHOLE, **chain)
    assert [f.split(": ", 2)[2] for f in found] == ["includes nest deeper than 64 files"]


# ---- names and places


def test_what_is_defined_twice_shows_both_places(tmp_path: Path) -> None:
    _, found = loaded(tmp_path, run='(include "a.sx")\n(defun f (x) x)\n' + WHOLE, a="(def f 1)")
    assert found == [
        "error[E-NAME-002]: run.sx:2:8: f is defined twice\n    (defun f (x) x)\n           ^\n"
        "  note: a.sx:1:6: it is given here first\n    (def f 1)\n         ^"
    ]


@pytest.mark.parametrize(
    "form, want",
    [
        (PARTS["loader"], "[E-NAME-002]: run.sx:8:12: the loader d is defined twice"),
        (PARTS["optimizer"], "[E-FORM-008]: run.sx:8:2: defoptimizer is given twice"),
        (PARTS["run"], "[E-FORM-008]: run.sx:8:9: defrun is given twice"),
        ("(defmodel model (x) x)",
         "[E-NAME-002]: run.sx:8:11: model is the name that defrun gives to the run's model (choose another name)"),
        ("(defpass a-b :loader d :every 1) (defpass a_b :loader d :every 1)",
         "[E-NAME-002]: run.sx:8:43: the pass a_b is defined twice"),
    ],
)  # fmt: skip
def test_a_name_or_place_taken_twice(tmp_path: Path, form: str, want: str) -> None:
    assert lines(tmp_path, run=WHOLE.replace("\n(defprepare", "\n\n(defprepare") + form) == [want]


@pytest.mark.parametrize("part", ["run", "objective", "prepare", "optimizer", "loader"])
def test_a_form_that_the_run_lacks(tmp_path: Path, part: str) -> None:
    [line] = lines(tmp_path, run=run_text(**{part: ""}))
    assert line.startswith(f"[E-FORM-007]: run.sx: the run has no def{part} ((def{part} ")


@pytest.mark.parametrize(
    "parts, want",
    [
        ({"run": "(defrun r :model n :loader e :steps 1)"}, [
            "[E-NAME-001]: run.sx:6:18: n is not a model of this run (it has m)",
            "[E-NAME-001]: run.sx:6:28: e is not a loader of this run (it has d)"]),
        ({"run": "(defrun r :model linear :loader d :steps 1)"}, [
            "[E-NAME-001]: run.sx:6:18: linear is defined, but not by defmodel (it has m)"]),
        ({"passes": "(defpass p :loader dd :every 1)"}, [
            "[E-NAME-001]: run.sx:6:20: dd is not a loader of this run (did you mean d?)"]),
        ({"passes": "(defcurriculum (stage s :steps 1 :loader dd))"}, [
            "[E-NAME-001]: run.sx:6:42: dd is not a loader of this run (did you mean d?)"]),
    ],
)  # fmt: skip
def test_a_name_that_names_nothing(tmp_path: Path, parts: dict[str, str], want: list[str]) -> None:
    assert lines(tmp_path, run=run_text(**parts)) == want


def test_every_faulty_form_of_every_file_is_reported_in_one_go(tmp_path: Path) -> None:
    text = run_text(run="(defrun r :modle m :loader d)", optimizer="(defoptimizer (sgd :lr .1)")
    found = lines(tmp_path, run='(include "a.sx")\n' + text, a="(def a (let))\n(def b 1))")
    assert [" ".join(f.split(": ")[:2]) for f in found] == [
        "[E-READ-003] run.sx:6:1", "[E-READ-012] run.sx:6:24", "[E-FORM-001] run.sx:7:11",
        "[E-READ-004] a.sx:2:10", "[E-FORM-002] a.sx:1:9", "[E-FORM-002] a.sx:1:9",
    ]  # fmt: skip


def test_faults_end_at_a_hundred_in_all(tmp_path: Path) -> None:
    assert len(lines(tmp_path, run="(def a (let))\n" * 500 + WHOLE)) == runfile.MAX_FAULTS
