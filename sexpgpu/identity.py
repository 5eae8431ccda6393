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

from .forms import Form, Keyword, Literal, Seq, Symbol
from .runfile import Definition, RunFile, Top
from .syntax import head_of, parse, split_body

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


def identity(run: RunFile) -> dict[str, str]:
    """sha256, as hex, of each component of a complete run."""
    assert run.run and run.prepare and run.objective and run.optimizer
    texts = {
        "language": LANGUAGE,
        "model": model(run),
        "data": "\n".join(loader(run, run.loaders[name]) for name in loader_names(run)),
        "prepare": component(run, [function(run.prepare)], run.prepare.body),
        "objective": component(run, [function(run.objective)], run.objective.body),
        "generate": settings(run, run.generate, GENERATE) if run.generate else "none",
        "optimizer": component(run, map(canonical, run.optimizer.body), run.optimizer.body),
        "run": "\n".join((settings(run, run.run, RUN), *curriculum(run))),
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def component(run: RunFile, lines: Iterable[str], roots: Iterable[Form]) -> str:
    """``lines``, and the definitions that ``roots`` reach."""
    return "\n".join((*lines, *(definition(run, d) for d in reachable(run, roots))))


def settings(run: RunFile, top: Top, counted: dict[str, str]) -> str:
    given = {key: top.keys[key] for key in counted if key in top.keys}
    lines = [f":{key} {canonical(given[key]) if key in given else default}" for key, default in counted.items()]
    return component(run, lines, given.values())


def function(top: Top) -> str:
    assert top.params
    return f"(({' '.join(s.name for s in top.params.symbols())}) {' '.join(map(canonical, top.body))})"


def model(run: RunFile) -> str:
    """Every model of the run: the one trained, and those the other forms reach."""
    assert run.run and run.prepare and run.objective
    bodies = [run.run.keys["model"], *run.prepare.body, *run.objective.body]
    bodies += [f for key, f in run.generate.keys.items() if key in GENERATE] if run.generate else []
    models = {d.name: d for d in reachable(run, bodies) if d.kind == "defmodel"}
    roots = [Symbol(name, span=models[name].form.span) for name in sorted(models)]
    return component(run, [canonical(run.run.keys["model"])], roots)


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


def loader(run: RunFile, top: Top) -> str:
    """What a loader makes of its records; its name keys their order. Record numbers are data; a path is not."""
    source = top.keys["source"]
    forms = [source, *(d.form for d in reachable(run, [source]))]
    counted = [canonical(form) for form in forms] if any("(indices " in canonical(form) for form in forms) else []
    return "\n".join((f"loader {top.name}", settings(run, top, LOADER), *counted))


def curriculum(run: RunFile) -> list[str]:
    """The stages in order, each with the number of its loader among ``loader_names``."""
    names = loader_names(run)
    out = []
    for form in run.curriculum.body if run.curriculum else ():
        assert isinstance(form, Seq)
        parts = parse(form)
        top = Top("stage", parts.name, form, parts.keys, None, ())
        own = parts.keys.get("loader")
        out.append(f"stage {names.index(own.name) if isinstance(own, Symbol) else 0}\n{settings(run, top, STAGE)}")
    return out
