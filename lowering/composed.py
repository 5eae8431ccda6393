"""Kernels that need a little Relax around their tensor program: what ``r.kernel`` does for the names below.

Each is a function (r, *exprs, **attrs) -> expr that calls ``r.program``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from sexpgpu.types import TensorType

SHORT = ("bf16", "f16")


def matmul(r: Any, a: relax.Expr, b: relax.Expr, ta: bool = False, tb: bool = False) -> relax.Expr:
    """See kernels.matmul. bf16 and f16 are summed in f32 and rounded by an ``astype`` of its own, which fusion then
    joins to the rest of the epilogue. [.., m, k] x [k, n] is computed as one [M, k] x [k, n]."""
    out = TensorType(r.out.shape, "f32" if r.out.dtype in SHORT else r.out.dtype)
    y = _flat_matmul(r, a, b, tb, out) if flattens(r.shape(a), r.shape(b), ta) else None
    y = y if y is not None else r.program("matmul", out, a, b, ta=ta, tb=tb)
    return r.astype(y, r.dt(r.out.dtype)) if out.dtype != r.out.dtype else y


def flattens(a: tuple[int, ...], b: tuple[int, ...], ta: bool) -> bool:
    """Whether the leading axes of a [.., m, k] x [k, n] product are one with its rows."""
    return len(a) > 2 and len(b) == 2 and not ta


def _flat_matmul(r: Any, a: relax.Expr, b: relax.Expr, tb: bool, out: TensorType) -> relax.Expr:
    *lead, k = r.shape(a)
    rows = math.prod(lead)
    y = r.program("matmul", TensorType((rows, out.shape[-1]), out.dtype), r.reshape(a, (rows, k)), b, ta=False, tb=tb)
    return r.reshape(y, out.shape)


def philox(r: Any, seed: relax.Expr, salt: relax.Expr, place: int) -> relax.Expr:
    """See kernels.philox. The place is handed over as data, so that draws of one shape share one kernel."""
    return r.program("philox", r.out, seed, salt, relax.const(np.array([place], "uint32")))


COMPOSED = {"matmul": matmul, "philox": philox}
