"""bfloat16 arithmetic written out in integers and float32.

TVM 0.27 converts vectors of bfloat16, and names bound to it, as if they were integers. So a value is its 16 bits: it is
widened by a shift, computed in float32, and rounded to nearest even in integer arithmetic. The bits are
the same on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from tvm import tirx
from tvm.ir import Var

from .builder import Call, Expr, Load, Stmt
from .rewrite import collect, rewrite

BF16 = "bfloat16"
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def is_bf16(expr: Expr) -> bool:
    return str(expr.ty.dtype) == BF16


def bits16(expr: Expr) -> Expr:
    """The bits of a bfloat16 value."""
    if isinstance(expr, Call) and expr.op.name == "tirx.reinterpret":
        return expr.args[0]
    if isinstance(expr, tirx.FloatImm):
        return _upper(tirx.const(float(expr.value), "float32"))
    return tirx.reinterpret("uint16", expr)


def from_bits16(bits: Expr) -> Expr:
    """The bfloat16 value that has these 16 bits."""
    return tirx.reinterpret(BF16, bits)


def _upper(wide: Expr) -> Expr:
    """The upper half of a float32's bits."""
    return tirx.Cast("uint16", tirx.reinterpret("uint32", wide) >> _u32(16))


def exact(wide: Expr) -> Expr:
    """A float32 whose lower 16 bits are 0 as bfloat16: nothing is rounded."""
    return from_bits16(_upper(wide))


def _wide_of(expr: Expr) -> Expr | None:
    """The float32 variable that ``exact`` was called with, if ``expr`` is its result: it need not be widened again."""
    if not (isinstance(expr, Call) and isinstance(expr.args[0], tirx.Cast)):
        return None
    shift = expr.args[0].value
    wide = shift.a if isinstance(shift, tirx.RShift) else None
    wide = wide.args[0] if isinstance(wide, Call) and wide.op.name == "tirx.reinterpret" else None
    return wide if isinstance(wide, Var) else None


def widen(expr: Expr) -> Expr:
    """A bfloat16 value as float32, exactly."""
    if isinstance(expr, tirx.FloatImm):
        return tirx.const(float(expr.value), "float32")
    wide = _wide_of(expr)
    if wide is not None:
        return wide
    return tirx.reinterpret("float32", tirx.Cast("uint32", bits16(expr)) << _u32(16))


def narrow(wide: Expr) -> Expr:
    """A float32 rounded to bfloat16, to nearest, ties to even; a NaN stays a NaN.

    ``wide`` occurs four times in the result: it should be a variable."""
    bits = tirx.reinterpret("uint32", wide)
    # Half of the last place that stays, less 1 unless that place is odd: ties then go to the even neighbour.
    odd = (bits >> _u32(16)) & _u32(1)
    rounded = (bits + odd + _u32(0x7FFF)) >> _u32(16)
    # A NaN is set apart: rounded, its bits could carry over into those of an infinity or of -0.
    nan = (bits & _u32(0x7FFFFFFF)) > _u32(0x7F800000)
    return from_bits16(tirx.Cast("uint16", tirx.Select(nan, _u32(0x7FC0), rounded)))


@attrs.frozen
class Bfloat16Lowering:
    """Callbacks for ``rewrite`` that write bfloat16 out. ``name(expr)`` returns a variable bound to ``expr``."""

    name: Callable[[Expr], Expr]

    def callbacks(self) -> list[tuple[Any, Callable[[Any], Expr]]]:
        return [
            (tirx.Cast, self._cast),
            (_ARITHMETIC, self._arithmetic),
            (_COMPARISONS, self._compare),
            (tirx.Select, self._select),
        ]

    def _narrow(self, wide: Expr) -> Expr:
        return narrow(self.name(wide))

    def _cast(self, node: Any) -> Expr:
        if is_bf16(node.value):
            wide = widen(node.value)
            return wide if str(node.ty.dtype) == "float32" else tirx.Cast(str(node.ty.dtype), wide)
        if is_bf16(node):
            wide = node.value if str(node.value.ty.dtype) == "float32" else tirx.Cast("float32", node.value)
            return self._narrow(wide)
        return node

    def _arithmetic(self, node: Any) -> Expr:
        return self._narrow(type(node)(widen(node.a), widen(node.b))) if is_bf16(node) else node

    def _compare(self, node: Any) -> Expr:
        return type(node)(widen(node.a), widen(node.b)) if is_bf16(node.a) else node

    def _select(self, node: Any) -> Expr:
        if not is_bf16(node):
            return node
        # Of bits, which need no conversion: a choice rounds nothing.
        return from_bits16(tirx.Select(node.condition, bits16(node.true_value), bits16(node.false_value)))

    def call(self, node: Any) -> Expr:
        """A function of a bfloat16 value, computed in float32."""
        if not is_bf16(node) or not str(node.op.name).startswith("tirx.") or node.op.name == "tirx.reinterpret":
            return node
        # Targets have the functions for float32, with equal bits; of bfloat16 each would have its own or none.
        return self._narrow(Call(node.op, [widen(a) for a in node.args], ret_ty="float32"))


def splat(stmt: Stmt, lane: Any, width: int) -> tuple[list[Any], Stmt]:
    """Broadcasts bfloat16 scalars by hand: allocations, and ``stmt``, in which a value that is the same in all lanes is
    stored by way of a buffer of its bits, once a lane.

    TVM cannot store a broadcast bfloat16: it takes the buffer for integers and the scalar for a float.
    """
    varying, allocations = {lane}, []
    for bound in collect(stmt, tirx.Bind, order="pre"):
        if not varying.isdisjoint(collect(bound.value, Var)):
            varying.add(bound.var)

    def write(node: Any) -> Stmt:
        if str(node.buffer.dtype) != BF16 or not varying.isdisjoint(collect(node.value, Var)):
            return node
        bits = tirx.decl_buffer([tirx.IntImm("int64", width)], "uint16", "bits")
        allocations.append(tirx.AllocBuffer(bits))
        lane_value = from_bits16(tirx.BufferLoad(bits, [lane]))
        return tirx.SeqStmt(
            [
                tirx.BufferStore(bits, bits16(node.value), [lane]),
                tirx.BufferStore(node.buffer, lane_value, list(node.indices)),
            ]
        )

    return allocations, rewrite(stmt, [(tirx.BufferStore, write)])


def as_bits(stmt: Stmt, buffers: Iterable[Any]) -> Stmt:
    """``stmt`` with the given bfloat16 buffers as uint16 buffers of their bits.

    TVM widens a kernel's own bfloat16 buffers to float32, after which bits read from them would mean something else.
    """
    bf16_buffers = [b for b in buffers if str(b.dtype) == BF16]
    bits_of = {b: tirx.decl_buffer(list(b.shape), "uint16", b.name, scope=b.scope()) for b in bf16_buffers}
    if not bits_of:
        return stmt

    def read(node: Any) -> Expr:
        return (
            from_bits16(tirx.BufferLoad(bits_of[node.source], list(node.indices))) if node.source in bits_of else node
        )

    def unwrap(node: Any) -> Expr:
        # bits -> bfloat16 -> bits, which loads and stores of the two callbacks beside it leave behind: the bits.
        inner = node.args[0] if node.op.name == "tirx.reinterpret" else None
        twice = isinstance(inner, Call) and is_bf16(inner) and str(node.ty.dtype) == "uint16"
        return inner.args[0] if twice and inner is not None else node

    def write(node: Any) -> Stmt:
        if node.buffer not in bits_of:
            return node
        return tirx.BufferStore(bits_of[node.buffer], bits16(node.value), list(node.indices))

    def allocate(node: Any) -> Stmt:
        return tirx.AllocBuffer(bits_of[node.buffer]) if node.buffer in bits_of else node

    callbacks = [(Load, read), (Call, unwrap), (tirx.BufferStore, write), (tirx.AllocBuffer, allocate)]
    return rewrite(stmt, callbacks)
