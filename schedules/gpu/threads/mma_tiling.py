"""Tile sizes and split-K of a tensor-core matmul, chosen by a cost model from its shape.

The shape alone decides, never the card: a library serves every GPU of a level. Long sums are split along k (split-K,
as in CUTLASS: slices in series by a block, or in parallel by blocks of their own). Where slices begin follows from k
alone, because the order of a sum decides its bits; in series or in parallel changes speed only.
"""

from __future__ import annotations

import attrs

from .launch import WARP

# k of a shared-memory tile: two instructions' k. It decides where slices may begin, and so bits.
TILE_K = 32
# 16-bit elements of shared memory a block: the 48 KiB that need no opt-in. It bounds the stages; no bit depends on it.
MAX_SHARED_HALVES = 24 * 1024
# Buffers of the software pipeline: a tile is multiplied, three are being copied. Chosen, not measured: fewer hide less
# of the memory's latency, more only take shared memory.
MAX_STAGES = 4

# Split-K: a long sum over few tiles (the gradient of a weight) becomes enough blocks to fill a GPU. Chosen, not
# measured. The first three numbers decide bits: another number is another order of sums.
SPLIT_K_FROM = 1024  # k from which a sum is split
MIN_SLICE_K = 512  # k of a slice at least
MAX_SLICES = 16  # slices of a sum at most, so that adding them costs little
# float32 partial sums in global memory at most: 64 MiB. Beyond that slices are serial, with the same bits.
MAX_PARTIAL_SUMS = 1 << 24


@attrs.frozen
class MmaTile:
    """A block's tile, ``rows`` by ``columns`` of the result, cut for ``warps_m`` by ``warps_n`` warps."""

    rows: int
    columns: int
    warps_m: int
    warps_n: int

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * WARP

    @property
    def warp_rows(self) -> int:
        return self.rows // self.warps_m

    @property
    def warp_columns(self) -> int:
        return self.columns // self.warps_n

    @property
    def stage_halves(self) -> int:
        """16-bit elements of a pipeline stage: a tile of A and a tile of B."""
        return (self.rows + self.columns) * TILE_K

    @property
    def stages(self) -> int:
        """Stages of the pipeline that fit into shared memory."""
        return min(MAX_STAGES, MAX_SHARED_HALVES // self.stage_halves)

    def blocks(self, m: int, n: int) -> int:
        return -(-m // self.rows) * -(-n // self.columns)


# (rows, columns, warps along rows, warps along columns). Warps cut a tile near squares, so that their fragments are
# used often. Of tiles of equal cost the first is taken.
TILES = (
    MmaTile(128, 128, 2, 4),
    MmaTile(128, 64, 4, 2),
    MmaTile(64, 128, 2, 4),
    MmaTile(64, 64, 2, 2),
    MmaTile(64, 32, 4, 1),
    MmaTile(16, 64, 1, 4),
)

# The cost model of a nominal GPU: round numbers of recent cards, chosen, not measured. Its unit is the time of a single
# element of the tile at a k step: 1/32 of a clock of a multiprocessor that does 1024 multiply-adds a clock. If a
# number is wrong, a slower tile is chosen; bits stay.
CONCURRENT_BLOCKS = 128  # blocks that run at once: about as many as the GPU has multiprocessors
TILE_LINE_COST = 64  # loading a row of A or column of B of a tile from L2: 64 bytes at 32 a clock
STEP_COST = 4096  # an iteration of the k loop beyond that: latency and barrier that the pipeline does not hide
LAUNCH_COST = 100_000  # another kernel launch: 2 us
PARTIAL_SUMS_PER_UNIT = 6  # partial sums that all multiprocessors write and read back in a unit


@attrs.frozen
class MmaTiling:
    """``count`` products of m by n by k, cut into ``tile``s.

    ``parallel``: each slice of a sum is made by a block of its own, and a second launch adds them (parallel split-K);
    else a block makes the slices in series. The bits are the same.
    """

    m: int
    n: int
    k: int
    count: int
    tile: MmaTile
    parallel: bool

    @property
    def k_steps(self) -> int:
        """Iterations of the k loop over the whole sum."""
        return -(-self.k // TILE_K)

    @property
    def slice_steps(self) -> int:
        """Iterations of the k loop for a slice; the last slice has the rest."""
        return slice_k(self.k) // TILE_K

    @property
    def slices(self) -> int:
        return -(-self.k_steps // self.slice_steps)

    @property
    def tiles(self) -> int:
        return self.tile.blocks(self.m, self.n) * self.count

    @property
    def partial_sums(self) -> int:
        """Elements of all slices' results."""
        return self.m * self.n * self.count * self.slices

    @property
    def cost(self) -> int:
        """Estimated time, in the cost model's unit."""
        rows, columns = self.tile.rows, self.tile.columns
        step = rows * columns + TILE_LINE_COST * (rows + columns) + STEP_COST
        if not self.parallel:
            return -(-self.tiles // CONCURRENT_BLOCKS) * self.k_steps * step
        waves = -(-self.tiles * self.slices // CONCURRENT_BLOCKS)
        return waves * self.slice_steps * step + LAUNCH_COST + self.partial_sums // PARTIAL_SUMS_PER_UNIT


def slice_k(k: int) -> int:
    """The k of each slice of a sum: a multiple of TILE_K. Of k alone, as it decides bits."""
    least = k if k < SPLIT_K_FROM else max(MIN_SLICE_K, -(-k // MAX_SLICES))
    return -(-least // TILE_K) * TILE_K


def choose_tiling(m: int, n: int, k: int, count: int) -> MmaTiling:
    """The tiling with the least estimated time."""
    tilings = [MmaTiling(m, n, k, count, tile, parallel) for tile in TILES for parallel in (False, True)]
    allowed = (t for t in tilings if not t.parallel or t.slices > 1 and t.partial_sums <= MAX_PARTIAL_SUMS)
    return min(allowed, key=lambda tiling: tiling.cost)
