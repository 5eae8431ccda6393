"""Graphs to one Relax module: one function a graph, one binding (or a few) a value.

What an operator becomes is said by its row's ``relax`` column; this file only walks the graph and hands the
row the namespace ``r`` (see ``Namespace``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from sexpgpu.graph import Graph, Value
from sexpgpu.ops import OPS
from sexpgpu.types import DTYPES, TensorType

from .composed import COMPOSED
from .kernels import KERNELS

OURS = {dtype.numpy: name for name, dtype in DTYPES.items()}


class Namespace:
    """What a row's ``relax`` column may use: every function of ``relax.op`` by its name, and the names below.

    out:  the TensorType of the value being emitted
    A call may be nested in another one; only its last result need be returned.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self.out = TensorType((), "f32")

    def __getattr__(self, name: str) -> Any:
        return getattr(relax.op, name)

    def dt(self, dtype: str) -> str:
        """TVM's name of our dtype: "f32" -> "float32"."""
        return DTYPES[dtype].numpy

    def const(self, number: float | int | bool, dtype: str) -> relax.Expr:
        """A scalar of our ``dtype``, rounded once."""
        return relax.const(number, self.dt(dtype))

    def shape(self, x: relax.Expr) -> tuple[int, ...]:
        return tuple(int(n) for n in self._typed(x).ty.shape)

    def dtype(self, x: relax.Expr) -> str:
        """Our name of the dtype of ``x``."""
        return OURS[_dtype_text(self._typed(x).ty)]

    def kernel(self, name: str, *args: relax.Expr, **attrs: Any) -> relax.Expr:
        """The kernel ``name`` on ``args``: a tensor program of KERNELS, or a function of COMPOSED around one."""
        if name in COMPOSED:
            return COMPOSED[name](self, *args, **attrs)
        return self.program(name, self.out, *args, **attrs)

    def program(self, name: str, out: TensorType, *args: relax.Expr, **attrs: Any) -> relax.Expr:
        """The tensor program ``name`` of KERNELS on ``args``; it is told ``out``, its result's type, and ``attrs``."""
        program = KERNELS[name]

        def te(*tensors: Any) -> Any:
            return program(*tensors, out=out, **attrs)

        hint = name.replace("-", "_")
        return self._builder.call_te(te, *map(self._typed, args), primfunc_name_hint=hint)

    def _typed(self, x: relax.Expr) -> relax.Expr:
        """``x`` itself if it is a variable or constant, else the variable it is now bound to."""
        return x if isinstance(x, relax.Var) or not isinstance(x, tvm.ir.Call) else self._builder.emit(x)


def _dtype_text(type: relax.TensorType) -> str:
    return str(getattr(type.dtype, "dtype", type.dtype))


def tensor_type(type: TensorType) -> relax.TensorType:
    return relax.TensorType(type.shape, DTYPES[type.dtype].numpy)


def emit(graphs: Sequence[Graph]) -> tvm.IRModule:
    """One module with a function for each of ``graphs``, under the graph's name.

    A function takes every input of its graph in order, used or not, and returns a tuple of all outputs. No output
    shares memory with an input or with another output.
    """
    builder = relax.BlockBuilder()
    for graph in graphs:
        _function(builder, graph)
    return builder.get()


def _function(builder: relax.BlockBuilder, graph: Graph) -> None:
    made: dict[Value, relax.Expr] = {v: relax.Var(f"i{n}", tensor_type(v.type)) for n, v in enumerate(graph.inputs)}
    outputs = {v for _, v in graph.outputs}
    names = Namespace(builder)
    with builder.function(graph.name, [made[v] for v in graph.inputs]):
        with builder.dataflow():
            for value in graph.values():
                if value.op:
                    made[value] = _value(names, value, [made[a] for a in value.args], value in outputs)
            returned = _returned(names, graph, made)
        builder.emit_func_output(relax.Tuple(returned))


def _value(names: Namespace, value: Value, args: list[relax.Expr], is_output: bool) -> relax.Expr:
    """Bind ``value``. An output is bound as one where it is made: TVM would turn a reshape that is a mere
    intermediate into a view, and the view of an input must not be returned."""
    row, builder = OPS[value.op], names._builder
    assert row.relax is not None, value.op
    names.out = value.type
    expr = row.relax(names, *args, **value.attrs)
    if isinstance(expr, relax.Var):  # the row gave back an argument, or a value it has bound
        expr = names.kernel("copy", expr) if is_output else expr
    bound = builder.emit_output(expr) if is_output else _bound(builder, expr)
    _check(value, bound)
    return bound


def _bound(builder: relax.BlockBuilder, expr: relax.Expr) -> relax.Expr:
    return builder.emit(expr) if isinstance(expr, tvm.ir.Call) else expr


def _check(value: Value, expr: relax.Expr) -> None:
    """The row's ``type`` and ``relax`` columns must agree; a difference is a fault of the row."""
    have = (tuple(int(n) for n in expr.ty.shape), OURS[_dtype_text(expr.ty)])
    if have != (value.type.shape, value.type.dtype):
        raise AssertionError(f"row {value.op!r}: relax gives {have[1]}{list(have[0])}, the type rule {value.type}")


def _returned(names: Namespace, graph: Graph, made: dict[Value, relax.Expr]) -> list[relax.Expr]:
    """The output variables; an input, and a value returned twice, is copied."""
    seen: set[Value] = set(graph.inputs)
    returned = []
    for _, value in graph.outputs:
        expr = made[value]
        if value in seen:
            names.out = value.type
            expr = names._builder.emit_output(names.kernel("copy", expr))
        seen.add(value)
        returned.append(expr)
    return returned
