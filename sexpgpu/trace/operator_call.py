"""Calling an operator row from the language: arguments bound to the row's, numbers made tensors, faults coded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..graph.core import Builder, Value
from ..language import codes
from ..language.diagnostics import UserError
from ..language.source import Span
from ..ops import OPS, Op, type_rules
from ..ops.spec import Arg
from ..ops.types import DTYPES, ShapeFault, TypeFault, check_shape
from . import mixed_precision
from .builtin_table import Tracer
from .fixed_masks import check_mask
from .values import POISON, Call, Key, Poisoned, StepMean, describe, is_number

WHOLE_STEP = "it is known at the end of the step: compute with the tensor inside it"
ABSENT = "nil is a key that getf does not find, or that a call leaves out"


def signature(row: Op) -> str:
    """``(sum x &key axes keepdims)``."""
    place = " ".join(a.name + ("..." if a.kind == "tensors" else "") for a in row.args if not a.key)
    keys = " ".join(a.name for a in row.args if a.key)
    return f"({row.name} {place}{' &key ' + keys if keys else ''})".replace(" )", ")")


def call_operator(t: Tracer, row: Op, call: Call) -> Any:
    """The result of ``row`` on ``call``'s arguments: a number if all are numbers, else a tensor or a tuple of them."""
    bound, spans = bind(row, call)
    flat = [v for a in row.operands for v in operand(a, bound) if v is not None or a.default is not None]
    if row.number and all(is_number(v) or isinstance(v, bool) for v in flat):
        return on_numbers(row, flat, bound, call.span)
    attrs = {
        a.name: convert(a, bound[a.name], spans[a.name][0]) if a.name in spans else a.default for a in row.settings
    }
    values = tensors(t.builder, row, bound, spans, call.span)
    check_domain(row, values, call.span)
    check_mask(t, row, bound, call.span)
    if t.in_bf16 and (narrow := mixed_precision.operands(t.builder, row, values)) is not None:
        return build_in_bf16(t.builder, row, values, narrow, attrs, call.span)
    return build(t.builder, row, values, attrs, call.span)


def build_in_bf16(
    b: Builder, row: Op, values: list[Value], narrow: list[Value], attrs: dict[str, Any], span: Span
) -> Any:
    """The row's value on ``narrow``; a fault is worded in the file's own types, those of ``values``."""
    try:
        return mixed_precision.seen(b, build(b, row, narrow, attrs, span))
    except UserError:
        build(b, row, values, attrs, span)
        raise


def operand(arg: Arg, bound: dict[str, Any]) -> tuple[Any, ...]:
    """The values of a tensor argument: several only where its kind is "tensors", so that a list is not taken apart."""
    return bound[arg.name] if arg.kind == "tensors" else (bound[arg.name],)


Spans = dict[str, tuple[Span, ...]]


def bind(row: Op, call: Call) -> tuple[dict[str, Any], Spans]:
    """Argument names to values, defaults filled in; and the places of those that were given."""
    bound: dict[str, Any] = {}
    spans: Spans = {}
    at = 0
    for arg in row.places:
        if arg.kind == "tensors":
            end = next((i for i in range(at, len(call.args)) if isinstance(call.args[i], Key)), len(call.args))
            if end > at:
                bound[arg.name], spans[arg.name] = call.args[at:end], call.spans[at:end]
            at = end
        elif at < len(call.args):
            bound[arg.name], spans[arg.name] = call.args[at], (call.spans[at],)
            at += 1
    if at < len(call.args):
        bind_keywords(row, call, at, bound, spans)
    for arg in row.args:
        if arg.name not in bound:
            if arg.default is ...:
                raise UserError(codes.CALL_COUNT, call.span, f"{row.name} needs {arg.name}", hint=signature(row))
            bound[arg.name] = arg.default
    return bound, spans


def bind_keywords(row: Op, call: Call, at: int, bound: dict[str, Any], spans: Spans) -> None:
    """Add the pairs ``:name value`` that begin at argument ``at`` to ``bound`` and ``spans``.

    E-CALL-001 where a keyword should stand, E-CALL-002 for one that is unknown or has no value, E-FORM-003 for
    one twice.
    """
    while at < len(call.args):
        word = call.args[at]
        if word is POISON:
            raise Poisoned
        if not isinstance(word, Key):
            raise UserError(codes.CALL_COUNT, call.spans[at], f"{row.name} has too many arguments", hint=signature(row))
        if word.name not in row.keywords:
            raise UserError(
                codes.CALL_KEYWORD, call.spans[at], f"{row.name} does not take :{word.name}", hint=signature(row)
            )
        if at + 1 == len(call.args):
            raise UserError(codes.CALL_KEYWORD, call.spans[at], f":{word.name} has no value", hint=signature(row))
        if word.name in bound:
            raise UserError(
                codes.FORM_DUPLICATE,
                call.spans[at],
                f":{word.name} is given twice",
                (spans[word.name][0], "it is given here first"),
            )
        bound[word.name], spans[word.name] = call.args[at + 1], (call.spans[at + 1],)
        at += 2


def on_numbers(row: Op, flat: list[Any], bound: dict[str, Any], span: Span) -> Any:
    """The row's meaning on plain numbers; E-CALL-004 where it has none, or one that is not finite or not of 64 bits."""
    assert row.number
    rest = [bound[a.name] for a in row.settings]
    try:
        out = fold_numbers(row, flat) if row.folds else row.number(*flat, *rest)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError) as fault:
        raise UserError(codes.CALL_VALUE, span, f"{row.name} of {', '.join(map(str, flat))}: {fault}") from None
    if isinstance(out, float) and not math.isfinite(out):
        raise UserError(codes.CALL_VALUE, span, f"{row.name} of {', '.join(map(str, flat))} is not a finite number")
    if isinstance(out, int) and not -(2**63) <= out < 2**63:
        raise UserError(codes.CALL_VALUE, span, f"{row.name}: the integer does not fit 64 bits")
    return out


def fold_numbers(row: Op, flat: list[Any]) -> Any:
    """``fold`` for plain numbers: from the left; -, of one number, is its negative, / its reciprocal."""
    assert row.number
    if len(flat) == 1:
        return {"-": lambda x: -x, "/": lambda x: 1 / x}.get(row.name, lambda x: x)(flat[0])
    out = flat[0]
    for value in flat[1:]:
        out = row.number(out, value)
    return out


def convert(arg: Arg, value: Any, span: Span) -> Any:
    """A non-tensor argument in the form its kind asks for; None stays None where it is the default."""
    if value is None and arg.default is None:
        return None
    made = CONVERT[arg.kind](value)
    if made is None:
        raise UserError(codes.CALL_VALUE, span, f"{arg.name} must be {WORDS[arg.kind]}, not {describe(value)}")
    try:
        return check_shape(made) if arg.kind == "shape" else made
    except ShapeFault as fault:
        raise UserError(codes.SHAPE_FIT, span, str(fault)) from None


def an_int(value: Any) -> int | None:
    """``value``, which must not be a bool; None, the answer of every function of CONVERT, where it does not fit."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def ints(value: Any) -> tuple[int, ...] | None:
    """A list of integers, or one integer as a list of one."""
    out = tuple(map(an_int, value if isinstance(value, tuple) else (value,)))
    return None if any(v is None for v in out) else out  # type: ignore[return-value]


def data(value: Any) -> Any:
    """Numbers and truth values in nested lists, as they are."""
    if isinstance(value, tuple):
        out = tuple(map(data, value))
        return None if any(v is None for v in out) else out
    return value if is_number(value) or isinstance(value, bool) else None


CONVERT = {
    "int": an_int,
    "number": lambda v: v if is_number(v) else None,
    "bool": lambda v: v if isinstance(v, bool) else None,
    "ints": ints,
    "shape": ints,
    "dtype": lambda v: v.name if isinstance(v, Key) and v.name in DTYPES else None,
    "data": data,
}
WORDS = {
    "int": "an integer",
    "number": "a number",
    "bool": "true or false",
    "ints": "an integer or a vector of integers",
    "shape": "a vector of integers",
    "dtype": f"a dtype ({' '.join(':' + d for d in DTYPES)})",
    "data": "a number or nested vectors of numbers",
}


def tensors(b: Builder, row: Op, bound: dict[str, Any], spans: Spans, span: Span) -> list[Value]:
    """The tensor arguments in order; numbers take the joined dtype, or the one the argument states."""
    b.span = span
    joined = {v.type.dtype for a in row.operands if a.joins for v in operand(a, bound) if isinstance(v, Value)}
    out: list[Value] = []
    for arg in row.operands:
        if bound[arg.name] is None and arg.default is None:
            continue
        dtype = min(joined, default=None) if arg.joins else arg.number
        for value, place in zip(operand(arg, bound), spans[arg.name], strict=True):
            out.append(as_tensor(b, value, dtype, place, f"{row.name} needs a tensor"))
    return out


def as_tensor(b: Builder, value: Any, dtype: str | None, span: Span, need: str) -> Value:
    """``value`` as a tensor: itself, or a scalar of ``dtype`` for a number."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool) and dtype in (None, "bool"):
        return b.const(value, "bool")
    if not is_number(value):
        made = "constant makes a tensor of a list of numbers" if isinstance(value, tuple) else ""
        hint = ABSENT if value is None else WHOLE_STEP if isinstance(value, StepMean) else made
        raise UserError(codes.TYPE_TENSOR, span, f"{need}, not {describe(value)}", hint=hint)
    dtype = dtype or ("f32" if isinstance(value, float) else "i32")
    return b.const(held(value, dtype, span), dtype)


def held(value: int | float, dtype: str, span: Span) -> int | float:
    """``value`` as a Python number of the dtype's kind, or E-TYPE-003 where the dtype cannot hold it."""
    hint = "" if DTYPES[dtype].kind == "float" else "cast the tensor to a dtype that can"
    try:
        if dtype == "bool":  # a number is not a truth value
            raise TypeFault(f"{value} cannot be held in bool")
        return type_rules.held(value, dtype)
    except TypeFault as fault:
        raise UserError(codes.TYPE_NUMBER, span, str(fault), hint=hint) from None


def check_domain(row: Op, values: list[Value], span: Span) -> None:
    """E-CALL-004 for constant operands on which no element of the row is a finite number, as of x / 0."""
    if row.domain is None:
        return
    ranges = [constant_range(v) for v in values]
    pairs = [(None, y) for y in ranges[1:] or ranges] if row.folds else [ranges]
    for operands in pairs:
        if wrong := row.domain(*operands):
            what = f"{row.name}: {wrong}, so that no element of the result is a number"
            raise UserError(codes.CALL_VALUE, span, what)


def constant_range(value: Value) -> type_rules.Range:
    """The least and the greatest number of what is made of a constant by moving and casting its elements; what the
    dtype is too coarse for is 0."""
    tiny = type_rules.ROUNDS_TO_0.get(value.type.dtype, 0)
    while value.op and OPS[value.op].rearranges:
        (value,) = value.args
    literal = OPS[value.op].literal if value.op else None
    data = literal(**value.attrs) if literal else ()
    numbers = [x if abs(x) > tiny else 0 for x in numbers_of(data)]
    return (min(numbers), max(numbers)) if numbers else None


def numbers_of(data: Any) -> Iterator[float]:
    """The numbers of nested tuples."""
    if isinstance(data, tuple):
        for part in data:
            yield from numbers_of(part)
    else:
        yield data


def build(b: Builder, row: Op, values: list[Value], attrs: dict[str, Any], span: Span) -> Any:
    """The row's value, its faults as coded errors at ``span``."""
    try:
        if row.folds and len(values) != 2:
            return fold(b, row, values)
        return b(row.name, *values, **attrs)
    except TypeFault as fault:
        raise UserError(codes.TYPE_MIX, span, f"{row.name}: {fault}") from None
    except ShapeFault as fault:
        raise UserError(codes.SHAPE_FIT, span, f"{row.name}: {fault}") from None


def fold(b: Builder, row: Op, values: list[Value]) -> Value:
    """``(+ a b c)`` from the left; ``(- x)`` is neg and ``(/ x)`` is 1/x, as in Common Lisp."""
    if len(values) == 1:
        if row.name == "-":
            return b("neg", values[0])
        return b("/", b.full(1, values[0].type), values[0]) if row.name == "/" else values[0]
    out = values[0]
    for value in values[1:]:
        out = b(row.name, out, value)
    return out
