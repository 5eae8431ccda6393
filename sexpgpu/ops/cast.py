"""The change of dtype."""

from __future__ import annotations

from typing import Any

from .batching import pointwise
from .element_boxes import cast_origins
from .partial_cotangents import cast_padded
from .shape import X
from .spec import attr, op
from .type_rules import WHOLE, int_range, numpy_dtype
from .types import DTYPES, TensorType
from .work import moving


def cast_ref(np: Any, x: Any, dtype: str) -> Any:
    """Float to integer: truncated, held at the ends of the range, NaN to 0."""
    if DTYPES[dtype].kind not in WHOLE or x.dtype.kind in "iub":
        return x.astype(numpy_dtype(np, dtype))
    x = x.astype("float64")
    low, high = int_range(dtype)
    inside = (x >= low) & (x < high + 1)
    whole = np.where(inside, x, 0).astype(numpy_dtype(np, dtype))
    return np.where(x >= high + 1, whole.dtype.type(high), np.where(x < low, whole.dtype.type(low), whole))


def cast_from(v: Any) -> Any:
    """What ``v``, a graph's value, is a cast of, or None."""
    return v.args[0] if v.op == "cast" else None


def cast_relax(r: Any, x: Any, dtype: str) -> Any:
    have = r.dtype(x)
    if have == dtype:
        return x
    if DTYPES[have].kind == "float" and DTYPES[dtype].kind in WHOLE:
        return r.kernel("saturate", x)
    if DTYPES[have].kind in WHOLE and DTYPES[dtype].kind in WHOLE:
        return r.kernel("wrap-cast", x)
    return r.astype(x, r.dt(dtype))


def cast_vjp(b: Any, dy: Any, y: Any, x: Any, dtype: str) -> tuple[Any]:
    """Between floats only: reverse mode never asks a value that is not a float, and through an integer it is wrong."""
    return (b("cast", dy, dtype=x.type.dtype) if x.type.kind == "float" else None,)


op("cast", "x in another dtype. Float to integer truncates toward zero, saturates at the ends of the integer's range "
   "and makes NaN 0. Integer to integer wraps. To bool tests whether an element differs from 0. The gradient flows "
   "from float to float only.",
   group="shape", precision="f32", args=(*X, attr("dtype", "dtype")),
   type=lambda x, dtype: TensorType(x.shape, dtype),
   ref=cast_ref, relax=cast_relax, vjp=cast_vjp,
   stack=pointwise,
   elementwise=True, work=moving(), rearranges=True, origins=cast_origins, padded=cast_padded,
   cases=(([("f32", (3, 5), -9.0, 9.0)], {"dtype": "i32"}), ([("f32", (40,), -9e9, 9e9)], {"dtype": "i32"}),
          ([("f32", (40,), -300.0, 300.0)], {"dtype": "u8"}), ([("f32", (9,), -1e10, 1e10)], {"dtype": "u32"}),
          ([("f64", (9,), -1e19, 1e19)], {"dtype": "i64"}), ([("bf16", (40,), -300.0, 300.0)], {"dtype": "i8"}),
          ([("i32", (9,), -999, 999)], {"dtype": "i8"}), ([("i64", (9,), -2**40, 2**40)], {"dtype": "i32"}),
          ([("i32", (9,), -99, 99)], {"dtype": "f32"}), ([("u32", (9,), 0, 2**32)], {"dtype": "f32"}),
          ([("f32", (3, 5))], {"dtype": "bf16"}), ([("bf16", (7,))], {"dtype": "f32"}),
          ([("f32", (7,))], {"dtype": "f16"}),
          ([("f32", ())], {"dtype": "f64"}), ([("f64", (7,))], {"dtype": "f32"}), ([("f32", (3,))], {"dtype": "f32"}),
          ([("bool", (7,))], {"dtype": "f32"}), ([("bool", (7,))], {"dtype": "i32"}),
          ([("i32", (7,), -1, 2)], {"dtype": "bool"}),
          ([("f32", (7,), -0.5, 0.5)], {"dtype": "bool"}), ([("i32", (7,), -9, 9)], {"dtype": "u32"})),
   grad_cases=(([("f32", (3, 5))], {"dtype": "f64"}), ([("f32", ())], {"dtype": "f32"})))
