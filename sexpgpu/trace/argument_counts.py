"""How many arguments a function takes."""

from __future__ import annotations

import math
from typing import Any

from ..language import codes
from ..language.diagnostics import UserError
from ..language.forms import Form, Keyword
from .builtin_table import Builtin
from .values import POISON, Call, Closure, Key, Model, Operator

FEW = 16  # arguments, that are looked at even if they are too many


def check_count(function: Builtin, call: Call) -> Any:
    """E-CALL-001 for the wrong number of arguments; the answer is POISON, for a call that goes no further."""
    n = len(call.args)
    if n < function.least or (function.most is not None and n > function.most):
        raise UserError(codes.CALL_COUNT, call.span, f"{function.name} got {n} arguments", hint=function.signature)
    return POISON


def most(function: Any) -> float:
    """A call with more arguments has a fault, whatever they are. Infinity where what they are decides."""
    if isinstance(function, Builtin) and function.most is not None:
        return function.most
    if isinstance(function, Operator) and all(a.kind != "tensors" for a in function.row.args):
        return sum(1 + a.key for a in function.row.args)
    if isinstance(function, Closure | Model) and not function.params.keys and function.params.rest is None:
        return len(function.params.names)
    return math.inf


def are_too_many(function: Any, count: int) -> bool:
    """Is it certain, before any is looked at, that ``count`` arguments, and not just a few, are too many?"""
    return count > FEW and count > most(function)


def unread(item: Form) -> Key | None:
    """An argument before it is looked at: what of it decides whether there are too many."""
    return Key(item.name) if isinstance(item, Keyword) else None
