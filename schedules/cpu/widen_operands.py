"""Mixed-precision matmul on a CPU: half-precision operand A widened to float32 once, before the product.

The micro-kernel broadcasts single elements of A, and would convert each for every panel of columns. B is read in
vectors, and is widened where it is read or packed. Widening is exact and sums are float32, so the bits are those of a
float32 product of the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import load, scratch, shape_of
from ..tir.contraction import Contraction, half_load
from ..tir.stages import Axis, Program, Stage


def widen_operands(program: Program, contractions: Mapping[Any, Contraction]) -> Program:
    """The program with a widening stage before each product whose A has half precision."""
    stages: list[Stage] = []
    for stage in program.stages:
        product = contractions.get(stage)
        half_read = half_load(product.a) if product is not None else None
        if product is None or half_read is None:
            stages.append(stage)
        else:
            stages += _widened(product, half_read)
    return attrs.evolve(program, stages=tuple(stages))


def _widened(product: Contraction, half_read: Any) -> list[Stage]:
    """The widening stage, and the product that reads its buffer."""
    shape = shape_of(half_read.source)
    wide = scratch(shape, "float32", f"{half_read.source.name}_wide")
    space = [Axis(tirx.Var(f"i{n}", "int64"), extent) for n, extent in enumerate(shape)]
    indices = tuple(tirx.IntImm("int64", 0) if a.extent == 1 else a.var for a in space)
    axes = tuple(a for a in space if a.extent > 1)
    widen = Stage(wide.name, axes, (), wide, indices, tirx.Cast("float32", load(half_read.source, *indices)))
    value = tirx.Mul(load(wide, *half_read.indices), product.b)
    return [widen, attrs.evolve(product.stage, value=value)]
