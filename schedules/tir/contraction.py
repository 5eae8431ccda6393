"""Recognition of matrix products: ``C[b.., i.., j..] += A[b.., i.., k..] * B[b.., k.., j..]`` in any order of axes.

Axes are classified by which operands use them: both (batch, or k if reduced), only A (rows), only B (columns). So plain
products, transposed operands, batches on one side or both and einsums of two operands are the same case, as in
TBLIS (Matthews 2018). k is an axis or several; a product sums them in the order of the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx

from .builder import Expr, Load
from .stages import Axis, Program, Stage, loads, variables

# Below both, a product is left to the row nests, which sum in the same order: only speed follows. Chosen, not measured.
MIN_COLUMNS = 8  # columns; below them most lanes of a vector along columns would be empty
MIN_K = 16  # elements of k from which a product of few columns is worth a register tile


@attrs.frozen(eq=False)
class Contraction:
    """C = A B. ``a``, ``b``: the operands' expressions; ``batch``, ``rows``, ``columns``: axes of the result by kind.

    m, n, k are the products of the extents of rows, columns and reduced axes; ``count`` is the number of matrices."""

    stage: Stage
    a: Expr
    b: Expr
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]

    @property
    def m(self) -> int:
        return prod(axis.extent for axis in self.rows)

    @property
    def n(self) -> int:
        return prod(axis.extent for axis in self.columns)

    @property
    def k(self) -> int:
        return self.stage.depth

    @property
    def count(self) -> int:
        return prod(axis.extent for axis in self.batch)


def read_contraction(program: Program, stage: Stage) -> Contraction | None:
    """The stage as a matrix product that is worth a register tile, else None."""
    if (
        stage.reduction is None
        or stage.reduction.kind != "sum"
        or not isinstance(stage.value, tirx.Mul)
        or not stage.space
    ):
        return None
    # Integers have no fused multiply-add, and 16-bit results are summed in float32 by the row nests.
    if str(stage.buffer.dtype) not in ("float32", "float64"):
        return None
    a, b = stage.value.a, stage.value.b
    # B is the operand that has the result's last axis: columns, along which vectors of the result run.
    last_var = stage.space[-1].var
    if last_var not in variables(b):
        a, b = b, a
    used_a, used_b = variables(a), variables(b)
    # A reduced axis in a single operand only sums that operand: such a product is left to the reduction nests.
    if not loads(a) or not loads(b) or any(not ({a.var} & used_a and {a.var} & used_b) for a in stage.reduce):
        return None
    # In both operands the last axis is a batch: then no operand has columns for vectors to run along.
    if last_var in used_a:
        return None

    def axes_used(by_a: bool, by_b: bool) -> tuple[Axis, ...]:
        return tuple(x for x in stage.space if (x.var in used_a, x.var in used_b) == (by_a, by_b))

    contraction = Contraction(stage, a, b, axes_used(True, True), axes_used(True, False), axes_used(False, True))
    if len(contraction.batch) + len(contraction.rows) + len(contraction.columns) != len(stage.space):
        return None
    contraction = _orient(contraction)
    return contraction if contraction.k >= MIN_K or contraction.n >= MIN_COLUMNS else None


def _orient(contraction: Contraction) -> Contraction:
    """The product, or C^T = B^T A^T if it has few columns and more rows: vectors run along columns."""
    if contraction.n >= MIN_COLUMNS or contraction.n >= contraction.m:
        return contraction
    return attrs.evolve(
        contraction, a=contraction.b, b=contraction.a, rows=contraction.columns, columns=contraction.rows
    )


def is_contiguous(factor: Expr, axes: Sequence[Axis]) -> bool:
    """Is the operand contiguous in memory along any of ``axes``?"""
    innermost = [variables(x.indices[-1]) for x in loads(_without_mask(factor)) if len(x.indices)]
    return any(axis.var in used for axis in axes for used in innermost)


def _without_mask(factor: Expr) -> Expr:
    """What a masked operand masks, ``Select(condition, operand, number)``; else ``factor`` itself."""
    is_masked = isinstance(factor, tirx.Select) and isinstance(factor.false_value, tirx.FloatImm)
    return factor.true_value if is_masked else factor


def plain_load(factor: Expr) -> Any:
    """The BufferLoad that the operand is, perhaps masked or widened from half precision; else None."""
    factor = _without_mask(factor)
    return factor if isinstance(factor, Load) else half_load(factor)


def half_load(expr: Expr) -> Any:
    """The half-precision BufferLoad that ``expr`` casts to float32, else None."""
    if not isinstance(expr, tirx.Cast) or str(expr.ty.dtype) != "float32" or not isinstance(expr.value, Load):
        return None
    return expr.value if str(expr.value.ty.dtype) in ("bfloat16", "float16") else None


def contractions_of(program: Program) -> dict[Any, Contraction]:
    """The stages that are matrix products, by stage."""
    contractions = {stage: read_contraction(program, stage) for stage in program.stages}
    return {stage: contraction for stage, contraction in contractions.items() if contraction is not None}
