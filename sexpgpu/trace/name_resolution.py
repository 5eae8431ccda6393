"""Names of a whole run file, looked up before anything is evaluated: one that is not defined is a fault wherever it
stands, in a function that nothing calls too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import define, field, frozen

from ..language import codes
from ..language.diagnostics import Report, UserError
from ..language.form_queries import Params, closest
from ..language.forms import Form, Keyword, Seq, Symbol
from ..language.grammar import FORMS, SPECIAL
from ..language.runfile import DEFINITIONS, RunFile, Top
from ..language.syntax import head_of, parse, parse_params
from ..ops import OPS
from .builtin_table import BUILTINS


def known_names(run: RunFile) -> set[str]:
    """What a name may mean where nothing around it binds it."""
    return {*run.definitions, *BUILTINS, *(n for n, row in OPS.items() if not row.internal), *SPECIAL, "model"}


def unknown(symbol: Symbol, known: Iterable[str]) -> UserError:
    """E-NAME-001 at ``symbol``, which is none of ``known``."""
    what = f"{symbol.name} is not defined"
    return UserError(codes.NAME_UNKNOWN, symbol.span, what, hint=closest(symbol.name, known))


def check_names(run: RunFile, report: Report) -> None:
    """Add E-NAME-001 for each name in the user's forms that means nothing, unless what defines it may have been left
    out for a fault of its own."""
    found = Finder(known_names(run), report)
    for form, params, body in reversed(list(roots(run))):
        guessed = named_in(form) if report.is_spoilt(form) else ()
        found.walk([*guessed, *within(params, body)])
    for symbol in found.run():
        if report.full:
            return
        report.add(unknown(symbol, (*found.known, *+found.local)))


def roots(run: RunFile) -> Iterator[tuple[Form, Params | None, Iterable[Form]]]:
    """The user's top-level forms, each with its expressions and the arguments around them."""
    for d in run.definitions.values():
        if not d.prelude:
            yield d.form, d.params, d.body
    tops = (run.generate, run.prepare, run.objective, run.optimizer, run.run)
    for top in (*(t for t in tops if t), *run.loaders.values(), *run.passes.values()):
        yield top.form, None, values(top)
        yield top.form, top.params, top.body
    for stage in run.curriculum.body if run.curriculum else ():
        if isinstance(stage, Seq) and head_of(stage) == "stage":
            yield stage, None, values(Top("stage", None, stage, parse(stage).keys, None, ()))


def values(top: Top) -> list[Form]:
    """The values of keywords that are expressions, not names of models and loaders."""
    kinds = {key.name: key.kind for key in FORMS[top.head].keys}
    return [form for key, form in top.keys.items() if kinds.get(key) != "name"]


def diagnostics_named(run: RunFile) -> set[str] | None:
    """Every diagnostic that the run's forms name; None where one is not named by a keyword as it stands."""
    out: set[str] = set()
    todo: list[Form] = [form for form, *_ in roots(run)]
    while todo:
        form = todo.pop()
        if isinstance(form, Seq):
            todo += form.items
        if head_of(form) == "diagnostic" and isinstance(form, Seq):
            if not isinstance(form.items[1], Keyword):
                return None
            out.add(form.items[1].name)
    return out


def named_in(form: Form) -> list[Bind]:
    """What a form with a fault may have named as its arguments."""
    lists = [item for item in form.items[1:3] if isinstance(item, Seq)] if isinstance(form, Seq) else []
    inner = [i for one in lists for item in one.items for i in (item.items if isinstance(item, Seq) else (item,))]
    return [Bind(item.name, 1) for item in inner if isinstance(item, Symbol)]


@frozen
class Bind:
    """From here on ``name`` is bound once more (``by`` 1), or once less (-1)."""

    name: str
    by: int


@define
class Finder:
    """Walks forms in the order of the text; linear, and as deep as the reader allows.

    todo:  what is still to be walked, the next one last
    local: how often each name is bound where the walk is
    """

    known: set[str]
    report: Report
    todo: list[Form | Bind] = field(factory=list)
    local: Counter[str] = field(factory=Counter)

    def run(self) -> Iterator[Symbol]:
        """Each symbol that means nothing; while it is looked at, ``local`` tells what is bound around it."""
        while self.todo:
            form = self.todo.pop()
            if isinstance(form, Bind):
                self.local[form.name] += form.by
            elif self.report.is_spoilt(form):
                continue
            elif isinstance(form, Seq):
                self.walk(self.expression(form))
            elif isinstance(form, Symbol) and not self.means(form.name):
                yield form

    def means(self, name: str) -> bool:
        """Is it bound, defined, or perhaps defined by what was left out?"""
        return bool(self.local[name]) or name in self.known or self.report.may_be_lost(name, *DEFINITIONS)

    def walk(self, steps: Iterable[Form | Bind]) -> None:
        """These are next. What they bind is bound within them alone."""
        steps = list(steps)
        self.todo += [Bind(step.name, -1) for step in steps if isinstance(step, Bind)]
        self.todo += reversed(steps)

    def expression(self, form: Seq) -> Iterable[Form | Bind]:
        head = head_of(form)
        if head in ("let", "let*"):
            return bindings(form, head == "let*")
        if head == "lambda":
            params = form.items[1]
            assert isinstance(params, Seq)
            return within(parse_params(params), form.items[2:])
        if head == "cond":
            return [item for clause in form.items[1:] for item in self.row(clause)]
        if head == "->":
            return [*form.items[1:2], *(item for stage in form.items[2:] for item in self.row(stage))]
        return form.items[1:] if head in SPECIAL else form.items

    def row(self, form: Form) -> tuple[Form, ...]:
        """The expressions of a clause of cond, or of a call of -> that lacks its first argument."""
        whole = isinstance(form, Seq) and form.bracket == "(" and not self.report.is_spoilt(form)
        return form.items if whole else (form,)  # type: ignore[union-attr]


def within(params: Params | None, body: Iterable[Form]) -> Iterator[Form | Bind]:
    """A body within a lambda list, whose defaults see the names before them."""
    for symbol in params.names if params else ():
        yield Bind(symbol.name, 1)
    for symbol, default in params.keys if params else ():
        if default is not None:
            yield default
        yield Bind(symbol.name, 1)
    if params and params.rest:
        yield Bind(params.rest.name, 1)
    yield from body


def bindings(form: Seq, in_turn: bool) -> Iterator[Form | Bind]:
    """A let, or a let*, whose values see the names before them."""
    pairs, later = form.items[1], []
    assert isinstance(pairs, Seq)
    for pair in pairs.items:
        assert isinstance(pair, Seq) and isinstance(pair.items[0], Symbol)
        yield pair.items[1]
        later.append(Bind(pair.items[0].name, 1))
        if in_turn:
            yield later.pop()
    yield from later
    yield from form.items[2:]
