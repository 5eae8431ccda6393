"""Special forms: they choose what of themselves is evaluated. syntax.py has checked their shape.

Each is a function of the tracer, the form and the names in sight to the form's value; POISON where a part that it needs
has a fault, which is in the report already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..graph.core import Value
from ..language import codes
from ..language.diagnostics import UserError
from ..language.form_queries import symbols
from ..language.forms import Form, Seq, Symbol
from ..language.source import Span
from ..language.syntax import parse_params, split_body
from ..ops import OPS
from .builtin_table import Tracer
from .values import POISON, Call, Closure, Env, Key, Operator, Scope, describe

SPECIAL: dict[str, Callable[[Tracer, Seq, Env | None], Any]] = {}


def special(name: str):
    """Register the decorated function as the special form ``name``."""

    def add(function: Callable[[Tracer, Seq, Env | None], Any]):
        SPECIAL[name] = function
        return function

    return add


@special("let")
def let(t: Tracer, form: Seq, env: Env | None) -> Any:
    names = {s.name: t.attempt(value, env) for s, value in bindings(form)}
    return t.body(split_body(form.items[2:])[1], Env(names, env))


@special("let*")
def let_star(t: Tracer, form: Seq, env: Env | None) -> Any:
    idle = None
    for s, value in bindings(form):
        said = (s.name, value.span.text)
        if said != idle or s.name in symbols([value]):  # else it is what it is, as in a body (evaluator.py)
            left = t.left()
            env = Env({s.name: t.attempt(value, env)}, env)
            idle = said if t.left() == left else None
    return t.body(split_body(form.items[2:])[1], env)


def bindings(form: Seq) -> Iterator[tuple[Symbol, Form]]:
    """Name and value form of each binding, in order."""
    pairs = form.items[1]
    assert isinstance(pairs, Seq)
    for pair in pairs.items:
        assert isinstance(pair, Seq) and isinstance(pair.items[0], Symbol)
        yield pair.items[0], pair.items[1]


@special("lambda")
def lambda_(t: Tracer, form: Seq, env: Env | None) -> Any:
    """A closure, over the names in sight and the model it stands in."""
    params = form.items[1]
    assert isinstance(params, Seq)
    return Closure("", parse_params(params), tuple(split_body(form.items[2:])[1]), env, t.scope, form.span)


@special("if")
def if_(t: Tracer, form: Seq, env: Env | None) -> Any:
    value = condition(t, form.items[1], env)
    if value is POISON:
        return POISON
    if holds(value):
        return t.evaluate(form.items[2], env)
    return t.evaluate(form.items[3], env) if len(form.items) > 3 else None


@special("cond")
def cond(t: Tracer, form: Seq, env: Env | None) -> Any:
    """The value of the first clause whose test holds: of its body, else of its test. nil where no test holds."""
    for clause in form.items[1:]:
        assert isinstance(clause, Seq)
        value = condition(t, clause.items[0], env)
        if value is POISON:
            return POISON
        if holds(value):
            return t.body(clause.items[1:], env) if len(clause.items) > 1 else value
    return None


def condition(t: Tracer, form: Form, env: Env | None) -> Any:
    """The value of ``form``; a tensor is refused, since the choice is made at trace time."""
    value = t.evaluate(form, env)
    if isinstance(value, Value):
        raise UserError(
            codes.TYPE_CONDITION,
            form.span,
            f"the condition is a tensor, {value.type}",
            hint="choose per element with (where condition a b)",
        )
    return value


def holds(value: Any) -> bool:
    """All values hold but nil and false."""
    return value is not None and value is not False


@special("and")
def and_(t: Tracer, form: Seq, env: Env | None) -> Any:
    return logic(t, form, env, "and", stops=lambda v: not holds(v), empty=True)


@special("or")
def or_(t: Tracer, form: Seq, env: Env | None) -> Any:
    return logic(t, form, env, "or", stops=holds, empty=None)


def logic(t: Tracer, form: Seq, env: Env | None, name: str, stops: Callable[[Any], bool], empty: Any) -> Any:
    """Short-circuits on plain values; from the first tensor on, the operator of the same name, per element."""
    value: Any = empty
    for item in form.items[1:]:
        following = t.evaluate(item, env)
        if following is POISON:
            return POISON
        if isinstance(value, Value):
            value = t.apply(Operator(OPS[name]), Call(name, form.span, (value, following), (form.span, item.span)))
        else:
            value = following
        if not isinstance(value, Value) and stops(value):
            return value
    return value


@special("->")
def thread(t: Tracer, form: Seq, env: Env | None) -> Any:
    """The value so far becomes the first argument of the next call."""
    value = t.attempt(form.items[1], env)
    for stage in form.items[2:]:
        if t.world.report.is_spoilt(stage):
            value = POISON
            continue
        head, rest = (
            (stage.items[0], stage.items[1:]) if isinstance(stage, Seq) and stage.bracket == "(" else (stage, ())
        )
        function = t.attempt(head, env)
        value = t.guarded(stage.span, t.call_form, function, stage, rest, env, value)
    return value


@special("scope")
def scope(t: Tracer, form: Seq, env: Env | None) -> Any:
    """A body whose parameters have one part more in their names; E-PARAM-001 outside a model."""
    name = t.attempt(form.items[1], env)
    if name is POISON:
        return POISON
    if t.scope is None:
        raise UserError(codes.PARAM_SCOPE, form.span, "scope stands outside a model")
    text = parameter_name(name, form.items[1].span)
    with t.in_scope(Scope(t.scope.model, (*t.scope.path, text))):
        return t.body(form.items[2:], env)


def parameter_name(value: Any, span: Span) -> str:
    """A keyword or string as one part of a parameter's name."""
    text = value.name if isinstance(value, Key) else value
    if not isinstance(text, str) or not text or not all(c.isascii() and (c.isalnum() or c in "_.-") for c in text):
        raise UserError(
            codes.CALL_VALUE, span, f"a name is a keyword or string of A-Z a-z 0-9 _ . -, not {describe(value)}"
        )
    return text


@special("checkpoint")
def checkpoint(t: Tracer, form: Seq, env: Env | None) -> Any:
    """A body whose values are one region of the graph, which the backward pass computes again (graph/autodiff.py)."""
    t.regions += 1
    kept, t.builder.region = t.builder.region, t.regions
    try:
        return t.body(form.items[1:], env)
    finally:
        t.builder.region = kept
