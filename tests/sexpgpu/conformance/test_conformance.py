"""docs/conformance.md and the tests name each other: every sentence a test, every test its sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sexpgpu.language.codes import CODES
from sexpgpu.language.grammar import FORMS
from sexpgpu.trace.values import CTX_KEYS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/conformance.md").read_text()
ROWS = {int(n): cells for n, *cells in re.findall(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", PAGE, re.MULTILINE)}
SENTENCES = 41  # of the page; rows after them are of the pages that it points to


def functions_of(path: Path) -> dict[str, str]:
    """Name -> docstring of every test of a file."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    return {n.name: ast.get_docstring(n) or "" for n in nodes if n.name.startswith("test_")}


HERE = {name: doc for path in Path(__file__).parent.glob("test_*.py") for name, doc in functions_of(path).items()}
NUMBERED = {name: int(found[1]) for name in HERE if (found := re.match(r"test_s(\d\d)_", name))}


def test_the_page_has_every_sentence_once_and_in_order() -> None:
    assert list(ROWS) == list(range(1, len(ROWS) + 1)) and len(ROWS) >= SENTENCES
    assert len(re.findall(r"^\| \d+ \|", PAGE, re.MULTILINE)) == len(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_a_row_names_tests_that_there_are(number: int) -> None:
    named = re.findall(r"`([^`]*test_[^`]*)`", ROWS[number][1])
    assert named
    for name in named:
        path, _, test = name.rpartition("::")
        assert test in (functions_of(ROOT / path) if path else HERE), name


@pytest.mark.parametrize("name", NUMBERED)
def test_a_test_stands_in_its_row_and_quotes_its_number(name: str) -> None:
    number = NUMBERED[name]
    assert f"`{name}`" in ROWS[number][1]
    assert re.match(rf"{number}[.:,]", HERE[name]), HERE[name]


def test_the_page_on_generation_names_its_codes_and_keywords() -> None:
    page = (ROOT / "docs/generation.md").read_text()
    wanted = [*(name for name in CODES if name.startswith("E-GEN")), "E-CONTRACT-005", "E-CONTRACT-010"]
    wanted += [f":{key.name}" for key in FORMS["defgenerate"].keys] + [f":{key}" for key in CTX_KEYS]
    assert not [word for word in wanted if f"`{word}`" not in page and f"{word})`" not in page]


def test_every_test_of_a_sentence_is_named_after_one() -> None:
    own = functions_of(Path(__file__))
    assert set(HERE) - set(own) == set(NUMBERED)
