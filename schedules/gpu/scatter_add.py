"""Deterministic scatter-add by rank sort, without atomics.

Atomic additions come in any order, and floating-point sums depend on it. So every sum is in the order of the input:
(1) each chunk of 1024 indices is rank-sorted in shared memory: an index's rank is the number of those before it;
(2) the chunks are merged: binary search in every other chunk gives each index its rank among all;
(3) a thread for each (first occurrence of a row, column) adds the row's segment, which is in input order.

Cost for n indices: 1024 n comparisons and n (n / 1024) searches of 11 steps; for a table of v rows and d columns, v d
elements written once and the n d of the updates read once. 8192 indices into 50,000 rows of 768 columns: 8.4 million
comparisons, 0.7 million steps, and 180 MB moved, which is most of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store
from .loop_programs import LoopProgram, function, read_loop_program, static_shape, wrapped_sum
from .threads.launch import barrier, launch, launch_per_point, registers, shared, threads_per_block, unrolled

# Indices that a block sorts, a thread each: the most threads that a block may have. Fewer make fewer comparisons and
# more searches; no bit depends on it, since both give an index the same rank.
CHUNK = 1024
# Terms loaded at once before they are added: loads in flight while a chain of additions waits. Chosen, not measured,
# and of no effect on bits.
PREFETCH = 8
# Rows and positions fit 32 bits (a larger program is refused), and half the bytes of int64 are sorted and searched.
KEY_DTYPE = "int32"


@attrs.frozen(eq=False)
class ScatterAdd:
    """``updates`` indices, each with ``columns`` terms.

    rows:     rows of the result, of ``columns`` sums each
    row_of:   position of an index -> its row, or ``rows`` for an index that is dropped
    update:   (position of an index, column) -> the term that it adds
    initial:  (row, column) -> what the sum begins with
    index_of: (row, column) -> the element of the result
    """

    updates: int
    rows: int
    columns: int
    row_of: Callable[[Expr], Expr]
    update: Callable[[Expr, Expr], Expr]
    initial: Callable[[Expr, Expr], Expr]
    index_of: Callable[[Expr, Expr], tuple[Expr, ...]]


@attrs.frozen
class SortedScatterAdd:
    """scatter-add, scatter-rows, and scatter-along where all columns share their indices."""

    name: str = "scatter-add"

    def apply(self, func: Any, target: Any) -> Any:
        program = read_loop_program(func)
        scatter = None if program is None else _read_scatter(program)
        if program is None or scatter is None or max(scatter.rows + 1, scatter.updates) >= 2**31:
            return None
        return _launches(func, scatter, program.output)


def _read_scatter(program: LoopProgram) -> ScatterAdd | None:
    y = program.output
    zero = tirx.const(0, str(y.dtype))
    if program.name == "scatter_add":
        base, ids, updates = program.inputs
        rows, columns = static_shape(y)

        def row_of(t: Expr) -> Expr:
            i = load(ids, t).astype("int64")
            # An index out of range adds nothing: it gets the row after the last, which sorts behind all others and is
            # never added.
            return tirx.Select(tirx.all(i >= 0, i < rows), i, i64(rows))

        return ScatterAdd(
            static_shape(ids)[0],
            rows,
            columns,
            row_of,
            update=lambda t, c: load(updates, t, c),
            initial=lambda r, c: load(base, r, c),
            index_of=lambda r, c: (r, c),
        )
    if program.name == "scatter_rows":
        updates, ids = program.inputs
        rows, columns = static_shape(y)
        return ScatterAdd(
            static_shape(ids)[0],
            rows,
            columns,
            row_of=lambda t: _clamped(load(ids, t), rows),
            update=lambda t, c: load(updates, t, c),
            initial=lambda r, c: zero,
            index_of=lambda r, c: (r, c),
        )
    return _read_scatter_along(program, zero) if program.name == "scatter_along" else None


def _read_scatter_along(program: LoopProgram, zero: Expr) -> ScatterAdd | None:
    (dy, ids), (outer, n, inner) = program.inputs, static_shape(program.output)
    id_outer, count, id_inner = static_shape(ids)
    # Columns with indices of their own would need a sort each: they go to ScatterAddAlongColumns.
    if id_outer != 1 or id_inner != 1:
        return None
    return ScatterAdd(
        count,
        n,
        outer * inner,
        row_of=lambda t: _clamped(load(ids, i64(0), t, i64(0)), n),
        update=lambda t, c: load(dy, c // inner, t, c % inner),
        initial=lambda r, c: zero,
        index_of=lambda r, c: (c // inner, r, c % inner),
    )


def _clamped(i: Expr, n: int) -> Expr:
    return tirx.max(tirx.min(i.astype("int64"), i64(n - 1)), i64(0))


def _launches(func: Any, scatter: ScatterAdd, y: Any) -> Any:
    chunks = -(-scatter.updates // CHUNK)
    keys, order = (scratch([scatter.updates], KEY_DTYPE, name) for name in ("keys", "order"))
    launches, intermediates = [_rank_sort_chunks(scatter, keys, order)], [keys, order]
    if chunks > 1:
        merged = [scratch([scatter.updates], KEY_DTYPE, name) for name in ("merged_keys", "merged_order")]
        launches.append(_merge_chunks(scatter, (keys, order), merged))
        keys, order = merged
        intermediates += merged
    launches += [_initialize(scatter, y), _add_segments(scatter, keys, order, y)]
    return function(func, launches, intermediates)


def _rank_sort_chunks(scatter: ScatterAdd, keys: Any, order: Any) -> Stmt:
    """Rank sort of each chunk by row, stable: among equal rows the position decides, which keeps the input's order."""
    # Few indices make a shorter chunk, of whole warps: each thread compares with all of the chunk.
    threads = min(CHUNK, -(-scatter.updates // 32) * 32)
    chunk = shared([threads], KEY_DTYPE, "chunk")
    own_key, rank = (registers([1], KEY_DTYPE, name) for name in ("key", "rank"))

    def block(b: Expr, t: Expr) -> Stmt:
        position = b * threads + t
        in_bounds = position < i64(scatter.updates)
        # Threads past the last index need a key, since the barrier needs them: the greatest, which no rank counts.
        padding = tirx.const(2**31 - 1, KEY_DTYPE)
        key = tirx.if_then_else(in_bounds, scatter.row_of(position).astype(KEY_DTYPE), padding)

        def count_before(s: Expr) -> Stmt:
            other, own = load(chunk, s), load(own_key, i64(0))
            # The position breaks a tie: without it equal rows would get the same rank, and an index would be lost.
            is_before = tirx.any(other < own, tirx.all(tirx.EQ(other, own), s < t))
            return store(rank, load(rank, i64(0)) + is_before.astype(KEY_DTYPE), i64(0))

        target = b * threads + load(rank, i64(0)).astype("int64")
        write = seq([store(keys, load(own_key, i64(0)), target), store(order, position.astype(KEY_DTYPE), target)])
        return seq(
            [
                *(tirx.AllocBuffer(x) for x in (chunk, own_key, rank)),
                store(own_key, key, i64(0)),
                store(chunk, load(own_key, i64(0)), t),
                store(rank, tirx.const(0, KEY_DTYPE), i64(0)),
                barrier(),
                loop(threads, count_before),
                tirx.IfThenElse(in_bounds, write, None),
            ]
        )

    return launch(-(-scatter.updates // threads), threads, block)


def _merge_chunks(scatter: ScatterAdd, chunked: tuple[Any, Any], merged: list[Any]) -> Stmt:
    """Each index to its rank among all: its rank in its chunk, plus the number of indices in every earlier chunk that
    are not greater, plus the number in every later chunk that are less. So equal rows keep the input's order."""
    keys, order = chunked
    count = scatter.updates

    def merge(position: Expr) -> Stmt:
        key, rank, low = (registers([1], "int64", name) for name in ("key", "rank", "low"))
        own_chunk, zero = position // CHUNK, i64(0)

        def chunk(b: Expr) -> Stmt:
            size = tirx.min(i64(count) - b * CHUNK, i64(CHUNK))
            # In an earlier chunk equal keys come before this key, in a later chunk behind it.
            limit = load(key, zero) + (b < own_chunk).astype("int64")
            add_rank = store(rank, load(rank, zero) + load(low, zero), zero)
            search = seq([store(low, zero, zero), _count_less(keys, b * CHUNK, size, limit, low), add_rank])
            return tirx.IfThenElse(tirx.NE(b, own_chunk), search, None)

        target = load(rank, zero)
        return seq(
            [
                *(tirx.AllocBuffer(x) for x in (key, rank, low)),
                store(key, load(keys, position).astype("int64"), zero),
                store(rank, position % CHUNK, zero),
                loop(-(-count // CHUNK), chunk),
                store(merged[0], load(keys, position), target),
                store(merged[1], load(order, position), target),
            ]
        )

    return launch_per_point(count, merge)


def _count_less(keys: Any, first: Expr, size: Expr, limit: Expr, low: Any) -> Stmt:
    """Adds to ``low`` how many of the ``size`` sorted keys from ``first`` on are below ``limit``: a binary search.

    Its steps are powers of two from CHUNK on, as many for every thread, so that a warp does not diverge."""
    zero = i64(0)

    def bisect(u: Expr) -> Stmt:
        candidate = load(low, zero) + (i64(CHUNK) >> u)
        is_less = load(keys, first + candidate - 1).astype("int64") < limit
        advance = tirx.if_then_else(candidate <= size, is_less, False)
        return tirx.IfThenElse(advance, store(low, candidate, zero), None)

    return loop(CHUNK.bit_length(), bisect)


def _initialize(scatter: ScatterAdd, y: Any) -> Stmt:
    def element(flat: Expr) -> Stmt:
        r, c = flat // scatter.columns, flat % scatter.columns
        return store(y, scatter.initial(r, c), *scatter.index_of(r, c))

    return launch_per_point(scatter.rows * scatter.columns, element)


def _add_segments(scatter: ScatterAdd, keys: Any, order: Any, y: Any) -> Stmt:
    """A thread for each (first occurrence of a row, column) adds the terms of all indices with that row, in order."""
    count, columns, zero = scatter.updates, scatter.columns, i64(0)

    def segment(flat: Expr) -> Stmt:
        k, c = flat // columns, flat % columns
        acc, cursor = registers([1], str(y.dtype), "acc"), registers([1], "int64", "cursor")
        key = load(keys, k)
        row = key.astype("int64")

        def add(n: Expr) -> Stmt:
            t = load(order, load(cursor, zero) + n).astype("int64")
            return store(acc, wrapped_sum(load(acc, zero), scatter.update(t, c)), zero)

        def while_same_row(terms: int) -> Stmt:
            last = load(cursor, zero) + (terms - 1)
            test = tirx.if_then_else(last < i64(count), tirx.EQ(load(keys, last), key), False)
            return tirx.While(test, seq([unrolled(terms, add), store(cursor, load(cursor, zero) + terms, zero)]))

        # Only the first index of a segment works: no two threads write the same element, so no atomics are needed.
        first = tirx.if_then_else(k > 0, tirx.NE(load(keys, tirx.max(k - 1, zero)), key), True)
        work = seq(
            [
                tirx.AllocBuffer(acc),
                tirx.AllocBuffer(cursor),
                store(acc, scatter.initial(row, c), zero),
                store(cursor, k, zero),
                # Eight terms a step while so many are left, then single ones: both add in the order of the input.
                while_same_row(PREFETCH),
                while_same_row(1),
                store(y, load(acc, zero), *scatter.index_of(row, c)),
            ]
        )
        return tirx.IfThenElse(tirx.all(first, row < i64(scatter.rows)), work, None)

    return launch_per_point(count * columns, segment)


@attrs.frozen
class ScatterAddAlongColumns:
    """scatter-along where each column has indices of its own: a thread a column, in the order of the CPU's loop."""

    name: str = "scatter-along"

    def apply(self, func: Any, target: Any) -> Any:
        program = read_loop_program(func)
        if program is None or program.name != "scatter_along":
            return None
        (dy, ids), y = program.inputs, program.output
        (outer, n, inner), (id_outer, terms, id_inner) = static_shape(y), static_shape(ids)

        def begin(flat: Expr) -> Stmt:
            o, rest = flat // (n * inner), flat % (n * inner)
            return store(y, tirx.const(0, str(y.dtype)), o, rest // inner, rest % inner)

        def column(flat: Expr) -> Stmt:
            o, c = flat // inner, flat % inner

            def add_term(j: Expr) -> Stmt:
                id = load(ids, o if id_outer > 1 else i64(0), j, c if id_inner > 1 else i64(0))
                index = (o, _clamped(id, n), c)
                return store(y, wrapped_sum(load(y, *index), load(dy, o, j, c)), *index)

            return loop(terms, add_term)

        return function(
            func,
            [
                launch_per_point(outer * n * inner, begin),
                launch_per_point(outer * inner, column, threads_per_block(outer * inner)),
            ],
        )
