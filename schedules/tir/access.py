"""Memory accesses of a stage, and what they say about the order of its loops.

An access is a buffer and index expressions in the stage's own axes. From these follows which neighbouring axes may be
merged into a loop, along which axis vectors (on a GPU: neighbouring threads) run so that loads are contiguous, and
whether an elementwise nest needs tiles because it transposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import tvm_ffi

from .builder import Expr, is_int, load, shape_of
from .context import NestContext
from .inline import ScalarWriter
from .stages import Axis, Stage, loads, variables


@attrs.frozen(eq=False)
class Access:
    """A load or a store: ``indices`` into ``buffer``, in the axes of the stage that does it."""

    buffer: Any
    indices: tuple[Expr, ...]

    def dimensions(self) -> list[tuple[Expr, int]]:
        """Index and extent of every dimension that is longer than an element."""
        pairs = zip(self.indices, shape_of(self.buffer), strict=True)
        return [(index, extent) for index, extent in pairs if extent != 1 or not is_int(index, 0)]


def reads_of(ctx: NestContext, stage: Stage, recorded: Sequence[Any] = (), analyzer: Any = None) -> list[Access]:
    """Every load from memory that evaluating the stage does, those of its inlined producers included.

    ``recorded``: buffers whose reads are reported instead of being inlined. ``analyzer``: knows the ranges of the axes;
    a branch that these rule out reads nothing."""
    accesses: list[Access] = []
    provided = {buffer: (lambda indices, b=buffer: _record(accesses, b, indices)) for buffer in recorded}
    writer = ScalarWriter(ctx.virtual, provided, analyzer)
    exprs = [writer.write(stage.value, {})] if stage.serial is None else _serial_reads(writer, stage)
    for node in [*writer.binds, *exprs]:
        accesses += [Access(x.source, tuple(x.indices)) for x in loads(node)]
    return accesses


def _record(accesses: list[Access], buffer: Any, indices: Sequence[Expr]) -> Expr:
    accesses.append(Access(buffer, tuple(indices)))
    return load(buffer, *indices)


def _serial_reads(writer: ScalarWriter, stage: Stage) -> list[Expr]:
    written = stage.writes
    # What a body reads of its own results is an accumulator, and says nothing of the layout of its inputs.
    return [writer.write(x, {}) for x in loads(stage.serial[1] if stage.serial else ()) if x.source not in written]


def write_of(stage: Stage) -> Access:
    """The store of an elementwise stage or a reduction. A serial stage has several."""
    return Access(stage.buffer, stage.indices)


def mergeable(outer: Axis, inner: Axis, accesses: Sequence[Access]) -> bool:
    """May two neighbouring axes be merged? Every access must lack both, or have them as neighbours in memory."""
    return all(_are_adjacent(outer, inner, access) for access in accesses)


def _are_adjacent(outer: Axis, inner: Axis, access: Access) -> bool:
    dims = access.dimensions()
    axes_of_dim = [{outer.var, inner.var} & variables(index) for index, _ in dims]
    if not any(axes_of_dim):
        return True
    positions = [position for position, dim_axes in enumerate(axes_of_dim) if dim_axes]
    if len(positions) != 2 or positions[1] != positions[0] + 1:
        return False
    (first, _), (second, extent) = dims[positions[0]], dims[positions[1]]
    # The inner axis must fill its dimension: else memory skips elements where the outer axis moves on.
    return first.same_as(outer.var) and second.same_as(inner.var) and extent == inner.extent


def merged_tail(axes: Sequence[Axis], accesses: Sequence[Access]) -> int:
    """How many of the innermost axes may be merged (at least 1, unless there are no axes)."""
    count = min(1, len(axes))
    while count and count < len(axes) and mergeable(axes[-count - 1], axes[-count], accesses):
        count += 1
    return count


def contiguous_axis(accesses: Sequence[Access], axes: Sequence[Axis]) -> Axis | None:
    """The axis along which the read with the most axes is contiguous, None if no read is contiguous along an axis."""
    axis_of = {axis.var: axis for axis in axes}
    best: tuple[int, Axis] | None = None
    for access in accesses:
        dims = access.dimensions()
        last_index = dims[-1][0] if dims else None
        last_axes = [axis_of[v] for v in (variables(last_index) if last_index is not None else ()) if v in axis_of]
        rank = len(variables([index for index, _ in dims]) & set(axis_of))
        # An index of two axes, as in i + j, is contiguous along neither alone. The read with most axes moves most
        # elements.
        if len(last_axes) == 1 and (best is None or rank > best[0]):
            best = (rank, last_axes[0])
    return best[1] if best else None


def same_indices(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Are they the same expressions, in order?"""
    return tvm_ffi.structural_equal(list(a), list(b))


# Elements along both axes from which a transposing nest is tiled: half a cache line of float32. Chosen, not measured;
# below, tiles would be mostly edges. No bit changes.
MIN_TILE_EXTENT = 8


def transposed_axis(axes: Sequence[Axis], accesses: Sequence[Access]) -> int | None:
    """The position of an axis, not the last, along which some read is contiguous while stores are along the last.

    None where nothing is transposed, or the axes are too short for tiles."""
    if len(axes) < 2 or axes[-1].extent < MIN_TILE_EXTENT:
        return None
    last = axes[-1].var
    for access in accesses:
        dims = access.dimensions()
        if not dims or not variables([index for index, _ in dims[:-1]]) & {last}:
            continue
        for position, axis in enumerate(axes[:-1]):
            if dims[-1][0].same_as(axis.var) and axis.extent >= MIN_TILE_EXTENT:
                return position
    return None
