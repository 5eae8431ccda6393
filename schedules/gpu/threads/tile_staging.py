"""A factor of a matrix product on its way from global memory: by way of registers, into tiles [depth][lines] of shared
memory. Lines are a factor's rows, or columns. Neighbouring threads read neighbours in memory, whichever way it lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.access import Access, contiguous_axis
from ...tir.builder import Expr, Load, Stmt, i64, load, loop, seq, shape_of, store, unravel
from ...tir.context import NestContext
from ...tir.contraction import Contraction
from ...tir.inline import ScalarWriter
from ...tir.point_writer import index_of
from ...tir.stages import Axis, loads, variables
from .launch import WARP, barrier, registers, shared, unrolled

FOUR = 4  # elements of 4 bytes that one thread loads at once
HALVES = ("bfloat16", "float16")
SECTOR = 32  # bytes: as much of a line that lies along the depth neighbours read


@attrs.frozen(eq=False)
class Factor:
    """One factor in tiles of ``lines`` by ``deep``. ``along``: its memory runs along the depth. ``wide``: elements of
    one load. ``pad``: what stands for turns past the end of the depth; a product of both factors' changes no sum, not
    even one of -0. ``run``: turns of the depth that neighbouring threads read together, where memory runs along it."""

    ctx: NestContext
    one: Contraction
    value: Expr
    axes: tuple[Axis, ...]
    lines: int
    deep: int
    threads: int
    along: bool
    wide: int
    pad: Expr
    run: int
    line: int  # elements from one turn of the depth to the next in a tile
    tiles: tuple[Any, Any]  # [depth * line]: one is read while the other is filled
    mine: Any  # what a thread has loaded

    @property
    def parts(self) -> int:
        """Loads of a thread."""
        return -(-self.lines * self.deep // (self.wide * self.threads))


def factor(
    ctx: NestContext,
    one: Contraction,
    value: Expr,
    axes: tuple[Axis, ...],
    lines: int,
    deep: int,
    threads: int,
    pad: float,
) -> Factor:
    """``value`` over ``axes`` and the depth."""
    dtype = str(one.stage.buffer.dtype)
    along = runs_along(ctx, value, axes, one.stage.reduce)
    side, walked = (deep, one.stage.reduce) if along else (lines, axes)
    wide = FOUR if side % FOUR == 0 and _in_fours(ctx, value, walked, dtype) else 1
    run = _run(value, deep)
    line = _line(lines, min(lines, WARP * wide // run), wide) if along else lines
    tiles = (shared([deep * line], dtype, "tile"), shared([deep * line], dtype, "tile"))
    parts = -(-lines * deep // (wide * threads))
    mine = registers([parts * wide], dtype, "next")
    blank = tirx.const(pad, dtype)
    return Factor(ctx, one, value, axes, lines, deep, threads, along, wide, blank, run, line, tiles, mine)


def _run(value: Expr, deep: int) -> int:
    run = SECTOR // (2 if any(str(x.source.dtype) in HALVES for x in loads(value)) else 4)
    return run if deep % run == 0 else deep


def _line(lines: int, together: int, wide: int) -> int:
    """Elements from one turn of the depth to the next, where the threads of a warp put ``together`` lines of every
    ``wide``th turn into a tile: a power of two of lines becomes an odd multiple of ``together / wide``, so that what
    belongs to the next such turn lies ``together`` banks on. Of single elements it stays a multiple of four, which may
    be read at once."""
    return lines if lines == 1 else lines | max(FOUR // wide, together // wide)


def pieces(
    steps: int,
    load_next: Callable[[Expr], Stmt],
    put_next: Callable[[int], Stmt],
    multiply: Callable[[int, Expr], Stmt],
    makers: Sequence[Expr] = (),
) -> Stmt:
    """A depth of ``steps`` pieces: ``load_next(piece)`` into registers, ``put_next(tile)`` into tiles 0 and 1 in turn,
    and from there ``multiply(tile, piece)``, by the threads for which ``makers`` hold."""

    def step(t: Expr, into: int) -> Stmt:
        """Piece ``t`` into one tile of each factor, the piece before it from the other."""
        more, before = t < i64(steps), [t > i64(0)] if not into else []
        ready = tirx.all(*makers, t <= i64(steps), *before)
        return seq([
            tirx.IfThenElse(more, load_next(t), None),
            tirx.IfThenElse(ready, multiply(1 - into, t - 1), None),
            tirx.IfThenElse(more, put_next(into), None),
            barrier(),
        ])  # fmt: skip

    return loop(steps // 2 + 1, lambda t: seq([step(t * 2, 0), step(t * 2 + 1, 1)]), name="step")


def runs_along(ctx: NestContext, value: Expr, axes: Sequence[Axis], reduce: Sequence[Axis]) -> bool:
    """Does the widest read of memory run along the depth, and not along the factor's own axes?"""
    point = ScalarWriter(ctx.virtual)
    done = point.write(value, {})
    reads = [Access(x.source, tuple(x.indices)) for node in (*point.binds, done) for x in loads(node)]
    return contiguous_axis(reads, [*axes, *reduce]) in tuple(reduce)


def _in_fours(ctx: NestContext, value: Expr, axes: Sequence[Axis], dtype: str) -> bool:
    """Is the factor a plain read of float32, four neighbours along the last of ``axes`` always within one aligned group
    of four? Buffers begin at multiples of 64 bytes."""
    if not isinstance(value, Load) or value.source in ctx.virtual.stages or dtype != "float32" or not axes:
        return False
    var, extents = axes[-1].var, shape_of(value.source)
    if not value.indices[-1].same_as(var) or var in variables(list(value.indices[:-1])):
        return False
    return str(value.source.dtype) == dtype and axes[-1].extent % FOUR == 0 and extents[-1] % FOUR == 0


def fetch(
    f: Factor, batch: dict[Any, Expr], first: Expr, extent: int, turn: Expr, thread: Expr, whole: int = 1
) -> Stmt:  # fmt: skip
    """The thread's part of the tile from line ``first`` and turn ``turn`` of the depth on, into its registers. ``turn``
    may lie past the end of a depth that is no multiple of ``whole``."""

    def part(s: Expr) -> Stmt:
        line, k = _place(f, s, thread)
        row, depth = first + line, turn + k
        inside = [row < i64(extent)] if extent % f.lines else []
        inside += [depth < i64(f.one.k)] if f.one.k % f.deep or f.one.k % whole else []
        if f.lines * f.deep % (f.wide * f.threads):
            inside.append(s * f.threads + thread < i64(f.lines * f.deep // f.wide))
        read = _read(f, batch | index_of(f.axes, unravel(row, _extents(f.axes))) | _depths(f, depth), s)
        if not inside:
            return read
        blank = store(f.mine, _all(f.pad, f.wide), _own(f, s))
        return seq([blank, tirx.IfThenElse(tirx.all(*inside), read, None)])

    return unrolled(f.parts, part, "s")


def _read(f: Factor, here: dict[Any, Expr], s: Expr) -> Stmt:
    point = ScalarWriter(f.ctx.virtual)
    value = point.write(f.value, here)
    if f.wide > 1:
        value = load(value.source, *value.indices[:-1], span_at(value.indices[-1], f.wide))
    return seq([*point.binds, store(f.mine, value, _own(f, s))])


def put(f: Factor, tile: Any, thread: Expr) -> Stmt:
    """The thread's part from its registers into ``tile``."""

    def part(s: Expr) -> Stmt:
        line, k = _place(f, s, thread)
        if f.along and f.line > 1:
            ends = [store(tile, load(f.mine, s * f.wide + j), (k + j) * f.line + line) for j in range(f.wide)]
        else:
            ends = [store(tile, load(f.mine, _own(f, s)), span_at(k * f.line + line, f.wide))]
        if f.lines * f.deep % (f.wide * f.threads):
            return tirx.IfThenElse(s * f.threads + thread < i64(f.lines * f.deep // f.wide), seq(ends), None)
        return seq(ends)

    return unrolled(f.parts, part, "s")


def _place(f: Factor, s: Expr, thread: Expr) -> tuple[Expr, Expr]:
    """Line and turn of the depth, within the tile, of load ``s``."""
    flat = s * f.threads + thread
    if f.along:
        runs, line, k = unravel(flat, [f.deep // f.run, f.lines, f.run // f.wide])
        return line, runs * f.run + k * f.wide
    k, line = unravel(flat, [f.deep, f.lines // f.wide])
    return line * f.wide, k


def _own(f: Factor, s: Expr) -> Expr:
    return span_at(s * f.wide, f.wide)


def span_at(first: Expr, count: int) -> Expr:
    """``count`` places in a row, as one vector; of one, itself."""
    return first if count == 1 else tirx.Ramp(first, i64(1), tirx.IntImm("int32", count))


def _all(value: Expr, count: int) -> Expr:
    return value if count == 1 else tirx.Broadcast(value, tirx.IntImm("int32", count))


def _extents(axes: Sequence[Axis]) -> list[int]:
    return [a.extent for a in axes]


def _depths(f: Factor, k: Expr) -> dict[Any, Expr]:
    reduce = f.one.stage.reduce
    return index_of(reduce, unravel(k, _extents(reduce)))
