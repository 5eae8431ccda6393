"""What one operator is: a row. Rows are pure data; no heavy import is reachable from here.

A column that needs a library is a function of that library's namespace, so a
row can name ``r.exp`` without ``import tvm`` being anywhere in this package.

A function that is too long for its row stands before it and is named after the row, or what several rows share, and the
column: ``cast_ref``, ``gather_vjp``, ``pad_normal``. Its signature is the column's, as ``Op`` states it, and what it
computes is what the row's ``doc`` says. A ``vjp`` gets the cotangent ``dy`` (``dz``) of the result ``y`` (``z``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import field, frozen, validators

from .types import TensorType
from .work import per_element

OPS: dict[str, Op] = {}

# How kernel fusion treats an operator: see planning/fusion_model.py.
FUSIONS = (
    "elementwise",  # each element of the result is made of those at its place, broadcast
    "move",  # elements are copied to other places
    "view",  # the same elements in the same memory
    "literal",  # numbers of the program, written into whatever reads them
    "reduction",  # each element of the result is folded from many
    "product",  # a matrix product
    "opaque",  # a kernel of its own
)

# What a non-tensor argument may be; the tracer checks and converts by this word.
KINDS = (
    "int",  # a Python int
    "number",  # int or float
    "bool",
    "ints",  # a vector or list of ints, or one int -> tuple[int, ...]
    "shape",  # like ints, checked by types.check_shape
    "dtype",  # a dtype keyword -> its name, "f32"
    "data",  # a number, or nested vectors of numbers -> nested tuples
)


@frozen
class Arg:
    """One argument of an operator as the language calls it.

    kind:     "tensor", "tensors" (the rest of the positional arguments, one or more) or one of KINDS
    key:      given as ``:name value``, else by position
    default:  REQUIRED, or the value when absent (a tensor argument may default to None: not given)
    joins:    a tensor whose dtype must equal that of the operator's other joining tensors; a number given
              there becomes a constant of that dtype. An index, condition or salt does not join.
    number:   dtype that a bare number takes in a non-joining tensor argument (None: a number is refused)
    """

    name: str
    kind: str
    key: bool = False
    default: Any = ...
    joins: bool = True
    number: str | None = None


def tensor(name: str, **more: Any) -> Arg:
    """A positional tensor argument."""
    return Arg(name, "tensor", **more)


def index(name: str, **more: Any) -> Arg:
    """A tensor that does not join: ids, conditions, labels."""
    return Arg(name, "tensor", joins=False, **more)


def tensors(name: str) -> Arg:
    """One or more tensors, to the end of the positional arguments."""
    return Arg(name, "tensors")


def attr(name: str, kind: str, *default: Any) -> Arg:
    """A positional non-tensor argument."""
    return Arg(name, kind, default=default[0] if default else ...)


def key(name: str, kind: str, *default: Any) -> Arg:
    """A keyword non-tensor argument."""
    return Arg(name, kind, key=True, default=default[0] if default else ...)


@frozen
class Op:
    """One operator of the language.

    A PRIMITIVE row has ``type`` and ``ref`` and ``relax``; a COMPOSITE row has ``expand`` and ``ref`` and is
    rewritten in terms of other rows as it is built, so that no graph ever holds it.

    args:    how the language calls it, in order
    normal:  (types, attrs) -> attrs in normal form (axes counted from 0 and sorted, defaults made explicit)
    type:    (*TensorType, **attrs) -> TensorType; TypeFault or ShapeFault tell the user what is wrong
    ref:     (np, *arrays, **attrs) -> array; the meaning, and the oracle of every test
    relax:   (r, *exprs, **attrs) -> relax.Expr; ``r`` is lowering's emitter namespace
    vjp:     (b, dy, y, *xs, **attrs) -> one cotangent per input, None where there is none; the column is None where
             no gradient exists, and ZERO_GRAD where it is zero everywhere (comparisons, argmax, floor)
    number:  its meaning on plain numbers at trace time (Python's math); None where a tensor is needed
    domain:  (*ranges) -> what is wrong with the operands, or "": a range is the (least, greatest) number of a constant,
             None of any other tensor. A call of the language in which no element can be a finite number is a fault
    onnx:    (o, *names, **attrs) -> name, or None where ONNX has no such operator
    expand:  (b, *xs, **attrs) -> Value
    stack:   (s, name, lanes, attrs) -> Value, the operator on k copies of its arguments: see batching.py; None where
             it is each copy by itself, or elementwise (the groups arithmetic and logic)
    cases:   ((types, attrs), ...) inputs of the generated tests; a type is (dtype, shape) or (dtype, shape, low, high)
             where values are drawn from [low, high)
    grad_cases: like cases, for the gradient test; None: the float cases of ``cases``
    precision: what the row runs in where model code of a run under :bf16 calls it with f32 operands: "bf16", to which
             they are rounded; "f32"; or "operands": bf16 where none of them was computed in f32 (mixed_precision.py)
    elementwise: each element is made of those at its place, broadcast: so in the groups arithmetic and logic, too
    fusion:  one of FUSIONS; "" is "elementwise" where the row is, "literal" where it has that column, else "opaque"
    work:    (the result's type, *TensorType, **attrs) -> Work: see work.py
    reads_part: its kernel reads no more elements of its first argument than the result has
    literal: (**attrs) -> the number that fills the result, or its numbers in nested tuples; of rows without operands
    rearranges: every element of the result is one of its only argument, in the result's dtype
    origins: (value, box) -> (argument, box of the elements of it) for all that is moved into ``box`` of the value; None
             of a row that only computes: see element_boxes.py
    index_range: (*TensorType, **attrs) -> (number of the argument that holds indices, how many places they choose from)
    source:  (the argument's shape, index, **attrs) -> where the element at ``index`` stands in the argument, or None;
             of rows that only move elements: see affine_index.py
    padded:  (b, value, Padded | None) -> Padded | None: the value as a tensor with zeros around it, given its first
             argument as one; None of a row that zeros do not pass through: see partial_cotangents.py
    merged:  (b, values) -> Value: the sum of several values of this row, with equal attributes, as one value of it
    mask:    it draws a mask; `check` warns where its salt is the same in every step
    strided: its kernel reads its arguments through such rows, and may write its result with its axes in another order
    shares:  the name of a kernel of several results, which makes those of all rows that name it on the same arguments
    tolerance: (rtol, atol) of Relax against ref, with the reason in a comment where it is not the default
    """

    name: str = field(validator=validators.matches_re(r"[a-z/=<>+*-][a-z0-9=-]*"))
    doc: str
    group: str
    args: tuple[Arg, ...]
    ref: Callable[..., Any]
    type: Callable[..., TensorType] | None = None
    relax: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    normal: Callable[..., dict[str, Any]] | None = None
    number: Callable[..., Any] | None = None
    domain: Callable[..., str] | None = None
    onnx: Callable[..., str] | None = None
    expand: Callable[..., Any] | None = None
    stack: Callable[..., Any] | None = None
    cases: tuple[Any, ...] = ()
    grad_cases: tuple[Any, ...] | None = None
    tolerance: tuple[float, float] = (2e-6, 2e-6)
    precision: str = field(default="operands", validator=validators.in_(("bf16", "f32", "operands")))
    folds: bool = False  # the language takes any number of operands and folds them from the left; the row takes two
    elementwise: bool = False
    fusion: str = field(default="", validator=validators.in_(("", *FUSIONS)))
    work: Callable[..., Any] = per_element()
    reads_part: bool = False
    literal: Callable[..., Any] | None = None
    rearranges: bool = False
    origins: Callable[..., Any] | None = None
    index_range: Callable[..., tuple[int, int]] | None = None
    source: Callable[..., Any] | None = None
    padded: Callable[..., Any] | None = None
    merged: Callable[..., Any] | None = None
    mask: bool = False
    strided: bool = False
    shares: str = ""
    internal: bool = False  # made by gradients and the simplifier only; no name in the language
    operands: tuple[Arg, ...] = field(init=False, repr=False, eq=False)  # the arguments that are tensors
    settings: tuple[Arg, ...] = field(init=False, repr=False, eq=False)  # those that are not
    places: tuple[Arg, ...] = field(init=False, repr=False, eq=False)  # those given by position
    keywords: frozenset[str] = field(init=False, repr=False, eq=False)  # the names of the others

    def __attrs_post_init__(self) -> None:
        tensor = ("tensor", "tensors")
        elementwise = self.elementwise or self.group in ("arithmetic", "logic")
        usual = "elementwise" if elementwise else "literal" if self.literal else "opaque"
        for name, value in (
            ("elementwise", elementwise),
            ("fusion", self.fusion or usual),
            ("operands", tuple(a for a in self.args if a.kind in tensor)),
            ("settings", tuple(a for a in self.args if a.kind not in tensor)),
            ("places", tuple(a for a in self.args if not a.key)),
            ("keywords", frozenset(a.name for a in self.args if a.key)),
        ):
            object.__setattr__(self, name, value)


def ZERO_GRAD(b: Any, dy: Any, y: Any, *xs: Any, **attrs: Any) -> tuple[None, ...]:
    """The gradient is zero everywhere it exists: no cotangent for any input."""
    return (None,) * len(xs)


def op(name: str, doc: str, **columns: Any) -> Op:
    """Add a row; a name twice is a programming error."""
    if name in OPS:
        raise ValueError(f"operator {name!r} is declared twice")
    OPS[name] = row = Op(name=name, doc=doc, **columns)
    return row


def cases() -> Iterator[tuple[Op, tuple[Any, ...]]]:
    """Every (row, case) of the table, for the generated tests."""
    for row in OPS.values():
        for case in row.cases:
            yield row, case
