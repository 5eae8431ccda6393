"""Products of halves, as they lie in memory, for the tests of matrix units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from tvm import te

from ..tensor_programs import Shape, program

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
Follow = Callable[..., Any]  # (the product at a point, the point, further arguments) -> the value that is stored


def product(
    kind: str, m: int, k: int, n: int, batch: Shape = (), dtype: str = "bfloat16", out: str = "float32",
    follow: Follow | None = None, more: tuple[tuple[Shape, str], ...] = (),
) -> Any:  # fmt: skip
    """A product of two factors of ``dtype`` whose sums are float32, ``kind`` NN, TN, NT or TT: which factor is stored
    transposed; then ``follow`` on each element, with ``more`` arguments, and the result in ``out``."""
    shapes = [
        (*batch, k, m) if kind[0] == "T" else (*batch, m, k),
        (*batch, n, k) if kind[1] == "T" else (*batch, k, n),
    ]

    def function(a: te.Tensor, b: te.Tensor, *rest: te.Tensor) -> Any:
        depth = te.reduce_axis((0, k), "k")

        def element(*at: Any) -> Any:
            *lead, i, j = at
            left = a(*lead, depth, i) if kind[0] == "T" else a(*lead, i, depth)
            right = b(*lead, j, depth) if kind[1] == "T" else b(*lead, depth, j)
            return te.sum(left.astype("float32") * right.astype("float32"), axis=depth)

        made = te.compute((*batch, m, n), element, "matmul")
        if follow is None and out == "float32":
            return made
        last = follow or (lambda x, at, *rest: x)
        return te.compute((*batch, m, n), lambda *at: last(made(*at), at, *rest).astype(out), "after")

    return program(function, *((shape, dtype) for shape in shapes), *more)


def factors(
    kind: str, m: int, k: int, n: int, batch: Shape = (), dtype: str = "bfloat16", seed: int = 0, whole: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A and B as ``product`` takes them, and A B in float64. ``whole``: of small integers, whose sums are exact in any
    order and in any arithmetic."""
    rng = np.random.default_rng(seed)
    draw = (lambda shape: rng.integers(-8, 9, shape)) if whole else rng.standard_normal
    a, b = (draw(shape).astype(DTYPES[dtype]) for shape in ((*batch, m, k), (*batch, k, n)))
    want = a.astype("float64") @ b.astype("float64")
    a, b = a.swapaxes(-1, -2) if kind[0] == "T" else a, b.swapaxes(-1, -2) if kind[1] == "T" else b
    return np.ascontiguousarray(a), np.ascontiguousarray(b), want
