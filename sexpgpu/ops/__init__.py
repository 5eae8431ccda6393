"""The operator table: every family adds its rows on import."""

from .spec import OPS, Op, cases

__all__ = ["OPS", "Op", "cases"]

from . import activations, backward, create, elementwise, index, linalg, logic, nn, random, reduce, shape, unary  # noqa: E402, F401  (each fills OPS)
