"""The operator table: every family adds its rows on import."""

from .spec import OPS, Op, cases

__all__ = ["OPS", "Op", "cases"]

from . import (  # noqa: E402, F401  (each fills OPS)
    activations,
    backward,
    cast,
    create,
    elementwise,
    indexing,
    linalg,
    logic,
    nn,
    random,
    reduction,
    shape,
    unary,
)
