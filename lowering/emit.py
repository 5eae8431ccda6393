"""Graphs to one Relax module: one function a graph, one binding (or a few) a value.

What an operator becomes is said by its row's ``relax`` column; this file only walks the graph and hands the
row the namespace ``r`` (see ``Namespace``).

A product [.., m, k] x [k, n] is emitted as one [M, k] x [k, n], and what is done element by element to its result
stays in that form too, so that it can join the product's kernel: a value may have a second, FLAT expression
[M, n] beside its full one, and each is made from the other only when something asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from attrs import frozen
from tvm import relax

from sexpgpu.graph import Graph, Value
from sexpgpu.ops import OPS
from sexpgpu.ops.views import View, Views
from sexpgpu.types import DTYPES, TensorType

from . import (  # noqa: F401  (fill KERNELS)
    kernels_attention,
    kernels_elementwise,
    kernels_index,
    kernels_reduce,
    kernels_rows,
    kernels_scan,
    kernels_scatter,
)
from .composed import COMPOSED
from .kernels import KERNELS
from .views import Viewed

OURS = {dtype.numpy: name for name, dtype in DTYPES.items()}
ALONE = ("concat",)  # kernels that nothing joins: a copy of parts stays one only while no part is computed in it
OPAQUE = 8  # TVM's number for that
MADE = (tvm.ir.Call, relax.TupleGetItem)  # expressions that are not yet a variable


# Programs so far, by name, result, types of the arguments and attributes (as text: 0.0 and -0.0 are not one): the
# program in the module, and its result's type. An equal layer need not be traced again.
Programs = dict[tuple[Any, ...], tuple[Any, Any]]


@frozen(eq=False)
class Strided:
    """An argument of a strided row: the variable of the tensor that ``view`` is of."""

    of: relax.Expr
    view: View


def _traced(program: Callable[..., Any], args: Sequence[Any], attrs: dict[str, Any]) -> Callable[..., Any]:
    """``program`` on te tensors, each seen through the view of its argument."""
    views = [x.view if isinstance(x, Strided) else None for x in args]
    seen = lambda tensors: (t if v is None else Viewed(t, v) for t, v in zip(tensors, views, strict=True))  # noqa: E731
    return lambda *tensors: program(*seen(tensors), **attrs)


class Namespace:
    """What a row's ``relax`` column may use: every function of ``relax.op`` by its name, and the names below.

    out:  the TensorType of the value being emitted
    orders: of a strided row's results, each in which order its axes are written, None as they are
    A call may be nested in another one; only its last result need be returned.
    """

    def __init__(self, builder: relax.BlockBuilder, programs: Programs) -> None:
        self._builder = builder
        self._programs = programs
        self._calls: dict[Any, relax.Expr] = {}  # of programs of several results, by the program and its arguments
        self.out = TensorType((), "f32")
        self.orders: tuple[Any, ...] = ()
        self._reshaped: dict[relax.Expr, relax.Expr] = {}  # a variable that is a reshape -> what it is one of

    def __getattr__(self, name: str) -> Any:
        return getattr(relax.op, name)

    def dt(self, dtype: str) -> str:
        """TVM's name of our dtype: "f32" -> "float32"."""
        return DTYPES[dtype].numpy

    def const(self, number: Any, dtype: str) -> relax.Expr:
        """A scalar (or, of nested lists, a tensor) of our ``dtype``, rounded once."""
        return relax.const(number, self.dt(dtype))

    def bound(self, x: relax.Expr) -> relax.Expr:
        """``x`` as a variable, to be used more than once."""
        return self._typed(x)

    def shape(self, x: relax.Expr) -> tuple[int, ...]:
        return tuple(int(n) for n in self._typed(x).ty.shape)

    def dtype(self, x: relax.Expr) -> str:
        """Our name of the dtype of ``x``."""
        return OURS[_dtype_text(self._typed(x).ty)]

    def number(self, x: relax.Expr) -> float | int | bool | None:
        """What a scalar constant holds; None of anything else."""
        value = getattr(x, "value", None)
        return value.numpy().item() if isinstance(value, tvm.runtime.Tensor) and not value.shape else None

    def kernel(self, name: str, *args: relax.Expr, **attrs: Any) -> relax.Expr:
        """The kernel ``name`` on ``args``: a tensor program of KERNELS, or a function of COMPOSED around one."""
        if name in COMPOSED:
            return COMPOSED[name](self, *args, **attrs)
        return self.program(name, self.out, *args, **attrs)

    def program(self, name: str, out: TensorType, *args: Any, **attrs: Any) -> relax.Expr:
        """The tensor program ``name`` of KERNELS on ``args``; it is told ``out``, its result's type, and ``attrs``."""
        if any(self.orders):
            attrs["order"] = self.orders[0]
        given, key = self._given(args), self._key(name, args, attrs)
        if (key, out) in self._programs:
            made, type = self._programs[key, out]
            return relax.call_tir(made, relax.Tuple(given), type)
        te, hint = _traced(KERNELS[name], args, {"out": out, **attrs}), name.replace("-", "_")
        how = {"op_pattern": OPAQUE} if name in ALONE else None
        call = self._builder.call_te(te, *given, primfunc_name_hint=hint, primfunc_attrs=how)
        self._programs[key, out] = (call.args[0], call.ty_args[0])
        return call

    def one_of(self, n: int, name: str, *args: Any, **attrs: Any) -> relax.Expr:
        """Result ``n`` of the tensor program ``name`` of several results. Equal calls in one function are one."""
        if any(self.orders):
            attrs["orders"] = self.orders
        given, key = self._given(args), self._key(name, args, attrs)
        call = (key, *given)
        if call not in self._calls:
            self._calls[call] = self.emit(self._several(key, args, given, attrs))
        return relax.TupleGetItem(self._calls[call], n)

    def _several(self, key: tuple[Any, ...], args: Any, given: list[relax.Expr], attrs: dict[str, Any]) -> relax.Expr:
        if key in self._programs:
            made, type = self._programs[key]
            return relax.call_tir(made, relax.Tuple(given), type)
        te = _traced(KERNELS[key[0]], args, attrs)
        made = self._builder.call_te(te, *given, primfunc_name_hint=key[0].replace("-", "_"))
        self._programs[key] = (made.args[0], list(made.ty_args[0].fields))
        return made

    def _given(self, args: Sequence[Any]) -> list[relax.Expr]:
        """The tensors that a program is called on."""
        return [self._typed(x.of if isinstance(x, Strided) else x) for x in args]

    def _key(self, name: str, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
        types = tuple(x.view.key if isinstance(x, Strided) else self.shape(x) for x in args)
        dtypes = tuple(self.dtype(x.of if isinstance(x, Strided) else x) for x in args)
        return name, types, dtypes, repr(sorted(attrs.items()))

    def _typed(self, x: relax.Expr) -> relax.Expr:
        """``x`` itself if it is a variable or constant, else the variable it is now bound to."""
        return self.emit(x) if isinstance(x, MADE) else x

    def reshape(self, x: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        """``x`` in another shape; of a reshape, what that is made of: two in a row would be a kernel that copies."""
        x = self._typed(x)
        return relax.op.reshape(self._reshaped.get(x, x), shape)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """A variable for ``expr``, an expression that is not yet one."""
        var = self._builder.emit(expr)
        if isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "relax.reshape":
            self._reshaped[var] = expr.args[0]
        return var


def _dtype_text(type: Any) -> str:
    return str(getattr(type.dtype, "dtype", type.dtype))


def tensor_type(type: TensorType) -> relax.TensorType:
    """TVM's type of ours, with its own name of the dtype."""
    shape: Any = type.shape
    return relax.TensorType(shape, DTYPES[type.dtype].numpy)


def emit(graphs: Sequence[Graph]) -> tvm.IRModule:
    """One module with a function for each of ``graphs``, under the graph's name.

    A function takes every input of its graph in order, used or not, and returns a tuple of all outputs. No output
    shares memory with an input or with another output.
    """
    builder, programs = relax.BlockBuilder(), Programs()
    for graph in graphs:
        _function(builder, programs, graph)
    return builder.get()


def _function(builder: relax.BlockBuilder, programs: Programs, graph: Graph) -> None:
    inputs = [relax.Var(f"i{n}", tensor_type(v.type)) for n, v in enumerate(graph.inputs)]
    with builder.function(graph.name, inputs):
        names = Namespace(builder, programs)
        full: dict[Value, relax.Expr] = dict(zip(graph.inputs, inputs, strict=True))
        outputs = {v for _, v in graph.outputs}
        emitter = _Emitter(builder, names, full, outputs, Views.of(graph.values(), outputs))
        with builder.dataflow():
            for value in graph.values():
                if value.op:
                    emitter.value(value)
            returned = emitter.returned(graph)
        builder.emit_func_output(relax.Tuple(returned))


class _Emitter:
    """The expressions of one graph's values so far."""

    def __init__(
        self, builder: relax.BlockBuilder, names: Namespace, full: dict[Value, relax.Expr], outputs: set[Value],
        views: Views,
    ) -> None:  # fmt: skip
        self.builder, self.names = builder, names
        self.made = full  # value -> expression of its own shape
        self.flat: dict[Value, relax.Expr] = {}  # value -> expression of shape [M, n]
        self.outputs = outputs
        self.views = views
        self.lain: dict[tuple[Value, tuple[int, ...]], relax.Expr] = {}  # what strided rows read, by value and shape

    def value(self, value: Value) -> None:
        """Bind ``value``, in the form that suits it; an output always in full."""
        if value in self.views.unmade or value in self.made:
            return
        if OPS[value.op].strided:
            self._strided(value)
        elif self._keeps_flat(value):
            self.flat[value] = self._apply(value, flat_type(value.type), self._flat_args(value))
            if value in self.outputs:
                self.made[value] = self.builder.emit_output(self.names.reshape(self.flat[value], value.type.shape))
        elif value.op == "reshape" and value.args[0] in self.flat and value.type == flat_type(value.args[0].type):
            self.made[value] = self._bind(self.flat[value.args[0]], value)
        else:
            self.made[value] = self._apply(value, value.type, [self.full(a) for a in value.args], value)

    def _strided(self, value: Value) -> None:
        """Bind ``value``, or the transpose of it that its kernel writes."""
        made = self.views.written.get(value, value)
        args = [self._seen(value, n) for n in range(len(value.args))]
        self.names.orders = self.views.orders(value)
        self.made[made] = self._apply(value, made.type, args, made)
        self.names.orders = ()

    def _seen(self, value: Value, n: int) -> Any:
        """Argument ``n`` of a strided row, as it lies."""
        view = self.views.reads.get((value, n))
        if view is None:
            return self.full(value.args[n])
        if (view.source, view.lies) not in self.lain:
            flat = self.flat.get(view.source)
            source = self.full(view.source) if flat is None else flat
            same = tuple(int(i) for i in source.ty.shape) == view.lies
            made = source if same else self.names.emit(self.names.reshape(source, view.lies))
            self.lain[view.source, view.lies] = made
        return Strided(self.lain[view.source, view.lies], view)

    def full(self, value: Value) -> relax.Expr:
        if value not in self.made:
            self.made[value] = self.names.emit(self.names.reshape(self.flat[value], value.type.shape))
        return self.made[value]

    def rows(self, value: Value) -> relax.Expr:
        """The flat form."""
        if value not in self.flat:
            self.flat[value] = self.names.emit(self.names.reshape(self.made[value], flat_type(value.type).shape))
        return self.flat[value]

    def _keeps_flat(self, value: Value) -> bool:
        if value.type.rank < 3:
            return False
        if value.op == "matmul":
            a, b = (x.type for x in value.args)
            return a.rank > 2 and b.rank == 2 and not value.attrs.get("ta")
        is_elementwise = OPS[value.op].elementwise or value.op == "cast"
        return is_elementwise and any(a in self.flat for a in value.args) and all(_fits(a, value) for a in value.args)

    def _flat_args(self, value: Value) -> list[relax.Expr]:
        if value.op == "matmul":
            return [self.rows(value.args[0]), self.full(value.args[1])]
        return [self.rows(a) if a.type.rank > 1 else self.full(a) for a in value.args]

    def _apply(self, value: Value, type: TensorType, args: list[relax.Expr], whole: Value | None = None) -> relax.Expr:
        row = OPS[value.op]
        assert row.relax is not None, value.op
        self.names.out = type
        expr = self._bind(row.relax(self.names, *args, **value.attrs), whole)
        _check(value.op, type, expr)
        return expr

    def _bind(self, expr: relax.Expr, value: Value | None) -> relax.Expr:
        """A variable or constant for ``expr``. An output is bound as one where it is made, and is never an alias: TVM
        turns a reshape that is an intermediate into a view, and the view of an input must not be returned."""
        if value is None or value not in self.outputs:
            return self.names.emit(expr) if isinstance(expr, MADE) else expr
        if not isinstance(expr, MADE):
            expr = self.names.program("copy", value.type, expr)
        return self.builder.emit_output(expr)

    def returned(self, graph: Graph) -> list[relax.Expr]:
        """The output variables; an input, and a value returned twice, is copied."""
        seen: set[Value] = set(graph.inputs)
        returned = []
        for _, value in graph.outputs:
            expr = self.made[value]
            if value in seen:
                expr = self.builder.emit_output(self.names.program("copy", value.type, expr))
            seen.add(value)
            returned.append(expr)
        return returned


def flat_type(type: TensorType) -> TensorType:
    """[.., m, n] -> [..*m, n]."""
    return TensorType((math.prod(type.shape[:-1]), type.shape[-1]), type.dtype)


def _fits(arg: Value, value: Value) -> bool:
    """Whether ``arg`` can join an elementwise operator in flat form: of the same shape, or a row, or a scalar."""
    shape = value.type.shape
    return arg.type.shape in (shape, shape[-1:], ())


def _check(op: str, type: TensorType, expr: relax.Expr) -> None:
    """The row's ``type`` and ``relax`` columns must agree; a difference is a fault of the row."""
    have = TensorType(tuple(int(n) for n in expr.ty.shape), OURS[_dtype_text(expr.ty)])
    if have != type:
        raise AssertionError(f"row {op!r}: relax gives {have}, the type rule {type}")
