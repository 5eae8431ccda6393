"""The axes of a stage in the order of the stage that it reads: a result that is written with its axes in another order
(the heads of attention, side by side) is made in the order of what it is made of, so that both share their loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm.ir import Var

from .builder import Load
from .rewrite import rewrite
from .stages import Axis, Program, Stage, loads, substitute


def align_axes(program: Program) -> Program:
    """The stages of ``program``, each with its axes ordered as those of the first stage that it reads; its last axis,
    along which vectors run, stays the last. The order in which a result's elements are made changes no bit. Stages that
    are ``kept`` come first, as they read parameters alone: what follows on each other is then beside each other."""
    producers: dict[object, Stage] = {}
    ordered = []
    for stage in sorted(program.stages, key=lambda s: not s.materialized):
        if stage.serial is None and len(stage.space) > 2:
            stage = attrs.evolve(stage, space=_ordered(stage, producers))
        producers.update(dict.fromkeys(stage.writes, stage))
        ordered.append(stage)
    return attrs.evolve(program, stages=tuple(ordered))


def inline_materialized(program: Program) -> Program:
    """``program`` with each map that is ``kept`` worked out where it is read, as a GPU brings elements in."""
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
    """The axes of ``stage`` in their new order."""
    *free, last = stage.space
    for read in loads(stage.value):
        producer = producers.get(read.source)
        if producer is None or producer.serial is not None:
            continue
        pairs = zip(producer.indices, read.indices, strict=True)  # what stands in each dimension of the buffer
        axis_of = {stored: own for stored, own in pairs if isinstance(stored, Var) and isinstance(own, Var)}
        wanted = [axis_of[a.var] for a in producer.space if a.var in axis_of]
        leading = [next(a for a in free if a.var.same_as(v)) for v in wanted if any(a.var.same_as(v) for a in free)]
        return (*leading, *(a for a in free if a not in leading), last)
    return stage.space
