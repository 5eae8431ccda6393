"""A checkpoint's identity: digests, by component, of what decides the trajectory of a run.

Layout, comments, docstrings, the order of definitions and of keywords, paths of data and the name of the run
do not count; neither do ``:steps``, cadences, passes and diagnostics. So a run may be extended, or moved to another
target.
The data themselves are not looked at here: the runner adds their fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from attrs import frozen

from ..language.forms import Form, Keyword, Literal, Seq, Symbol
from ..language.runfile import Definition, RunFile, Top
from ..language.source import Span
from ..language.syntax import head_of, parse, split_body

LANGUAGE = "1"  # raised when the same forms come to mean another trajectory

# Top-level keywords that count, with what stands for one that is not given.
LOADER = {"batch": "", "fields": "", "shuffle": "true", "epochs": "nil"}
RUN = {"seed": "0", "microbatches": "1", "precision": ":f32"}
GENERATE = {"trips": "", "init": "", "step": "", "finish": "nil"}
STAGE = {"steps": "nil", "records": "nil"}
DOCUMENTED = {"defun": 3, "lambda": 2}  # head -> where the body begins


def canonical(form: Form) -> str:
    """One text for all ways to lay ``form`` out. Floats by repr, so 1e-3 and 0.001 are one, and 1 and 1.0 are two."""
    if isinstance(form, Symbol):
        return form.name
    if isinstance(form, Keyword):
        return f":{form.name}"
    if isinstance(form, Literal):
        return (
            json.dumps(form.value) if isinstance(form.value, str) else CONSTANTS.get(repr(form.value), repr(form.value))
        )
    assert isinstance(form, Seq)
    items = form.items
    if start := DOCUMENTED.get(head_of(form)):
        items = (*items[:start], *split_body(items[start:])[1])
    text = " ".join(map(canonical, items))
    return f"[{text}]" if form.bracket == "[" else f"({text})"


CONSTANTS = {"None": "nil", "True": "true", "False": "false"}


@frozen
class Part:
    """A line of a component: the form it is of (``defgenerate``, ``defun block``), its place, its canonical text."""

    form: str
    span: Span
    text: str


def identity(run: RunFile) -> dict[str, str]:
    """sha256, as hex, of each component of a complete run."""
    texts = {name: "\n".join(part.text for part in rows) for name, rows in parts(run).items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def parts(run: RunFile) -> dict[str, list[Part]]:
    """What each component's digest is of, in order."""
    assert run.run and run.prepare and run.objective and run.optimizer
    whole = run.run.form.span
    return {
        "language": [Part("the language", whole, LANGUAGE)],
        "model": model(run),
        "data": [part for name in loader_names(run) for part in loader(run, run.loaders[name])],
        "prepare": component(run, [function(run.prepare)], run.prepare.body),
        "objective": component(run, [function(run.objective)], run.objective.body),
        "generate": settings(run, run.generate, GENERATE) if run.generate else [Part("defgenerate", whole, "none")],
        "optimizer": optimizer(run, run.optimizer),
        "run": [*settings(run, run.run, RUN), *curriculum(run)],
    }


def document(run: RunFile) -> bytes:
    """The artifact's ``identity.json``: the parts, their places relative to the run file, as canonical JSON."""
    names = {source.name: name for name, source in run.sources}
    out = []
    for name, rows in parts(run).items():
        for part in rows:
            file, (line, column) = part.span.source.name, part.span.line_column()
            place = f"{names.get(file, file)}:{line}:{column}"
            out.append({"component": name, "form": part.form, "place": place, "text": part.text})
    return json.dumps({"forms": out}, sort_keys=True, separators=(",", ":")).encode("ascii")


def component(run: RunFile, rows: Iterable[Part], roots: Iterable[Form]) -> list[Part]:
    """``rows``, and the definitions that ``roots`` reach."""
    reached = (Part(f"{d.kind} {d.name}", d.form.span, definition(run, d)) for d in reachable(run, roots))
    return [*rows, *reached]


def settings(run: RunFile, top: Top, counted: dict[str, str]) -> list[Part]:
    """The keywords of ``top`` that count, each with its default where it is not given, and every definition that they
    reach."""
    given = {key: top.keys[key] for key in counted if key in top.keys}
    rows = []
    for key, default in counted.items():
        span = given[key].span if key in given else top.form.span
        rows.append(Part(label(top), span, f":{key} {canonical(given[key]) if key in given else default}"))
    return component(run, rows, given.values())


def label(top: Top) -> str:
    """What a Part calls the form it is of: ``defgenerate``, ``defrun NAME``."""
    return f"{top.head} {top.name}" if top.name else top.head


def function(top: Top) -> Part:
    """A form with a lambda list and a body, by its text; docstrings and layout are not in it."""
    assert top.params
    text = f"(({' '.join(s.name for s in top.params.symbols())}) {' '.join(map(canonical, top.body))})"
    return Part(top.head, top.form.span, text)


def optimizer(run: RunFile, top: Top) -> list[Part]:
    """The optimizer form, and every definition that it reaches."""
    return component(run, [Part(top.head, form.span, canonical(form)) for form in top.body], top.body)


def model(run: RunFile) -> list[Part]:
    """Every model of the run: the one trained, and those the other forms reach."""
    assert run.run and run.prepare and run.objective
    bodies = [run.run.keys["model"], *run.prepare.body, *run.objective.body]
    bodies += [f for key, f in run.generate.keys.items() if key in GENERATE] if run.generate else []
    models = {d.name: d for d in reachable(run, bodies) if d.kind == "defmodel"}
    roots = [Symbol(name, span=models[name].form.span) for name in sorted(models)]
    named = run.run.keys["model"]
    return component(run, [Part(label(run.run), named.span, canonical(named))], roots)


def definition(run: RunFile, d: Definition) -> str:
    """A definition without its docstring, keywords by name."""
    lines = [d.kind, d.name]
    if d.kind != "def":
        items = d.form.items[2]
        lines.append(canonical(items))
    for key, form in sorted(d.keys.items()):
        lines.append(f":{key} {canonical(form)}")
    return f"({' '.join([*lines, *map(canonical, d.body)])})"


def reachable(run: RunFile, roots: Iterable[Form]) -> list[Definition]:
    """Definitions that the symbols of ``roots`` name, and those that these name, and so on; sorted by name.

    Local names are not told apart: one that is also a definition's counts as that definition.
    """
    found: dict[str, Definition] = {}
    todo = list(roots)
    while todo:
        form = todo.pop()
        if isinstance(form, Seq):
            todo += form.items
        elif isinstance(form, Symbol) and form.name in run.definitions and form.name not in found:
            found[form.name] = run.definitions[form.name]
            todo.append(found[form.name].form)
    return [found[name] for name in sorted(found)]


def loader_names(run: RunFile) -> list[str]:
    """The training loader, then those of the stages, each once."""
    assert run.run
    stages = [parse(s).keys for s in (run.curriculum.body if run.curriculum else ()) if isinstance(s, Seq)]
    named = [keys["loader"] for keys in (run.run.keys, *stages) if "loader" in keys]
    return list(dict.fromkeys(form.name for form in named if isinstance(form, Symbol)))


def loader(run: RunFile, top: Top) -> list[Part]:
    """What a loader makes of its records; its name keys their order. Record numbers are data; a path is not."""
    source = top.keys["source"]
    forms = [source, *(d.form for d in reachable(run, [source]))]
    texts = [canonical(form) for form in forms]
    counted = texts if any("(indices " in text for text in texts) else []
    rows = [Part(label(top), top.form.span, f"loader {top.name}"), *settings(run, top, LOADER)]
    return [*rows, *(Part(label(top), source.span, text) for text in counted)]


def curriculum(run: RunFile) -> list[Part]:
    """The stages in order, each with the number of its loader among ``loader_names``."""
    names = loader_names(run)
    out: list[Part] = []
    for form in run.curriculum.body if run.curriculum else ():
        assert isinstance(form, Seq)
        parsed = parse(form)
        top = Top("stage", parsed.name, form, parsed.keys, None, ())
        own = parsed.keys.get("loader")
        at = names.index(own.name) if isinstance(own, Symbol) else 0
        out += [Part(label(top), form.span, f"stage {at}"), *settings(run, top, STAGE)]
    return out
