"""Into what products are cut: pieces by the depth alone, tiles by the shape."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from schedules.gpu.audit.launch_audit import audit
from schedules.gpu.threads import mma_tiling
from schedules.gpu.threads.mma_tiling import choose_tiling, slice_k

from .cpu_and_cuda import scheduled
from .half_precision import product


def test_a_short_sum_is_one_piece() -> None:
    assert all(slice_k(depth) >= depth for depth in (16, 100, 1000, mma_tiling.SPLIT_K_FROM - 1))


@pytest.mark.parametrize("depth", [1024, 1025, 4096, 9728, 16384, 100_000, 1_000_003])
def test_a_long_sum_is_one_of_some_pieces(depth: int) -> None:
    piece = slice_k(depth)
    assert (
        piece % mma_tiling.TILE_K == 0
        and piece >= mma_tiling.MIN_SLICE_K
        and 2 <= -(-depth // piece) <= mma_tiling.MAX_SLICES
    )


def test_pieces_follow_from_the_depth_alone() -> None:
    for depth in (96, 1024, 9728):
        cuts = [choose_tiling(m, n, depth, count) for m in (1, 64, 5000) for n in (8, 200, 5000) for count in (1, 64)]
        assert len({(c.slice_steps, c.slices) for c in cuts}) == 1


def test_a_large_product_has_large_tiles_and_whole_sums() -> None:
    for k in (512, 4096):
        found = choose_tiling(4096, 4096, k, 1)
        assert (found.tile.rows, found.tile.columns, found.parallel) == (128, 128, False)


def test_few_tiles_of_a_deep_product_are_blocks_by_pieces() -> None:
    """A weight's gradient: few results, each a sum over all rows of a batch."""
    found = choose_tiling(64, 64, 9728, 1)
    assert found.parallel and found.tiles * found.slices >= 16 and not choose_tiling(64, 64, 512, 1).parallel


def test_sums_of_pieces_take_little_memory() -> None:
    assert choose_tiling(768, 768, 8192, 1).parallel
    deep = [choose_tiling(m, 1024, 65536, count) for m in (64, 768, 1024, 2048) for count in (1, 4, 64)]
    assert all(4 * found.partial_sums <= 2**26 for found in deep if found.parallel)


def test_narrow_products_have_narrow_tiles() -> None:
    assert choose_tiling(8, 4096, 512, 1).tile.rows == 16 and choose_tiling(4096, 20, 512, 1).tile.columns == 32


def test_shared_memory_fits() -> None:
    assert all(
        3 <= tile.stages <= 4 and tile.stages * tile.stage_halves <= mma_tiling.MAX_SHARED_HALVES
        for tile in mma_tiling.TILES
    )
    for tile in mma_tiling.TILES:  # the sums of 16 rows of every warp, as async_pipeline.write_tile stages them
        assert tile.warps_m * tile.warps_n * 16 * (tile.warp_columns + 8) * 2 <= tile.stages * tile.stage_halves


@pytest.mark.parametrize(
    ("kind", "m", "k", "n"), [("NN", 2048, 512, 512), ("NT", 2048, 512, 512), ("TN", 128, 8192, 512)]
)
def test_the_audit_knows_copies_and_products(kind: str, m: int, k: int, n: int) -> None:
    """A copy is of as many elements as it takes at once, and a matrix unit's operations are counted."""
    found, *rest = audit(scheduled(product(kind, m, k, n), "tensor-core"))
    assert found.flops == 2 * m * n * k and not found.faults and not any(other.faults for other in rest)
    strides = {operand.name: operand.stride for operand in found.operands}
    assert strides["a0"] == strides["a1"] == 1
