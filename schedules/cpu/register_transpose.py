"""Register transpose: contiguous rows of a matrix, four elements at a time, become vectors across the rows.

Used where a matmul needs vectors along B's columns and B is contiguous along k. Four consecutive k of each row are
loaded into a vector of rows r, r + 4, r + 8, ..; two rounds of shuffles within each four lanes (as in a 4 x 4 transpose
of SSE, ``_MM_TRANSPOSE4_PS``) then give four columns. Elements move unchanged, so no bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, scratch, seq, store
from ..tir.context import block, vector

# Columns transposed at once: 128 bits of float32, within which x86 shuffles in a cycle (across them, in three).
TRANSPOSE_COLUMNS = 4

Element = Callable[[int, Expr], tuple[Sequence[Stmt], Expr]]  # row, column -> statements before it, the element


def transpose_columns(lanes: int, dtype: str, element: Element, store_column: Callable[[int, Expr], Stmt]) -> Stmt:
    """TRANSPOSE_COLUMNS columns of ``lanes`` rows, which are contiguous along the columns.

    ``store_column(c, vector)`` stores column c."""
    raw = scratch([lanes * TRANSPOSE_COLUMNS], dtype, "rows")

    def load_row(r: int) -> Stmt:
        def load_element(c: Expr) -> Stmt:
            binds, value = element(r, c)
            return seq([*binds, store(raw, value, c + r * TRANSPOSE_COLUMNS)])

        return vector(TRANSPOSE_COLUMNS, load_element)

    rows = [load(raw, ramp(r * TRANSPOSE_COLUMNS, TRANSPOSE_COLUMNS)) for r in range(lanes)]
    if lanes < TRANSPOSE_COLUMNS:  # float64 in 128 bits: a single shuffle makes a column
        masks = [[c + r * TRANSPOSE_COLUMNS for r in range(lanes)] for c in range(TRANSPOSE_COLUMNS)]
        store_columns = [store_column(c, _shuffle(rows, mask)) for c, mask in enumerate(masks)]
        return block([*(load_row(r) for r in range(lanes)), *store_columns], [raw])
    pairs = [scratch([lanes], dtype, "pairs") for _ in range(TRANSPOSE_COLUMNS)]
    a, b, c, d = (_shuffle(rows[first::TRANSPOSE_COLUMNS], range(lanes)) for first in range(TRANSPOSE_COLUMNS))
    # First round: single elements of a and b (c and d) alternate. Second round: pairs of these do.
    interleave = _masks(lanes, (0, lanes, 1, lanes + 1))
    interleaved = [_shuffle(sources, mask) for sources in ([a, b], [c, d]) for mask in interleave]
    store_pairs = [store(buffer, value, ramp(0, lanes)) for buffer, value in zip(pairs, interleaved, strict=True)]
    low_ab, high_ab, low_cd, high_cd = (load(buffer, ramp(0, lanes)) for buffer in pairs)
    join = _masks(lanes, (0, 1, lanes, lanes + 1))
    columns = [_shuffle(sources, mask) for sources in ([low_ab, low_cd], [high_ab, high_cd]) for mask in join]
    store_columns = [store_column(n, value) for n, value in enumerate(columns)]
    return block([*(load_row(r) for r in range(lanes)), *store_pairs, *store_columns], [raw, *pairs])


def ramp(first: Expr | int, count: int) -> Expr:
    """``count`` consecutive indices from ``first`` on, as a vector."""
    return tirx.Ramp(i64(first) if isinstance(first, int) else first, i64(1), tirx.IntImm("int32", count))


def _shuffle(vectors: Sequence[Expr], indices: Sequence[int]) -> Expr:
    """The elements at ``indices`` of the concatenated vectors."""
    return vectors[0] if len(vectors) == 1 else tirx.Shuffle(list(vectors), [i64(i) for i in indices])


def _masks(lanes: int, four: tuple[int, int, int, int]) -> tuple[list[int], list[int]]:
    """The pick ``four`` in every four lanes of two vectors: of their lower pairs, and of their upper pairs."""
    low = [i + start for start in range(0, lanes, TRANSPOSE_COLUMNS) for i in four]
    return low, [i + 2 for i in low]
