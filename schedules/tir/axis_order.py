"""Axis order: the loops of a stage follow those of its producer, so that both can share them.

A result that is stored with its axes permuted (the heads of attention, side by side) is computed in the order of what
it reads; only its stores are permuted. The last axis stays the last, since vectors run along it. The order in which
elements are computed changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm.ir import Var

from .builder import Load
from .rewrite import rewrite
from .stages import Axis, Program, Stage, loads, substitute


def align_axes(program: Program) -> Program:
    """``program`` with the axes of each stage ordered as those of the first stage that it reads.

    Stages marked ``materialized`` come first: they read parameters alone, and out of the way they do not separate a
    producer from its consumers."""
    producers: dict[object, Stage] = {}
    ordered = []
    for stage in sorted(program.stages, key=lambda s: not s.materialized):
        # Of two axes the last stays, so there is nothing to order. A serial body may depend on the order of its loops.
        if stage.serial is None and len(stage.space) > 2:
            stage = attrs.evolve(stage, space=_ordered(stage, producers))
        producers.update(dict.fromkeys(stage.writes, stage))
        ordered.append(stage)
    return attrs.evolve(program, stages=tuple(ordered))


def inline_materialized(program: Program) -> Program:
    """``program`` with each ``materialized`` elementwise stage inlined into its readers.

    For GPUs: elements are computed as they are loaded to shared memory, so a copy in global memory gains nothing."""
    inlined = {s.buffer: s for s in program.stages if s.materialized and s.is_elementwise}

    def read(node: Any) -> Any:
        stage = inlined.get(node.source)
        if stage is None:
            return node
        coords = {var: index for var, index in zip(stage.indices, node.indices, strict=True) if isinstance(var, Var)}
        return substitute(stage.value, coords)

    stages = [s for s in program.stages if s.buffer not in inlined]
    rewritten = [s if s.value is None else attrs.evolve(s, value=rewrite(s.value, [(Load, read)])) for s in stages]
    return attrs.evolve(program, stages=tuple(rewritten)) if inlined else program


def _ordered(stage: Stage, producers: dict[object, Stage]) -> Sequence[Axis]:
    """The axes of ``stage``: those of its first producer in its order, the others, the last."""
    *free, last = stage.space
    for read in loads(stage.value):
        producer = producers.get(read.source)
        if producer is None or producer.serial is not None:
            continue
        # What producer and reader have in each dimension of the buffer: where both have an axis, these are the same
        # loop.
        pairs = zip(producer.indices, read.indices, strict=True)
        axis_of = {stored: own for stored, own in pairs if isinstance(stored, Var) and isinstance(own, Var)}
        wanted = [axis_of[a.var] for a in producer.space if a.var in axis_of]
        leading = [next(a for a in free if a.var.same_as(v)) for v in wanted if any(a.var.same_as(v) for a in free)]
        return (*leading, *(a for a in free if a not in leading), last)
    return stage.space
