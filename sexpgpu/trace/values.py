"""What an expression can be at trace time: numbers, booleans, strings, None (nil), tuples (lists and vectors),
and the classes here; a tensor is a graph.Value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..graph.core import Value
from ..language.forms import Form
from ..language.source import Span
from ..ops import Op

if TYPE_CHECKING:
    from ..language.syntax import Params


@frozen
class Key:
    """A keyword as a value; ``name`` is without the colon."""

    name: str


@frozen(eq=False)
class Env:
    """Local names, innermost first."""

    names: Mapping[str, Any]
    outer: Env | None = None

    def find(self, name: str) -> Any:
        """The value, or MISSING."""
        env: Env | None = self
        while env is not None:
            if name in env.names:
                return env.names[name]
            env = env.outer
        return MISSING

    def all_names(self) -> Iterator[str]:
        env: Env | None = self
        while env is not None:
            yield from env.names
            env = env.outer


@frozen(eq=False)
class Scope:
    """Where ``param`` declares: a path inside one model."""

    model: Model
    path: tuple[str, ...]

    def name(self, leaf: str) -> str:
        return "/".join((*self.path, leaf))


class Function:
    """A value that can be called."""

    __slots__ = ()


@frozen(eq=False)
class Closure(Function):
    """A lambda or defun. ``scope`` is the model scope it was made in, used when it is called outside that model."""

    name: str
    params: Params
    body: tuple[Form, ...]
    env: Env | None
    scope: Scope | None
    span: Span = field(repr=False)


@frozen(eq=False)
class Model(Function):
    """A defmodel; calling it enters its scope."""

    name: str
    params: Params
    body: tuple[Form, ...]
    is_frozen: bool
    span: Span = field(repr=False)


@frozen(eq=False)
class Call:
    """Arguments of one call, evaluated, each with its place."""

    name: str
    span: Span
    args: tuple[Any, ...]
    spans: tuple[Span, ...]


@frozen(eq=False)
class Operator(Function):
    """A row of the operator table as a function."""

    row: Op


@frozen
class Indices:
    """``(indices N)``: a source of record numbers."""

    count: int


@frozen(eq=False)
class StepMean:
    """A mean over a step's microbatches: sums over this one, scalar f32, of what is added up and divided at its end."""

    total: Value
    weight: Value


@frozen(eq=False)
class Lookup:
    """A batch or a ctx: names to values, made when they are first read.

    ``read(name, span)`` gives the value, or MISSING where a name is absent but that is not an error (ctx).
    """

    title: str
    read: Callable[[str, Span], Any]


class Marker:
    """A value that is known by being itself; ``name``: how it prints."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


MISSING = Marker("missing")
POISON = Marker("poison")  # stands for a value whose fault was reported; what is made of it is poison too, silently


def is_poison(value: Any, known: dict[int, Any] | None = None) -> bool:
    """Is it POISON, or a list with POISON in it? ``known``: lists without, by id, which are not gone through again;
    those that are found join them."""
    todo: list[Any] = [value]
    seen: dict[int, Any] = {}
    while todo:
        one = todo.pop()
        if one is POISON:
            return True
        if isinstance(one, tuple) and id(one) not in seen and not (known and id(one) in known):
            seen[id(one)] = one
            todo += [x for x in one if x is POISON or isinstance(x, tuple)]
    if known is not None:
        known |= seen
    return False


def any_poison(values: Iterable[Any], known: dict[int, Any]) -> bool:
    """Is one of ``values`` poison? Few are lists, which alone are gone through."""
    for value in values:  # noqa: SIM110  (a generator takes twice as long)
        if value is POISON or (isinstance(value, tuple) and is_poison(value, known)):
            return True
    return False


class Reported(Exception):
    """There is nothing to go on with, and why is in the report already."""


class Poisoned(Exception):
    """What a call's argument has a fault of tells how the call is to be read."""


def sound(value: Any) -> Any:
    """``value``; Reported for POISON, and for a list with POISON in it."""
    if is_poison(value):
        raise Reported
    return value


CTX_KEYS = ("step", "microbatch", "records", "stage", "stage-step", "stage-records")
CTX_MOVING = ("microbatch", "records", "stage-records")  # those that differ between the microbatches of a step


def is_number(value: Any) -> bool:
    """An int or float of the language; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe(value: Any) -> str:
    """What ``value`` is, for a message: ``f32[3 4]``, ``the number 3``, ``[3 5.0]``, ``a function``."""
    if isinstance(value, Value):
        return str(value.type)
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_number(value):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the string "{value}"'
    if isinstance(value, Key):
        return f":{value.name}"
    if isinstance(value, tuple):
        short = 0 < len(value) <= 8 and all(map(is_number, value))
        return f"[{' '.join(map(str, value))}]" if short else f"a list of {len(value)}"
    if isinstance(value, Model):
        return f"the model {value.name}"
    if isinstance(value, Function):
        return "a function"
    if isinstance(value, Lookup):
        return value.title
    if isinstance(value, StepMean):
        return "a mean over the step"
    return f"(indices {value.count})" if isinstance(value, Indices) else repr(value)


def plist(value: Any) -> dict[str, Any] | None:
    """A plist as a dict in order, or None where ``value`` is not one: keywords and values in turn, no key twice."""
    if not isinstance(value, tuple) or len(value) % 2:
        return None
    keys, values = value[::2], value[1::2]
    if not all(isinstance(k, Key) for k in keys) or len(set(keys)) < len(keys):
        return None
    return dict(zip((k.name for k in keys), values, strict=True))
