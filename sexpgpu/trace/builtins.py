"""The functions of the language that are not operators: lists, plists, shapes, parameters, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.core import Value
from ..language import codes
from ..language.diagnostics import UserError
from ..ops import OPS
from . import builtin_reports  # noqa: F401  (fills BUILTINS)
from .builtin_args import builtin, need, need_int, need_key, need_list, need_tensor
from .builtin_table import BUILTINS, Builtin, Tracer
from .operator_call import build
from .values import MISSING, Call, Function, Key, Lookup, is_number

MAX_LIST = 100_000  # elements of a list
MAX_TEXT = 100_000  # characters of a text


# -- lists -------------------------------------------------------------------------------------------------------


@builtin("(list value...)", 0, None, passes="all")
def list_(t: Tracer, call: Call) -> Any:
    """A list of the values; with keywords between, a plist."""
    return call.args


@builtin("(getf plist :key default)", 2, 3, passes="lists")
def getf(t: Tracer, call: Call) -> Any:
    """The value after the keyword in a plist, or the default, or nil. Reads a ctx in the same way."""
    source, name = call.args[0], need_key(call, 1)
    default = call.args[2] if len(call.args) > 2 else None
    if isinstance(source, Lookup):
        if source.title != "ctx":
            raise UserError(codes.CALL_VALUE, call.spans[0], "the batch is not a plist", hint=f"(field batch :{name})")
        value = source.read(name, call.span)
    else:
        items = need_list(call, 0)
        pairs = zip(items[::2], items[1::2], strict=False)
        value = next((v for k, v in pairs if isinstance(k, Key) and k.name == name), MISSING)
    return default if value is MISSING else value


@builtin("(first list)", 1, passes="lists")
def first(t: Tracer, call: Call) -> Any:
    """The first element, or nil."""
    items = need_list(call, 0)
    return items[0] if items else None


@builtin("(rest list)", 1, passes="lists")
def rest(t: Tracer, call: Call) -> Any:
    """The list without its first element."""
    return need_list(call, 0)[1:]


@builtin("(nth index list)", 2, passes="lists")
def nth(t: Tracer, call: Call) -> Any:
    """The element at ``index``, counted from 0; negative counts from the end."""
    at, items = need_int(call, 0), need_list(call, 1)
    need(call, 0, -len(items) <= at < len(items), f"an index below the list's length, {len(items)}")
    return items[at]


@builtin("(length list)", 1, passes="lists")
def length(t: Tracer, call: Call) -> Any:
    """The number of elements."""
    return len(need_list(call, 0))


def limited(call: Call, fits: bool, what: str) -> None:
    """E-FORM-005 where a call would make more than a trace can hold."""
    if not fits:
        raise UserError(codes.FORM_LIMIT, call.span, f"{call.name} makes {what}")


@builtin("(concat-lists list...)", 0, None, passes="lists")
def concat_lists(t: Tracer, call: Call) -> Any:
    """One list of all the lists' elements."""
    lists = [need_list(call, at) for at in range(len(call.args))]
    limited(call, sum(map(len, lists)) <= MAX_LIST, f"a list of more than {MAX_LIST} elements")
    return tuple(v for items in lists for v in items)


@builtin("(range from to step)", 1, 3)
def range_(t: Tracer, call: Call) -> Any:
    """The integers from ``from`` (0 when it is left out) up to and without ``to``."""
    numbers = [need_int(call, at) for at in range(len(call.args))]
    if len(numbers) == 3:
        need(call, 2, numbers[2] != 0, "a step other than 0")
    out = range(*numbers)
    limited(call, not out[MAX_LIST:], f"a list of more than {MAX_LIST} elements")
    return tuple(out)


@builtin("(map function list...)", 2, None, passes="lists")
def map_(t: Tracer, call: Call) -> Any:
    """The function's values on the lists' elements."""
    lists = [need_list(call, at) for at in range(1, len(call.args))]
    return tuple(t.call(call.args[0], *items, span=call.span) for items in zip(*lists, strict=False))


@builtin("(fold function start list)", 3, passes="lists")
def fold(t: Tracer, call: Call) -> Any:
    """``(function so-far element)`` over the list, beginning with ``start``."""
    value = call.args[1]
    for item in need_list(call, 2):
        value = t.call(call.args[0], value, item, span=call.span)
    return value


# -- questions -----------------------------------------------------------------------------------------------------


@builtin("(not value)", 1)
def not_(t: Tracer, call: Call) -> Any:
    """True for nil and false; per element for a bool tensor."""
    value = call.args[0]
    if isinstance(value, Value):
        return build(t.builder, OPS["not"], [value], {}, call.span)
    return value is None or value is False


def question(name: str, doc: str, holds: Callable[[Any], bool]) -> None:
    BUILTINS[name] = Builtin(name, lambda t, call: holds(call.args[0]), 1, 1, f"({name} value)", doc)


question("function?", "Whether the value can be called.", lambda v: isinstance(v, Function))
question("tensor?", "Whether the value is a tensor.", lambda v: isinstance(v, Value))
question("number?", "Whether the value is a plain number.", is_number)
question("nil?", "Whether the value is nil.", lambda v: v is None)


@builtin("(same? a b)", 2)
def same(t: Tracer, call: Call) -> Any:
    """Whether two keywords, strings, numbers, booleans or lists of those are equal."""
    return alike(*call.args)


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b  # to Python, 1 is true


@builtin("(shape tensor)", 1)
def shape(t: Tracer, call: Call) -> Any:
    """The tensor's dimensions, as a vector."""
    return need_tensor(call, 0).type.shape


@builtin("(dim tensor axis)", 2)
def dim(t: Tracer, call: Call) -> Any:
    """One dimension; a negative axis counts from the end."""
    type, at = need_tensor(call, 0).type, need_int(call, 1)
    need(call, 1, -type.rank <= at < type.rank, f"an axis of {type}")
    return type.shape[at]


@builtin("(rank tensor)", 1)
def rank(t: Tracer, call: Call) -> Any:
    """The number of axes."""
    return need_tensor(call, 0).type.rank


@builtin("(dtype-of tensor)", 1)
def dtype_of(t: Tracer, call: Call) -> Any:
    """The tensor's dtype, as a keyword."""
    return Key(need_tensor(call, 0).type.dtype)


@builtin("(string value...)", 0, None)
def string(t: Tracer, call: Call) -> Any:
    """The values as one text: ``(string :block- 3)`` is "block-3"."""
    parts = [text(call, at) for at in range(len(call.args))]
    limited(call, sum(map(len, parts)) <= MAX_TEXT, f"a text of more than {MAX_TEXT} characters")
    return "".join(parts)


@builtin("(format-name value...)", 1, None)
def format_name(t: Tracer, call: Call) -> Any:
    """A parameter's name from its parts, as a keyword: ``(format-name :block 3)`` is ``:block-3``."""
    return Key("-".join(text(call, at) for at in range(len(call.args))))


def text(call: Call, at: int) -> str:
    """Argument ``at`` as characters, a keyword without its colon; E-CALL-004 unless keyword, string or number."""
    value = call.args[at]
    if isinstance(value, Key):
        return value.name
    return str(need(call, at, isinstance(value, str) or is_number(value), "a keyword, string or number"))


@builtin("(assert condition message)", 1, 2)
def assert_(t: Tracer, call: Call) -> Any:
    """Stops the build with the message unless the condition holds at trace time."""
    value = call.args[0]
    if isinstance(value, Value):
        raise UserError(codes.TYPE_CONDITION, call.spans[0], "assert looks at trace time, and this is a tensor")
    if value is None or value is False:
        raise UserError(
            codes.CALL_ERROR, call.span, text(call, 1) if len(call.args) > 1 else "the assertion does not hold"
        )
    return value


@builtin("(error message)", 1)
def error(t: Tracer, call: Call) -> Any:
    """Stops the build with the message."""
    raise UserError(codes.CALL_ERROR, call.span, text(call, 0))


# -- what a run's lambdas read and report --------------------------------------------------------------------------
