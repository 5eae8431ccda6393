"""What a tile of a matrix product costs, in cycles of a nominal core, and the cheapest tile of a shape.

The price is of a core that starts two vectors of multiply-adds and two loads a cycle, as x86 processors do at 256 bits
and some at 512. One that starts one at 512 bits spends its time on multiply-adds alone, with nearly every tile alike.
Fitted to what scripts/bench/tiles measured, which tests/schedules/cpu/tiles.json keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import attrs

RATE = 2  # vectors of multiply-adds, and loads, that start in a cycle
LATENCY = 4  # cycles of a multiply-add
OVERLAP = 6  # how well the limits of a turn overlap: the power of their mean, infinite for the largest alone
LOAD = 0.02  # cycles of a load beyond those limits
ROWS, ROW = 8, 0.35  # rows of a tile whose places fit the code and the first cache's ways, and cycles of each more
FAR = 0.12  # cycles of 64 bytes of B a turn, where a panel leaves the first cache
PANEL = 45  # cycles of a panel of B, beside its tiles
TURN = 0.33  # cycles to turn a vector of B, copy it and read the copy, for each of its lanes
TURNED = 1.2  # cycles to turn a vector of B where it is used
ABREAST, TURNING = 16, 5  # of a tile that turns what it uses: rows of B read side by side, and registers for that
COPY = 2.1  # cycles to copy a vector of B and read the copy
WIDEN = 3  # cycles to widen a vector of B from half precision
NEAR, AWAY = 0.2, 0.3  # cycles that a tile waits a turn for each line of a B in place: of one page, and each of its own
FETCH = 3  # cycles to bring a line of B from beyond the first cache, the first time
FIRST = 24 * 1024  # bytes of a first cache for B
LINE = 64
WAY = 4096  # bytes of a way of a first cache: places so far apart fall into one set
PAGE = 2048  # bytes from one turn to the next from which most turns go to another page
ROWS_MOST, VECTORS_MOST = 14, 4  # of a tile
COLUMNS, DEPTH, ANY = "columns", "depth", "any"  # along what B's memory walks


@attrs.frozen
class Tile:
    """``mr`` rows by ``nv`` vectors of ``lanes``; ``panel`` columns."""

    mr: int
    nv: int
    lanes: int

    @property
    def panel(self) -> int:
        return self.nv * self.lanes


@attrs.frozen
class Sizes:
    """A product of ``m`` rows, ``n`` columns and depth ``k``; ``walk``: along what B's memory runs; ``item``: bytes of
    an element; ``halves``: B is of half precision, and widened where it is read."""

    m: int
    n: int
    k: int
    walk: str = COLUMNS
    item: int = 4
    halves: bool = False


def choose_tile(of: Sizes, lanes: int, registers: int) -> Tile:
    """The tile with the fewest cycles, the first of the smallest where several have them."""
    return min(tiles(of, lanes, registers), key=lambda tile: price(of, tile))


def tiles(of: Sizes, lanes: int, registers: int) -> Iterator[Tile]:
    """All that fit the registers: the sums, a row of B's vectors, and one element of A."""
    for nv in range(1, min(VECTORS_MOST, -(-of.n // lanes)) + 1):
        for mr in range(1, min(ROWS_MOST, of.m) + 1):
            turns = of.walk == DEPTH and mr == of.m
            used = mr * nv + nv + 1 + (TURNING if turns else 0)
            if used <= registers and not (turns and nv * lanes > ABREAST):
                yield Tile(mr, nv, lanes)


def price(of: Sizes, tile: Tile) -> float:
    """Cycles of the whole product, the narrower last panel and the rows past the end included."""
    full, rest = divmod(-(-of.n // tile.lanes), tile.nv)
    copied = copies(of, tile)
    wide = full * _turn(of, tile, tile.nv, copied) + (_turn(of, tile, rest, copied) if rest else 0)
    if not copied and of.walk == COLUMNS:
        wide += full * _waits(of, tile) + _ragged(of, tile)
    if of.walk == COLUMNS and of.k * of.n * of.item > FIRST:
        fetch = FETCH * _lines(of, tile) * (full + (rest > 0))
    else:
        fetch = 0.0
    copy = (TURN * tile.lanes if of.walk == DEPTH else COPY) * (full * tile.nv + rest) if copied else 0
    return of.k * (-(-of.m // tile.mr) * wide + fetch + copy) + PANEL * (full + (rest > 0))


def copies(of: Sizes, tile: Tile) -> bool:
    """Is B copied into panels? One that walks along columns only if reading it in place for each tile takes longer."""
    tiles = -(-of.m // tile.mr)
    if of.walk != COLUMNS:
        return of.walk != DEPTH or tiles > 1
    vectors = -(-of.n // tile.lanes)
    again = (tiles - 1) * WIDEN * vectors if of.halves else 0
    panels = -(-vectors // tile.nv)
    return tiles * (panels * _waits(of, tile) + _ragged(of, tile)) + again > COPY * vectors


def _turn(of: Sizes, tile: Tile, nv: int, copied: bool) -> float:
    """A turn of the depth: as long as the longest of what overlaps, and longer where another takes nearly as long."""
    vector = tile.lanes * of.item
    apart = not copied and of.walk == COLUMNS and of.n * of.item % vector
    lines = 1 if not apart else 1 + vector / LINE  # a vector across two lines is two loads
    limits = tile.mr * nv / RATE, (tile.mr + nv * lines) / RATE, LATENCY
    most = max(limits)
    cycles = most * sum((limit / most) ** OVERLAP for limit in limits) ** (1 / OVERLAP)
    cycles += LOAD * (tile.mr + nv)
    cycles += TURNED * nv if of.walk == DEPTH and not copied else ROW * max(0, tile.mr - ROWS)
    return cycles + (FAR * nv * vector / LINE if of.k * nv * vector > FIRST else 0)


def _waits(of: Sizes, tile: Tile) -> float:
    """Cycles a turn that a tile waits for B where it lies. Its lines stay in the first cache if there are few of them,
    and if they are not so far apart that they fall into a few of its sets; and a panel of all columns is one stream."""
    stride, panel = of.n * of.item, tile.panel * of.item
    if panel >= stride or of.k * max(gcd(stride, WAY), panel) <= FIRST:
        return 0.0
    return (AWAY if stride >= PAGE else NEAR) * _lines(of, tile)


def _lines(of: Sizes, tile: Tile) -> float:
    """Cache lines of a panel at a turn, on average: its ends may be half way through one."""
    panel = tile.panel * of.item
    return panel / LINE + (0.5 if panel % LINE or of.n * of.item % LINE else 0)


def _ragged(of: Sizes, tile: Tile) -> float:
    """Cycles a turn of the last columns in place: less than a vector of them goes by powers of two."""
    return max(0, (of.n % tile.lanes).bit_count() - 1) * tile.mr / RATE
