"""``-D NAME=VALUE``: the run of a file that was edited, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import RunFile, load
from sexpgpu.phases.identity import document
from tests.conftest import EXAMPLES, called
from tests.support import run_text

CHARACTERS = EXAMPLES / "characters/run.sx"


def write(folder: Path, **defs: str) -> Path:
    """A run file with ``defs``, some of them in a file that it includes."""
    (folder / "sizes.sx").write_text(f'(def width {defs["width"]}) ; of a layer\n(def name {defs["name"]})\n')
    text = run_text(model="(defmodel m (x) (linear (scope :hidden (linear x :out width)) :out 3))")
    (folder / "run.sx").write_text(f'(include "sizes.sx")\n(def other [1 2])\n(def truth true)\n{text}')
    return folder / "run.sx"


def loaded(path: Path, **values: str) -> RunFile:
    report = Report()
    run = load(str(path), report, values)
    assert run and not report, report.errors
    return run


def test_a_value_gives_the_run_of_an_edited_file(tmp_path: Path) -> None:
    """Sources, and the texts that decide a checkpoint's identity with their places."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    given = loaded(write(tmp_path / "a", width="4", name='"x"'), width="-1.5e-3", name='a "b" \\ c')
    edited = loaded(write(tmp_path / "b", width="-1.5e-3", name='"a \\"b\\" \\\\ c"'))
    for run, other in zip(given.sources, edited.sources, strict=True):
        assert (run[0], run[1].text) == (other[0], other[1].text)
    assert document(given) == document(edited)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("width=x", "sizes.sx:1:12: -D width: x is not a number, as 4 is"),
        ("width=1e999", "1e999 is not a number"),
        ("width=99999999999999999999", "is not a number"),
        ("width=(+ 1 2)", "(+ 1 2) is not a number"),
        ("widht=3", "-D widht: there is no (def widht ...) in the run file (did you mean width"),
        ("other=3", "-D other: other is neither a number nor a string"),
        ("truth=3", "-D truth: truth is neither a number nor a string"),
        ("adam=3", "there is no (def adam ...)"),
        ("linear=3", "there is no (def linear ...)"),
    ],
)
def test_what_no_def_takes_is_refused(tmp_path: Path, value: str, words: str) -> None:
    path = write(tmp_path, width="4", name='"x"')
    done = called("check", path, "-D", value)
    assert done.returncode == 2 and done.stdout == ""
    assert "error[E-DEF-001]: " in done.stderr and words in done.stderr


@pytest.mark.parametrize("words", [["-D", "width"], ["-D", "=3"], ["-D", "width="], ["-D", "width=1", "-D", "width=2"]])
def test_a_pair_is_needed_and_a_name_once(words: list[str]) -> None:
    done = called("check", CHARACTERS, *words)
    assert done.returncode == 2 and done.stderr.startswith("error[E-CLI-001]: ") and done.stderr.count("\n") == 1


def test_faults_of_the_file_are_told_once(tmp_path: Path) -> None:
    path = write(tmp_path, width="4", name='"x"')
    path.write_text(path.read_text() + "\n(def broken 1 2)\n(def late nowhere)\n")
    plain, given = called("check", path), called("check", path, "-D", "width=4")
    assert plain.returncode == 1 and given.stderr == plain.stderr


def test_every_command_that_reads_a_run_file_takes_values(tmp_path: Path) -> None:
    path = write(tmp_path, width="4", name='"x"')
    assert "31 numbers" in called("explain", path).stdout  # 3 x 4 + 4 and 4 x 3 + 3
    assert "52 numbers" in called("explain", path, "-D", "width=7").stdout
    for command in (["build", "-o", "x.tar"], ["tune", "--local", "--target", "cpu", "--trials", "1", "-o", "r"]):
        done = called(*command, path, "-D", "nothing=1")
        assert done.returncode == 2 and "there is no (def nothing ...)" in done.stderr
