"""Cost model of a register tile of a CPU matmul: cycles of a nominal core, and the cheapest tile of a shape.

As in BLIS the micro-kernel keeps ``mr`` rows by ``nv`` vectors of C in registers; here a model chooses them for each
shape. The nominal core starts two vectors of multiply-adds and two loads a cycle, as x86-64 cores do at 256 bits and
some at 512. On a core that starts a single one at 512 bits multiply-adds alone decide: nearly all tiles are equal.
No constant changes bits, as every element is summed in the order of k; a wrong constant chooses a slower tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import attrs

# Of the hardware, or chosen, not measured.
ISSUE_RATE = 2  # vectors of multiply-adds that start in a cycle; as many loads
FMA_LATENCY = 4  # cycles of a multiply-add
L1_BYTES = 24 * 1024  # of L1 (32 to 48 KiB) for B: the rest is for A and the result
LINE_BYTES = 64  # of a cache line
WAY_BYTES = 4096  # of a way of L1: addresses at such a distance fall into the same set
MIN_PAGE_STRIDE = 2048  # bytes from each k to the next from which most k are in a page (4096 bytes) of their own
MAX_ROWS, MAX_VECTORS = 14, 4  # of a tile
CHEAP_ROWS = 8  # rows of a tile whose addresses fit the code and the ways of L1: each more costs ROW_CYCLES
# A tile that transposes B as it goes reads each of its columns as a row of B, a stream of its own; its shuffles need
# registers.
MAX_TRANSPOSED_COLUMNS, TRANSPOSE_REGISTERS = 16, 5

# Fitted by ``scripts/bench/tiles --fit`` to the times in tests/schedules/cpu/tiles.json.
OVERLAP_EXPONENT = 6  # power of the mean that joins the limits of an iteration: infinite if they overlap perfectly
LOAD_CYCLES = 0.02  # of a load, beyond those limits
ROW_CYCLES = 0.35  # of an iteration, for each row past CHEAP_ROWS
FAR_LINE_CYCLES = 0.12  # of an iteration, for each 64 bytes of a panel of B that leaves L1
PANEL_CYCLES = 45  # of a panel of B, beside its tiles
PACK_TRANSPOSED_CYCLES = 0.33  # to transpose a vector of B, copy it and read the copy, for each of its lanes
TRANSPOSE_CYCLES = 1.2  # to transpose a vector of B where it is used
PACK_CYCLES = 2.1  # to copy a vector of B and read the copy
# of an iteration, for each line of a B in place that left L1: where a page has several k, and where each k has its own
IN_PLACE_LINE_CYCLES, IN_PLACE_PAGE_CYCLES = 0.2, 0.3

# Beside the fit, chosen.
WIDEN_CYCLES = 3  # to widen a vector of B from half precision
FETCH_CYCLES = 3  # to fetch a line of B from beyond L1 the first time

# The axis along which B is contiguous in memory.
B_ALONG_COLUMNS, B_ALONG_K, B_STRIDED = "columns", "k", "any"


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
class MatmulShape:
    """A product of ``m`` rows, ``n`` columns and ``k``.

    ``b_layout``: the axis along which B is contiguous; ``item_bytes``: of an element; ``half_b``: B has half precision,
    and is widened where it is read."""

    m: int
    n: int
    k: int
    b_layout: str = B_ALONG_COLUMNS
    item_bytes: int = 4
    half_b: bool = False


def choose_tile(shape: MatmulShape, lanes: int, registers: int) -> Tile:
    """The tile with the fewest cycles; of equals, the first of ``candidate_tiles``."""
    return min(candidate_tiles(shape, lanes, registers), key=lambda tile: cycles(shape, tile))


def candidate_tiles(shape: MatmulShape, lanes: int, registers: int) -> Iterator[Tile]:
    """All tiles that fit the registers: the accumulators, a row of B's vectors, and a single element of A."""
    for nv in range(1, min(MAX_VECTORS, -(-shape.n // lanes)) + 1):
        for mr in range(1, min(MAX_ROWS, shape.m) + 1):
            transposes = shape.b_layout == B_ALONG_K and mr == shape.m
            used = mr * nv + nv + 1 + (TRANSPOSE_REGISTERS if transposes else 0)
            if used <= registers and not (transposes and nv * lanes > MAX_TRANSPOSED_COLUMNS):
                yield Tile(mr, nv, lanes)


def cycles(shape: MatmulShape, tile: Tile) -> float:
    """Cycles of the whole product. The narrower last panel counts, and rows past the end like others."""
    full, rest = divmod(-(-shape.n // tile.lanes), tile.nv)
    packed = packs_b(shape, tile)
    iteration = full * _iteration_cycles(shape, tile, tile.nv, packed)
    iteration += _iteration_cycles(shape, tile, rest, packed) if rest else 0
    if not packed and shape.b_layout == B_ALONG_COLUMNS:
        iteration += full * _in_place_cycles(shape, tile) + _tail_cycles(shape, tile)
    if shape.b_layout == B_ALONG_COLUMNS and shape.k * shape.n * shape.item_bytes > L1_BYTES:
        fetch = FETCH_CYCLES * _panel_lines(shape, tile) * (full + (rest > 0))
    else:
        fetch = 0.0
    pack_vector = PACK_TRANSPOSED_CYCLES * tile.lanes if shape.b_layout == B_ALONG_K else PACK_CYCLES
    pack = pack_vector * (full * tile.nv + rest) if packed else 0
    row_tiles = -(-shape.m // tile.mr)
    return shape.k * (row_tiles * iteration + fetch + pack) + PANEL_CYCLES * (full + (rest > 0))


def packs_b(shape: MatmulShape, tile: Tile) -> bool:
    """Is B packed into panels? If contiguous along columns, only where reading it in place for each tile is slower."""
    row_tiles = -(-shape.m // tile.mr)
    if shape.b_layout != B_ALONG_COLUMNS:
        # contiguous along k, a single row tile transposes B in registers as it goes: a panel would be read only once
        return shape.b_layout != B_ALONG_K or row_tiles > 1
    vectors = -(-shape.n // tile.lanes)
    # packing widens B once, reading it in place does so for each row tile
    widen = (row_tiles - 1) * WIDEN_CYCLES * vectors if shape.half_b else 0
    panels = -(-vectors // tile.nv)
    in_place = row_tiles * (panels * _in_place_cycles(shape, tile) + _tail_cycles(shape, tile))
    return in_place + widen > PACK_CYCLES * vectors


def _iteration_cycles(shape: MatmulShape, tile: Tile, nv: int, packed: bool) -> float:
    """Cycles of an iteration of the k loop: the largest of its limits, and more where another limit is close to it."""
    vector_bytes = tile.lanes * shape.item_bytes
    is_unaligned = not packed and shape.b_layout == B_ALONG_COLUMNS and shape.n * shape.item_bytes % vector_bytes
    loads = 1 if not is_unaligned else 1 + vector_bytes / LINE_BYTES  # a vector across two lines is two loads
    limits = tile.mr * nv / ISSUE_RATE, (tile.mr + nv * loads) / ISSUE_RATE, FMA_LATENCY
    largest = max(limits)
    total = largest * sum((limit / largest) ** OVERLAP_EXPONENT for limit in limits) ** (1 / OVERLAP_EXPONENT)
    total += LOAD_CYCLES * (tile.mr + nv)
    if shape.b_layout == B_ALONG_K and not packed:
        total += TRANSPOSE_CYCLES * nv
    else:
        total += ROW_CYCLES * max(0, tile.mr - CHEAP_ROWS)
    return total + (FAR_LINE_CYCLES * nv * vector_bytes / LINE_BYTES if shape.k * nv * vector_bytes > L1_BYTES else 0)


def _in_place_cycles(shape: MatmulShape, tile: Tile) -> float:
    """Cycles of an iteration that a tile waits for a B in place.

    None if its lines stay in L1: if they are few, and not so far apart that they share a few of its sets. None if a
    panel has all columns either: it is a single stream, which the hardware prefetches."""
    stride, panel_bytes = shape.n * shape.item_bytes, tile.panel * shape.item_bytes
    if panel_bytes >= stride or shape.k * max(gcd(stride, WAY_BYTES), panel_bytes) <= L1_BYTES:
        return 0.0
    line_cycles = IN_PLACE_PAGE_CYCLES if stride >= MIN_PAGE_STRIDE else IN_PLACE_LINE_CYCLES
    return line_cycles * _panel_lines(shape, tile)


def _panel_lines(shape: MatmulShape, tile: Tile) -> float:
    """Cache lines of a panel for each k, on average: half a line more if its ends are not on the borders of lines."""
    panel_bytes = tile.panel * shape.item_bytes
    is_unaligned = panel_bytes % LINE_BYTES or shape.n * shape.item_bytes % LINE_BYTES
    return panel_bytes / LINE_BYTES + (0.5 if is_unaligned else 0)


def _tail_cycles(shape: MatmulShape, tile: Tile) -> float:
    """Cycles of an iteration for the last columns in place: LLVM splits less than a vector into powers of two."""
    return max(0, (shape.n % tile.lanes).bit_count() - 1) * tile.mr / ISSUE_RATE
