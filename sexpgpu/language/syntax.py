"""Checks forms against the FORMS table, every fault of a form in one go, and takes checked forms apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from . import codes as c
from .diagnostics import MAX_FAULTS, Code, Report, UserError
from .form_parts import PARTS
from .form_queries import LITERALS, Params, Parts, closest, head_of, is_open, nearest, show, split_body
from .forms import Absent, Form, Keyword, Literal, Seq, Symbol
from .grammar import FORMS, FUNCTION, KINDS, RESERVED, TOP, Key, Row
from .source import Span

__all__ = ["Params", "Parts", "check", "closest", "head_of", "parse", "parse_params", "split_body"]


def parse_params(form: Seq) -> Params:
    """The lambda list of a checked form."""
    return Checker().params(form)


def parse(form: Seq) -> Parts:
    """A checked form of the FORMS table, taken apart."""
    return Checker().parts(form, FORMS[head_of(form)])


def check(form: Form, report: Report, top: bool = True) -> None:
    """Add every fault of ``form``, in the order of the text. ``top``: it stands at top level, not in an expression."""
    checker = Checker(MAX_FAULTS - len(report.errors))
    if top:
        checker.top(form)
    else:
        checker.todo.append((form, frozenset()))
    checker.run()
    for spoilt in checker.spoilt:
        report.spoil(spoilt)
    for error in sorted(checker.faults, key=lambda e: e.span.start if e.span else 0):
        report.add(error)


@define
class Checker:
    """``room`` for that many faults; no more are looked for.

    todo:   expressions still to be checked, each with the locally bound names that hide a function of the table
    hidden: those of the expression being checked
    spoilt: the forms with a fault that leaves them without a value
    """

    room: int = MAX_FAULTS
    faults: list[UserError] = field(factory=list)
    todo: list[tuple[Form, frozenset[str]]] = field(factory=list)
    spoilt: list[Form] = field(factory=list)
    hidden: frozenset[str] = frozenset()

    def run(self) -> None:
        """Iterative: a form may be as deep as the reader allows."""
        while self.todo and len(self.faults) < self.room:
            form, self.hidden = self.todo.pop()
            if isinstance(form, Seq):
                self.expression(form)

    def fault(self, code: Code, span: Span, message: str, *notes: tuple[Span, str], hint: str = "") -> None:
        if len(self.faults) < self.room:
            self.faults.append(UserError(code, span, message, *notes, hint=hint))

    def inner(self, *forms: Form, bind: Iterable[Symbol] = ()) -> None:
        hidden = self.hidden | (FUNCTION & {s.name for s in bind})
        self.todo += [(form, hidden) for form in forms]

    # ---- whole forms

    def top(self, form: Form) -> None:
        head = head_of(form)
        if isinstance(form, Seq) and head in TOP:
            self.parts(form, FORMS[head])
        elif head in RESERVED:
            self.fault(c.FORM_TOP, form.span, f"{head} does not stand at top level", hint="name its value with def")
        elif head:
            message = f"{head} is not a top-level form"
            self.fault(
                c.FORM_TOP, form.span, message, hint=closest(head, TOP) or f"top-level forms are {' '.join(TOP)}"
            )
        else:
            self.fault(
                c.FORM_TOP,
                form.span,
                f"{show(form)} does not stand at top level",
                hint="a run file is a row of (def...) forms",
            )

    def expression(self, form: Seq) -> None:
        head = head_of(form)
        row = FORMS.get(head)
        if form.bracket == "[" or not form.items:
            self.inner(*form.items)
        elif row and row.place == "top":
            self.fault(
                c.FORM_TOP,
                form.items[0].span,
                f"{head} stands at top level only",
                hint="is a bracket missing before it?",
            )
            self.parts(form, row)
            self.spoilt.append(form)
        elif row and row.place != "stage" and head not in self.hidden:
            self.parts(form, row)
        else:
            self.call(form)

    def call(self, form: Seq) -> None:
        """An ordinary call: its keywords are the function's business, but a head that is data is refused here."""
        head = form.items[0]
        if isinstance(head, Literal | Keyword) or (isinstance(head, Seq) and head.bracket == "["):
            self.fault(
                c.CALL_FUNCTION,
                head.span,
                f"{show(head)} is not a function",
                hint="(list ...) makes a list, [ ... ] a vector",
            )
            self.spoilt.append(form)
        if head_of(form) == "list":
            before = len(self.faults)
            self.plist(form.items[1:])
            self.spoilt += [form] * (len(self.faults) > before)
        self.inner(*form.items)

    def plist(self, items: Sequence[Form]) -> None:
        """A list that can only be a plist, keyword and other value in turn, names each keyword once."""
        keys, values = items[::2], items[1::2]
        if (
            len(keys) == len(values)
            and all(isinstance(k, Keyword) for k in keys)
            and not any(isinstance(v, Keyword) for v in values)
        ):
            seen: dict[str, Keyword] = {}
            for key in keys:
                assert isinstance(key, Keyword)
                self.once(seen, key)

    def once(self, seen: dict[str, Keyword], key: Keyword) -> bool:
        if key.name in seen:
            self.fault(
                c.FORM_DUPLICATE,
                key.span,
                f":{key.name} is given twice",
                (seen[key.name].span, "it is given here first"),
            )
            return False
        seen[key.name] = key
        return True

    # ---- by the table

    def parts(self, form: Seq, row: Row) -> Parts:
        """Check ``form`` against ``row``, part by part; its inner expressions go to ``todo``."""
        made: dict[str, Any] = {}
        items, spoils = list(form.items[1:]), False
        for part in row.parts.split():
            before = len(self.faults)
            made |= PARTS[part](self, form, row, items)
            alone = row.place in ("top", "stage") and part in ("KEYS", "STAGE*")  # what else it says has a meaning
            spoils |= len(self.faults) > before and not alone
        self.spoilt += [form] * spoils
        if items and row.name != "defmodel":
            self.fault(
                c.FORM_SHAPE, items[0].span, f"{show(items[0])} is one too many in {row.name}", hint=row.signature()
            )
            self.inner(*items)
        return Parts(**made)

    def lacks(self, form: Seq, row: Row, what: str) -> None:
        self.fault(c.FORM_MISSING, form.items[0].span, f"{row.name} lacks {what}", hint=row.signature())

    def binding(self, symbol: Form, what: str) -> Symbol | None:
        """``symbol`` as a name that may be bound."""
        if not isinstance(symbol, Symbol):
            self.fault(c.FORM_SHAPE, symbol.span, f"{show(symbol)} is not a name for {what}")
        elif symbol.name in RESERVED or symbol.name.startswith("&"):
            self.fault(c.FORM_SHAPE, symbol.span, f"{symbol.name} is a word of the language and cannot name {what}")
        else:
            return symbol
        return None

    def distinct(self, names: Iterable[Symbol]) -> None:
        seen: dict[str, Symbol] = {}
        for name in names:
            if name.name in seen:
                self.fault(
                    c.NAME_TWICE,
                    name.span,
                    f"{name.name} is named twice",
                    (seen[name.name].span, "it is named here first"),
                )
            seen.setdefault(name.name, name)

    def params(self, form: Seq) -> Params:
        """A lambda list: names, then ``&key`` names and (name default)s, and ``&rest`` with one name."""
        names: list[Symbol] = []
        keys: list[tuple[Symbol, Form | None]] = []
        rest: list[Symbol] = []
        mode, seen = "", set()
        for item in form.items:
            if isinstance(item, Symbol) and item.name.startswith("&"):
                mode = self.marker(item, seen) or mode
            elif mode == "&key" and isinstance(item, Seq):
                keys += self.default(item)
            elif name := self.binding(item, "an argument"):
                {"": names, "&rest": rest}[mode].append(name) if mode != "&key" else keys.append((name, None))
        if {"&key", "&rest"} <= seen:
            self.fault(c.FORM_SHAPE, form.span, "a lambda list has &key or &rest, not both")
        if "&rest" in seen and len(rest) != 1:
            self.fault(c.FORM_SHAPE, form.span, f"&rest names one argument, not {len(rest)}")
        made = Params(tuple(names), tuple(keys), rest[0] if rest else None)
        self.distinct(made.symbols())
        return made

    def marker(self, item: Symbol, seen: set[str]) -> str:
        if item.name not in ("&key", "&rest"):
            hint = (
                "give &key arguments a default, (name default)"
                if item.name == "&optional"
                else closest(item.name, ("&key", "&rest"))
            )
            self.fault(c.FORM_SHAPE, item.span, f"{item.name} is not part of a lambda list", hint=hint)
        elif item.name in seen:
            self.fault(c.FORM_SHAPE, item.span, f"{item.name} stands twice in a lambda list")
        seen.add(item.name)
        return item.name if item.name in ("&key", "&rest") else ""

    def default(self, item: Seq) -> list[tuple[Symbol, Form | None]]:
        if item.bracket != "(" or len(item.items) != 2:
            self.fault(c.FORM_SHAPE, item.span, "a &key argument is written name or (name default)")
            return []
        name = self.binding(item.items[0], "an argument")
        self.inner(item.items[1])
        return [(name, item.items[1])] if name else []

    def keywords(self, form: Seq, row: Row, items: list[Form]) -> dict[str, Form]:
        """Take keywords and their values off the front of ``items``, in any order, each once."""
        found: dict[str, Form] = {}
        guessed: dict[str, Form] = {}
        seen: dict[str, Keyword] = {}
        body = "BODY" in row.parts.split()
        while items and (isinstance(items[0], Keyword) or not body):
            word = items.pop(0)
            if not isinstance(word, Keyword):
                self.fault(
                    c.FORM_SHAPE, word.span, f"{row.name} takes keywords here, not {show(word)}", hint=row.signature()
                )
                continue
            key, fresh = row.key(word.name), self.once(seen, word)
            if not items or (isinstance(items[0], Keyword) and row.key(items[0].name)):
                self.fault(row.fault or c.FORM_MISSING, word.span, f":{word.name} has no value")
                continue
            value = items.pop(0)
            if key is None:
                guessed[self.unknown(row, word)] = value
            elif fresh:
                found[key.name] = value
                self.literal(row, key, value)
            self.inner(value)
        for key in row.keys:
            if key.needed and key.name not in seen and key.name not in guessed:
                self.fault(row.fault or c.FORM_MISSING, form.items[0].span, f"{row.name} lacks :{key.name}, {key.doc}")
            if key.name not in found and (key.needed or key.name in guessed):
                found[key.name] = guessed.get(key.name, Absent(span=form.items[0].span))
        return found

    def unknown(self, row: Row, word: Keyword) -> str:
        """Add the fault; the keyword that was meant, or ""."""
        names = [key.name for key in row.keys]
        meant = nearest(word.name, names)
        hint = closest(word.name, names, ":") or f"its keywords are {' '.join(':' + n for n in names)}"
        if row.name == "defmodel" and word.name == "onnx":
            hint = "models cannot be read from ONNX files in this version"
        self.fault(row.fault or c.FORM_KEYWORD, word.span, f"{row.name} does not take :{word.name}", hint=hint)
        return meant

    def literal(self, row: Row, key: Key, value: Form) -> None:
        """The fault of a keyword's value that can be seen without evaluating it."""
        if key.kind.startswith("lambda"):
            wrong = not self.is_lambda(value, int(key.kind[-1]))
        elif key.kind == "name":
            wrong = not isinstance(value, Symbol)
        else:
            wrong = not is_open(value) and not LITERALS[key.kind](value)
        if wrong:
            code = c.GEN_TRIPS if key.kind == "trips" else row.fault or c.FORM_VALUE
            self.fault(code, value.span, f":{key.name} must be {KINDS[key.kind]}, not {describe(value)}")
            self.spoilt.append(value)

    def is_lambda(self, value: Form, count: int) -> bool:
        if (
            head_of(value) == "lambda"
            and isinstance(value, Seq)
            and len(value.items) > 1
            and isinstance(value.items[1], Seq)
        ):
            return Checker().params(value.items[1]).takes(count)
        return is_open(value)


def describe(form: Form) -> str:
    """``form`` for a message; a lambda by the number of its arguments."""
    if head_of(form) == "lambda" and isinstance(form, Seq) and isinstance(form.items[1], Seq):
        count = len(Checker().params(form.items[1]).names)
        return f"one of {count}"
    return show(form)
