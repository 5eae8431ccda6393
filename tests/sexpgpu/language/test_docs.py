"""docs/run-file.md is true to the code: its examples are right, and it names every form and keyword there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.grammar import FORMS
from sexpgpu.language.reader import read
from sexpgpu.language.source import Source
from sexpgpu.language.syntax import check
from sexpgpu.phases.training import CTX_KEYS
from sexpgpu.trace.builtin_table import BUILTINS
from tests.support import plan_text

PAGE = (Path(__file__).parents[3] / "docs" / "run-file.md").read_text()
EXAMPLES = re.findall(r"```lisp( run)?\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("kind, text", EXAMPLES)
def test_an_example_is_right(kind: str, text: str) -> None:
    report = Report()
    for form in read(Source("run-file.md", text), report):
        check(form, report)
    if kind and not report:
        plan, report = plan_text(text)
        assert plan or report
    assert not report, "\n".join(map(str, report.errors))


def test_one_example_is_a_whole_run() -> None:
    assert [kind for kind, _ in EXAMPLES].count(" run") == 1


def test_every_form_and_keyword_is_named() -> None:
    words = set(re.findall(r":?[a-z->][a-z0-9*?>-]*", PAGE))
    assert not {row.name for row in FORMS.values()} - words
    assert not {f":{key.name}" for row in FORMS.values() for key in row.keys} - words
    assert not {f":{key}" for key in CTX_KEYS} - words
    assert not set(BUILTINS) - words
