"""Small questions about forms, and what a checked form is taken apart into."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from attrs import field, frozen

from .diagnostics import shorten
from .forms import Form, Keyword, Literal, Seq, Symbol
from .grammar import MAX_COUNT

MAX_COMPARED = 1_000  # names that a hint is looked for in


@frozen
class Params:
    """A lambda list: positional names, ``&key`` names with their defaults, the ``&rest`` name."""

    names: tuple[Symbol, ...] = ()
    keys: tuple[tuple[Symbol, Form | None], ...] = ()
    rest: Symbol | None = None

    def symbols(self) -> list[Symbol]:
        return [*self.names, *(name for name, _ in self.keys), *([self.rest] if self.rest else [])]

    def takes(self, count: int) -> bool:
        """Whether a call with ``count`` positional arguments and nothing else fits."""
        return len(self.names) == count or (len(self.names) < count and self.rest is not None)

    def signature(self, name: str) -> str:
        """A call of the function of that name: ``(linear x name out &key bias init)``."""
        keys = "".join(f" {s.name}" for s, _ in self.keys)
        rest = f" &rest {self.rest.name}" if self.rest else ""
        return f"({' '.join([name, *(s.name for s in self.names)])}{' &key' + keys if keys else ''}{rest})"


@frozen
class Parts:
    """A form taken apart by its row; what the form lacks is None or empty."""

    name: str | None = None
    params: Params | None = None
    keys: dict[str, Form] = field(factory=dict)
    doc: str | None = None
    body: tuple[Form, ...] = ()


def head_of(form: Form) -> str:
    """The name at the head of a list, or ""."""
    if isinstance(form, Seq) and form.bracket == "(" and form.items and isinstance(form.items[0], Symbol):
        return form.items[0].name
    return ""


def symbols(forms: list[Form]) -> set[str]:
    """Every name that stands in ``forms``, which is left empty."""
    found: set[str] = set()
    while forms:
        form = forms.pop()
        if isinstance(form, Symbol):
            found.add(form.name)
        elif isinstance(form, Seq):
            forms += form.items
    return found


def split_body(items: Sequence[Form]) -> tuple[str | None, tuple[Form, ...]]:
    """The docstring, which stands first in a body of several forms, and the forms."""
    if len(items) > 1 and isinstance(items[0], Literal) and isinstance(items[0].value, str):
        return items[0].value, tuple(items[1:])
    return None, tuple(items)


def nearest(name: str, names: Iterable[str]) -> str:
    """The one of ``names`` that was meant, or "". MAX_COMPARED at most are compared, of a like length and
    initial: hints for a file of many names and many faults take no time."""
    likely = list(names)
    if len(likely) > MAX_COMPARED:
        likely = [n for n in likely if n[:1] == name[:1] and abs(len(n) - len(name)) < 3]
    return next(iter(difflib.get_close_matches(name, sorted(likely)[:MAX_COMPARED], 1)), "")


def closest(name: str, names: Iterable[str], mark: str = "") -> str:
    """``did you mean X?``, or "". ``mark`` stands before the name."""
    near = nearest(name, names)
    return f"did you mean {mark}{near}?" if near else ""


def show(form: Form) -> str:
    """A form for a message, in a few words."""
    if isinstance(form, Seq):
        return (
            f"a vector of {len(form.items)}"
            if form.bracket == "["
            else f"the list ({head_of(form)} ...)"
            if form.items
            else "()"
        )
    if isinstance(form, Literal):
        value = form.value
        words = {None: "nil", True: "true", False: "false"}
        return (
            words[value]
            if value is None or isinstance(value, bool)
            else shorten(repr(value) if not isinstance(value, str) else f'"{value}"')
        )
    return f":{form.name}" if isinstance(form, Keyword) else getattr(form, "name", "this")


def is_open(form: Form) -> bool:
    """Whether only evaluation tells what ``form`` is."""
    return isinstance(form, Symbol) or (isinstance(form, Seq) and form.bracket == "(" and bool(form.items))


def in_range(low: int, high: int) -> Callable[[Form], bool]:
    """A test of forms: is it an integer literal from ``low`` to ``high``, both included?"""
    return lambda form: isinstance(form, Literal) and type(form.value) is int and low <= form.value <= high


LITERALS: dict[str, Callable[[Form], bool]] = {
    "value": lambda form: True,
    "count": in_range(1, MAX_COUNT),
    "trips": in_range(1, MAX_COUNT),
    "seed": in_range(0, 2**63 - 1),
    "flag": lambda form: isinstance(form, Literal) and isinstance(form.value, bool),
    "text": lambda form: isinstance(form, Literal) and isinstance(form.value, str),
    "precision": lambda form: isinstance(form, Keyword) and form.name in ("f32", "bf16"),
}
