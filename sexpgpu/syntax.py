"""Checks forms against the FORMS table, every fault of a form in one go, and takes checked forms apart."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

from attrs import define, field, frozen

from . import codes as c
from .diagnostics import MAX_FAULTS, Code, Report, UserError, shorten
from .forms import Form, Keyword, Literal, Seq, Symbol
from .grammar import FORMS, FUNCTION, KINDS, MAX_COUNT, RESERVED, TOP, Key, Row
from .source import Span

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


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


def split_body(items: Sequence[Form]) -> tuple[str | None, tuple[Form, ...]]:
    """The docstring, which stands first in a body of several forms, and the forms."""
    if len(items) > 1 and isinstance(items[0], Literal) and isinstance(items[0].value, str):
        return items[0].value, tuple(items[1:])
    return None, tuple(items)


def parse_params(form: Seq) -> Params:
    """The lambda list of a checked form."""
    return Checker(Report()).params(form)


def parse(form: Seq) -> Parts:
    """A checked form of the FORMS table, taken apart."""
    return Checker(Report()).parts(form, FORMS[head_of(form)])


def check(form: Form, report: Report, top: bool = True) -> None:
    """Add every fault of ``form`` to ``report``; ``top``: it stands at top level, else it is an expression."""
    checker = Checker(report)
    if top:
        checker.top(form)
    else:
        checker.todo.append((form, frozenset()))
    checker.run()


def closest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """``did you mean X?``, or ""."""
    close = difflib.get_close_matches(name, sorted(names), 1)
    return f"did you mean {prefix}{close[0]}?" if close else ""


def show(form: Form) -> str:
    """A form for a message, in a few words."""
    if isinstance(form, Seq):
        return f"a vector of {len(form.items)}" if form.bracket == "[" else f"the list ({head_of(form)} ...)" if form.items else "()"
    if isinstance(form, Literal):
        value = form.value
        words = {None: "nil", True: "true", False: "false"}
        return words[value] if value is None or isinstance(value, bool) else shorten(repr(value) if not isinstance(value, str) else f'"{value}"')
    return f":{form.name}" if isinstance(form, Keyword) else getattr(form, "name", "this")


@define
class Checker:
    """``todo``: expressions still to be checked, each with the locally bound names that hide a function of the table."""

    report: Report
    todo: list[tuple[Form, frozenset[str]]] = field(factory=list)
    hidden: frozenset[str] = frozenset()

    def run(self) -> None:
        """Iterative: a form may be as deep as the reader allows. Faults come in the order of the text."""
        while self.todo and len(self.report.errors) < MAX_FAULTS:
            form, self.hidden = self.todo.pop()
            if isinstance(form, Seq):
                before = len(self.todo)
                self.expression(form)
                self.todo[before:] = self.todo[: before - 1 if before else None : -1]

    def fault(self, code: Code, span: Span, message: str, *notes: tuple[Span, str], hint: str = "") -> None:
        if len(self.report.errors) < MAX_FAULTS:
            self.report.add(UserError(code, span, message, *notes, hint=hint))

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
            self.fault(c.FORM_TOP, form.span, message, hint=closest(head, TOP) or f"top-level forms are {' '.join(TOP)}")
        else:
            self.fault(c.FORM_TOP, form.span, f"{show(form)} does not stand at top level", hint="a run file is a row of (def...) forms")

    def expression(self, form: Seq) -> None:
        head = head_of(form)
        row = FORMS.get(head)
        if form.bracket == "[" or not form.items:
            self.inner(*form.items)
        elif row and row.place == "top":
            self.fault(c.FORM_TOP, form.items[0].span, f"{head} stands at top level only", hint="is a bracket missing before it?")
            self.parts(form, row)
        elif row and row.place != "stage" and head not in self.hidden:
            self.parts(form, row)
        else:
            self.call(form)

    def call(self, form: Seq) -> None:
        """An ordinary call: its keywords are the function's business, but a head that is data is refused here."""
        head = form.items[0]
        if isinstance(head, Literal | Keyword) or (isinstance(head, Seq) and head.bracket == "["):
            self.fault(c.CALL_FUNCTION, head.span, f"{show(head)} is not a function", hint="(list ...) makes a list, [ ... ] a vector")
        if head_of(form) == "list":
            self.plist(form.items[1:])
        self.inner(*form.items)

    def plist(self, items: Sequence[Form]) -> None:
        """A list that can only be a plist, keyword and other value in turn, names each keyword once."""
        keys, values = items[::2], items[1::2]
        if len(keys) == len(values) and all(isinstance(k, Keyword) for k in keys) and not any(isinstance(v, Keyword) for v in values):
            seen: dict[str, Keyword] = {}
            for key in keys:
                assert isinstance(key, Keyword)
                self.once(seen, key)

    def once(self, seen: dict[str, Keyword], key: Keyword) -> bool:
        if key.name in seen:
            self.fault(c.FORM_DUPLICATE, key.span, f":{key.name} is given twice", (seen[key.name].span, "it is given here first"))
            return False
        seen[key.name] = key
        return True

    # ---- by the table

    def parts(self, form: Seq, row: Row) -> Parts:
        """Check ``form`` against ``row``, part by part; its inner expressions go to ``todo``."""
        made: dict[str, object] = {}
        items = list(form.items[1:])
        for part in row.parts.split():
            made |= PARTS[part](self, form, row, items)
        if items and row.name != "defmodel":
            self.fault(c.FORM_SHAPE, items[0].span, f"{show(items[0])} is one too many in {row.name}", hint=row.signature())
            self.inner(*items)
        return Parts(**made)  # type: ignore[arg-type]

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
                self.fault(c.NAME_TWICE, name.span, f"{name.name} is named twice", (seen[name.name].span, "it is named here first"))
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
        if "&rest" in seen and len(rest) != 1:
            self.fault(c.FORM_SHAPE, form.span, f"&rest names one argument, not {len(rest)}")
        made = Params(tuple(names), tuple(keys), rest[0] if rest else None)
        self.distinct(made.symbols())
        return made

    def marker(self, item: Symbol, seen: set[str]) -> str:
        if item.name not in ("&key", "&rest"):
            hint = "give &key arguments a default, (name default)" if item.name == "&optional" else closest(item.name, ("&key", "&rest"))
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
        seen: dict[str, Keyword] = {}
        body = "BODY" in row.parts.split()
        while items and (isinstance(items[0], Keyword) or not body):
            word = items.pop(0)
            if not isinstance(word, Keyword):
                self.fault(c.FORM_SHAPE, word.span, f"{row.name} takes keywords here, not {show(word)}", hint=row.signature())
                continue
            key, fresh = row.key(word.name), self.once(seen, word)
            if not items or (isinstance(items[0], Keyword) and row.key(items[0].name) and not (key and key.kind in ("value", "precision"))):
                self.fault(row.fault or c.FORM_MISSING, word.span, f":{word.name} has no value")
                continue
            value = items.pop(0)
            if key is None:
                self.unknown(row, word)
            elif fresh:
                found[key.name] = value
                self.literal(row, key, value)
            self.inner(value)
        for key in row.keys:
            if key.needed and key.name not in seen:
                self.fault(row.fault or c.FORM_MISSING, form.items[0].span, f"{row.name} lacks :{key.name}, {key.doc}")
        return found

    def unknown(self, row: Row, word: Keyword) -> None:
        names = [key.name for key in row.keys]
        hint = closest(word.name, names, ":") or (f"its keywords are {' '.join(':' + n for n in names)}" if names else "it has none")
        if row.name == "defmodel" and word.name == "onnx":
            hint = "models cannot be read from ONNX files in this version"
        self.fault(row.fault or c.FORM_KEYWORD, word.span, f"{row.name} does not take :{word.name}", hint=hint)

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

    def is_lambda(self, value: Form, count: int) -> bool:
        if head_of(value) == "lambda" and isinstance(value, Seq) and len(value.items) > 1 and isinstance(value.items[1], Seq):
            return Checker(Report()).params(value.items[1]).takes(count)
        return is_open(value)


def is_open(form: Form) -> bool:
    """Whether only evaluation tells what ``form`` is."""
    return isinstance(form, Symbol) or (isinstance(form, Seq) and form.bracket == "(" and bool(form.items))


def describe(form: Form) -> str:
    if head_of(form) == "lambda" and isinstance(form, Seq) and isinstance(form.items[1], Seq):
        count = len(Checker(Report()).params(form.items[1]).names)
        return f"one of {count}"
    return show(form)


def in_range(low: int, high: int) -> Callable[[Form], bool]:
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


# ---- one function a part: (checker, form, row, items left) -> entries of Parts. It takes what it reads off ``items``.

Part = Callable[[Checker, Seq, Row, list[Form]], dict[str, object]]


def take_name(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    if not items or isinstance(items[0], Keyword):
        k.lacks(form, row, "a name")
        return {}
    name = k.binding(items.pop(0), f"a {row.name.removeprefix('def')}" if row.name != "def" else "a value")
    return {"name": name.name} if name else {}


def take_word(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    where = items[0].span if items else form.span
    made = take_name(k, form, row, items)
    if made and not WORD.fullmatch(str(made["name"])):
        k.fault(c.FORM_SHAPE, where, f"{made['name']} cannot name a {row.name.removeprefix('def')}", hint="it is written with A-Z a-z 0-9 _ . - alone")
    return made


def take_params(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    if row.name == "defmodel" and items and isinstance(items[0], Keyword) and items[0].name == "onnx":
        return {}
    if not items or not isinstance(items[0], Seq) or items[0].bracket != "(":
        k.lacks(form, row, "its arguments, a list of names")
        return {}
    params = items.pop(0)
    assert isinstance(params, Seq)
    return {"params": k.params(params)}


def take_params2(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    made = take_params(k, form, row, items)
    params = made.get("params")
    if isinstance(params, Params) and not params.takes(2):
        k.fault(c.FORM_SHAPE, form.items[1].span, f"{row.name} has 2 arguments, not {len(params.names)}", hint=row.signature())
    return made


def take_body(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    """A docstring if several forms follow, then one form or more."""
    if not items:
        if not any(isinstance(item, Keyword) and item.name == "onnx" for item in form.items[2:3]):
            k.lacks(form, row, "a body")
        return {}
    doc, body = split_body(items)
    for at, item in enumerate(body[:-1]):
        if isinstance(item, Keyword) and at == 0 and row.keys:
            k.fault(c.FORM_SHAPE, item.span, f"the keywords of {row.name} stand before its body and docstring", hint=row.signature())
    items.clear()
    k.inner(*body, bind=bound(form))
    return {"doc": doc, "body": body}


def bound(form: Seq) -> list[Symbol]:
    """Names that a checked form binds for its body: those of its lambda list or of its bindings."""
    lists = [item for item in form.items[1:3] if isinstance(item, Seq) and item.bracket == "("][:1]
    names = [n.items[0] if isinstance(n, Seq) and n.items else n for one in lists for n in one.items]
    return [n for n in names if isinstance(n, Symbol)]


def take_value(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    if not items:
        k.lacks(form, row, f"a value after {show(form.items[-1])}")
        return {}
    k.inner(items[0])
    return {"body": (items.pop(0),)}


def take_optional(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    return take_value(k, form, row, items) if items else {}


def take_values(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    k.inner(*items)
    items.clear()
    return {}


def take_text(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    if not items:
        k.lacks(form, row, "a path, a string")
        return {}
    text = items.pop(0)
    if not isinstance(text, Literal) or not isinstance(text.value, str):
        k.fault(c.FORM_SHAPE, text.span, f"{row.name} takes a path, a string, not {show(text)}", hint=row.signature())
        return {}
    return {"body": (text,)}


def take_bindings(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
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


def take_clauses(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    for clause in items:
        if not isinstance(clause, Seq) or clause.bracket != "(" or not clause.items:
            k.fault(c.FORM_SHAPE, clause.span, "a clause of cond is written (TEST VALUE)", hint=row.signature())
            continue
        k.inner(*clause.items)
    items.clear()
    return {}


def take_calls(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    """What ``->`` threads through: names of functions, and calls that lack their first argument."""
    for stage in items:
        head = head_of(stage) or (stage.name if isinstance(stage, Symbol) else "")
        if head in RESERVED:
            k.fault(c.FORM_SHAPE, stage.span, f"-> threads through calls, and {head} is not a function", hint="name a function with let* or defun")
        elif isinstance(stage, Symbol):
            continue
        elif isinstance(stage, Seq) and stage.bracket == "(" and stage.items:
            k.inner(*stage.items)
        else:
            k.fault(c.FORM_SHAPE, stage.span, f"-> threads through calls, not {show(stage)}", hint=row.signature())
    items.clear()
    return {}


def take_stages(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
    stages, names = tuple(items), []
    items.clear()
    for stage in stages:
        if head_of(stage) != "stage" or not isinstance(stage, Seq):
            k.fault(c.FORM_SHAPE, stage.span, f"a curriculum is a row of (stage NAME ...), not {show(stage)}", hint=row.signature())
            continue
        parts = k.parts(stage, FORMS["stage"])
        names += [s for s in stage.items[1:2] if isinstance(s, Symbol)]
        if len({"steps", "records"} & set(parts.keys)) != 1:
            k.fault(c.FORM_MISSING, stage.items[0].span, "a stage has one of :steps and :records", hint=FORMS["stage"].signature())
    if not stages:
        k.lacks(form, row, "a stage")
    k.distinct(names)
    return {"body": stages}


def take_keys(k: Checker, form: Seq, row: Row, items: list[Form]) -> dict[str, object]:
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
