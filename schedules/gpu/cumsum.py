"""Cumulative sums: one thread a sum, from the first term to the last, in the accumulator dtype the program names.

A parallel scan (Blelloch 1990) would add in another order, and a GPU's bits must be the CPU's: so sums run in parallel,
never the terms of a sum. Along the last axis a tile of rows goes through shared memory, so that loads and stores are
coalesced; along another axis neighbouring threads already have neighbouring columns.
"""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, seq, store
from .loop_programs import LoopProgram, function, read_loop_program, static_shape, wrapped_sum
from .threads.launch import THREADS, barrier, launch, launch_per_point, registers, shared, threads_per_block, unrolled

# Sums. From so many on a block takes 32 of them instead of 8: fewer threads idle while rows are added, and there are
# still 128 blocks. Chosen, not measured; only speed depends on it.
MIN_WIDE_ROWS = 4096
# (rows, terms of each) of a tile: multiples of THREADS elements, so that loads need no test of the element's number.
# Few rows take more terms at a time, which halves the barriers of a row. Chosen, not measured.
WIDE_TILE, NARROW_TILE = (32, 64), (8, 128)


@attrs.frozen
class Cumsum:
    """cumsum, forward or reversed: tiles in shared memory for the last axis, a thread a column for others."""

    name: str = "cumsum"

    def apply(self, func: Any, target: Any) -> Any:
        program = read_loop_program(func)
        if program is None or program.name != "cumsum":
            return None
        _, _, inner = static_shape(program.output)
        return function(func, [_tiled_rows(program) if inner == 1 else _columns(program)])


def _axis_index(program: LoopProgram, step: Expr) -> Expr:
    """Index of the term number ``step`` on the axis: from the end where the sum is reversed."""
    n = static_shape(program.output)[1]
    return i64(n - 1) - step if int(program.attributes["reverse"]) else step


def _columns(program: LoopProgram) -> Stmt:
    """A thread a sum, neighbouring threads on neighbouring columns."""
    (x,), y = program.inputs, program.output
    outer, n, inner = static_shape(y)
    carried = str(program.attributes["carried"])

    def column(flat: Expr) -> Stmt:
        acc, (o, c) = registers([1], carried, "acc"), (flat // inner, flat % inner)

        def step(k: Expr) -> Stmt:
            index = (o, _axis_index(program, k), c)
            total = wrapped_sum(load(acc, i64(0)), load(x, *index).astype(carried))
            return seq([store(acc, total, i64(0)), store(y, load(acc, i64(0)).astype(str(y.dtype)), *index)])

        return seq([tirx.AllocBuffer(acc), store(acc, tirx.const(0, carried), i64(0)), loop(n, step)])

    return launch_per_point(outer * inner, column, threads_per_block(outer * inner))


def _tiled_rows(program: LoopProgram) -> Stmt:
    """A block takes ``rows`` rows, ``steps`` terms of each at a time: all threads load and store the tile, a thread
    for each row adds. A thread loads into the slots it stored from before, so no barrier is needed between the two; TVM
    does not see that and inserts a barrier."""
    (x,), y, (outer, n, _) = program.inputs, program.output, static_shape(program.output)
    dtype, (rows, steps) = str(y.dtype), WIDE_TILE if outer >= MIN_WIDE_ROWS else NARROW_TILE
    # An odd pitch: the threads that add read the same term of different rows, which then lie in different banks.
    pitch, carried = steps + 1, str(program.attributes["carried"])
    tile, acc = shared([rows * pitch], dtype, "tile"), registers([1], carried, "acc")

    def each_element(b: Expr, t: Expr, piece: Expr, body: Any) -> Stmt:
        """``body(slot in the tile, index in memory)`` for the elements in bounds."""

        def element(u: Expr) -> Stmt:
            e = u * THREADS + t
            r, s = e // steps, e % steps
            row, k = b * rows + r, piece * steps + s
            in_bounds = tirx.all(row < i64(outer), k < i64(n))
            return tirx.IfThenElse(in_bounds, body(r * pitch + s, (row, _axis_index(program, k), i64(0))), None)

        return unrolled(rows * steps // THREADS, element)

    def block(b: Expr, t: Expr) -> Stmt:
        def add(s: Expr) -> Stmt:
            slot, own = t * pitch + s, i64(0)
            total = wrapped_sum(load(acc, own), load(tile, slot).astype(carried))
            return seq([store(acc, total, own), store(tile, load(acc, own).astype(dtype), slot)])

        def piece(p: Expr) -> Stmt:
            load_tile = each_element(b, t, p, lambda slot, index: store(tile, load(x, *index), slot))
            # Terms past the row's end are added too: they come after the last that is stored.
            add_rows = tirx.IfThenElse(t < i64(rows), loop(steps, add), None)
            store_tile = each_element(b, t, p, lambda slot, index: store(y, load(tile, slot), *index))
            return seq([load_tile, barrier(), add_rows, barrier(), store_tile])

        # The accumulator stays in its thread's register from piece to piece: the order of a sum knows no pieces.
        zero = store(acc, tirx.const(0, carried), i64(0))
        return seq([tirx.AllocBuffer(tile), tirx.AllocBuffer(acc), zero, loop(-(-n // steps), piece)])

    return launch(-(-outer // rows), THREADS, block)
