"""The f32 functions of ``elementary.py`` as CUDA text: the same steps, one device function each.

TVM writes the text of the functions that a kernel calls before it. The kernel compiler contracts no product and sum by
itself (``-fmad=false``), so that the bits equal the CPU's.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, Var

from .vector_expr import VectorExpr, dtype_of, single

TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long", "bool": "bool"}
UNSIGNED = {"int32": "unsigned int", "int64": "unsigned long long"}
CUDA_NAMES = {"fma": "fma", "minnum": "fmin", "maxnum": "fmax", "nearbyint": "nearbyint"}
REINTERPRET = {
    ("float32", "int32"): "__float_as_int", ("int32", "float32"): "__int_as_float",
    ("float32", "uint32"): "__float_as_uint", ("uint32", "float32"): "__uint_as_float",
    ("float64", "int64"): "__double_as_longlong", ("int64", "float64"): "__longlong_as_double",
}  # fmt: skip
INFIX = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.Div: "/", tirx.And: "&&", tirx.Or: "||", tirx.EQ: "==",
    tirx.NE: "!=", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=",
    tirx.BitwiseAnd: "&", tirx.BitwiseOr: "|", tirx.BitwiseXor: "^", tirx.LShift: "<<", tirx.RShift: ">>",
}  # fmt: skip
UNSIGNED_OPS = ("+", "-", "<<")  # on integers these are computed unsigned, since signed overflow is undefined in C++


def constant(value: float, dtype: str) -> str:
    """A literal of exactly ``value``, rounded to ``dtype``."""
    if dtype in UNSIGNED:
        return f"({TYPES[dtype]}){int(value)}ll" if dtype == "int64" else f"{int(value)}"
    if not math.isfinite(value):
        return f"__int_as_float({struct.unpack('i', struct.pack('f', value))[0]})"
    text = f"{single(value):.9g}" if dtype == "float32" else f"{value:.17g}"
    text = text if any(c in text for c in ".e") else f"{text}.0"
    return f"{text}f" if dtype == "float32" else text


def text(expr: Any) -> str:
    """An expression in C++. TypeError for a node that no step of ``elementary.py`` has."""
    dtype = dtype_of(expr)
    match expr:
        case Var():
            return str(expr.name)
        case tirx.FloatImm() | tirx.IntImm():
            return constant(expr.value, dtype)
        case tirx.Cast():
            return f"({TYPES[dtype]})({text(expr.value)})"
        case tirx.Select():
            return f"({text(expr.condition)} ? {text(expr.true_value)} : {text(expr.false_value)})"
        case tirx.Not():
            return f"!({text(expr.a)})"
        case _ if type(expr) in INFIX:
            return _infix(INFIX[type(expr)], expr.a, expr.b, dtype)
        case Call() if expr.op.name == "tirx.reinterpret":
            return f"{REINTERPRET[dtype_of(expr.args[0]), dtype]}({text(expr.args[0])})"
    raise TypeError(f"no step: {expr}")


def _infix(sign: str, a: Any, b: Any, dtype: str) -> str:
    if sign in UNSIGNED_OPS and dtype in UNSIGNED:
        kind = UNSIGNED[dtype]
        return f"({TYPES[dtype]})(({kind})({text(a)}) {sign} ({kind})({text(b)}))"
    return f"({text(a)} {sign} {text(b)})"


class Steps(VectorExpr):
    """As its base, with C++ variables for names and CUDA functions for LLVM intrinsics."""

    def name(self, value: Any) -> Any:
        return self._add_step(value, text(value))

    def llvm(self, name: str, *args: Any) -> Any:
        suffix = "f" if dtype_of(args[0]) == "float32" else ""
        return self._add_step(args[0], f"{CUDA_NAMES[name]}{suffix}({', '.join(map(text, args))})")

    def _add_step(self, like: Any, step: str) -> Any:
        self.named.append((tirx.Var(f"m{len(self.named)}", like.ty), step))
        return self.named[-1][0]


def source(name: str, function: Callable[..., Any], arity: int) -> str:
    """The text of the device function ``f32_NAME``."""
    args = [tirx.Var(f"x{n}", "float32") for n in range(arity)]
    v = Steps("float32")
    value = text(function(v, *args))
    steps = [f"  const {TYPES[dtype_of(var)]} {var.name} = {step};" for var, step in v.named]
    head = ", ".join(f"float {arg.name}" for arg in args)
    return "\n".join([f"static __device__ float f32_{name}({head}) {{", *steps, f"  return {value};", "}", ""])


def caller(name: str, function: Callable[..., Any]) -> Callable[[Any], Any]:
    """A lowering rule for TVM: an intrinsic call becomes a call of the device function."""
    source_of = functools.cache(functools.partial(source, name, function))

    def lower(call: Any) -> Any:
        return cuda_func_call(f"f32_{name}", *call.args, source_code=source_of(len(call.args)), return_type="float32")

    return lower


def fused(call: Any) -> Any:
    """a b + c, rounded once, as on every CPU. float16 is a product and a sum there, so here too."""
    dtype = dtype_of(call)
    if dtype in ("float32", "float64"):
        return tirx.call_pure_extern(dtype, "fmaf" if dtype == "float32" else "fma", *call.args)
    product = tirx.call_pure_extern(dtype, "__hmul_rn", *call.args[:2])
    return tirx.call_pure_extern(dtype, "__hadd_rn", product, call.args[2])


def rsqrt(call: Any) -> Any:
    """1 / sqrt(x); CUDA's own rsqrt is an approximation."""
    x = call.args[0]
    return tirx.const(1.0, dtype_of(x)) / tirx.sqrt(x)


def reinterpret(call: Any) -> Any:
    """By CUDA's functions, which take a constant too; TVM would take the address of its operand."""
    to, source = dtype_of(call), dtype_of(call.args[0])
    name = REINTERPRET.get((source, to))
    if name is None and {source.lstrip("u"), to.lstrip("u")} in ({"int32"}, {"int64"}):
        return tirx.Cast(to, call.args[0])
    return call if name is None else tirx.call_pure_extern(to, name, call.args[0])


OTHERS: dict[str, Callable[[Any], Any]] = {"fma": fused, "rsqrt": rsqrt, "reinterpret": reinterpret}
