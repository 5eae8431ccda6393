"""The names that the operator table's ``relax`` column may use to lower an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from attrs import frozen
from tvm import relax

from sexpgpu.ops.strided_views import View
from sexpgpu.ops.types import DTYPES, TensorType

from . import (  # noqa: F401  (fill KERNELS)
    attention,
    cumsum,
    division,
    elementwise,
    indexing,
    integers,
    normalization,
    reduction,
    scatter,
)
from .registry import KERNELS
from .relax_wrappers import COMPOSED
from .strided_views import Viewed

DTYPE_NAMES = {dtype.numpy: name for name, dtype in DTYPES.items()}
# Kernels that fusion must leave alone: they are memory copies only while no other computation is fused into them.
UNFUSED = ("concat", "parts")
OPAQUE = 8  # TVM's op pattern of a program that is never fused
UNBOUND_EXPRS = (tvm.ir.Call, relax.TupleGetItem)  # expressions that are not yet bound to a variable


# Cache: (name, result, types of the arguments, attributes) -> the program in the module, and its result's type. An
# equal layer need not be traced again. The attributes are text, since 0.0 == -0.0.
Programs = dict[tuple[Any, ...], tuple[Any, Any]]


@frozen(eq=False)
class Strided:
    """An argument of an operator that reads strided views: ``view`` of the tensor variable ``of``."""

    of: relax.Expr
    view: View


def _traced(program: Callable[..., Any], args: Sequence[Any], attrs: dict[str, Any]) -> Callable[..., Any]:
    """``program`` on te tensors, each read through the view of its argument."""
    views = [x.view if isinstance(x, Strided) else None for x in args]

    def on_tensors(*tensors: Any) -> Any:
        through_views = (t if v is None else Viewed(t, v) for t, v in zip(tensors, views, strict=True))
        return program(*through_views, **attrs)

    return on_tensors


class Namespace:
    """What a row's ``relax`` column may use: every function of ``relax.op`` by its name, and the methods below.

    out:    the TensorType of the value being emitted
    orders: for each result of a strided operator, the order in which its axes are written; None for their own order
    Calls may be nested; only the last result need be returned.
    """

    def __init__(self, builder: relax.BlockBuilder, programs: Programs) -> None:
        self._builder = builder
        self._programs = programs
        self._calls: dict[Any, relax.Expr] = {}  # (multi-output program, arguments) -> its call
        self.out = TensorType((), "f32")
        self.orders: tuple[Any, ...] = ()
        self._reshaped: dict[relax.Expr, relax.Expr] = {}  # a variable that is a reshape -> its argument

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
        return DTYPE_NAMES[dtype_text(self._typed(x).ty)]

    def number(self, x: relax.Expr) -> float | int | bool | None:
        """The value of a scalar constant; None for any other expression."""
        value = getattr(x, "value", None)
        return value.numpy().item() if isinstance(value, tvm.runtime.Tensor) and not value.shape else None

    def kernel(self, name: str, *args: relax.Expr, **attrs: Any) -> relax.Expr:
        """The kernel ``name`` on ``args``: a tensor program of KERNELS, or a function of COMPOSED around one."""
        if name in COMPOSED:
            return COMPOSED[name](self, *args, **attrs)
        return self.program(name, self.out, *args, **attrs)

    def program(self, name: str, out: TensorType, *args: Any, **attrs: Any) -> relax.Expr:
        """A call of the tensor program ``name`` of KERNELS on ``args``, with ``out``, its result's type, and
        ``attrs``."""
        if any(self.orders):
            attrs["order"] = self.orders[0]
        args, tensors = self._bind_args(args)
        key = self._key(name, args, attrs)
        if (key, out) in self._programs:
            program, type = self._programs[key, out]
            return relax.call_tir(program, relax.Tuple(tensors), type)
        call = self._call(name, _traced(KERNELS[name], args, {"out": out, **attrs}), tensors)
        self._programs[key, out] = (call.args[0], call.ty_args[0])
        return call

    def one_of(self, n: int, name: str, *args: Any, **attrs: Any) -> relax.Expr:
        """Result ``n`` of the multi-output tensor program ``name``. Equal calls in one function are one call."""
        if any(self.orders):
            attrs["orders"] = self.orders
        args, tensors = self._bind_args(args)
        key = self._key(name, args, attrs)
        call = (key, *tensors)
        if call not in self._calls:
            self._calls[call] = self.emit(self._several(key, args, tensors, attrs))
        return relax.TupleGetItem(self._calls[call], n)

    def _several(self, key: tuple[Any, ...], args: Any, tensors: list[relax.Expr], attrs: dict[str, Any]) -> relax.Expr:
        if key in self._programs:
            program, type = self._programs[key]
            return relax.call_tir(program, relax.Tuple(tensors), type)
        call = self._call(key[0], _traced(KERNELS[key[0]], args, attrs), tensors)
        self._programs[key] = (call.args[0], list(call.ty_args[0].fields))
        return call

    def _bind_args(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], list[relax.Expr]]:
        """``args`` with each expression bound to a variable, and the tensors to call the program on."""
        bound = tuple(x if isinstance(x, Strided) else self._typed(x) for x in args)
        return bound, [x.of if isinstance(x, Strided) else x for x in bound]

    def _key(self, name: str, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
        types = tuple(x.view.key if isinstance(x, Strided) else self.shape(x) for x in args)
        dtypes = tuple(self.dtype(x.of if isinstance(x, Strided) else x) for x in args)
        return name, types, dtypes, repr(sorted(attrs.items()))

    def _call(self, name: str, te: Any, tensors: list[relax.Expr]) -> Any:
        """A call of the new program ``te``."""
        attributes = {"op_pattern": OPAQUE} if name in UNFUSED else None
        return self._builder.call_te(te, *tensors, primfunc_name_hint=name.replace("-", "_"), primfunc_attrs=attributes)

    def _typed(self, x: relax.Expr) -> relax.Expr:
        """``x`` itself if it is a variable or constant, else a new variable that is bound to it."""
        return self.emit(x) if isinstance(x, UNBOUND_EXPRS) else x

    def reshape(self, x: relax.Expr, shape: Any) -> relax.Expr:
        """``x`` in another shape. The reshape of a reshape takes the inner argument: two in a row would be a copying
        kernel."""
        x = self._typed(x)
        return relax.op.reshape(self._reshaped.get(x, x), shape)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """A new variable that is bound to ``expr``."""
        var = self._builder.emit(expr)
        if isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "relax.reshape":
            self._reshaped[var] = expr.args[0]
        return var


def dtype_text(type: Any) -> str:
    return str(getattr(type.dtype, "dtype", type.dtype))
