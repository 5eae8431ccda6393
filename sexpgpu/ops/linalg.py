"""Products of matrices and vectors. bf16 and f16 are multiplied and summed in f32 and rounded once."""

from __future__ import annotations

import math
from typing import Any

from .batching import product as stacked_product
from .reduction import halves_in_f32
from .spec import op, tensor
from .type_rules import NUMBERS, need, same_dtype
from .types import MAX_DIM, ShapeFault, TensorType, broadcast
from .work import matrix_product


def flags(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """A ``normal`` column. ``ta``, ``tb``: is x, is y read with its last two axes exchanged? By default not."""
    return {"ta": bool(attrs.get("ta", False)), "tb": bool(attrs.get("tb", False))}


def ends(t: TensorType, flag: bool) -> tuple[int, int]:
    """Rows and columns of the matrices of ``t``, read transposed if ``flag``."""
    rows, columns = t.shape[-2:]
    return (columns, rows) if flag else (rows, columns)


def product(x: TensorType, y: TensorType, ta: bool, tb: bool) -> TensorType:
    """The type rule of matmul; m, k and n are those of the matrices as read."""
    need(NUMBERS, x, y)
    dtype = same_dtype(x, y)
    if x.rank < 2 or y.rank < 2:
        raise ShapeFault(f"{x} and {y} must both have rank 2 or more; the product of two vectors is dot")
    (m, k), (other, n) = ends(x, ta), ends(y, tb)
    if k != other:
        raise ShapeFault(f"{x} by {y}: rows of {k} elements do not meet columns of {other}")
    return TensorType((*broadcast(x.shape[:-2], y.shape[:-2]), m, n), dtype)


def product_ref(np: Any, x: Any, y: Any, ta: bool = False, tb: bool = False) -> Any:
    return (np.swapaxes(x, -1, -2) if ta else x) @ (np.swapaxes(y, -1, -2) if tb else y)


def product_vjp(b: Any, dz: Any, z: Any, x: Any, y: Any, ta: bool, tb: bool) -> tuple[Any, Any]:
    """With X and Y the matrices as read: dX = dZ Y' and dY = X' dZ, each written so that nothing is transposed."""
    dx = b("matmul", y, dz, ta=tb, tb=True) if ta else b("matmul", dz, y, ta=False, tb=not tb)
    rows = x
    if y.type.rank == 2 and x.type.rank > 2 and not ta and math.prod(x.type.shape[:-1]) <= MAX_DIM:
        rows, dz = flat(b, x), flat(b, dz)  # one product over all rows, instead of one a batch and then their sum
    dy = b("matmul", dz, rows, ta=True, tb=ta) if tb else b("matmul", rows, dz, ta=not ta, tb=False)
    return b.fit(dx, x), b.fit(dy, y)


def flat(b: Any, x: Any) -> Any:
    """[.. m k] -> [..*m k]."""
    return b("reshape", x, shape=(math.prod(x.type.shape[:-1]), x.type.shape[-1]))


def dot(b: Any, x: Any, y: Any) -> Any:
    """ShapeFault unless x and y are vectors of one length."""
    need(NUMBERS, x.type, y.type)
    if x.type.rank != 1 or x.type.shape != y.type.shape:
        raise ShapeFault(f"{x.type} and {y.type} must be vectors of one length; the product of matrices is matmul")
    if x.type.dtype not in ("bf16", "f16"):
        return b("sum", b("*", x, y), axes=(0,))
    return b("cast", dot(b, b("cast", x, dtype="f32"), b("cast", y, dtype="f32")), dtype=same_dtype(x.type, y.type))


op("matmul", "Product of matrices: [.. m k] by [.. k n] -> [.. m n]; leading axes broadcast. bf16 and f16 are summed "
   "in f32.",
   group="linear algebra", precision="bf16", args=(tensor("x"), tensor("y")), normal=flags, type=product,
   ref=halves_in_f32(product_ref),
   fusion="product", work=matrix_product,
   relax=lambda r, x, y, ta, tb: r.kernel("matmul", x, y, ta=ta, tb=tb),
   vjp=product_vjp,
   stack=stacked_product,
   cases=(([("f32", (3, 4)), ("f32", (4, 5))], {}), ([("f32", (4, 3)), ("f32", (5, 4))], {"ta": True, "tb": True}),
          ([("f32", (2, 3, 4)), ("f32", (4, 5))], {}), ([("f32", (2, 3, 4)), ("f32", (5, 4))], {"tb": True}),
          ([("f32", (2, 4, 3)), ("f32", (4, 5))], {"ta": True}),
          ([("f32", (2, 1, 3, 4)), ("f32", (3, 4, 2))], {}), ([("f32", (3, 4)), ("f32", (2, 4, 2))], {}),
          ([("f64", (3, 4)), ("f64", (4, 1))], {}),
          ([("bf16", (3, 40)), ("bf16", (40, 5))], {}), ([("f16", (3, 40)), ("f16", (5, 40))], {"tb": True}),
          ([("i32", (3, 4), -9, 9), ("i32", (4, 2), -9, 9)], {})),
   grad_cases=(([("f32", (3, 4)), ("f32", (4, 5))], {}), ([("f32", (4, 3)), ("f32", (4, 5))], {"ta": True}),
               ([("f32", (3, 4)), ("f32", (5, 4))], {"tb": True}),
               ([("f32", (4, 3)), ("f32", (5, 4))], {"ta": True, "tb": True}),
               ([("f32", (2, 3, 4)), ("f32", (4, 5))], {}),
               ([("f32", (2, 3, 4)), ("f32", (5, 4))], {"tb": True}),
               ([("f32", (2, 4, 3)), ("f32", (4, 5))], {"ta": True}),
               ([("f32", (2, 1, 3, 4)), ("f32", (3, 4, 2))], {}), ([("f32", (3, 4)), ("f32", (2, 4, 2))], {})))

op("dot", "Sum of the products of two vectors of one length, a scalar. bf16 and f16 are summed in f32.",
   group="linear algebra", precision="f32", args=(tensor("x"), tensor("y")), expand=dot,
   ref=halves_in_f32(lambda np, x, y: np.sum(x * y, dtype=x.dtype)),
   cases=(([("f32", (7,)), ("f32", (7,))], {}), ([("i32", (7,), -9, 9), ("i32", (7,), -9, 9)], {}),
          ([("bf16", (40,)), ("bf16", (40,))], {})))
