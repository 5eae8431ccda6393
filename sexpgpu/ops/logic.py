"""Comparisons, choices and bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .elementwise import XS, XY, X
from .spec import ZERO_GRAD, index, op, tensor
from .type_rules import BOOLS, NUMBERS, WHOLE, joined, same_dtype, unary
from .types import DTYPES, TensorType, TypeFault, broadcast

COMPARE = (([("f32", (3, 5)), ("f32", (5,))], {}), ([("i32", (40,), -2, 3), ("i32", (), 0, 1)], {}),
           ([("u8", (2, 1), 0, 256), ("u8", (3,), 0, 256)], {}), ([("bf16", (7,)), ("bf16", (7,))], {}))
EQUAL = (*COMPARE, ([("bool", (3, 1)), ("bool", (5,))], {}))
BITS = (([("i32", (3, 5), -99, 99), ("i32", (5,), -99, 99)], {}), ([("u8", (37,), 0, 256), ("u8", (), 0, 256)], {}),
        ([("u32", (7,), 0, 2**32), ("u32", (7,), 0, 2**32)], {}), ([("i64", (3,)), ("i64", (3,))], {}))
SHIFTS = (([("i32", (40, 1), -2**31, 2**31), ("i32", (70,), -2, 40)], {}), ([("u8", (37,), 0, 256),
          ("u8", (37,), 0, 11)], {}),
          ([("u32", (7,), 0, 2**32), ("u32", ())], {}), ([("i64", (40,), -2**62, 2**62), ("i64", (40,), -2, 70)], {}),
          ([("i8", (90,), -128, 128), ("i8", (90,), -2, 11)], {}))
TRUTHS = (([("bool", (3, 1)), ("bool", (5,))], {}), ([("bool", ()), ("bool", (2, 3))], {}), ([("bool", (33,)),
          ("bool", (33,))], {}))
TRUE_JOINED = joined(BOOLS, hint="compare it first, for example with /= 0")
ORDERED = joined(NUMBERS, "bool", hint="bools have = and /=")


def equal_types(x: TensorType, y: TensorType) -> TensorType:
    """The type rule of = and /=, which take bools too."""
    same_dtype(x, y)
    return TensorType(broadcast(x.shape, y.shape), "bool")


def compare_relax(name: str, program: str, flip: bool = False) -> Callable[..., Any]:
    """``relax.op`` ``name``, or of floats the program that keeps to IEEE 754; ``flip`` hands it y and x.

    TVM 0.27 compares bools as floats, which LLVM refuses: they are compared as bytes.
    """

    def relax(r: Any, x: Any, y: Any) -> Any:
        kind = DTYPES[r.dtype(x)].kind
        if kind == "float":
            return r.kernel(program, y, x) if flip else r.kernel(program, x, y)
        x, y = (r.astype(v, "uint8") if kind == "bool" else v for v in (x, y))
        return getattr(r, name)(x, y)

    return relax


def where_type(condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    if condition.dtype != "bool":
        raise TypeFault(f"the condition is {condition}, not a bool tensor; compare it, for example with /= 0")
    return TensorType(broadcast(condition.shape, x.shape, y.shape), same_dtype(x, y))


def where_vjp(b: Any, dz: Any, z: Any, condition: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    zero = b.const(0, z.type.dtype)
    return None, b.fit(b("where", condition, dz, zero), x), b.fit(b("where", condition, zero, dz), y)


def shift_ref(left: bool) -> Callable[..., Any]:
    """Shift by 0 to bits - 1; by any other amount nothing of x is left but, to the right, its sign."""

    def ref(np: Any, x: Any, y: Any) -> Any:
        bits = x.dtype.itemsize * 8
        within = (y >= 0) & (y < bits)
        amount = np.where(within, y, bits - 1).astype(y.dtype)
        shifted = np.left_shift(x, amount) if left else np.right_shift(x, amount)
        return shifted if x.dtype.kind == "i" and not left else np.where(within, shifted, x.dtype.type(0))

    return ref


def shift_number(left: bool) -> Callable[..., int]:
    """On 64 bits, as for an i64 tensor."""

    def number(x: int, y: int) -> int:
        if not (isinstance(x, int) and isinstance(y, int)):
            raise TypeError("a shift is of integers")
        if not 0 <= y < 64:
            return 0 if left or x >= 0 else -1
        return x << y if left else x >> y

    return number


op("=", "Whether two tensors of one dtype are equal, element by element, as bool, broadcast. NaN equals nothing.",
   group="logic", precision="f32", args=XY, type=equal_types, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x == y,
   relax=compare_relax("equal", "equal"),
   number=lambda x, y: x == y,
   onnx=lambda o, x, y: o("Equal", x, y),
   cases=EQUAL)

op("/=", "Whether two tensors of one dtype differ, element by element, as bool, broadcast. NaN differs from "
   "everything.",
   group="logic", precision="f32", args=XY, type=equal_types, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x != y,
   relax=compare_relax("not_equal", "differ"),
   number=lambda x, y: x != y,
   cases=EQUAL)

op("<", "Whether x is less than y, element by element, as bool, broadcast. False where either is NaN.",
   group="logic", precision="f32", args=XY, type=ORDERED, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x < y,
   relax=lambda r, x, y: r.less(x, y),
   number=lambda x, y: x < y,
   onnx=lambda o, x, y: o("Less", x, y),
   cases=COMPARE)

op("<=", "Whether x is at most y, element by element, as bool, broadcast. False where either is NaN.",
   group="logic", precision="f32", args=XY, type=ORDERED, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x <= y,
   relax=compare_relax("less_equal", "at-most"),
   number=lambda x, y: x <= y,
   onnx=lambda o, x, y: o("LessOrEqual", x, y),
   cases=COMPARE)

op(">", "Whether x is greater than y, element by element, as bool, broadcast. False where either is NaN.",
   group="logic", precision="f32", args=XY, type=ORDERED, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x > y,
   relax=lambda r, x, y: r.greater(x, y),
   number=lambda x, y: x > y,
   onnx=lambda o, x, y: o("Greater", x, y),
   cases=COMPARE)

op(">=", "Whether x is at least y, element by element, as bool, broadcast. False where either is NaN.",
   group="logic", precision="f32", args=XY, type=ORDERED, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x >= y,
   relax=compare_relax("greater_equal", "at-most", flip=True),
   number=lambda x, y: x >= y,
   onnx=lambda o, x, y: o("GreaterOrEqual", x, y),
   cases=COMPARE)

op("and", "Whether all of the bool tensors are true, element by element, broadcast. On trace-time values it is "
   "Lisp's `and`.",
   group="logic", args=XS, folds=True, type=TRUE_JOINED, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x & y,
   relax=lambda r, x, y: r.logical_and(x, y),
   onnx=lambda o, x, y: o("And", x, y),
   cases=TRUTHS)

op("or", "Whether any of the bool tensors is true, element by element, broadcast. On trace-time values it is "
   "Lisp's `or`.",
   group="logic", args=XS, folds=True, type=TRUE_JOINED, vjp=ZERO_GRAD,
   ref=lambda np, x, y: x | y,
   relax=lambda r, x, y: r.logical_or(x, y),
   onnx=lambda o, x, y: o("Or", x, y),
   cases=TRUTHS)

op("not", "The negation of each element of a bool tensor.",
   group="logic", args=X, type=unary(BOOLS, hint="compare it first, for example with = 0"), vjp=ZERO_GRAD,
   ref=lambda np, x: ~x,
   relax=lambda r, x: r.kernel("not", x),
   onnx=lambda o, x: o("Not", x),
   cases=(([("bool", (3, 5))], {}), ([("bool", ())], {})))

op("where", "x where the bool `condition` is true, y elsewhere, all three broadcast. x and y have one dtype. Both "
   "are computed: `where` is no trace-time choice, and not lazy.",
   group="logic", args=(index("condition"), tensor("x"), tensor("y")), type=where_type, vjp=where_vjp,
   ref=lambda np, condition, x, y: np.where(condition, x, y),
   relax=lambda r, condition, x, y: r.where(condition, x, y),
   onnx=lambda o, condition, x, y: o("Where", condition, x, y),
   cases=(([("bool", (3, 5)), ("f32", (3, 5)), ("f32", ())], {}), ([("bool", ()), ("f32", (4,)), ("f32", (4,))], {}),
          ([("bool", (3, 1)), ("i32", (5,)), ("i32", (2, 1, 1))], {}), ([("bool", (7,)), ("bf16", (7,)),
          ("bf16", (7,))], {}),
          ([("bool", (7,)), ("bool", (7,)), ("bool", ())], {}), ([("bool", (3,)), ("f64", ()), ("f64", (3,))], {})))

op("bit-and", "The bits that both integers have, broadcast.",
   group="logic", args=XY, type=joined(WHOLE), vjp=ZERO_GRAD,
   ref=lambda np, x, y: x & y,
   relax=lambda r, x, y: r.bitwise_and(x, y),
   number=lambda x, y: x & y,
   cases=BITS)

op("bit-or", "The bits that either integer has, broadcast.",
   group="logic", args=XY, type=joined(WHOLE), vjp=ZERO_GRAD,
   ref=lambda np, x, y: x | y,
   relax=lambda r, x, y: r.bitwise_or(x, y),
   number=lambda x, y: x | y,
   cases=BITS)

op("bit-xor", "The bits that exactly one of the integers has, broadcast.",
   group="logic", args=XY, type=joined(WHOLE), vjp=ZERO_GRAD,
   ref=lambda np, x, y: x ^ y,
   relax=lambda r, x, y: r.bitwise_xor(x, y),
   number=lambda x, y: x ^ y,
   cases=BITS)

op("shift-left", "Each integer shifted left by y bits, broadcast. An amount below 0, or of the dtype's bits or more, "
   "gives 0.",
   group="logic", args=XY, type=joined(WHOLE), vjp=ZERO_GRAD,
   ref=shift_ref(True),
   relax=lambda r, x, y: r.kernel("shift-left", x, y),
   number=shift_number(True),
   cases=SHIFTS)

op("shift-right", "Each integer shifted right by y bits, broadcast; a signed one keeps its sign. An amount below 0, "
   "or of the dtype's bits "
   "or more, gives 0, or -1 of a negative integer.",
   group="logic", args=XY, type=joined(WHOLE), vjp=ZERO_GRAD,
   ref=shift_ref(False),
   relax=lambda r, x, y: r.kernel("shift-right", x, y),
   number=shift_number(False),
   cases=SHIFTS)
