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
    makers: dict[object, Stage] = {}
    done = []
    for stage in sorted(program.stages, key=lambda s: not s.kept):
        if stage.serial is None and len(stage.space) > 2:
            stage = attrs.evolve(stage, space=_ordered(stage, makers))
        makers.update(dict.fromkeys(stage.writes, stage))
        done.append(stage)
    return attrs.evolve(program, stages=tuple(done))


def inline_materialized(program: Program) -> Program:
    """``program`` with each map that is ``kept`` worked out where it is read, as a GPU brings elements in."""
    maps = {s.buffer: s for s in program.stages if s.kept and s.is_map}

    def read(node: Any) -> Any:
        stage = maps.get(node.source)
        if stage is None:
            return node
        here = {var: index for var, index in zip(stage.indices, node.indices, strict=True) if isinstance(var, Var)}
        return substitute(stage.value, here)

    stages = [s for s in program.stages if s.buffer not in maps]
    done = [s if s.value is None else attrs.evolve(s, value=rewrite(s.value, [(Load, read)])) for s in stages]
    return attrs.evolve(program, stages=tuple(done)) if maps else program


def _ordered(stage: Stage, makers: dict[object, Stage]) -> Sequence[Axis]:
    """The axes of ``stage`` in their new order."""
    *free, last = stage.space
    for read in loads(stage.value):
        maker = makers.get(read.source)
        if maker is None or maker.serial is not None:
            continue
        places = {maker_index: axis for maker_index, axis in zip(maker.indices, read.indices, strict=True)
                  if isinstance(maker_index, Var) and isinstance(axis, Var)}  # fmt: skip
        wanted = [places[a.var] for a in maker.space if a.var in places]
        mine = [next(a for a in free if a.var.same_as(v)) for v in wanted if any(a.var.same_as(v) for a in free)]
        return (*mine, *(a for a in free if a not in mine), last)
    return stage.space
