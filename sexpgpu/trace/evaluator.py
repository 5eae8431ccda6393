"""The evaluator: a lambda of the run file, called on symbolic tensors, makes the values of one graph.

A fault inside a binding, an argument or a body form is reported and its value becomes POISON, so that one trace
reports every independent fault of a body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..graph.core import Builder, GraphFull, Value
from ..language import codes
from ..language.diagnostics import UserError
from ..language.form_queries import head_of
from ..language.forms import Absent, Form, Keyword, Literal, Seq, Symbol
from ..language.source import Span
from ..language.syntax import Params
from ..ops import OPS
from ..ops.types import TensorType
from .argument_counts import are_too_many, check_count, unread
from .builtin_table import BUILTINS, Builtin
from .name_resolution import known_names, unknown
from .operator_call import bind, call_operator
from .random_draws import DrawBuilder, places
from .special_forms import SPECIAL
from .values import (
    MISSING,
    POISON,
    Call,
    Closure,
    Env,
    Key,
    Model,
    Operator,
    Poisoned,
    Reported,
    Scope,
    StepMean,
    any_poison,
    describe,
)
from .world import World

if TYPE_CHECKING:
    from ..language.runfile import Definition

MAX_DEPTH = 1200  # nested evaluations
RECURSION = 16_000  # Python frames: about nine a nested evaluation, and room
MAX_STEPS = 3_000_000  # evaluations in one graph
FAULTY_STEPS = 25_000  # in all graphs, once there is a fault: then no more is looked at; the largest example has 8,000
OPERATORS = {name: Operator(row) for name, row in OPS.items() if not row.internal}


class TooFar(UserError):
    """No more of this graph is looked at: it would go too far again, and again."""


@define(eq=False)
class Tracer:
    """One graph in the making.

    form:   what its draws are keyed by, and what messages call it ("generate.init")
    role:   settings, init, generate, prepare, objective, pass or update: what the body may do (builtins.py asks)
    inputs: (kind, name) -> the graph's input, made when it is first read
    """

    world: World
    form: str
    role: str
    inputs: dict[tuple[str, str], Value] = field(factory=dict)
    metrics: dict[str, tuple[Value | StepMean, Span]] = field(factory=dict)
    diagnostics: dict[str, tuple[Value, Span]] = field(factory=dict)
    counters: dict[str, tuple[Value, Span]] = field(factory=dict)
    builder: DrawBuilder = field(init=False)
    scope: Scope | None = None
    globals: dict[str, Any] = field(factory=dict)
    depth: int = 0
    steps: int = 0
    regions: int = 0

    def __attrs_post_init__(self) -> None:
        seed = self.inputs.setdefault(("seed", ""), Builder().input("seed:", TensorType((2,), "u32")))
        self.builder = DrawBuilder(seed, places(self.form))

    @property
    def in_bf16(self) -> bool:
        """Is it model code that is traced, of a run under :bf16?"""
        return self.world.precision == "bf16" and self.scope is not None

    # -- inputs and faults -------------------------------------------------------------------------------------

    def port(self, kind: str, name: str, type: TensorType) -> Value:
        """The graph's input of that kind and name."""
        key = (kind, name)
        if key not in self.inputs:
            self.inputs[key] = self.builder.input(f"{kind}:{name}", type)
        return self.inputs[key]

    def attempt(self, form: Form, env: Env | None) -> Any:
        """The form's value, or POISON with its fault in the report. A prelude fault goes on to the user's call."""
        try:
            return self.evaluate(form, env)
        except UserError as error:
            return self.found(error, form.span)

    def guarded(self, span: Span, make: Callable[..., Any], /, *args: Any, **more: Any) -> Any:
        """``make(*args)``, or POISON with its fault in the report; in the prelude, the fault goes on."""
        try:
            return make(*args, **more)
        except UserError as error:
            return self.found(error, span)

    def found(self, error: UserError, span: Span) -> Any:
        """POISON for what has the fault ``error`` and stands at ``span``; to be called where that is handled."""
        if in_prelude(span):
            raise error
        self.world.fault(error, self.form)
        if isinstance(error, TooFar):
            raise Reported from None
        return POISON

    # -- evaluation ----------------------------------------------------------------------------------------------

    def evaluate(self, form: Form, env: Env | None) -> Any:
        world = self.world
        if isinstance(form, Absent) or id(form) in world.report.spoilt:
            return POISON
        if isinstance(form, Symbol):
            return self.lookup(form, env)
        if isinstance(form, Literal):
            return form.value
        if isinstance(form, Keyword):
            return Key(form.name)
        assert isinstance(form, Seq)
        if self.depth > MAX_DEPTH or self.steps > MAX_STEPS:
            what = "nests" if self.depth > MAX_DEPTH else "expands"
            raise TooFar(codes.FORM_LIMIT, form.span, f"evaluation {what} too far: does this call itself?")
        if world.steps > FAULTY_STEPS and world.report:
            raise Reported
        self.depth += 1
        self.steps += 1
        world.steps += 1
        try:
            return self.evaluate_seq(form, env)
        finally:
            self.depth -= 1

    def evaluate_seq(self, form: Seq, env: Env | None) -> Any:
        if form.bracket == "[":
            values = tuple([self.attempt(item, env) for item in form.items])  # a generator takes twice as long
            return POISON if POISON in values else values
        if not form.items:
            return ()
        head, rest = form.items[0], form.items[1:]
        if isinstance(head, Symbol) and head.name in SPECIAL:  # syntax.py lets nothing else have such a name
            return SPECIAL[head.name](self, form, env)
        function = self.evaluate(head, env)
        return self.call_form(function, form, rest, env)

    def call_form(self, function: Any, form: Form, items: Sequence[Form], env: Env | None, *first: Any) -> Any:
        """``function`` on ``first`` and the values of ``items``, by the call ``form``. That they are too many is told
        before they are looked at: with a fault known, that goes so far and no further."""
        name = head_of(form) or (form.name if isinstance(form, Symbol) else "the function")
        spans = (*[form.span for _ in first], *[item.span for item in items])
        too_many = are_too_many(function, len(spans))
        if too_many:
            self.guarded(form.span, self.apply, function, Call(name, form.span, (*first, *map(unread, items)), spans))
        args = (*first, *[self.attempt(item, env) for item in items])
        return POISON if too_many else self.apply(function, Call(name, form.span, args, spans))

    def lookup(self, symbol: Symbol, env: Env | None) -> Any:
        local = env.find(symbol.name) if env else MISSING
        if local is not MISSING:
            return local
        if symbol.name not in self.globals:
            self.globals[symbol.name] = self.resolve(symbol, env)
        value = self.globals[symbol.name]
        if value is MISSING:
            raise UserError(codes.FORM_LIMIT, symbol.span, f"{symbol.name} needs itself")
        return value

    def resolve(self, symbol: Symbol, env: Env | None) -> Any:
        name = symbol.name
        definition = self.world.run.definitions.get(name)
        if definition:
            return self.define(definition)
        if name == "model" and self.world.model:
            return self.world.model
        if name in BUILTINS:
            return BUILTINS[name]
        if name in OPERATORS:
            return OPERATORS[name]
        if not self.world.report:  # else name_resolution.py has told it, or what defines it has a fault
            local = env.all_names() if env else ()
            self.world.fault(unknown(symbol, {*known_names(self.world.run), *local} - {name}), self.form)
        return POISON

    def define(self, definition: Definition) -> Any:
        form = definition.form
        if self.world.report.is_spoilt(form):
            return POISON
        if definition.kind == "defmodel":
            return self.world.parameters.model(definition)
        if definition.kind == "defun":
            return self.world.function(definition)
        self.globals[definition.name] = MISSING  # until it is known: what needs it before that needs itself
        with self.in_scope(None):  # a def stands outside every model, whoever reads it first
            return self.attempt(definition.body[-1], None)

    # -- calls ---------------------------------------------------------------------------------------------------

    def apply(self, function: Any, call: Call) -> Any:
        """The value of ``function`` on the evaluated arguments of ``call``."""
        self.builder.span = call.span
        try:
            if self.world.report and (function is POISON or any_poison(call.args, self.world.sound)):
                return self.apply_to_poison(function, call)
            return self.dispatch(function, call)
        except GraphFull as fault:
            raise TooFar(codes.FORM_LIMIT, call.span, str(fault)) from None

    def dispatch(self, function: Any, call: Call) -> Any:
        if isinstance(function, Operator):
            return call_operator(self, function.row, call)
        if isinstance(function, Builtin):
            return self.apply_builtin(function, call)
        if isinstance(function, Closure):
            scope = function.scope
            inside = self.scope is not None and scope is not None and self.scope.model is scope.model
            return self.run_body(function, call, function.env, self.scope if scope is None or inside else scope)
        if isinstance(function, Model):
            return self.run_body(function, call, None, Scope(function, (function.name,)))
        raise UserError(codes.CALL_FUNCTION, call.span, f"{call.name} is {describe(function)}, not a function")

    def apply_to_poison(self, function: Any, call: Call) -> Any:
        """The value of a call with an argument that has a fault. What is written in the language is gone through all
        the same, for its own faults and for what does not depend on that argument; and lists hand it on. Of all else
        only the way it is called is looked at."""
        direct = any(a is POISON for a in call.args)
        try:
            if isinstance(function, Builtin):
                passes = function.passes == "all" or (function.passes == "lists" and not direct)
                return self.apply_builtin(function, call) if passes else check_count(function, call)
            if isinstance(function, Operator):
                bind(function.row, call)
            elif function is not POISON:
                return self.dispatch(function, call)
        except Poisoned:
            pass
        return POISON

    def apply_builtin(self, function: Builtin, call: Call) -> Any:
        check_count(function, call)
        return function.call(self, call)

    def run_body(self, function: Closure | Model, call: Call, env: Env | None, scope: Scope | None) -> Any:
        local = self.bind(function, call, env)
        try:
            with self.in_scope(scope):
                return self.body(function.body, local)
        except UserError as error:
            if error.span is None or not in_prelude(error.span) or in_prelude(call.span):
                raise
            note = (error.span, f"{call.name} does it here")
            raise type(error)(error.code, call.span, error.message, note, *error.notes, hint=error.hint) from None

    def body(self, forms: Sequence[Form], env: Env | None) -> Any:
        """Every form in turn; the value of the last. What is said again to no effect is passed over."""
        idle = None
        for form in forms[:-1]:
            if form.span.text != idle:
                left = self.left()
                self.attempt(form, env)
                idle = form.span.text if self.left() == left else None
        return self.evaluate(forms[-1], env)

    def left(self) -> tuple[int, ...]:
        """Changes with all that evaluation leaves behind but values, parameters and inputs, which may be met again."""
        report, drawn = self.world.report, self.builder
        grown = (self.metrics, self.diagnostics, self.counters, drawn.undrawn, report.errors, report.warnings)
        return (*map(len, grown), drawn.last, self.regions)

    @contextmanager
    def in_scope(self, scope: Scope | None):
        kept, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = kept

    def call(self, function: Any, *args: Any, span: Span) -> Any:
        """``function`` called by the compiler itself, at ``span``."""
        return self.apply(function, Call("the function", span, args, (span,) * len(args)))

    def bind(self, function: Closure | Model, call: Call, env: Env | None) -> Env:
        p, name = function.params, function.name or "lambda"
        n = len(p.names)
        if len(call.args) < n or (len(call.args) > n and not p.keys and p.rest is None):
            raise UserError(
                codes.CALL_COUNT,
                call.span,
                f"{name} takes {n} arguments and got {len(call.args)}",
                (function.span, f"{name} is defined here"),
                hint=p.signature(name),
            )
        names: dict[str, Any] = {s.name: v for s, v in zip(p.names, call.args, strict=False)}
        if p.rest is not None:
            return Env({**names, p.rest.name: call.args[n:]}, env)
        return self.bind_keys(p, names, call, n, name, env)

    def bind_keys(self, p: Params, names: dict[str, Any], call: Call, at: int, name: str, env: Env | None) -> Env:
        takes = {s.name for s, _ in p.keys}
        while at < len(call.args):
            word = call.args[at]
            if word is POISON:
                raise Poisoned
            if not isinstance(word, Key) or word.name not in takes:
                raise UserError(
                    codes.CALL_KEYWORD, call.spans[at], f"{name} does not take {describe(word)}", hint=p.signature(name)
                )
            if at + 1 == len(call.args):
                what = f":{word.name} has no value"
                raise UserError(codes.CALL_KEYWORD, call.spans[at], what, hint=p.signature(name))
            if word.name in names:
                raise UserError(codes.FORM_DUPLICATE, call.spans[at], f":{word.name} is given twice")
            names[word.name] = call.args[at + 1]
            at += 2
        made = Env(dict(names), env)
        for symbol, default in p.keys:
            if symbol.name not in names:
                value = self.evaluate(default, made) if default is not None else None
                made = Env({symbol.name: value}, made)
        return made


def in_prelude(span: Span) -> bool:
    """Is it a place in the language's own files? A fault there is reported at the call in the user's file."""
    return span.source.name.startswith("prelude/")
