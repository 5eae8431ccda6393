"""Memory turned in registers: rows read along memory, four elements at a time, become vectors across the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, scratch, seq, store
from ..tir.context import block, vector

FOUR = 4  # columns that are turned at once: elements of one quarter of 64 bytes

Element = Callable[[int, Expr], tuple[Sequence[Stmt], Expr]]


def turned(lanes: int, dtype: str, element: Element, put: Callable[[int, Expr], Stmt]) -> Stmt:
    """FOUR columns of ``lanes`` rows: ``element(r, c)`` is the statements before, and the value of, row r at column c,
    which runs along memory; ``put(c, vector)`` stores column c.

    Rows r, r + 4, r + 8.. are loaded into one vector. Of four such vectors, elements and then pairs of elements change
    places within each four lanes, an instruction a vector."""
    raw = scratch([lanes * FOUR], dtype, "rows")
    pairs = [scratch([lanes], dtype, "pairs") for _ in range(FOUR)]

    def read(r: int) -> Stmt:
        def one(lane: Expr) -> Stmt:
            before, value = element(r, lane)
            return seq([*before, store(raw, value, lane + r * FOUR)])

        return vector(FOUR, one)

    rows = [load(raw, span(r * FOUR, FOUR)) for r in range(lanes)]
    a, b, c, d = (_shuffle(rows[first::FOUR], range(lanes)) for first in range(FOUR))
    elements = _masks(lanes, (0, lanes, 1, lanes + 1))
    made = [_shuffle(two, mask) for two in ([a, b], [c, d]) for mask in elements]
    keep = [store(buffer, value, span(0, lanes)) for buffer, value in zip(pairs, made, strict=True)]
    low_ab, high_ab, low_cd, high_cd = (load(buffer, span(0, lanes)) for buffer in pairs)
    halves = _masks(lanes, (0, 1, lanes, lanes + 1))
    columns = [_shuffle(two, mask) for two in ([low_ab, low_cd], [high_ab, high_cd]) for mask in halves]
    puts = [put(n, value) for n, value in enumerate(columns)]
    return block([*(read(r) for r in range(lanes)), *keep, *puts], [raw, *pairs])


def span(first: Expr | int, count: int) -> Expr:
    """The places of ``count`` elements in a row, as one vector."""
    return tirx.Ramp(i64(first) if isinstance(first, int) else first, i64(1), tirx.IntImm("int32", count))


def _shuffle(vectors: Sequence[Expr], places: Sequence[int]) -> Expr:
    """The elements at ``places`` of all vectors, one after the other."""
    return vectors[0] if len(vectors) == 1 else tirx.Shuffle(list(vectors), [i64(i) for i in places])


def _masks(lanes: int, four: tuple[int, int, int, int]) -> tuple[list[int], list[int]]:
    """The same pick from every four lanes of two vectors: from their first halves, and from their second halves."""
    low = [i + start for start in range(0, lanes, FOUR) for i in four]
    return low, [i + 2 for i in low]
