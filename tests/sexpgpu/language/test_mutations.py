"""Mutated run files: check answers with a plan or with coded faults, soon, and reads a text once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.fuzzing import mutate
from sexpgpu.language import form_queries, reader
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.reader import Reader, read
from sexpgpu.language.source import Source


def test_a_mutated_file_is_a_plan_or_coded_faults(tmp_path: Path) -> None:
    """Seconds of the processor, which the slowest of 20,000 took less than one of; here twenty are allowed."""
    assert [t for t in mutate.trials(range(200), tmp_path) if t[1] or t[2] > 20] == []


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "(def a\n" * 20_000,
        "(a\n[b " * 20_000,
        "#|" * 50_000,
        '(def a "\n' * 20_000,
        "(]" * 50_000,
        f"(def a {'(list ' * 300}1e999 nan x{')' * 300})",
    ],
)
def test_a_text_is_read_once_or_twice_however_it_nests(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A form that does not end may be read once more, for where the next begins; one that nests too deep is not."""
    matched = []

    class Counting:
        groupindex = reader.TOKEN.groupindex

        def match(self, text: str, at: int):
            matched.append(at)
            return reader_token.match(text, at)

    reader_token = reader.TOKEN
    monkeypatch.setattr(reader, "TOKEN", Counting())
    report = Report()
    assert read(Source("run.sx", text), report) == []
    assert report
    assert len(matched) <= 2 * len(text)
    assert len(matched) - len(set(matched)) <= len(set(matched))


def test_what_opens_in_a_form_that_nests_too_deep_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(Reader, "open", lambda self, *args, was=Reader.open: (opened.append(args), was(self, *args))[1])
    report = Report()
    forms = read(Source("run.sx", "(" * 100_000 + "\n(def a 1)"), report)
    assert [e.code.name for e in report.errors] == ["E-READ-006"]
    assert len(forms) == 1
    assert len(opened) == reader.MAX_DEPTH + 2


def test_a_hint_is_looked_for_in_so_many_names_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    find = form_queries.difflib.get_close_matches
    monkeypatch.setattr(
        form_queries.difflib, "get_close_matches", lambda n, names, k: compared.append(names) or find(n, names, k)
    )
    names = {f"wide{i:05}" for i in range(20_000)} | {"a", "a-name-far-too-long-to-be-meant", "width"}
    assert form_queries.closest("wdth", names) == "did you mean width?"
    assert form_queries.closest("wied00001", names) == "did you mean wide00001?"
    assert [len(each) <= form_queries.MAX_COMPARED for each in compared] == [True, True]
