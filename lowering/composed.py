"""Kernels that need a little Relax around their tensor program: what ``r.kernel`` does for the names below.

Each is a function (r, *exprs, **attrs) -> expr that calls ``r.program``.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from sexpgpu.types import TensorType

HALVES = ("bf16", "f16")


def matmul(r: Any, a: relax.Expr, b: relax.Expr, ta: bool = False, tb: bool = False) -> relax.Expr:
    """See kernels.matmul. bf16 and f16 are summed in f32 and rounded by an ``astype`` of its own, which fusion then
    joins to the rest of the epilogue."""
    if r.out.dtype not in HALVES:
        return r.program("matmul", r.out, a, b, ta=ta, tb=tb)
    return r.astype(r.program("matmul", TensorType(r.out.shape, "f32"), a, b, ta=ta, tb=tb), r.dt(r.out.dtype))


def philox(r: Any, seed: relax.Expr, salt: relax.Expr, place: int) -> relax.Expr:
    """See kernels.philox. The place is handed over as data, so that all draws of one shape share one kernel."""
    return r.program("philox", r.out, seed, salt, r.const([place], "u32"))


COMPOSED = {"matmul": matmul, "philox": philox}
