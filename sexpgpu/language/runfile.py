"""A run file and what it includes, read, checked, and sorted into the forms of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import define, field, frozen

from . import codes as c
from .def_values import DefValues
from .diagnostics import MAX_FAULTS, Code, Report, UserError, shorten
from .form_queries import nearest
from .forms import Form, Literal, Seq, Symbol
from .grammar import FORMS, TOP
from .reader import read, read_file
from .source import Source, Span
from .syntax import Params, check, closest, head_of, parse

PRELUDE = Path(__file__).parents[1] / "prelude"
MAX_INCLUDES = 64  # files open at once: a chain of includes is read by recursion
DEFINITIONS = ("def", "defun", "defmodel")
SINGLE = {"defgenerate": "generate", "defprepare": "prepare", "defobjective": "objective", "defoptimizer": "optimizer",
          "defrun": "run", "defcurriculum": "curriculum"}  # fmt: skip
NEEDED = ("defrun", "defobjective", "defprepare", "defoptimizer", "defloader")


@frozen
class Definition:
    """A ``def``, ``defun`` or ``defmodel``. A ``def``'s ``body`` is its one value; ``prelude``: the package's own."""

    name: str
    kind: str
    form: Seq
    params: Params | None
    body: tuple[Form, ...]
    keys: dict[str, Form]
    prelude: bool


@frozen
class Top:
    """Any other top-level form; ``body`` of ``defoptimizer`` is its value, of ``defcurriculum`` its stages."""

    head: str
    name: str | None
    form: Seq
    keys: dict[str, Form]
    params: Params | None
    body: tuple[Form, ...]


@frozen
class RunFile:
    """The forms of a run. While the report is empty, run, prepare, objective, optimizer and a loader are there; a form
    with a fault is there as far as it has a meaning, which the report knows.

    sources:     the user's files, each once: (path relative to the run file's folder, Source), the run file first
    definitions: the prelude's and the user's; the user's win
    """

    path: str
    sources: tuple[tuple[str, Source], ...]
    definitions: dict[str, Definition]
    loaders: dict[str, Top]
    passes: dict[str, Top]
    generate: Top | None
    prepare: Top | None
    objective: Top | None
    optimizer: Top | None
    run: Top | None
    curriculum: Top | None


def load(path: str, report: Report, values: Mapping[str, str] | None = None) -> RunFile | None:
    """The run of the file at ``path``; None when that file cannot be read. ``values``: what its defs get instead.

    Every fault found is added to ``report``: then the answer is not to be built, and is of use to find what other
    faults there are (``phases.trace_run``).
    """
    files = Files(os.path.dirname(path), report, DefValues(values or {}))
    forms = files.load(path, None)
    if not files.sources:
        return None
    for error in files.values.unknown():
        report.add(error)
    if not forms and not report:
        report.add(UserError(c.READ_EMPTY, None, "no forms", where=path, hint="a run file is a row of (def...) forms"))
    made = Sorter(report)
    for form, prelude in [*((f, True) for f in prelude_forms(report)), *((f, False) for f in forms)]:
        made.add(form, prelude)
    run = made.run_file(path, tuple(files.sources.values()))
    if forms:
        complete(run, report)
    resolve(run, report)
    return run


def prelude_forms(report: Report) -> list[Seq]:
    """The forms of the prelude, in the order of its files' names."""
    out: list[Seq] = []
    for path in sorted(PRELUDE.glob("*.sx")):
        source = read_file(str(path), report)
        out += sound(Source(f"prelude/{path.name}", source.text), report) if source else []
    return out


def sound(source: Source, report: Report) -> list[Seq]:
    """The top-level forms of a source that have a known head, and so some meaning; each fault of theirs, and of the
    others, is added."""
    out = []
    for form in read(source, report, spoilt=True):
        if len(report.errors) >= MAX_FAULTS:
            break
        if isinstance(form, Seq) and form.items and report.is_spoilt(form.items[0]):
            report.lost.add(("", ""))
            continue
        check(form, report)
        head = head_of(form)
        if isinstance(form, Seq) and head in TOP:
            out.append(form)
        elif isinstance(form, Seq) and (meant := nearest(head, TOP)):
            name = form.items[1] if len(form.items) > 1 else None
            report.lost.add((meant, name.name if isinstance(name, Symbol) else ""))
    return out


@define
class Files:
    """The user's files, followed through their includes.

    folder:  of the run file
    sources: real path -> (path relative to ``folder``, Source), in the order they were met
    open:    real paths on the way to the file being read, and as written
    """

    folder: str
    report: Report
    values: DefValues
    sources: dict[str, tuple[str, Source]] = field(factory=dict)
    open: dict[str, str] = field(factory=dict)

    def load(self, path: str, include: Span | None) -> list[Seq]:
        """The sound forms of ``path``, its includes' in the place of each; none when it was read before."""
        real = os.path.realpath(path)
        if real in self.open:
            chain = [*list(self.open.values())[list(self.open).index(real) :], path]
            return self.wrong(include, f"{path} includes itself: {' -> '.join(chain)}")
        if len(self.open) == MAX_INCLUDES:
            return self.wrong(include, f"includes nest deeper than {MAX_INCLUDES} files")
        if real in self.sources:
            return []
        own = Report()
        source = read_file(path, own)
        for error in own.errors:
            if include and not error.span:
                self.wrong(include, f"{path}: {error.message}", hint=error.hint)
            else:
                self.report.add(error)
        if source is None:
            return []
        source = self.values.into(source, self.report)
        self.sources[real] = (os.path.relpath(path, self.folder or ".").replace(os.sep, "/"), source)
        self.open[real] = path
        forms = [inner for form in sound(source, self.report) for inner in self.included(form, path)]
        del self.open[real]
        return forms

    def included(self, form: Seq, path: str) -> list[Seq]:
        """``form`` itself, or the forms of the file it includes."""
        if head_of(form) != "include":
            return [form]
        text = form.items[1] if len(form.items) > 1 else form
        if self.report.is_spoilt(form) or self.report.is_spoilt(text):
            self.report.lost.add(("", ""))
            return []
        assert isinstance(text, Literal) and isinstance(text.value, str)
        if not text.value or os.path.isabs(text.value):
            return self.wrong(
                text.span, f'"{text.value}" is not a relative path', hint="an include is relative to its own file"
            )
        return self.load(os.path.normpath(os.path.join(os.path.dirname(path), text.value)), text.span)

    def wrong(self, span: Span | None, message: str, hint: str = "") -> list[Seq]:
        self.report.add(UserError(c.READ_INCLUDE, span, message, hint=hint))
        self.report.lost.add(("", ""))
        return []


@define
class Sorter:
    """Checked forms by kind. Two forms of the user's that claim one name, or one place of the run, are a fault."""

    report: Report
    definitions: dict[str, Definition] = field(factory=dict)
    loaders: dict[str, Top] = field(factory=dict)
    passes: dict[str, Top] = field(factory=dict)
    single: dict[str, Top] = field(factory=dict)
    symbols: dict[tuple[str, str], Top] = field(factory=dict)  # loaders and passes, by head and name in the library

    def add(self, form: Seq, prelude: bool) -> None:
        head, parts = head_of(form), parse(form)
        if parts.name is None and FORMS[head].parts.split()[0] in ("NAME", "WORD"):
            self.report.lost.add((head, ""))
            return
        if head in DEFINITIONS:
            assert parts.name
            made = Definition(parts.name, head, form, parts.params, parts.body, parts.keys, prelude)
            if parts.name == "model" and not prelude:
                message = "model is the name that defrun gives to the run's model"
                self.report.add(UserError(c.NAME_TWICE, name_span(form), message, hint="choose another name"))
            old = self.definitions.get(parts.name)
            if old and old.prelude == prelude:
                self.twice(c.NAME_TWICE, form, old.form, f"{parts.name} is defined")
            self.definitions[parts.name] = made
            return
        top = Top(head, parts.name, form, parts.keys, parts.params, parts.body)
        if head in ("defloader", "defpass"):
            table = self.loaders if head == "defloader" else self.passes
            assert top.name
            if (old := self.symbols.setdefault((head, symbol(top.name)), top)) is not top:
                self.twice(c.NAME_TWICE, form, old.form, f"the {head[3:]} {top.name} is defined")
            table[top.name] = top
            return
        if head in self.single:
            self.twice(c.FORM_TWICE, form, self.single[head].form, f"{head} is given")
        self.single.setdefault(head, top)

    def twice(self, code: Code, form: Seq, first: Seq, message: str) -> None:
        self.report.add(
            UserError(code, name_span(form), f"{message} twice", (name_span(first), "it is given here first"))
        )

    def run_file(self, path: str, sources: tuple[tuple[str, Source], ...]) -> RunFile:
        single = {name: self.single.get(head) for head, name in SINGLE.items()}
        return RunFile(path, sources, self.definitions, self.loaders, self.passes, **single)


def symbol(name: str) -> str:
    """What of a name is left in a function of the library: ``a-b`` and ``a_b`` would be one."""
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def name_span(form: Seq) -> Span:
    """Where a top-level form says what it is: its name, or its head."""
    named = len(form.items) > 1 and isinstance(form.items[1], Symbol)
    return form.items[1 if named else 0].span


def complete(run: RunFile, report: Report) -> None:
    """E-FORM-007 for each form a run cannot do without."""
    there = {"defloader": bool(run.loaders), **{head: getattr(run, name) is not None for head, name in SINGLE.items()}}
    for head in NEEDED:
        if not there[head] and not report.may_be_lost("", head):
            report.add(
                UserError(c.FORM_ABSENT, None, f"the run has no {head}", where=run.path, hint=FORMS[head].signature())
            )
            report.lost.add((head, ""))


def resolve(run: RunFile, report: Report) -> None:
    """E-NAME-001 for each name of a loader or model that is not defined."""
    models = [d.name for d in run.definitions.values() if d.kind == "defmodel"]
    for key, value in named(run):
        if not isinstance(value, Symbol) or report.is_spoilt(value):
            continue
        known: Iterable[str] = models if key == "model" else run.loaders
        lost = report.may_be_lost(value.name, *(DEFINITIONS if key == "model" else ("defloader",)))
        if value.name not in known and not lost:
            other = key == "model" and value.name in run.definitions
            what = "is defined, but not by defmodel" if other else f"is not a {key} of this run"
            hint = closest(value.name, known) or (f"it has {shorten(' '.join(known), 200)}" if known else "")
            report.add(UserError(c.NAME_UNKNOWN, value.span, f"{value.name} {what}", hint=hint))


def named(run: RunFile) -> Iterator[tuple[str, Form]]:
    """Every keyword of a top-level form whose value names a model or a loader."""
    stages = [
        parse(s).keys
        for s in (run.curriculum.body if run.curriculum else ())
        if isinstance(s, Seq) and head_of(s) == "stage"
    ]
    tops = [top.keys for top in (run.run, *run.passes.values()) if top]
    for keys in (*tops, *stages):
        yield from ((key, keys[key]) for key in ("model", "loader") if key in keys)
