"""Kernels with Relax operators around their tensor program: casts to f32, reshapes, broadcasts.

Each is a function (r, *exprs, **attrs) -> expr that calls ``r.program``; ``r.kernel`` calls it by its name.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from sexpgpu.ops.reduction import HALVES
from sexpgpu.ops.types import TensorType

from .split_concat import concat


def matmul(r: Any, a: relax.Expr, b: relax.Expr, ta: bool = False, tb: bool = False) -> relax.Expr:
    """See registry.matmul. bf16 and f16 are accumulated in f32 and rounded by a separate ``astype``, which fusion adds
    to the epilogue."""
    if r.out.dtype not in HALVES:
        return r.program("matmul", r.out, a, b, ta=ta, tb=tb)
    return r.astype(r.program("matmul", TensorType(r.out.shape, "f32"), a, b, ta=ta, tb=tb), r.dt(r.out.dtype))


def philox(r: Any, seed: relax.Expr, salt: relax.Expr, place: int) -> relax.Expr:
    """See registry.philox. The place is passed as data, so that all draws of one shape share one kernel."""
    return r.program("philox", r.out, seed, salt, r.const([place], "u32"))


def in_f32(r: Any, x: relax.Expr) -> relax.Expr:
    """``x``, with bf16 and f16 cast to f32."""
    return r.astype(x, "float32") if r.dtype(x) in HALVES else x


def shaped(r: Any, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """``x`` reshaped to ``shape``; ``x`` itself if it has that shape."""
    return x if r.shape(x) == shape else r.reshape(x, shape)


def reduced_in_f32(r: Any, name: str, shape: tuple[int, ...], *args: relax.Expr, **attrs: Any) -> relax.Expr:
    """The program ``name``, whose result has ``shape`` and its first argument's dtype, reshaped and cast to
    ``r.out``."""
    out, dtype = r.out, r.dtype(args[0])
    y = shaped(r, r.program(name, TensorType(shape, dtype), *args, **attrs), out.shape)
    return y if dtype == out.dtype else r.astype(y, r.dt(out.dtype))


def outer_axis_inner(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The shape [outer, n, inner] with ``axis`` in the middle."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def cumsum(r: Any, x: relax.Expr, axis: int, reverse: bool) -> relax.Expr:
    """See cumsum.cumsum. bf16 and f16 are summed in f32 and rounded once, here and in the functions below."""
    flat = outer_axis_inner(r.out.shape, axis)
    return reduced_in_f32(r, "cumsum", flat, shaped(r, in_f32(r, x), flat), reverse=reverse)


def scatter_add(r: Any, base: relax.Expr, ids: relax.Expr, updates: relax.Expr) -> relax.Expr:
    """See scatter.scatter_add."""
    rows, count = r.out.shape[0], math.prod(r.shape(ids))
    columns = math.prod(r.out.shape[1:])
    base, updates = shaped(r, in_f32(r, base), (rows, columns)), shaped(r, in_f32(r, updates), (count, columns))
    return reduced_in_f32(r, "scatter-add", (rows, columns), base, shaped(r, ids, (count,)), updates)


def scatter_rows(r: Any, updates: relax.Expr, ids: relax.Expr) -> relax.Expr:
    """See scatter.scatter_rows."""
    rows, count = r.out.shape[0], math.prod(r.shape(ids))
    columns = math.prod(r.out.shape[1:])
    updates = shaped(r, in_f32(r, updates), (count, columns))
    return reduced_in_f32(r, "scatter-rows", (rows, columns), updates, shaped(r, ids, (count,)))


def scatter_along(r: Any, dy: relax.Expr, ids: relax.Expr, axis: int) -> relax.Expr:
    """See scatter.scatter_along. A size of 1 along the axis gives an elementwise program, which fuses."""
    shape, id_shape = r.shape(dy), r.shape(ids)
    if shape[axis] == 1:
        return r.program("scatter-one", r.out, dy, ids, axis=axis)
    # The program broadcasts ids along all outer or all inner axes, not along some of them.
    for axes in (slice(axis), slice(axis + 1, None)):
        if id_shape[axes] != shape[axes] and math.prod(id_shape[axes]) != 1:
            ids = r.broadcast_to(ids, shape)
            id_shape = shape
    dy = shaped(r, in_f32(r, dy), outer_axis_inner(shape, axis))
    return reduced_in_f32(
        r, "scatter-along", outer_axis_inner(r.out.shape, axis), dy, shaped(r, ids, outer_axis_inner(id_shape, axis))
    )


COMPOSED = {
    "concat": concat,
    "matmul": matmul,
    "philox": philox,
    "cumsum": cumsum,
    "scatter-add": scatter_add,
    "scatter-rows": scatter_rows,
    "scatter-along": scatter_along,
}
