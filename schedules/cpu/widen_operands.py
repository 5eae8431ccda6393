"""Factors of half precision, as float32 once before the product that reads them for every panel of columns.

The other factor, which is read in vectors, is widened where it is read, or where it is copied into panels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import load, scratch, shape_of
from ..tir.contraction import Contraction, half_load
from ..tir.stages import Axis, Program, Stage


def widen_factors(program: Program, products: Mapping[Any, Contraction]) -> Program:
    """The program with a stage before each product whose A is of half precision and read one number at a time."""
    stages: list[Stage] = []
    for stage in program.stages:
        one = products.get(stage)
        read = half_load(one.a) if one is not None else None
        if one is None or read is None:
            stages.append(stage)
        else:
            stages += _widened(one, read)
    return attrs.evolve(program, stages=tuple(stages))


def _widened(one: Contraction, read: Any) -> list[Stage]:
    shape = shape_of(read.source)
    wide = scratch(shape, "float32", f"{read.source.name}_wide")
    space = [Axis(tirx.Var(f"i{n}", "int64"), extent) for n, extent in enumerate(shape)]
    places = tuple(tirx.IntImm("int64", 0) if a.extent == 1 else a.var for a in space)
    axes = tuple(a for a in space if a.extent > 1)
    copy = Stage(wide.name, axes, (), wide, places, tirx.Cast("float32", load(read.source, *places)))
    value = tirx.Mul(load(wide, *read.indices), one.b)
    return [copy, attrs.evolve(one.stage, value=value)]
