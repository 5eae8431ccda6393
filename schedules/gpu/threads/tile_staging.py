"""Staging of matmul operands: global memory, registers, then shared-memory tiles [k][m or n], double-buffered.

An operand of a SIMT (float32, float64) matmul may lie k-major or mn-major (as in ``half_operands.py``), and may be an
expression that is computed as it is loaded. Neighbouring threads load neighbours in memory either way; a k-major
operand is transposed as it is stored to shared memory. Staging changes no order of sums.
"""

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

FLOAT4 = 4  # float32 in the widest load of a thread: 16 bytes
HALF_DTYPES = ("bfloat16", "float16")
# The least that a load takes from memory: neighbouring threads read a sector of a row along k. Less of a row would load
# bytes for nothing.
SECTOR_BYTES = 32


@attrs.frozen(eq=False)
class TileLoader:
    """How the threads of a block stage an operand in tiles of ``tile_mn`` (rows of A, or columns of B) by ``tile_k``.

    ``axes``      of m or n, as a flat axis
    ``k_major``   do neighbours in memory differ in k?
    ``vector``    elements of a load
    ``fill``      what stands past the end of k: a product of both operands' fills changes no sum, not even -0
    ``k_run``     values of k that neighbouring threads load together, of a k-major operand
    ``pitch``     elements between consecutive k in a shared tile, with padding
    ``tiles``     two shared buffers [tile_k * pitch]: each is read while the other is filled
    ``staging``   registers for what a thread has loaded and not yet stored
    """

    ctx: NestContext
    contraction: Contraction
    value: Expr
    axes: tuple[Axis, ...]
    tile_mn: int
    tile_k: int
    threads: int
    k_major: bool
    vector: int
    fill: Expr
    k_run: int
    pitch: int
    tiles: tuple[Any, Any]
    staging: Any

    @property
    def loads_per_thread(self) -> int:
        return -(-self.tile_mn * self.tile_k // (self.vector * self.threads))


def tile_loader(
    ctx: NestContext,
    contraction: Contraction,
    value: Expr,
    axes: tuple[Axis, ...],
    tile_mn: int,
    tile_k: int,
    threads: int,
    fill: float,
) -> TileLoader:
    """The loader of the operand ``value`` over ``axes`` and the contraction's k."""
    dtype = str(contraction.stage.buffer.dtype)
    k_axes = contraction.stage.reduce
    k_major = is_k_major(ctx, value, axes, k_axes)
    extent, contiguous = (tile_k, k_axes) if k_major else (tile_mn, axes)
    vector = FLOAT4 if extent % FLOAT4 == 0 and _loads_float4(ctx, value, contiguous, dtype) else 1
    k_run = _k_run(value, tile_k)
    # An mn-major operand is stored as it was loaded, row by row: no two threads of a warp conflict, no padding.
    pitch = _bank_free_pitch(tile_mn, min(tile_mn, WARP * vector // k_run), vector) if k_major else tile_mn
    tiles = (shared([tile_k * pitch], dtype, "tile"), shared([tile_k * pitch], dtype, "tile"))
    loads_per_thread = -(-tile_mn * tile_k // (vector * threads))
    staging = registers([loads_per_thread * vector], dtype, "staging")
    blank = tirx.const(fill, dtype)
    return TileLoader(
        ctx, contraction, value, axes, tile_mn, tile_k, threads, k_major, vector, blank, k_run, pitch, tiles, staging
    )


def _k_run(value: Expr, tile_k: int) -> int:
    """Elements of a sector, by the narrowest tensor that is read: 16 halves or 8 words."""
    run = SECTOR_BYTES // (2 if any(str(x.source.dtype) in HALF_DTYPES for x in loads(value)) else 4)
    return run if tile_k % run == 0 else tile_k


def _bank_free_pitch(tile_mn: int, rows_per_warp: int, vector: int) -> int:
    """Elements between consecutive k in a tile that a warp stores transposed, ``rows_per_warp`` rows at a time.

    A store of the warp is of every ``vector``-th k. Those must lie ``rows_per_warp`` banks apart, so that its 32
    elements fill the 32 banks: the pitch, a power of two, becomes an odd multiple of ``rows_per_warp / vector``. For
    example 64 rows, 16 a warp, float4 loads: pitch 68, and k + 4 lies 272 elements = 16 banks on. For single elements
    the padding is at least 4, so that rows may still be read as a float4.
    """
    return tile_mn if tile_mn == 1 else tile_mn | max(FLOAT4 // vector, rows_per_warp // vector)


def double_buffered(
    steps: int,
    load_next: Callable[[Expr], Stmt],
    store_next: Callable[[int], Stmt],
    multiply: Callable[[int, Expr], Stmt],
    guard: Sequence[Expr] = (),
) -> Stmt:
    """The k loop over ``steps`` tiles, with a single barrier a step.

    ``load_next(step)`` prefetches a tile into registers, ``multiply(buffer, step)`` uses the tile before it, then
    ``store_next(buffer)`` stores the prefetched tile into buffers 0 and 1 alternately. Only threads for which ``guard``
    holds multiply.
    """

    def step(t: Expr, into: int) -> Stmt:
        """Tile ``t`` into buffer ``into`` of each operand, the tile before it from the other."""
        has_next, started = t < i64(steps), [t > i64(0)] if not into else []
        has_current = tirx.all(*guard, t <= i64(steps), *started)
        return seq(
            [
                tirx.IfThenElse(has_next, load_next(t), None),
                tirx.IfThenElse(has_current, multiply(1 - into, t - 1), None),
                tirx.IfThenElse(has_next, store_next(into), None),
                barrier(),
            ]
        )

    # Two steps an iteration, so that the buffer of each is known where the kernel is written.
    return loop(steps // 2 + 1, lambda t: seq([step(t * 2, 0), step(t * 2 + 1, 1)]), name="step")


def is_k_major(ctx: NestContext, value: Expr, axes: Sequence[Axis], k_axes: Sequence[Axis]) -> bool:
    """Does the widest load of ``value`` run along k, and not along the operand's own axes?"""
    writer = ScalarWriter(ctx.virtual)
    written = writer.write(value, {})
    accesses = [Access(x.source, tuple(x.indices)) for node in (*writer.binds, written) for x in loads(node)]
    return contiguous_axis(accesses, [*axes, *k_axes]) in tuple(k_axes)


def _loads_float4(ctx: NestContext, value: Expr, axes: Sequence[Axis], dtype: str) -> bool:
    """Is the operand a plain load of float32, whose groups of four along the last of ``axes`` are aligned? Buffers
    begin at multiples of 64 bytes."""
    if not isinstance(value, Load) or value.source in ctx.virtual.stages or dtype != "float32" or not axes:
        return False
    var, extents = axes[-1].var, shape_of(value.source)
    if not value.indices[-1].same_as(var) or var in variables(list(value.indices[:-1])):
        return False
    return str(value.source.dtype) == dtype and axes[-1].extent % FLOAT4 == 0 and extents[-1] % FLOAT4 == 0


def load_global(
    loader: TileLoader, batch: dict[Any, Expr], first: Expr, extent: int, k: Expr, thread: Expr, k_multiple: int = 1
) -> Stmt:
    """The thread's part of a tile from global memory into its registers, with ``fill`` past the edges.

    The tile begins at row or column ``first`` of ``extent``, and at ``k``. A k that is no multiple of ``k_multiple``
    may be passed by: then loads are guarded.
    """

    def part(s: Expr) -> Stmt:
        tile_mn, tile_k = _tile_coords(loader, s, thread)
        mn, k_at = first + tile_mn, k + tile_k
        guard = [mn < i64(extent)] if extent % loader.tile_mn else []
        guard += [k_at < i64(loader.contraction.k)] if _k_is_ragged(loader, k_multiple) else []
        if _threads_idle(loader):
            guard.append(_in_tile(loader, s, thread))
        coords = batch | index_of(loader.axes, unravel(mn, _extents(loader.axes))) | _k_coords(loader, k_at)
        read = _read(loader, coords, s)
        if not guard:
            return read
        # The fill first: a guarded load alone would leave the element of an older tile in the register.
        blank = store(loader.staging, _broadcast(loader.fill, loader.vector), _staging_index(loader, s))
        return seq([blank, tirx.IfThenElse(tirx.all(*guard), read, None)])

    return unrolled(loader.loads_per_thread, part, "s")


def _k_is_ragged(loader: TileLoader, k_multiple: int) -> bool:
    return bool(loader.contraction.k % loader.tile_k or loader.contraction.k % k_multiple)


def _threads_idle(loader: TileLoader) -> bool:
    """Do some threads have nothing to load in the last iteration?"""
    return bool(loader.tile_mn * loader.tile_k % (loader.vector * loader.threads))


def _in_tile(loader: TileLoader, s: Expr, thread: Expr) -> Expr:
    return s * loader.threads + thread < i64(loader.tile_mn * loader.tile_k // loader.vector)


def _read(loader: TileLoader, coords: dict[Any, Expr], s: Expr) -> Stmt:
    writer = ScalarWriter(loader.ctx.virtual)
    value = writer.write(loader.value, coords)
    if loader.vector > 1:
        value = load(value.source, *value.indices[:-1], vector_index(value.indices[-1], loader.vector))
    return seq([*writer.binds, store(loader.staging, value, _staging_index(loader, s))])


def store_shared(loader: TileLoader, tile: Any, thread: Expr) -> Stmt:
    """The thread's part from its registers into ``tile``; a k-major vector is transposed, element by element."""

    def part(s: Expr) -> Stmt:
        mn, k = _tile_coords(loader, s, thread)
        # Transposed on its way, once for each element, so that every read of the tile is along m or n.
        if loader.k_major and loader.pitch > 1:
            elements = [load(loader.staging, s * loader.vector + j) for j in range(loader.vector)]
            stores = [store(tile, element, (k + j) * loader.pitch + mn) for j, element in enumerate(elements)]
        else:
            vector = load(loader.staging, _staging_index(loader, s))
            stores = [store(tile, vector, vector_index(k * loader.pitch + mn, loader.vector))]
        if _threads_idle(loader):
            return tirx.IfThenElse(_in_tile(loader, s, thread), seq(stores), None)
        return seq(stores)

    return unrolled(loader.loads_per_thread, part, "s")


def _tile_coords(loader: TileLoader, s: Expr, thread: Expr) -> tuple[Expr, Expr]:
    """m or n, and k, within the tile, of the first element of the thread's load ``s``."""
    flat = s * loader.threads + thread
    if loader.k_major:
        # Neighbouring threads have a sector of a row, then of the next row: loads coalesce, and stores of the
        # transposed elements go to several rows, which lie in different banks.
        run, mn, k = unravel(flat, [loader.tile_k // loader.k_run, loader.tile_mn, loader.k_run // loader.vector])
        return mn, run * loader.k_run + k * loader.vector
    k, mn = unravel(flat, [loader.tile_k, loader.tile_mn // loader.vector])
    return mn * loader.vector, k


def _staging_index(loader: TileLoader, s: Expr) -> Expr:
    return vector_index(s * loader.vector, loader.vector)


def vector_index(first: Expr, count: int) -> Expr:
    """The index of ``count`` neighbours as a vector; for a count of 1 ``first`` itself."""
    return first if count == 1 else tirx.Ramp(first, i64(1), tirx.IntImm("int32", count))


def _broadcast(value: Expr, count: int) -> Expr:
    return value if count == 1 else tirx.Broadcast(value, tirx.IntImm("int32", count))


def _extents(axes: Sequence[Axis]) -> list[int]:
    return [a.extent for a in axes]


def _k_coords(loader: TileLoader, k: Expr) -> dict[Any, Expr]:
    k_axes = loader.contraction.stage.reduce
    return index_of(k_axes, unravel(k, _extents(k_axes)))
