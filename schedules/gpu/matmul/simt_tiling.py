"""How one matrix product is cut for a GPU: the tile of a block, that of a thread, and the turns of the depth that lie
in shared memory at a time. Neither changes a bit: an element is summed by one thread, in the order of the depth."""

from __future__ import annotations

import attrs

from ..threads.launch import WARP

BLOCKS = 128  # blocks side by side that fill a GPU; the same for every card, as one library serves them all
MULTIPLIERS = 128  # multiply-adds that a multiprocessor starts a cycle
SHARED_WARP = 128  # bytes that it reads from shared memory a cycle
GLOBAL = 20  # bytes that reach it from global memory a cycle
SECTOR = 8  # elements of 4 bytes that memory gives at least, which lie along rows or columns where depth does not
STEP = 120  # cycles from one barrier to the next that a block spends waiting, whatever it computes
LATENCY = 5  # cycles from a multiply-add to the next in its chain
RESIDENT = 2  # blocks that hide each other's waiting


@attrs.frozen
class Tile:
    """A block makes ``bm`` rows by ``bn`` columns, ``bk`` turns of the depth at a time; a thread ``tm`` by ``tn``."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int

    @property
    def down(self) -> int:
        """Threads along the rows."""
        return self.bm // self.tm

    @property
    def across(self) -> int:
        """Threads along the columns."""
        return self.bn // self.tn

    @property
    def makers(self) -> int:
        """Threads that multiply."""
        return self.down * self.across

    @property
    def threads(self) -> int:
        """Threads of a block: all load, the first ``makers`` of them multiply."""
        return max(128, self.makers)


TILES = (
    Tile(128, 128, 8, 8, 8), Tile(128, 64, 16, 8, 4), Tile(64, 128, 16, 4, 8), Tile(64, 64, 16, 4, 4),
    Tile(32, 64, 32, 4, 2), Tile(64, 32, 32, 2, 4), Tile(32, 32, 32, 2, 2), Tile(16, 64, 32, 2, 2),
    Tile(16, 32, 32, 2, 1), Tile(8, 64, 32, 2, 2), Tile(8, 32, 64, 2, 1), Tile(8, 8, 64, 1, 1),
    Tile(4, 32, 64, 1, 1), Tile(1, 64, 64, 1, 1), Tile(1, 32, 64, 1, 1),
)  # fmt: skip


def choose_tile(m: int, n: int, k: int, count: int, item: int) -> Tile:
    """The tile with the fewest cycles for ``count`` products, of those the one with the fewest elements past the edges;
    ``item``: bytes of an element. A thread has registers for 64 elements of 4 bytes, or 16 of 8, beside what it
    reads."""

    def rank(t: Tile) -> tuple[float, int, int]:
        return price(t, m, n, k, count, item), -(-m // t.bm) * t.bm * -(-n // t.bn) * t.bn, -t.bm * t.bn

    return min((t for t in TILES if item == 4 or t.tm * t.tn <= 16), key=rank)


def price(tile: Tile, m: int, n: int, k: int, count: int, item: int) -> float:
    """Cycles of the busiest multiprocessor: what its blocks compute and load, or what they wait for, the longer."""
    blocks = count * -(-m // tile.bm) * -(-n // tile.bn)
    mine = -(-blocks // BLOCKS)
    steps = -(-k // tile.bk)
    warps = -(-tile.makers // WARP)
    multiplied = tile.bm * tile.bn / MULTIPLIERS
    read = warps * (tile.tm + tile.tn) * item * WARP / 2 / SHARED_WARP  # neighbours read the same: half of it at most
    loaded = (max(SECTOR, min(tile.bm, m)) + max(SECTOR, min(tile.bn, n))) * item / GLOBAL
    busy = mine * tile.bk * max(multiplied, read, loaded)
    waits = -(-mine // RESIDENT) * (STEP + tile.bk * LATENCY)
    return steps * max(busy, waits)
