"""Packing of matmul operands, as in BLIS: copies in the order in which the micro-kernel reads them.

B is packed into panels [k][column], by every task for itself or for all tasks beforehand; where it is contiguous along
k, through register transposes. An A that is contiguous along rows is packed into tiles [k][row] beforehand. Columns
past the end are padded, so that the micro-kernel has full vectors only. Copies change no bit.
"""

from __future__ import annotations

from collections.abc import Callable

from ..tir.builder import UNROLLED, Expr, Stmt, i64, loop, seq, store, unravel
from ..tir.context import parallel_chunks, parallel_loop, vector, vector_loop
from .matmul_tiling import LINE_ELEMENTS, MatmulPlan, is_b_along_columns, is_b_along_k, read_a, read_b
from .register_transpose import TRANSPOSE_COLUMNS, ramp, transpose_columns

PACK_A_K = 16  # k that a task packs of A; chosen, not measured

StorePacked = Callable[[Expr, Expr, Expr], Stmt]  # value, k, columns of the panel


def pack_all_panels(plan: MatmulPlan) -> Stmt:
    """Every panel of B, before the tasks that read them."""

    def task(flat: Expr) -> Stmt:
        batch, panel = unravel(flat, [plan.product.count, plan.panels])

        def store_packed(value: Expr, k: Expr, c: Expr) -> Stmt:
            return store(plan.packed_b, value, batch, panel, k, c)

        def pack_width(number: Expr, width: int) -> Stmt:
            return pack_panel(plan, batch, number * plan.tile.panel, width, store_packed)

        return plan.for_panel(panel, pack_width)

    return parallel_loop(plan.ctx, plan.product.count * plan.panels, task)


def pack_a_tiles(plan: MatmulPlan) -> Stmt:
    """A in row tiles. Rows past the end are not initialized: what is computed from them is never stored."""
    product, mr = plan.product, plan.tile.mr

    def pack_rows(batch: Expr, tile: Expr, k: Expr, rows: int) -> Stmt:
        def copy(r: Expr) -> Stmt:
            binds, value = read_a(plan, batch, tile * mr + r, k)
            return seq([*binds, store(plan.packed_a, value, batch, tile, k, r)])

        return seq(vector_loop(rows, plan.tile.lanes, copy))

    def pack_k(batch: Expr, first: Expr, count: int) -> Stmt:
        """All tiles, for ``count`` k: neighbouring tiles share cache lines of A, which so stay in L1."""
        full, rest = divmod(product.m, mr)

        def pack_tile(tile: Expr, rows: int) -> Stmt:
            return loop(count, lambda k: pack_rows(batch, tile, first + k, rows), name="k")

        tiles = [loop(full, lambda t: pack_tile(t, mr), name="tile")] if full else []
        return seq([*tiles, *([pack_tile(i64(full), rest)] if rest else [])])

    if product.count > 1:
        return parallel_loop(plan.ctx, product.count, lambda batch: pack_k(batch, i64(0), product.k))
    return parallel_chunks(plan.ctx, product.k, PACK_A_K, lambda first, count: pack_k(i64(0), first, count))


def pack_panel(
    plan: MatmulPlan,
    batch: Expr,
    start: Expr,
    width: int,
    store_packed: StorePacked,
    first_k: Expr | None = None,
    count: int | None = None,
) -> Stmt:
    """The ``width`` columns from ``start`` on: ``count`` k from ``first_k`` on, by default all."""
    lanes = plan.tile.lanes
    padded_width = plan.tile.panel if width == plan.tile.panel else -(-width // lanes) * lanes
    first_k, count = i64(0) if first_k is None else first_k, plan.product.k if count is None else count

    def copy(k: Expr, c: Expr) -> Stmt:
        binds, value = read_b(plan, batch, first_k + k, start + c)
        return seq([*binds, store_packed(value, k, c)])

    padding = padded_width - width

    def zero_padding(k: Expr) -> Stmt:
        return vector(padding, lambda lane: store_packed(plan.init, k, lane + width))

    zeros = [] if not padding else [loop(count, zero_padding)]
    if is_b_along_columns(plan.ctx, plan.product):
        copies = loop(count, lambda k: seq(vector_loop(width, lanes, lambda c: copy(k, c))))
    elif is_b_along_k(plan.product):
        # A register transpose writes whole vectors: columns past the end too, so that nothing is left to be zeroed.
        return _pack_transposed(plan, batch, start, width, store_packed, first_k, count)
    else:
        copies = _pack_strided(count, width, copy)
    return seq([copies, *zeros])


def _pack_strided(count: int, width: int, copy: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """Element by element along k, LINE_ELEMENTS of it for all columns: the lines that are written stay in L1."""
    full, rest = divmod(count, LINE_ELEMENTS)

    def copy_lines(first: Expr, length: int) -> Stmt:
        return loop(width, lambda c: loop(length, lambda k: copy(first + k, c), UNROLLED, "k"), name="c")

    loops = [loop(full, lambda o: copy_lines(o * LINE_ELEMENTS, LINE_ELEMENTS))] if full else []
    return seq([*loops, *([copy_lines(i64(full * LINE_ELEMENTS), rest)] if rest else [])])


def _pack_transposed(
    plan: MatmulPlan, batch: Expr, start: Expr, width: int, store_packed: StorePacked, first_k: Expr, count: int
) -> Stmt:
    """A B that is contiguous along k: vector after vector of columns, a cache line of each column at a time.

    A transpose takes TRANSPOSE_COLUMNS of k: the last of them begin so early that they end with k, as memory may end
    there, and write some elements a second time."""
    full, rest = divmod(count, LINE_ELEMENTS)
    lanes = plan.tile.lanes
    last_firsts = [min(full * LINE_ELEMENTS + d, count - TRANSPOSE_COLUMNS) for d in range(0, rest, TRANSPOSE_COLUMNS)]

    def pack_vector(v: Expr, columns: int) -> Stmt:
        def transpose(k: Expr, length: int) -> Stmt:
            def store_vector(value: Expr, d: Expr, _: Expr) -> Stmt:
                return store_packed(value, k + d, ramp(v * lanes, lanes))

            return transpose_b(plan, batch, start + v * lanes, columns, first_k + k, length, store_vector)

        loops = [loop(full, lambda o: transpose(o * LINE_ELEMENTS, LINE_ELEMENTS), name="k")] if full else []
        return seq([*loops, *(transpose(i64(k), TRANSPOSE_COLUMNS) for k in last_firsts)])

    full_vectors, last_columns = divmod(width, lanes)
    vectors = [loop(full_vectors, lambda v: pack_vector(v, lanes), name="v")] if full_vectors else []
    return seq([*vectors, *([pack_vector(i64(full_vectors), last_columns)] if last_columns else [])])


def transpose_b(
    plan: MatmulPlan, batch: Expr, start: Expr, width: int, first_k: Expr, count: int, store_packed: StorePacked
) -> Stmt:
    """``width`` columns of B from ``start`` on, for ``count`` k from ``first_k`` on, as a vector across columns each.

    Lanes past the last column repeat it: what is computed from them is never stored."""
    lanes, dtype = plan.tile.lanes, str(plan.product.stage.buffer.dtype)

    def transpose(c: int, d: int) -> Stmt:
        def element(lane: int, k: Expr) -> tuple[list[Stmt], Expr]:
            return read_b(plan, batch, first_k + (k + d), start + min(c + lane, width - 1))

        def store_column(n: int, value: Expr) -> Stmt:
            return store_packed(value, i64(d + n), ramp(c, lanes))

        return transpose_columns(lanes, dtype, element, store_column)

    return seq([transpose(c, d) for c in range(0, width, lanes) for d in range(0, count, TRANSPOSE_COLUMNS)])
