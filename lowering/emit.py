"""Graphs to one Relax module: one function a graph, one binding (or a few) a value.

What an operator becomes is said by its row's ``relax`` column; this file only walks the graph and hands the
row the namespace ``r`` (see ``Namespace``).

A product [.., m, k] x [k, n] is emitted as one [M, k] x [k, n], and what is done element by element to its result
stays in that form too, so that it can join the product's kernel: a value may have a second, FLAT expression
[M, n] beside its full one, and each is made from the other only when something asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from sexpgpu.graph.core import Graph, Value
from sexpgpu.ops import OPS
from sexpgpu.ops.strided_views import Views
from sexpgpu.ops.types import DTYPES, TensorType

from .kernels.namespace import DTYPE_NAMES, UNBOUND_EXPRS, Namespace, Programs, Strided, dtype_text
from .kernels.split_concat import Cut, cuts
from .scalar_operands import as_data


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
        emitter = _Emitter(builder, names, graph, full)
        with builder.dataflow():
            for value in graph.values():
                if value.op and value not in emitter.data:
                    emitter.value(value)
            returned = emitter.returned(graph)
        builder.emit_func_output(relax.Tuple(returned))


class _Emitter:
    """The expressions of one graph's values so far."""

    def __init__(
        self, builder: relax.BlockBuilder, names: Namespace, graph: Graph, full: dict[Value, relax.Expr]
    ) -> None:
        self.builder, self.names = builder, names
        self.made = full  # value -> expression of its own shape
        self.flat: dict[Value, relax.Expr] = {}  # value -> expression of shape [M, n]
        self.outputs = {v for _, v in graph.outputs}
        self.views = Views.of(graph.values(), self.outputs)
        self.cuts, self.data = cuts(graph), as_data(graph)
        self.windows: dict[tuple[Value, int, int, int], relax.Expr] = {}  # of which a program makes slices
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
        elif value in self.cuts:
            self.made[value] = self._bind(self._cut(self.cuts[value]), value)
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

    def _cut(self, cut: Cut) -> relax.Expr:
        """A slice that is made with others."""
        window = (cut.x, cut.axis, cut.start, cut.stop)
        if window not in self.windows:
            x = self.full(cut.x)
            part = x if cut.is_whole else self.names.strided_slice(x, [cut.axis], [cut.start], [cut.stop])
            self.windows[window] = self.names.bound(part)
        return self.names.one_of(cut.n, "parts", self.windows[window], axis=cut.axis, spans=cut.spans)

    def full(self, value: Value) -> relax.Expr:
        """The expression of the value's own shape. A number that is data is one of its own for each use, so that it
        joins the kernel of that."""
        if value in self.data:
            return self.names.bound(self.names.reshape(self.names.const([value.attrs["value"]], value.type.dtype), ()))
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
        if OPS[value.op].fusion == "product":
            a, b = (x.type for x in value.args)
            return a.rank > 2 and b.rank == 2 and not value.attrs.get("ta")
        if not OPS[value.op].elementwise:
            return False
        return any(a in self.flat for a in value.args) and all(_fits(a, value) for a in value.args)

    def _flat_args(self, value: Value) -> list[relax.Expr]:
        if OPS[value.op].fusion == "product":
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
            return self.names.emit(expr) if isinstance(expr, UNBOUND_EXPRS) else expr
        if not isinstance(expr, UNBOUND_EXPRS):
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
    have = TensorType(tuple(int(n) for n in expr.ty.shape), DTYPE_NAMES[dtype_text(expr.ty)])
    if have != type:
        raise AssertionError(f"row {op!r}: relax gives {have}, the type rule {type}")
