"""The parameters of a run: who declared each, its type, and how it begins."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from . import codes
from .diagnostics import UserError
from .forms import Literal
from .graph import Value, order
from .source import Span
from .types import TensorType
from .values import Model

if TYPE_CHECKING:
    from .runfile import Definition


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


def digest(value: Value) -> str:
    """What a graph computes, as text: equal for equal structure, attributes and input names."""
    numbers: dict[Value, int] = {}
    lines = []
    for v in order([value]):
        numbers[v] = len(numbers)
        lines.append(f"{v.op} {v.name} {[numbers[a] for a in v.args]} {sorted(v.attrs.items())} {v.type}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
