"""Forms: what the reader makes of text. A form is data with a span; no form is ever mutated."""

from __future__ import annotations

from attrs import field, frozen

from .source import Span


@frozen
class Form:
    """What was read, with its place; two forms are equal whatever their places."""

    span: Span = field(eq=False, repr=False, kw_only=True)


@frozen
class Symbol(Form):
    """A name."""

    name: str


@frozen
class Keyword(Form):
    """``name`` is without the colon."""

    name: str


@frozen
class Literal(Form):
    """A number, a string, ``true``, ``false`` or ``nil`` (None)."""

    value: int | float | str | bool | None


@frozen
class Absent(Form):
    """Stands where a form with a fault lacks a part that it needs."""


@frozen
class Seq(Form):
    """A list, ``bracket`` "(", or a vector, ``bracket`` "["."""

    items: tuple[Form, ...]
    bracket: str
