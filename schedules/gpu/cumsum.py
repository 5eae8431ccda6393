"""Running sums, each in the order of its terms by one thread, which is what its bits follow from, in the dtype
that the program says."""

from __future__ import annotations

from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, seq, store
from .loop_programs import Known, function, known, sizes, wrapped_sum
from .threads.launch import THREADS, barrier, launch, launch_per_point, registers, shared, threads_per_block, unrolled

MANY = 4096  # sums from which on a block takes more of them, so that fewer threads look on


@attrs.frozen
class Scan:
    """Sums along the last axis go through shared memory, so that neighbours in memory are read by neighbours."""

    name: str = "scan"

    def apply(self, func: Any, target: Any) -> Any:
        program = known(func)
        if program is None or program.name != "cumsum":
            return None
        _, _, inner = sizes(program.out)
        return function(func, [_tiles(program) if inner == 1 else _columns(program)])


def _place(program: Known, step: Expr) -> Expr:
    """Where the term number ``step`` stands."""
    n = sizes(program.out)[1]
    return i64(n - 1) - step if int(program.said["reverse"]) else step


def _columns(program: Known) -> Stmt:
    """A thread a sum: neighbours have neighbouring columns."""
    (x,), y = program.ins, program.out
    outer, n, inner = sizes(y)
    carried = str(program.said["carried"])

    def column(flat: Expr) -> Stmt:
        acc, (o, c) = registers([1], carried, "acc"), (flat // inner, flat % inner)

        def step(k: Expr) -> Stmt:
            at = (o, _place(program, k), c)
            total = wrapped_sum(load(acc, i64(0)), load(x, *at).astype(carried))
            return seq([store(acc, total, i64(0)), store(y, load(acc, i64(0)).astype(str(y.dtype)), *at)])

        return seq([tirx.AllocBuffer(acc), store(acc, tirx.const(0, carried), i64(0)), loop(n, step)])

    return launch_per_point(outer * inner, column, threads_per_block(outer * inner))


def _tiles(program: Known) -> Stmt:
    """A block takes some rows, a piece of each at a time: all threads bring it in and out, one a row adds. A thread
    brings in where it took out of the piece before: no barrier is needed there, though TVM, which does not see it, puts
    one."""
    (x,), y, (outer, n, _) = program.ins, program.out, sizes(program.out)
    dtype, (rows, steps) = str(y.dtype), (32, 64) if outer >= MANY else (8, 128)
    line, carried = steps + 1, str(program.said["carried"])  # the threads that add are in banks of their own
    tile, acc = shared([rows * line], dtype, "tile"), registers([1], carried, "acc")

    def block(b: Expr, t: Expr) -> Stmt:
        def each(body: Any, piece: Expr) -> Stmt:
            """``body(place in the tile, place in memory)`` for the elements that there are."""

            def one(u: Expr) -> Stmt:
                e = u * THREADS + t
                r, s = e // steps, e % steps
                row, k = b * rows + r, piece * steps + s
                inside = tirx.all(row < i64(outer), k < i64(n))
                return tirx.IfThenElse(inside, body(r * line + s, (row, _place(program, k), i64(0))), None)

            return unrolled(rows * steps // THREADS, one)

        def add(s: Expr) -> Stmt:
            at, own = t * line + s, i64(0)
            total = wrapped_sum(load(acc, own), load(tile, at).astype(carried))
            return seq([store(acc, total, own), store(tile, load(acc, own).astype(dtype), at)])

        def piece(p: Expr) -> Stmt:
            return seq([
                each(lambda at, place: store(tile, load(x, *place), at), p),
                barrier(),
                tirx.IfThenElse(t < i64(rows), loop(steps, add), None),
                barrier(),
                each(lambda at, place: store(y, load(tile, at), *place), p),
            ])  # fmt: skip

        zero = store(acc, tirx.const(0, carried), i64(0))
        return seq([tirx.AllocBuffer(tile), tirx.AllocBuffer(acc), zero, loop(-(-n // steps), piece)])

    return launch(-(-outer // rows), THREADS, block)
