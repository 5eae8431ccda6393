"""Tile sizes of a SIMT matmul (CUDA cores), chosen by a cost model from its shape.

A block computes a bm by bn tile of the result, bk of k at a time in shared memory; a thread computes tm by tn of it in
registers (as in CUTLASS's SIMT GEMM). No tile changes a bit: each element is summed by a single thread, in the order
of k.
"""

from __future__ import annotations

import attrs

from ..threads.launch import WARP

# The cost model of a nominal GPU: round numbers of recent cards, chosen, not measured. A library serves every card.
# If a number is wrong, a slower tile is chosen; bits stay.
CONCURRENT_BLOCKS = 128  # blocks that fill the GPU: about as many as it has multiprocessors
FMAS_PER_CYCLE = 128  # multiply-adds of a multiprocessor a cycle
SHARED_BYTES_PER_CYCLE = 128  # a multiprocessor reads from shared memory: 32 banks of 4 bytes
GLOBAL_BYTES_PER_CYCLE = 20  # a multiprocessor gets from global memory, most of it through L2
SECTOR_FLOATS = 8  # 4-byte elements of the least that memory gives: a thinner tile loads as much
STEP_CYCLES = 120  # from a barrier to the next, that a block waits whatever it computes
FMA_LATENCY = 5  # cycles from a multiply-add to the next in its chain
RESIDENT_BLOCKS = 2  # blocks on a multiprocessor that hide each other's latency


@attrs.frozen
class SimtTile:
    """A block's tile is ``bm`` rows by ``bn`` columns, ``bk`` of k at a time; a thread's ``tm`` by ``tn``."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int

    @property
    def threads_m(self) -> int:
        return self.bm // self.tm

    @property
    def threads_n(self) -> int:
        return self.bn // self.tn

    @property
    def compute_threads(self) -> int:
        """Threads that multiply."""
        return self.threads_m * self.threads_n

    @property
    def threads(self) -> int:
        """Threads of a block: all load, the first ``compute_threads`` of them multiply."""
        # 128 loaders, chosen: in a small tile few threads multiply, and these alone would have too few loads in flight.
        return max(128, self.compute_threads)


# From most reuse of an operand to most blocks: large tiles load less for each multiply-add, small ones still make
# enough blocks of a small product. Thin tiles are deeper in k, so that a barrier does not come after little work.
TILES = (
    SimtTile(128, 128, 8, 8, 8), SimtTile(128, 64, 16, 8, 4), SimtTile(64, 128, 16, 4, 8), SimtTile(64, 64, 16, 4, 4),
    SimtTile(32, 64, 32, 4, 2), SimtTile(64, 32, 32, 2, 4), SimtTile(32, 32, 32, 2, 2), SimtTile(16, 64, 32, 2, 2),
    SimtTile(16, 32, 32, 2, 1), SimtTile(8, 64, 32, 2, 2), SimtTile(8, 32, 64, 2, 1), SimtTile(8, 8, 64, 1, 1),
    SimtTile(4, 32, 64, 1, 1), SimtTile(1, 64, 64, 1, 1), SimtTile(1, 32, 64, 1, 1),
)  # fmt: skip


def choose_tile(m: int, n: int, k: int, count: int, item_bytes: int) -> SimtTile:
    """The tile with the fewest estimated cycles for ``count`` products of elements of ``item_bytes``.

    Of equals, that with the fewest elements past the edges, then the largest. Accumulators are at most 64 registers:
    64 elements of 4 bytes, or 16 of 8 (32 would leave too few for what a thread reads).
    """

    def rank(t: SimtTile) -> tuple[float, int, int]:
        return cycles(t, m, n, k, count, item_bytes), -(-m // t.bm) * t.bm * -(-n // t.bn) * t.bn, -t.bm * t.bn

    return min((t for t in TILES if item_bytes == 4 or t.tm * t.tn <= 16), key=rank)


def cycles(tile: SimtTile, m: int, n: int, k: int, count: int, item_bytes: int) -> float:
    """Estimated cycles of the busiest multiprocessor: the longer of its throughput and its latency."""
    blocks = count * -(-m // tile.bm) * -(-n // tile.bn)
    blocks_each = -(-blocks // CONCURRENT_BLOCKS)
    steps = -(-k // tile.bk)
    warps = -(-tile.compute_threads // WARP)
    multiplied = tile.bm * tile.bn / FMAS_PER_CYCLE
    # Neighbouring threads read the same elements of A or of B, which shared memory broadcasts: at most half is traffic.
    read = warps * (tile.tm + tile.tn) * item_bytes * WARP / 2 / SHARED_BYTES_PER_CYCLE
    floats = max(SECTOR_FLOATS, min(tile.bm, m)) + max(SECTOR_FLOATS, min(tile.bn, n))
    loaded = floats * item_bytes / GLOBAL_BYTES_PER_CYCLE
    throughput = blocks_each * tile.bk * max(multiplied, read, loaded)
    latency = -(-blocks_each // RESIDENT_BLOCKS) * (STEP_CYCLES + tile.bk * FMA_LATENCY)
    return steps * max(throughput, latency)
