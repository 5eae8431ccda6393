"""Into what a product on matrix units is cut: tiles for blocks, pieces of its depth, and whether pieces are blocks.

Chosen by the product's shape alone, never by the card: one library serves them all. Pieces follow from the depth alone,
because the order of a sum is part of the result.
"""

from __future__ import annotations

import attrs

from .launch import WARP

DEPTH = 32  # of a tile
HALVES = 24 * 1024  # of shared memory, 16 bits each, that a block may declare
STAGES = 4  # tiles in shared memory at most: one that is multiplied, the others on their way
LONG = 1024  # depth from which a sum is one of pieces
PIECE = 512  # least depth of a piece
PIECES = 16  # at most, so that their sums stay few
MOST = 1 << 24  # sums of pieces that may lie in memory: 64 MiB


@attrs.frozen
class Tile:
    """A block's part of a product, ``rows`` by ``columns``, shared out to warps in a grid of ``down`` by ``across``."""

    rows: int
    columns: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        return self.down * self.across * WARP

    @property
    def warp_rows(self) -> int:
        return self.rows // self.down

    @property
    def warp_columns(self) -> int:
        return self.columns // self.across

    @property
    def halves(self) -> int:
        """Shared memory of one stage."""
        return (self.rows + self.columns) * DEPTH

    @property
    def stages(self) -> int:
        return min(STAGES, HALVES // self.halves)

    def blocks(self, m: int, n: int) -> int:
        return -(-m // self.rows) * -(-n // self.columns)


TILES = (
    Tile(128, 128, 2, 4),
    Tile(128, 64, 4, 2),
    Tile(64, 128, 2, 4),
    Tile(64, 64, 2, 2),
    Tile(64, 32, 4, 1),
    Tile(16, 64, 1, 4),
)

# Of a nominal GPU, in the time of one product of a tile's row and column at depth DEPTH: 1/32 of a clock of a
# multiprocessor that multiplies and adds 1024 pairs a clock.
BLOCKS = 128  # that run at once
LINE = 64  # a line of a tile from the second cache: 64 bytes, 32 a clock
TURN = 4096  # a turn of the pipeline beyond that: latency that the stages on their way do not hide
LAUNCH = 100_000  # another launch, 2 us
SUM = 6  # sums of pieces that are written and read again in that time, by all


@attrs.frozen
class Cut:
    """``count`` products of ``m`` rows, ``n`` columns and depth ``k``, in ``tile``s. ``apart``: each piece of a sum is
    made by a block of its own, and a second launch adds them; else a block makes them one after the other. The bits
    are the same."""

    m: int
    n: int
    k: int
    count: int
    tile: Tile
    apart: bool

    @property
    def turns(self) -> int:
        """Depths of a tile."""
        return -(-self.k // DEPTH)

    @property
    def piece(self) -> int:
        """Turns of a piece; the last has what is left."""
        return piece_of(self.k) // DEPTH

    @property
    def pieces(self) -> int:
        return -(-self.turns // self.piece)

    @property
    def tiles(self) -> int:
        return self.tile.blocks(self.m, self.n) * self.count

    @property
    def sums(self) -> int:
        """Of all pieces."""
        return self.m * self.n * self.count * self.pieces

    @property
    def time(self) -> int:
        """In BLOCKS's units."""
        rows, columns = self.tile.rows, self.tile.columns
        turn = rows * columns + LINE * (rows + columns) + TURN
        if not self.apart:
            return -(-self.tiles // BLOCKS) * self.turns * turn
        return -(-self.tiles * self.pieces // BLOCKS) * self.piece * turn + LAUNCH + self.sums // SUM


def piece_of(depth: int) -> int:
    """How deep the pieces of a sum are: a multiple of a tile's depth."""
    least = depth if depth < LONG else max(PIECE, -(-depth // PIECES))
    return -(-least // DEPTH) * DEPTH


def cut(m: int, n: int, k: int, count: int) -> Cut:
    """The fastest."""
    ways = [Cut(m, n, k, count, tile, apart) for tile in TILES for apart in (False, True)]
    return min((way for way in ways if not way.apart or way.pieces > 1 and way.sums <= MOST), key=lambda way: way.time)
