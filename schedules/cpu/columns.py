"""Sums down columns: lanes along the output's last axis, tasks over strips of columns, rows in order inside a task."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx

from .access import reads_of, same_indices
from .emit import Expr, Stmt, i64, unravel
from .folds import COLUMNS, column_strip
from .maps import at
from .nests import Context, chunks
from .stages import Stage, substitute


def followers(ctx: Context, fold: Stage, rest: Sequence[Stage]) -> list[Stage]:
    """The map stages right after a fold that can be done on its results while they are at hand."""
    taken: list[Stage] = []
    for stage in rest:
        if not stage.is_map or not _follows(ctx, fold, taken, stage):
            break
        taken.append(stage)
    return taken


def _follows(ctx: Context, fold: Stage, taken: Sequence[Stage], stage: Stage) -> bool:
    """Same space, reads the fold (and the stages before it) at its own point, and the fold reads nothing it writes."""
    if [a.extent for a in stage.space] != [a.extent for a in fold.space]:
        return False
    if any(x.source.same_as(stage.buffer) for s in (fold, *taken) for x in s.reads):
        return False
    reads = reads_of(ctx, stage)
    for source in (fold, *taken):
        names = {a.var: b.var for a, b in zip(source.space, stage.space, strict=True)}
        here = [substitute(index, names) for index in source.indices]
        if any(r.buffer.same_as(source.buffer) and not same_indices(r.indices, here) for r in reads):
            return False
    return True


def column_nest(ctx: Context, fold: Stage, after: Sequence[Stage]) -> Stmt:
    """Every output of the fold, and the map stages that follow on it."""
    heads, last = fold.space[:-1], fold.space[-1]
    full, rest = divmod(last.extent, COLUMNS)
    count = full + (1 if rest else 0)

    def strip(head: Sequence[Expr], start: Expr, width: int) -> Stmt:
        return column_strip(ctx, fold, at(heads, head), last, start, width, after)

    if not rest or not full:
        whole = COLUMNS if full else rest
        extents = [*(a.extent for a in heads), count]
        return chunks(ctx, prod(extents), 1, lambda p, _: _at(strip, unravel(p, extents), whole))
    return _ragged(ctx, strip, [a.extent for a in heads], full, rest)


def _at(strip, places: Sequence[Expr], width: int) -> Stmt:
    *head, c = places
    return strip(head, c * COLUMNS, width)


def _ragged(ctx: Context, strip, heads: Sequence[int], full: int, rest: int) -> Stmt:
    """Whole strips and a narrower last one."""
    extents = [*heads, full + 1]

    def task(p: Expr, _: int) -> Stmt:
        *head, c = unravel(p, extents)
        return tirx.IfThenElse(c < i64(full), strip(head, c * COLUMNS, COLUMNS), strip(head, i64(full * COLUMNS), rest))

    return chunks(ctx, prod(extents), 1, task)
