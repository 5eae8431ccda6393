"""The parts that rows of the FORMS table are written with, one function each.

A function takes what it reads off the front of ``items``, adds faults through the checker ``k``, hands inner
expressions to it, and answers entries of Parts: none where the evaluator reads the part off the form itself. A part
that is missing is E-FORM-002, one that is written otherwise E-FORM-004; of keywords see ``Row.fault``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from . import codes as c
from .diagnostics import Code
from .form_queries import Params, Parts, head_of, show, split_body
from .forms import Form, Keyword, Literal, Seq, Symbol
from .grammar import FORMS, FUNCTION, RESERVED, Row
from .source import Span

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Checker(Protocol):
    """What the parts ask of ``syntax.Checker``."""

    spoilt: list[Form]

    def fault(self, code: Code, span: Span, message: str, *notes: tuple[Span, str], hint: str = "") -> None: ...
    def inner(self, *forms: Form, bind: Iterable[Symbol] = ()) -> None: ...
    def parts(self, form: Seq, row: Row) -> Parts: ...
    def lacks(self, form: Seq, row: Row, what: str) -> None: ...
    def binding(self, symbol: Form, what: str) -> Symbol | None: ...
    def distinct(self, names: Iterable[Symbol]) -> None: ...
    def params(self, form: Seq) -> Params: ...
    def keywords(self, form: Seq, row: Row, items: list[Form]) -> dict[str, Form]: ...


Part = Callable[[Checker, Seq, Row, list[Form]], dict[str, Any]]


def take_name(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    if not items or isinstance(items[0], Keyword):
        k.lacks(form, row, "a name")
        return {}
    name = k.binding(items.pop(0), f"a {row.name.removeprefix('def')}" if row.name != "def" else "a value")
    if name and name.name in FUNCTION:
        k.fault(c.FORM_SHAPE, name.span, f"{name.name} is a word of the language and cannot be defined anew")
    return {"name": name.name} if name else {}


def take_word(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    """A name that may stand in the name of a file."""
    where = items[0].span if items else form.span
    made = take_name(k, form, row, items)
    if made and not WORD.fullmatch(str(made["name"])):
        k.fault(
            c.FORM_SHAPE,
            where,
            f"{made['name']} cannot name a {row.name.removeprefix('def')}",
            hint="it is written with A-Z a-z 0-9 _ . - alone",
        )
    return made


def take_params(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    if row.name == "defmodel" and items and isinstance(items[0], Keyword) and items[0].name == "onnx":
        return {}
    if not items or not isinstance(items[0], Seq) or items[0].bracket != "(":
        k.lacks(form, row, "its arguments, a list of names")
        return {}
    params = items.pop(0)
    assert isinstance(params, Seq)
    return {"params": k.params(params)}


def take_params2(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    """A lambda list that takes two positional arguments."""
    made = take_params(k, form, row, items)
    params = made.get("params")
    if isinstance(params, Params) and not params.takes(2):
        k.fault(
            c.FORM_SHAPE,
            form.items[1].span,
            f"{row.name} has 2 arguments, not {len(params.names)}",
            hint=row.signature(),
        )
    return made


def take_body(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    """A docstring if several forms follow, then one form or more."""
    if not items:
        if not any(isinstance(item, Keyword) and item.name == "onnx" for item in form.items[2:3]):
            k.lacks(form, row, "a body")
        return {}
    doc, body = split_body(items)
    for item in body[:-1]:
        if isinstance(item, Keyword):
            where = "its keywords stand before docstring and body" if row.keys else "it has no keywords"
            k.fault(
                c.FORM_SHAPE, item.span, f":{item.name} stands in the body of {row.name}; {where}", hint=row.signature()
            )
    items.clear()
    k.inner(*body, bind=bound(form))
    return {"doc": doc, "body": body}


def bound(form: Seq) -> list[Symbol]:
    """Names that a checked form binds for its body: those of its lambda list or of its bindings."""
    lists = [item for item in form.items[1:3] if isinstance(item, Seq) and item.bracket == "("][:1]
    names = [n.items[0] if isinstance(n, Seq) and n.items else n for one in lists for n in one.items]
    return [n for n in names if isinstance(n, Symbol)]


def take_value(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    if not items:
        k.lacks(form, row, f"a value after {show(form.items[-1])}")
        return {}
    k.inner(items[0])
    return {"body": (items.pop(0),)}


def take_optional(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    return take_value(k, form, row, items) if items else {}


def take_values(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    k.inner(*items)
    items.clear()
    return {}


def take_text(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    if not items:
        k.lacks(form, row, "a path, a string")
        return {}
    text = items.pop(0)
    if not isinstance(text, Literal) or not isinstance(text.value, str):
        k.fault(c.FORM_SHAPE, text.span, f"{row.name} takes a path, a string, not {show(text)}", hint=row.signature())
        return {}
    return {"body": (text,)}


def take_bindings(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    """Bindings whose values see the names before them in ``let*``, and none of them in ``let``."""
    if not items or not isinstance(items[0], Seq) or items[0].bracket != "(":
        k.lacks(form, row, "its bindings, ((NAME VALUE) ...)")
        return {}
    pairs, names = items.pop(0), []
    assert isinstance(pairs, Seq)
    for pair in pairs.items:
        if not isinstance(pair, Seq) or pair.bracket != "(" or len(pair.items) != 2:
            k.fault(c.FORM_SHAPE, pair.span, f"a binding of {row.name} is written (NAME VALUE)", hint=row.signature())
            continue
        if name := k.binding(pair.items[0], "a value"):
            names.append(name)
        k.inner(pair.items[1], bind=names if row.name == "let*" else ())
    if row.name == "let":
        k.distinct(names)
    return {}


def take_clauses(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    for clause in items:
        if not isinstance(clause, Seq) or clause.bracket != "(" or not clause.items:
            k.fault(c.FORM_SHAPE, clause.span, "a clause of cond is written (TEST VALUE)", hint=row.signature())
            continue
        k.inner(*clause.items)
    items.clear()
    return {}


def take_calls(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    """What ``->`` threads through: names of functions, and calls that lack their first argument."""
    for stage in items:
        head = head_of(stage) or (stage.name if isinstance(stage, Symbol) else "")
        if head in RESERVED:
            k.fault(
                c.FORM_SHAPE,
                stage.span,
                f"-> threads through calls, and {head} is not a function",
                hint="name a function with let* or defun",
            )
        elif isinstance(stage, Symbol):
            continue
        elif isinstance(stage, Seq) and stage.bracket == "(" and stage.items:
            k.inner(*stage.items)
        else:
            k.fault(c.FORM_SHAPE, stage.span, f"-> threads through calls, not {show(stage)}", hint=row.signature())
    items.clear()
    return {}


def take_stages(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    """Stages of a curriculum, with different names; each has one of :steps and :records."""
    stages, names = tuple(items), []
    items.clear()
    for stage in stages:
        if head_of(stage) != "stage" or not isinstance(stage, Seq):
            k.fault(
                c.FORM_SHAPE,
                stage.span,
                f"a curriculum is a row of (stage NAME ...), not {show(stage)}",
                hint=row.signature(),
            )
            continue
        parts = k.parts(stage, FORMS["stage"])
        names += [s for s in stage.items[1:2] if isinstance(s, Symbol)]
        if len({"steps", "records"} & set(parts.keys)) != 1:
            k.fault(
                c.FORM_MISSING,
                stage.items[0].span,
                "a stage has one of :steps and :records",
                hint=FORMS["stage"].signature(),
            )
            k.spoilt.append(stage)
    if not stages:
        k.lacks(form, row, "a stage")
    k.distinct(names)
    return {"body": stages}


def take_keys(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, Any]:
    return {"keys": k.keywords(form, row, items)}


PARTS: dict[str, Part] = {
    "NAME": take_name,
    "WORD": take_word,
    "PARAMS": take_params,
    "PARAMS2": take_params2,
    "VALUE": take_value,
    "VALUE?": take_optional,
    "VALUE*": take_values,
    "TEXT": take_text,
    "BINDINGS": take_bindings,
    "CLAUSE*": take_clauses,
    "CALL*": take_calls,
    "STAGE*": take_stages,
    "KEYS": take_keys,
    "BODY": take_body,
}
