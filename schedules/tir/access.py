"""Where a stage reads and writes, written in its own axes, and what follows for the order of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import tvm_ffi

from .builder import Expr, is_int, shape_of
from .context import NestContext
from .inline import ScalarWriter
from .stages import Axis, Stage, loads, variables


@attrs.frozen(eq=False)
class Access:
    """A read or a write: ``indices`` into ``buffer``, in the axes of the stage that makes it."""

    buffer: Any
    indices: tuple[Expr, ...]

    def places(self) -> list[tuple[Expr, int]]:
        """Index and extent of every dimension that is more than one element long."""
        pairs = zip(self.indices, shape_of(self.buffer), strict=True)
        return [(index, extent) for index, extent in pairs if extent != 1 or not is_int(index, 0)]


def reads_of(ctx: NestContext, stage: Stage, known: Sequence[Any] = (), analyzer: Any = None) -> list[Access]:
    """Every read of memory that evaluating the stage makes, through its virtual producers. ``analyzer``: what is known
    of the axes; a branch that is then never taken reads nothing."""
    found: list[Access] = []
    stop = {buffer: (lambda indices, b=buffer: _note(found, b, indices)) for buffer in known}
    point = ScalarWriter(ctx.virtual, stop, analyzer)
    exprs = [point.write(stage.value, {})] if stage.serial is None else _serial_values(point, stage)
    for node in [*point.binds, *exprs]:
        found += [Access(x.source, tuple(x.indices)) for x in loads(node)]
    return found


def _note(found: list[Access], buffer: Any, indices: Sequence[Expr]) -> Expr:
    from .builder import load

    found.append(Access(buffer, tuple(indices)))
    return load(buffer, *indices)


def _serial_values(point: ScalarWriter, stage: Stage) -> list[Expr]:
    own = stage.writes
    return [point.write(x, {}) for x in loads(stage.serial[1] if stage.serial else ()) if x.source not in own]


def write_of(stage: Stage) -> Access:
    """Where a map or a fold stores; a serial stage has no one place."""
    return Access(stage.buffer, stage.indices)


def mergeable(outer: Axis, inner: Axis, accesses: Sequence[Access]) -> bool:
    """Are two neighbouring axes one longer axis for every access: both absent, or neighbours in memory?"""
    return all(_together(outer, inner, access) for access in accesses)


def _together(outer: Axis, inner: Axis, access: Access) -> bool:
    places = access.places()
    used = [{outer.var, inner.var} & variables(index) for index, _ in places]
    if not any(used):
        return True
    spots = [place for place, names in enumerate(used) if names]
    if len(spots) != 2 or spots[1] != spots[0] + 1:
        return False
    (first, _), (second, extent) = places[spots[0]], places[spots[1]]
    return first.same_as(outer.var) and second.same_as(inner.var) and extent == inner.extent


def merged_tail(axes: Sequence[Axis], accesses: Sequence[Access]) -> int:
    """How many of the last axes make one axis (at least 1, unless there is none)."""
    count = min(1, len(axes))
    while count and count < len(axes) and mergeable(axes[-count - 1], axes[-count], accesses):
        count += 1
    return count


def contiguous_axis(accesses: Sequence[Access], axes: Sequence[Axis]) -> Axis | None:
    """The axis along which the widest read walks through memory, None if no read does."""
    own = {axis.var: axis for axis in axes}
    best: tuple[int, Axis] | None = None
    for access in accesses:
        places = access.places()
        last = places[-1][0] if places else None
        step = [own[v] for v in (variables(last) if last is not None else ()) if v in own]
        width = len(variables([index for index, _ in places]) & set(own))
        if len(step) == 1 and (best is None or width > best[0]):
            best = (width, step[0])
    return best[1] if best else None


def same_indices(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Are they the same expressions, in order?"""
    return tvm_ffi.structural_equal(list(a), list(b))


LEAST = 8  # places along an axis from which a tile pays


def transposed_axis(axes: Sequence[Axis], accesses: Sequence[Access]) -> int | None:
    """The axis (not the last, along which stores walk) along which some read walks, None if there is none."""
    if len(axes) < 2 or axes[-1].extent < LEAST:
        return None
    last = axes[-1].var
    for access in accesses:
        places = access.places()
        if not places or not variables([index for index, _ in places[:-1]]) & {last}:
            continue
        for n, axis in enumerate(axes[:-1]):
            if places[-1][0].same_as(axis.var) and axis.extent >= LEAST:
                return n
    return None
