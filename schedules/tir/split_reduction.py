"""Two-pass reduction (split-K): a long reduction with few results becomes partial results a piece, and their reduction.

Pieces are tasks for threads (on a GPU: blocks). Where to split follows from the shape alone, so the order of a sum is
the same for any number of threads: from the shape of a result, or of a row of results side by side. More results in
front, as when microbatches are stacked, leave the order of each as it was.
"""

from __future__ import annotations

from math import prod
from typing import Any

import attrs
from tvm import tirx

from .access import merged_tail, reads_of
from .argmax import is_argmax
from .builder import i64, load, scratch, shape_of, unravel
from .context import NestContext
from .contraction import read_contraction
from .inline import InlinedStages
from .reduction import COLUMNS, reduces_along_memory
from .stages import Axis, Program, Stage, substitute

# All of these decide the order of sums: changed, they change bits. They are chosen, not measured: larger numbers leave
# cores idle on longer sums, smaller make partial results that cost more than they gain.
PARALLEL_TASKS = 16  # results, or tiles of COLUMNS columns, that are enough tasks without a split
PIECE_ELEMENTS = 8192  # elements that a partial result sums: 32 KiB of float32
MIN_ROW_ELEMENTS = 65_536  # elements reduced into a row of results from which a split pays
MIN_RESULT_ELEMENTS = 32_768  # elements reduced into a result from which a split pays


def split_reductions(program: Program) -> Program:
    """The program with every long reduction split."""
    ctx = NestContext(program, InlinedStages(program, ()), 1, 1)
    stages: list[Stage] = []
    for stage in program.stages:
        stages += _split(ctx, stage) if _is_long(ctx, stage) else [stage]
    return attrs.evolve(program, stages=tuple(stages))


def _is_long(ctx: NestContext, stage: Stage) -> bool:
    # An argmax is not split: no order changes its bits, so a GPU may do it alone (``gpu/split_argmax.py``).
    if stage.reduction is None or is_argmax(stage) or stage.depth < 2 * PARALLEL_TASKS:
        return False
    # A product's k is a chain of multiply-adds: that is its promised order, and products have tasks of their own.
    if stage.in_order or read_contraction(ctx.program, stage) is not None:
        return False
    if reduces_along_memory(ctx, stage):
        return stage.points < PARALLEL_TASKS and stage.depth >= MIN_RESULT_ELEMENTS
    width = stage.space[-1].extent
    return width * stage.depth >= MIN_ROW_ELEMENTS and width // min(COLUMNS, width) < PARALLEL_TASKS


def _split(ctx: NestContext, stage: Stage) -> list[Stage]:
    """Partial reductions over equal pieces, another over a shorter last piece, and the reduction of the results."""
    stage = _merge_reduced_axes(ctx, stage)
    outer_axis, inner = stage.reduce[0], stage.reduce[1:]
    inner_elements = prod(a.extent for a in inner) * (1 if reduces_along_memory(ctx, stage) else stage.space[-1].extent)
    size = max(1, PIECE_ELEMENTS // inner_elements)
    full, rest = divmod(outer_axis.extent, size)
    # The outer axis is too short to be cut: a single piece would be the sum itself.
    if full < 2:
        return [stage]
    # Partial results lie as the elements did, so that their own reduction runs along memory or down columns like the
    # first.
    count, partials_last = full + (1 if rest else 0), reduces_along_memory(ctx, stage)
    extents = [a.extent for a in stage.space]
    partial_extents = [*extents, count] if partials_last else [count, *extents]
    partial = scratch(partial_extents, str(stage.buffer.dtype), f"{stage.name}_partial")
    pieces = [_piece(stage, partial, partials_last, 0, full, size)]
    if rest:
        pieces.append(_piece(stage, partial, partials_last, full, 1, rest, start=full * size))
    return [*pieces, _combine_partials(stage, partial, partials_last, count)]


def _merge_reduced_axes(ctx: NestContext, stage: Stage) -> Stage:
    """The stage with its innermost reduced axes merged as far as memory is contiguous."""
    count = merged_tail(stage.reduce, reads_of(ctx, stage))
    if count < 2:
        return stage
    tail = stage.reduce[-count:]
    flat = Axis(tirx.Var("k", "int64"), prod(a.extent for a in tail))
    indices = unravel(flat.var, [a.extent for a in tail])
    index_of = {a.var: index.astype(str(a.var.ty.dtype)) for a, index in zip(tail, indices, strict=True)}
    return attrs.evolve(stage, reduce=(*stage.reduce[:-count], flat), value=substitute(stage.value, index_of))


def _piece(stage: Stage, partial: Any, partials_last: bool, slot: int, count: int, size: int, start: int = 0) -> Stage:
    """``count`` pieces of ``size`` iterations of the outermost reduced axis, into ``partial`` from ``slot`` on.

    ``partials_last``: the partial results of a result are its last dimension, and are reduced as a row; else they are
    the first, and are reduced as columns."""
    first = stage.reduce[0]
    dtype = str(first.var.ty.dtype)
    c, k = tirx.Var("c", dtype), tirx.Var("k", dtype)
    space = ((Axis(c, count),) if count > 1 else ()) + stage.space
    k_index = k + tirx.IntImm(dtype, start) if count == 1 else c * tirx.IntImm(dtype, size) + k
    piece_index = i64(slot) if count == 1 else c
    reduce = ((Axis(k, size),) if size > 1 else ()) + stage.reduce[1:]
    value = substitute(
        stage.value, {first.var: k_index if size > 1 else substitute(k_index, {k: tirx.IntImm(dtype, 0)})}
    )
    coords = [a.var for a in stage.space]
    indices = (*coords, piece_index) if partials_last else (piece_index, *coords)
    return Stage(f"{stage.name}_partial_sums", space, reduce, partial, indices, value, stage.reduction)


def _combine_partials(stage: Stage, partial: Any, partials_last: bool, count: int) -> Stage:
    assert shape_of(partial)[-1 if partials_last else 0] == count
    c, coords = Axis(tirx.Var("c", "int64"), count), [a.var for a in stage.space]
    value = load(partial, *coords, c.var) if partials_last else load(partial, c.var, *coords)
    return attrs.evolve(stage, reduce=(c,), value=value)
