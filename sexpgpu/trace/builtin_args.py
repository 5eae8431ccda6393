"""What every function of the language is declared with, and what its arguments must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.core import Value
from ..language import codes
from ..language.diagnostics import UserError
from .builtin_table import BUILTINS, Builtin, Tracer
from .operator_call import ABSENT
from .values import Call, Key, describe


def builtin(signature: str, least: int, most: int | None = -1, passes: str = ""):
    """Register the decorated function; ``most`` is ``least`` unless given."""

    def add(function: Callable[[Tracer, Call], Any]):
        name = signature[1:].split()[0].rstrip(")")
        doc = function.__doc__ or ""
        BUILTINS[name] = Builtin(name, function, least, least if most == -1 else most, signature, doc, passes)
        return function

    return add


def need(call: Call, at: int, fits: bool, what: str) -> Any:
    """Argument ``at``, if it fits; E-CALL-004 otherwise. So are the four below; nil is an empty list."""
    if not fits:
        hint = ABSENT if call.args[at] is None else ""
        what = f"{call.name} needs {what}, not {describe(call.args[at])}"
        raise UserError(codes.CALL_VALUE, call.spans[at], what, hint=hint)
    return call.args[at]


def need_list(call: Call, at: int) -> tuple[Any, ...]:
    value = call.args[at]
    return need(call, at, value is None or isinstance(value, tuple), "a list") or ()


def need_int(call: Call, at: int) -> int:
    value = call.args[at]
    return need(call, at, isinstance(value, int) and not isinstance(value, bool), "an integer")


def need_tensor(call: Call, at: int) -> Value:
    return need(call, at, isinstance(call.args[at], Value), "a tensor")


def need_key(call: Call, at: int) -> str:
    return need(call, at, isinstance(call.args[at], Key), "a keyword").name
