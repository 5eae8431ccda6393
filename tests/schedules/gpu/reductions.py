"""Folds of one tensor, for the tests of rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from ..tensor_programs import program

PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), "product")
REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": te.sum, "max": te.max, "min": te.min, "prod": PRODUCT}


def reduction(
    kind: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32", squared: bool = False
) -> Any:
    """The program of a fold over ``axes``, of the squares of the elements or of them as they are."""

    def reduced_tensor(a: te.Tensor) -> Any:
        reduced = [te.reduce_axis((0, shape[d]), f"k{d}") for d in axes]

        def element(*at: Any) -> Any:
            rest, inner = iter(at), iter(reduced)
            value = a(*(next(inner) if d in axes else next(rest) for d in range(len(shape))))
            return REDUCTIONS[kind](value * value if squared else value, axis=reduced)

        return te.compute([e for d, e in enumerate(shape) if d not in axes], element, "folded")

    return program(reduced_tensor, (shape, dtype))
