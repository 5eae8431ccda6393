"""The functions of the language that are not operators: lists, plists, shapes, parameters, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from . import codes, precision
from .diagnostics import UserError
from .graph import Value
from .inits import init_tracer, initial
from .opcall import ABSENT, as_tensor, build, convert
from .ops import OPS
from .ops.spec import attr
from .parameters import Parameter, digest, same_init
from .special import parameter_name
from .step_mean import clashes
from .step_mean import mean_over_step as step_mean
from .trace import Tracer
from .types import TensorType
from .values import (
    BUILTINS,
    CTX_KEYS,
    FUNCTIONS,
    MISSING,
    POISON,
    Builtin,
    Call,
    Indices,
    Key,
    Lookup,
    StepMean,
    describe,
    is_number,
)

MAX_LIST = 100_000  # elements of a list
MAX_TEXT = 100_000  # characters of a text


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


question("function?", "Whether the value can be called.", lambda v: isinstance(v, FUNCTIONS))
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


@builtin("(indices count)", 1)
def indices(t: Tracer, call: Call) -> Any:
    """A loader's source of ``count`` record numbers, for a run that makes its own data."""
    return Indices(need(call, 0, need_int(call, 0) >= 1, "a count of 1 or more"))


# -- what a run's lambdas read and report --------------------------------------------------------------------------


@builtin("(field batch :name)", 2)
def field(t: Tracer, call: Call) -> Any:
    """A field of the batch: [batch ...]."""
    batch = call.args[0]
    if not isinstance(batch, Lookup) or batch.title == "ctx":
        raise UserError(codes.CALL_VALUE, call.spans[0], f"field reads a batch, not {describe(batch)}")
    return batch.read(need_key(call, 1), call.spans[1])


@builtin("(param :name shape :init init)", 4)
def param(t: Tracer, call: Call) -> Any:
    """A parameter of the model, f32 of ``shape``. ``init`` is a function of the shape to a tensor, or a tensor."""
    if t.scope is None:
        raise UserError(codes.PARAM_SCOPE, call.span, "param stands outside a model")
    if call.args[2] != Key("init"):
        raise UserError(codes.CALL_KEYWORD, call.spans[2], f"param takes :init, not {describe(call.args[2])}")
    name = t.scope.name(parameter_name(call.args[0], call.spans[0]))
    type = TensorType(convert(attr("shape", "shape"), call.args[1], call.spans[1]), "f32")
    made = Parameter(name, type, call.args[3], "", t.scope.model.is_frozen, call.span)
    known = t.world.parameters.found.get(name)
    if known is None or not same_init(known.init, made.init):
        value = initial(init_tracer(t.world, name), made)
        if value is POISON:
            return POISON
        made = evolve(made, digest=digest(value))
    else:
        made = evolve(made, digest=known.digest)
    kept = t.world.parameters.declare(made)
    master = t.port("param", kept.name, kept.type)
    return precision.parameter(t.builder, master) if t.in_bf16 else master


@builtin("(mean-over-step x :weights w)", 1, 3)
def mean_over_step(t: Tracer, call: Call) -> Any:
    """The sum of x w over the sum of w, both over all microbatches of the step: what objective returns, or a metric.
    w, 1 unless given, is 0 or more, broadcasts to x and gets no gradient. Where it is 0, x does not count, whatever
    it is. If all weights are 0, so are the mean and its gradients."""
    return step_mean(t.builder, need_tensor(call, 0), call)


@builtin("(metric :name scalar)", 2)
def metric(t: Tracer, call: Call) -> Any:
    """Reports a scalar of ``objective``, or a mean over the step; its value is that."""
    name = need_key(call, 0)
    if t.role == "generate":
        raise UserError(
            codes.GEN_REPORT,
            call.span,
            f"metric :{name} inside the generator ({t.form})",
            hint="return the value in the state and report it from objective",
        )
    if t.role not in ("objective", "pass"):
        raise UserError(codes.CONTRACT_PLACE, call.span, f"metric :{name} outside objective")
    value = call.args[1] if isinstance(call.args[1], StepMean) else scalar(t, call)
    taken = name in t.metrics or name in ("loss", "lr", "grad_norm")
    if taken or clashes(name, t.metrics, isinstance(value, StepMean)):
        raise UserError(
            codes.CONTRACT_METRIC,
            call.span,
            f"the name :{name} is taken",
            *([(t.metrics[name][1], "it is reported here first")] if name in t.metrics else []),
        )
    t.metrics[name] = (value, call.span)
    return value


def scalar(t: Tracer, call: Call) -> Value:
    """The second argument as a tensor without axes: a number becomes one. E-CONTRACT-004 for any other tensor."""
    value = as_tensor(t.builder, call.args[1], None, call.spans[1], f"{call.name} needs a scalar")
    if value.type.rank:
        raise UserError(
            codes.CONTRACT_METRIC,
            call.spans[1],
            f"{call.name} needs a scalar, not {value.type}",
            hint="reduce it with mean or sum",
        )
    return value


@builtin("(diagnostic :name tensor)", 2, passes="all")
def diagnostic(t: Tracer, call: Call) -> Any:
    """Keeps a tensor for ``sexpgpu-run --diagnostic``, if the build selected it; its value is the tensor."""
    if call.args[0] is POISON:
        return POISON
    name, value = need_key(call, 0), call.args[1]
    if value is not POISON:
        need_tensor(call, 1)
    t.diagnostics.setdefault(name, (value, call.span))
    return value


@builtin("(counter :name scalar)", 2)
def counter(t: Tracer, call: Call) -> Any:
    """Adds an integer scalar to a running total that objective and schedules read with ``(getf ctx :name)``."""
    name = need_key(call, 0)
    if t.role != "prepare":
        raise UserError(codes.CONTRACT_COUNTER, call.span, f"counter :{name} outside prepare")
    value = scalar(t, call)
    if value.type.kind not in ("int", "uint"):
        raise UserError(codes.CONTRACT_METRIC, call.spans[1], f"a counter adds an integer scalar, not {value.type}")
    if name in CTX_KEYS:
        raise UserError(codes.CONTRACT_METRIC, call.span, f"the name :{name} is taken: ctx has it")
    if name in t.counters:
        raise UserError(
            codes.CONTRACT_METRIC,
            call.span,
            f"the counter :{name} is declared twice",
            (t.counters[name][1], "it is declared here first"),
        )
    t.counters[name] = (value, call.span)
    return value
