"""Sums down columns: lanes along the output's last axis, tasks over strips of columns, rows in order inside a task."""

from __future__ import annotations

from collections.abc import Sequence

from .access import reads_of, same_indices
from .context import NestContext
from .stages import Stage, substitute


def epilogue_stages(ctx: NestContext, producer: Stage, rest: Sequence[Stage]) -> list[Stage]:
    """The map stages right after a fold that can be done on its results while they are at hand."""
    epilogue: list[Stage] = []
    for stage in rest:
        if not stage.is_elementwise or not _can_fuse(ctx, producer, epilogue, stage):
            break
        epilogue.append(stage)
    return epilogue


def _can_fuse(ctx: NestContext, producer: Stage, epilogue: Sequence[Stage], stage: Stage) -> bool:
    """Same space, reads the fold (and the stages before it) at its own point, and the fold reads nothing it writes."""
    if [a.extent for a in stage.space] != [a.extent for a in producer.space]:
        return False
    if any(x.source.same_as(stage.buffer) for s in (producer, *epilogue) for x in s.reads):
        return False
    reads = reads_of(ctx, stage)
    for source in (producer, *epilogue):
        axis_map = {a.var: b.var for a, b in zip(source.space, stage.space, strict=True)}
        expected = [substitute(index, axis_map) for index in source.indices]
        if any(r.buffer.same_as(source.buffer) and not same_indices(r.indices, expected) for r in reads):
            return False
    return True
