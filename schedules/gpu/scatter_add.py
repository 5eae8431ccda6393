"""Sums at computed places, each in the order of the indices that name it, without atomics.

The indices are put in order once: each chunk of them by counting, in shared memory, who comes before whom; then each by
its place in every other chunk. A thread a column of each place that occurs adds what belongs there. For n indices, of
chunks of 1024: 1024 n comparisons and n (n / 1024) searches of 11 steps; for a table of v rows and d columns its v d
elements written once and the n d of the updates read once. 8192 indices into 50,000 rows of 768 columns: 8.4 million
comparisons, 0.7 million steps, and 180 MB moved, which is most of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store
from .loop_programs import Known, function, known, sizes, wrapped_sum
from .threads.launch import barrier, launch, launch_per_point, registers, shared, threads_per_block, unrolled

CHUNK = 1024  # indices that one block orders, a thread each
AHEAD = 8  # additions whose terms are read at once
KEY = "int32"


@attrs.frozen(eq=False)
class Places:
    """``count`` indices, each of ``columns`` terms.

    rows:    places, of ``columns`` sums each
    key:     number of an index -> its place, or ``rows`` for one that is dropped
    term:    (number of an index, column) -> what it adds
    start:   (place, column) -> what the sum begins with
    at:      (place, column) -> the element of the result
    """

    count: int
    rows: int
    columns: int
    key: Callable[[Expr], Expr]
    term: Callable[[Expr, Expr], Expr]
    start: Callable[[Expr, Expr], Expr]
    at: Callable[[Expr, Expr], tuple[Expr, ...]]


@attrs.frozen
class SumsAtPlaces:
    """scatter-add, scatter-rows, and scatter-along where all columns have the same indices."""

    name: str = "places"

    def apply(self, func: Any, target: Any) -> Any:
        program = known(func)
        places = None if program is None else _places(program)
        if program is None or places is None or max(places.rows + 1, places.count) >= 2**31:
            return None
        return _build(func, places, program.out)


def _places(program: Known) -> Places | None:
    y = program.out
    zero = tirx.const(0, str(y.dtype))
    if program.name == "scatter_add":
        base, ids, updates = program.ins
        rows, columns = sizes(y)

        def key(t: Expr) -> Expr:
            i = load(ids, t).astype("int64")
            return tirx.Select(tirx.all(i >= 0, i < rows), i, i64(rows))

        term = lambda t, c: load(updates, t, c)  # noqa: E731
        return Places(sizes(ids)[0], rows, columns, key, term, lambda r, c: load(base, r, c), lambda r, c: (r, c))
    if program.name == "scatter_rows":
        updates, ids = program.ins
        rows, columns = sizes(y)
        term = lambda t, c: load(updates, t, c)  # noqa: E731
        key = lambda t: _clamped(load(ids, t), rows)  # noqa: E731
        return Places(sizes(ids)[0], rows, columns, key, term, lambda r, c: zero, lambda r, c: (r, c))
    return _along(program, zero) if program.name == "scatter_along" else None


def _along(program: Known, zero: Expr) -> Places | None:
    (dy, ids), (outer, n, inner) = program.ins, sizes(program.out)
    id_outer, many, id_inner = sizes(ids)
    if id_outer != 1 or id_inner != 1:
        return None
    return Places(
        many, n, outer * inner,
        lambda t: _clamped(load(ids, i64(0), t, i64(0)), n),
        lambda t, c: load(dy, c // inner, t, c % inner),
        lambda r, c: zero,
        lambda r, c: (c // inner, r, c % inner),
    )  # fmt: skip


def _clamped(i: Expr, n: int) -> Expr:
    return tirx.max(tirx.min(i.astype("int64"), i64(n - 1)), i64(0))


def _build(func: Any, places: Places, y: Any) -> Any:
    chunks = -(-places.count // CHUNK)
    keys, order = (scratch([places.count], KEY, name) for name in ("keys", "order"))
    launches, between = [_order_chunks(places, keys, order)], [keys, order]
    if chunks > 1:
        merged = [scratch([places.count], KEY, name) for name in ("merged_keys", "merged_order")]
        launches.append(_merge(places, (keys, order), merged))
        keys, order = merged
        between += merged
    launches += [_begin(places, y), _add(places, keys, order, y)]
    return function(func, launches, between)


def _order_chunks(places: Places, keys: Any, order: Any) -> Stmt:
    """Each chunk of the indices in the order of their places, equal ones as they came."""
    threads = min(CHUNK, -(-places.count // 32) * 32)
    chunk, (mine, rank) = shared([threads], KEY, "chunk"), (registers([1], KEY, name) for name in ("mine", "rank"))

    def block(b: Expr, t: Expr) -> Stmt:
        number = b * threads + t
        there = number < i64(places.count)
        key = tirx.if_then_else(there, places.key(number).astype(KEY), tirx.const(2**31 - 1, KEY))  # none: last

        def count(s: Expr) -> Stmt:
            other, own = load(chunk, s), load(mine, i64(0))
            before = tirx.any(other < own, tirx.all(tirx.EQ(other, own), s < t))
            return store(rank, load(rank, i64(0)) + before.astype(KEY), i64(0))

        at = b * threads + load(rank, i64(0)).astype("int64")
        found = seq([store(keys, load(mine, i64(0)), at), store(order, number.astype(KEY), at)])
        return seq([
            *(tirx.AllocBuffer(x) for x in (chunk, mine, rank)),
            store(mine, key, i64(0)), store(chunk, load(mine, i64(0)), t), store(rank, tirx.const(0, KEY), i64(0)),
            barrier(),
            loop(threads, count),
            tirx.IfThenElse(there, found, None),
        ])  # fmt: skip

    return launch(-(-places.count // threads), threads, block)


def _merge(places: Places, chunked: tuple[Any, Any], merged: list[Any]) -> Stmt:
    """Each index to its place among all: behind those of its chunk that are before it, behind all of an earlier chunk
    that are not greater, and behind all of a later one that are less."""
    keys, order = chunked
    count = places.count

    def one(number: Expr) -> Stmt:
        own, at, low = (registers([1], "int64", name) for name in ("own", "at", "low"))
        mine, zero = number // CHUNK, i64(0)

        def chunk(b: Expr) -> Stmt:
            size = tirx.min(i64(count) - b * CHUNK, i64(CHUNK))
            bound = load(own, zero) + (b < mine).astype("int64")

            def halve(u: Expr) -> Stmt:
                next = load(low, zero) + (i64(CHUNK) >> u)
                less = load(keys, b * CHUNK + next - 1).astype("int64") < bound
                inside = tirx.if_then_else(next <= size, less, False)
                return tirx.IfThenElse(inside, store(low, next, zero), None)

            search = seq([
                store(low, zero, zero),
                loop(CHUNK.bit_length(), halve),
                store(at, load(at, zero) + load(low, zero), zero),
            ])  # fmt: skip
            return tirx.IfThenElse(tirx.NE(b, mine), search, None)

        to = load(at, zero)
        return seq([
            *(tirx.AllocBuffer(x) for x in (own, at, low)),
            store(own, load(keys, number).astype("int64"), zero), store(at, number % CHUNK, zero),
            loop(-(-count // CHUNK), chunk),
            store(merged[0], load(keys, number), to), store(merged[1], load(order, number), to),
        ])  # fmt: skip

    return launch_per_point(count, one)


def _begin(places: Places, y: Any) -> Stmt:
    def one(flat: Expr) -> Stmt:
        r, c = flat // places.columns, flat % places.columns
        return store(y, places.start(r, c), *places.at(r, c))

    return launch_per_point(places.rows * places.columns, one)


def _add(places: Places, keys: Any, order: Any, y: Any) -> Stmt:
    """The first index of each place, a thread a column, adds the terms of all that have its place."""
    count, columns, zero = places.count, places.columns, i64(0)

    def one(flat: Expr) -> Stmt:
        k, c = flat // columns, flat % columns
        acc, at = registers([1], str(y.dtype), "acc"), registers([1], "int64", "at")
        key = load(keys, k)
        row = key.astype("int64")

        def add(n: Expr) -> Stmt:
            t = load(order, load(at, zero) + n).astype("int64")
            return store(acc, wrapped_sum(load(acc, zero), places.term(t, c)), zero)

        def while_there(many: int) -> Stmt:
            last = load(at, zero) + (many - 1)
            test = tirx.if_then_else(last < i64(count), tirx.EQ(load(keys, last), key), False)
            return tirx.While(test, seq([unrolled(many, add), store(at, load(at, zero) + many, zero)]))

        first = tirx.if_then_else(k > 0, tirx.NE(load(keys, tirx.max(k - 1, zero)), key), True)
        work = seq([
            tirx.AllocBuffer(acc), tirx.AllocBuffer(at),
            store(acc, places.start(row, c), zero), store(at, k, zero),
            while_there(AHEAD), while_there(1),
            store(y, load(acc, zero), *places.at(row, c)),
        ])  # fmt: skip
        return tirx.IfThenElse(tirx.all(first, row < i64(places.rows)), work, None)

    return launch_per_point(count * columns, one)


@attrs.frozen
class SumsAlong:
    """scatter-along with indices of each column's own: a thread a column, as a CPU's does it."""

    name: str = "along"

    def apply(self, func: Any, target: Any) -> Any:
        program = known(func)
        if program is None or program.name != "scatter_along":
            return None
        (dy, ids), y = program.ins, program.out
        (outer, n, inner), (id_outer, many, id_inner) = sizes(y), sizes(ids)

        def begin(flat: Expr) -> Stmt:
            o, rest = flat // (n * inner), flat % (n * inner)
            return store(y, tirx.const(0, str(y.dtype)), o, rest // inner, rest % inner)

        def column(flat: Expr) -> Stmt:
            o, c = flat // inner, flat % inner

            def one(j: Expr) -> Stmt:
                id = load(ids, o if id_outer > 1 else i64(0), j, c if id_inner > 1 else i64(0))
                at = (o, _clamped(id, n), c)
                return store(y, wrapped_sum(load(y, *at), load(dy, o, j, c)), *at)

            return loop(many, one)

        return function(
            func,
            [
                launch_per_point(outer * n * inner, begin),
                launch_per_point(outer * inner, column, threads_per_block(outer * inner)),
            ],
        )
