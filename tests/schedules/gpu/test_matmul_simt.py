"""Matrix products on a GPU: the bits of the CPU's, for operands stored any way round, any size and any tile."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, te

from lowering.kernels.registry import KERNELS
from schedules.gpu.matmul import simt, simt_tiling
from schedules.gpu.matmul.simt_tiling import TILES, SimtTile, choose_tile
from sexpgpu.ops.types import TensorType
from tests.cuda_on_cpu import emulator
from tests.schedules.cpu.test_matmul import in_order

from ..tensor_programs import V3, graph, numbers, product, program, runs_here
from .cpu_and_cuda import GPU, same_bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

KINDS = ("NN", "TN", "NT", "TT")


@pytest.fixture
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimtTile:
    """The tile that every product takes."""
    monkeypatch.setattr(simt, "choose_tile", lambda *_: request.param)
    return request.param


def check(kind: str, m: int, k: int, n: int, batch: tuple[int, ...] = ()) -> None:
    """The bits are those of a sum in order, and so are the CPU's (../test_matmul.py)."""
    func = product(kind, m, k, n, batch)
    compiled = emulator.compile(scheduled(func, "matmul"), GPU)
    a, b = (numbers(*shape, seed=s) for s, (shape, _) in enumerate(compiled.params[:2]))
    assert compiled.every_order(a, b)[-1].tobytes() == in_order(kind, a, b).tobytes()


@pytest.mark.parametrize("tile", TILES, ids=str, indirect=True)
def test_every_tile_past_its_edges(tile: SimtTile) -> None:
    """Primes: scalar loads, and each tile's last rows, columns and turns of the depth are not whole."""
    kind = KINDS[TILES.index(tile) % 4]
    check(kind, tile.bm + 3, 2 * tile.bk + 5, tile.bn + 1)


@pytest.mark.parametrize(
    ("kind", "tile"), [*((kind, TILES[3]) for kind in KINDS), ("NT", TILES[0])], ids=str, indirect=["tile"]
)
def test_loads_of_four_elements(kind: str, tile: SimtTile) -> None:
    """Multiples of four that are not multiples of the tile, and an odd number of pieces of the depth."""
    check(kind, tile.bm + 4, 2 * tile.bk + 4, tile.bn - 4)


@pytest.mark.parametrize(
    ("kind", "size"),
    [("NN", (1, 70, 50)), ("NT", (1, 40, 50)), ("TN", (70, 1, 40)), ("NT", (1, 40, 3)), ("NN", (40, 130, 1)),
     ("TN", (5, 16, 3))], ids=str,
)  # fmt: skip
def test_thin_products(kind: str, size: tuple[int, int, int]) -> None:
    check(kind, *size)


@pytest.mark.parametrize("kind", ["NT", "TN"])
def test_a_batch_of_products(kind: str) -> None:
    check(kind, 17, 19, 23, (3, 2))


def test_a_batch_on_one_side_is_rows() -> None:
    (func,) = graph(lambda emit, x, w: relax.op.matmul(x, w), ((3, 4, 17, 20), "float32"), ((20, 23), "float32"))
    same_bits(func, numbers(3, 4, 17, 20), numbers(20, 23, seed=1), rule="matmul")


def test_axes_in_any_order() -> None:
    """As an einsum's: ``a[k, b, i, l] b[j, l, k, b, h] -> [i, b, j, h]``, two axes deep."""

    def function(a: te.Tensor, b: te.Tensor) -> Any:
        k, w = te.reduce_axis((0, 5), "k"), te.reduce_axis((0, 8), "l")
        return te.compute(
            (9, 2, 6, 7), lambda i, n, j, h: te.sum(a[k, n, i, w] * b[j, w, k, n, h], axis=[k, w]), "einsum"
        )

    same_bits(program(function, ((5, 2, 9, 8), "float32"), ((6, 8, 5, 2, 7), "float32")),
         numbers(5, 2, 9, 8), numbers(6, 8, 5, 2, 7, seed=1), rule="matmul")  # fmt: skip


def test_the_last_of_two_merged_axes_in_fours() -> None:
    """Columns of two axes, the last of which lies in memory in whole fours; rows of two, which do not."""

    def function(a: te.Tensor, b: te.Tensor) -> Any:
        k = te.reduce_axis((0, 36), "k")
        return te.compute((3, 7, 5, 12), lambda i, h, j, g: te.sum(a[i, k, h] * b[j, k, g], axis=k), "product")

    same_bits(program(function, ((3, 36, 7), "float32"), ((5, 36, 12), "float32")),
         numbers(3, 36, 7), numbers(5, 36, 12, seed=1), rule="matmul")  # fmt: skip


@pytest.mark.parametrize("size", [(64, 32, 48), (37, 33, 51)], ids=str)
def test_what_comes_before_and_after_is_done_in_the_same_launch(size: tuple[int, int, int]) -> None:
    m, k, n = size

    def fused(emit: Any, x: Any, s: Any, w: Any, b: Any, r: Any) -> Any:
        y = emit(relax.op.add(emit(relax.op.matmul(emit(relax.op.multiply(x, s)), w)), b))
        return relax.op.add(emit(relax.op.tanh(y)), r)

    kinds = [((m, k), "float32"), ((k,), "float32"), ((k, n), "float32"), ((n,), "float32"), ((m, n), "float32")]
    funcs = graph(fused, *kinds)
    for func in funcs:
        shapes = [(tuple(map(int, p.shape))) for p in list(func.params)[:-1]]
        same_bits(func, *(numbers(*shape, seed=s) for s, shape in enumerate(shapes)))


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "NN"), ("bfloat16", "TT"), ("float16", "NT")])
def test_half_precision_is_widened_as_it_is_loaded(kind: str, dtype: str) -> None:
    shapes = [(36, 33) if kind[0] == "T" else (33, 36), (44, 36) if kind[1] == "T" else (36, 44)]
    made = partial(KERNELS["matmul"], out=TensorType((33, 44), "f32"), ta=kind[0] == "T", tb=kind[1] == "T")
    half = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    given = [numbers(*shape, seed=s).astype(half) for s, shape in enumerate(shapes)]
    level = "cuda-sm_75"  # which has no matrix units for them
    same_bits(program(made, *((shape, dtype) for shape in shapes)), *given, rule="matmul", target=level)


@pytest.mark.parametrize("size", [(33, 20, 40), (3, 70, 50)], ids=str)
def test_double_precision(size: tuple[int, int, int]) -> None:
    m, k, n = size

    def function(a: te.Tensor, b: te.Tensor) -> Any:
        d = te.reduce_axis((0, k), "d")
        return te.compute((m, n), lambda i, j: te.sum(a[i, d] * b[j, d], axis=d), "product")

    given = [numbers(*shape, seed=s).astype("float64") for s, shape in enumerate([(m, k), (n, k)])]
    same_bits(program(function, ((m, k), "float64"), ((n, k), "float64")), *given, rule="matmul")


def test_what_stands_past_the_end_of_the_depth_changes_no_zero() -> None:
    """A sum that has come to -0, by a product too small for any other number, stays -0; and so do not-a-numbers and
    infinities stay where they are."""
    a, b = np.zeros((5, 17), "float32"), np.zeros((17, 9), "float32")
    a[:, 16], b[16] = 1e-30, -1e-30
    a[1, 3], b[3, 2], a[2, 16] = np.inf, 1.0, np.nan
    (out,) = same_bits(product("NN", 5, 17, 9), a, b, rule="matmul")
    assert np.signbit(out[0]).all() and not out[0].any() and out[1, 2] == np.inf and np.isnan(out[2]).all()


def test_tiles_fit_and_fill_the_device() -> None:
    """What is chosen follows from the sizes alone: large tiles for large products, as many blocks as there are results
    for small ones."""
    assert choose_tile(4096, 4096, 1024, 1, 4) == SimtTile(128, 128, 8, 8, 8)
    for m, n, k, count in (
        (4096, 4096, 1024, 1),
        (8, 3072, 768, 1),
        (64, 768, 768, 1),
        (1024, 64, 1024, 12),
        (1, 50257, 768, 1),
    ):
        tile = choose_tile(m, n, k, count, 4)
        blocks = count * -(-m // tile.bm) * -(-n // tile.bn)
        assert blocks >= min(64, m * n * count // 256), (m, n, k, tile)
    for tile in simt_tiling.TILES:
        words = 2 * tile.bk * (tile.bm + tile.bn + 8) + tile.threads_m * (tile.bn + 1)
        assert words * 4 <= 48 << 10 and tile.compute_threads <= tile.threads <= 256
