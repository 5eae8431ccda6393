"""The parameters of a run: who declared each, its type, and how it begins."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ..graph.core import Value, order
from ..language import codes
from ..language.diagnostics import UserError
from ..language.form_queries import symbols
from ..language.forms import Literal
from ..language.source import Span
from ..ops.types import TensorType
from .values import Closure, Env, Key, Model

if TYPE_CHECKING:
    from ..language.runfile import Definition


@frozen(eq=False)
class Parameter:
    """``init`` is a function of the shape, or a tensor that broadcasts to it; ``digest`` tells two inits apart."""

    name: str
    type: TensorType
    init: Any
    digest: str
    is_frozen: bool
    span: Span = field(repr=False)


@define(eq=False)
class Parameters:
    """``found`` in the order of first declaration; ``models`` by name, one object each for the whole run."""

    found: dict[str, Parameter] = field(factory=dict)
    models: dict[str, Model] = field(factory=dict)

    def model(self, definition: Definition) -> Model:
        if definition.name not in self.models:
            flag = definition.keys.get("frozen")
            if flag is not None and not (isinstance(flag, Literal) and isinstance(flag.value, bool)):
                raise UserError(codes.FORM_VALUE, flag.span, ":frozen must be true or false")
            for word in ("pretrained", "map"):
                if word in definition.keys:
                    raise UserError(
                        codes.PARAM_WEIGHTS, definition.keys[word].span, f":{word} is not available in this version"
                    )
            is_frozen = isinstance(flag, Literal) and flag.value is True
            assert definition.params
            made = Model(definition.name, definition.params, definition.body, is_frozen, definition.form.span)
            self.models[definition.name] = made
        return self.models[definition.name]

    def declare(self, made: Parameter) -> Parameter:
        """``made``, or the same parameter met before; E-PARAM-002 where the two disagree."""
        before = self.found.setdefault(made.name, made)
        for what, old, new in (("type", before.type, made.type), ("init", before.digest, made.digest)):
            if old != new:
                shown = f"{new} here and {old} before" if what == "type" else "another init here than before"
                raise UserError(
                    codes.PARAM_CLASH,
                    made.span,
                    f"{made.name} has {shown}",
                    (before.span, f"{made.name} is first declared here"),
                )
        return before


def same_init(one: Any, other: Any) -> bool:
    """Do both inits surely make the same graph? Two functions do that were written in one place where the names in them
    have the same values, as those of ``(normal 0.02)`` in each call of a layer. False where only their digests tell."""
    if not isinstance(one, Closure) or not isinstance(other, Closure):
        return same_value(one, other)
    scopes = [c.scope and (c.scope.model, c.scope.path) for c in (one, other)]
    if scopes[0] != scopes[1] or [*map(id, one.body)] != [*map(id, other.body)]:
        return False
    envs = [c.env or Env({}) for c in (one, other)]
    forms = [*one.body, *(default for _, default in one.params.keys if default is not None)]
    return all(same_value(*(env.find(name) for env in envs)) for name in symbols(forms))


def same_value(a: Any, b: Any) -> bool:
    """Are they one object, or equal numbers, texts, keywords or lists of those? 1 is not 1.0, and 0.0 not -0.0."""
    todo = [(a, b)]
    while todo:
        a, b = todo.pop()
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            todo += zip(a, b, strict=True)
        elif a is not b and not (isinstance(a, int | float | str | Key) and repr(a) == repr(b)):
            return False
    return True


def digest(value: Value) -> str:
    """What a graph computes, as text: equal for equal structure, attributes and input names."""
    numbers: dict[Value, int] = {}
    lines = []
    for v in order([value]):
        numbers[v] = len(numbers)
        lines.append(f"{v.op} {v.name} {[numbers[a] for a in v.args]} {sorted(v.attrs.items())} {v.type}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
