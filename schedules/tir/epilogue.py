"""Epilogue fusion: elementwise stages done on the results of a reduction or product while these are in registers.

Bias, activation, residual, a cast: as in CUTLASS, they follow on the accumulators before the store, so the
intermediate result never reaches memory. What is computed for an element does not change, so no bit does.
"""

from __future__ import annotations

from collections.abc import Sequence

from .access import reads_of, same_indices
from .context import NestContext
from .stages import Stage, substitute


def epilogue_stages(ctx: NestContext, producer: Stage, rest: Sequence[Stage]) -> list[Stage]:
    """The elementwise stages at the start of ``rest`` that can follow on the accumulators of ``producer``."""
    epilogue: list[Stage] = []
    for stage in rest:
        if not stage.is_elementwise or not _can_fuse(ctx, producer, epilogue, stage):
            break
        epilogue.append(stage)
    return epilogue


def _can_fuse(ctx: NestContext, producer: Stage, epilogue: Sequence[Stage], stage: Stage) -> bool:
    """Does the stage have the producer's space, read the producer and the epilogue so far at its own element only, and
    write nothing that they read?"""
    if [a.extent for a in stage.space] != [a.extent for a in producer.space]:
        return False
    # Stored element by element, it would overwrite what the producer still reads for the next element.
    if any(x.source.same_as(stage.buffer) for s in (producer, *epilogue) for x in s.reads):
        return False
    reads = reads_of(ctx, stage)
    for source in (producer, *epilogue):
        axis_map = {a.var: b.var for a, b in zip(source.space, stage.space, strict=True)}
        expected = [substitute(index, axis_map) for index in source.indices]
        if any(r.buffer.same_as(source.buffer) and not same_indices(r.indices, expected) for r in reads):
            return False
    return True
