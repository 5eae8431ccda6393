"""The functions of the language that are written in Python, and what they ask of the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from attrs import frozen

from ..graph.core import Value
from ..language.forms import Form
from ..language.source import Span
from ..ops.types import TensorType
from .random_draws import DrawBuilder
from .values import Call, Env, Function, Scope, StepMean
from .world import World


class Tracer(Protocol):
    """What special forms, functions and operators ask of ``evaluator.Tracer``, where its members are explained."""

    world: World
    form: str
    role: str
    inputs: dict[tuple[str, str], Value]
    metrics: dict[str, tuple[Value | StepMean, Span]]
    diagnostics: dict[str, tuple[Value, Span]]
    counters: dict[str, tuple[Value, Span]]
    builder: DrawBuilder
    scope: Scope | None
    regions: int

    @property
    def in_bf16(self) -> bool: ...
    def port(self, kind: str, name: str, type: TensorType) -> Value: ...
    def attempt(self, form: Form, env: Env | None) -> Any: ...
    def guarded(self, span: Span, make: Callable[..., Any], /, *args: Any, **more: Any) -> Any: ...
    def evaluate(self, form: Form, env: Env | None) -> Any: ...
    def apply(self, function: Any, call: Call) -> Any: ...
    def body(self, forms: Sequence[Form], env: Env | None) -> Any: ...
    def in_scope(self, scope: Scope | None) -> AbstractContextManager[None]: ...
    def call(self, function: Any, *args: Any, span: Span) -> Any: ...


@frozen(eq=False)
class Builtin(Function):
    """A function of the language written in Python: ``least`` to ``most`` arguments (None: any number)."""

    name: str
    call: Callable[[Tracer, Call], Any]
    least: int
    most: int | None
    signature: str
    doc: str
    passes: str = ""  # "lists": it takes lists of values that have a fault, "all": such values too


BUILTINS: dict[str, Builtin] = {}  # filled by builtins.py
