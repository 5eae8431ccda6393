"""Products of halves on matrix units. Most factors are small integers: their sums are exact in any order, on any
device, so that a result is right or wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te

from schedules.gpu.matmul import tensor_core
from schedules.gpu.threads import mma_tiling
from schedules.gpu.threads.mma_tiling import MmaTiling
from tests.cuda_on_cpu import emulator

from ..tensor_programs import program
from .cpu_and_cuda import GPU, scheduled
from .half_precision import DTYPES, factors, product

pytestmark = pytest.mark.build

KINDS = ("NN", "NT", "TN", "TT")
UNIT = 2.0**-23  # relative error of one truncation to float32: eps of docs/tensor-core-error.md


def results(func: Any, *arrays: np.ndarray) -> np.ndarray:
    """What the program's last parameter is, with the threads in each of three orders the same."""
    return emulator.compile(scheduled(func, "tensor-core"), GPU).every_order(*arrays)[-1]


@pytest.fixture
def cut_as(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Products are cut so, whatever their shape."""

    def choose(tile: mma_tiling.MmaTile, apart: bool = False) -> None:
        monkeypatch.setattr(tensor_core, "choose_tiling", lambda m, n, k, count: MmaTiling(m, n, k, count, tile, apart))

    return choose


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(72, 48, 40), (65, 33, 31), (36, 132, 68), (10, 34, 22)],
    ids=["eighths", "odd", "quarters", "halves"],
)
def test_every_layout_and_every_rest(kind: str, m: int, k: int, n: int) -> None:
    a, b, want = factors(kind, m, k, n)
    np.testing.assert_array_equal(results(product(kind, m, k, n), a, b), want)


@pytest.mark.parametrize(("m", "k", "n"), [(64, 64, 64), (1, 96, 9), (16, 16, 8)], ids=["whole", "row", "least"])
def test_no_rest_and_the_least(m: int, k: int, n: int) -> None:
    a, b, want = factors("NN", m, k, n)
    np.testing.assert_array_equal(results(product("NN", m, k, n), a, b), want)


@pytest.mark.parametrize("tile", mma_tiling.TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_every_tile(cut_as: Any, tile: mma_tiling.MmaTile) -> None:
    cut_as(tile)
    kind = KINDS[mma_tiling.TILES.index(tile) % 4]
    a, b, want = factors(kind, 136, 168, 140)
    np.testing.assert_array_equal(results(product(kind, 136, 168, 140), a, b), want)


@pytest.mark.parametrize("kind", ["NN", "TT"])
def test_float16(kind: str) -> None:
    a, b, want = factors(kind, 40, 80, 24, dtype="float16")
    np.testing.assert_array_equal(results(product(kind, 40, 80, 24, dtype="float16"), a, b), want)


@pytest.mark.parametrize("kind", ["NT", "TN"])
def test_a_batch(kind: str) -> None:
    a, b, want = factors(kind, 20, 48, 36, (2, 3))
    np.testing.assert_array_equal(results(product(kind, 20, 48, 36, (2, 3)), a, b), want)


def test_a_batch_on_one_side() -> None:
    """Its axes are rows of the other factor's product, of which the first are far apart in memory."""

    def function(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 48), "k")
        wide = lambda x: x.astype("float32")  # noqa: E731
        return te.compute((3, 20, 24), lambda s, i, j: te.sum(wide(a(s, k, i)) * wide(b(j, k)), axis=k), "matmul")

    a, _, _ = factors("NN", 48, 20, 1, (3,))
    _, b, _ = factors("NT", 1, 48, 24, seed=1)
    want = np.einsum("ski,jk->sij", a.astype("f8"), b.astype("f8"))
    func = program(function, ((3, 48, 20), "bfloat16"), ((24, 48), "bfloat16"))
    np.testing.assert_array_equal(results(func, a, b), want)


def test_a_depth_of_two_axes() -> None:
    """A weight's gradient: the depth is the batch and its rows."""

    def function(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        s, t = te.reduce_axis((0, 5), "s"), te.reduce_axis((0, 12), "t")
        wide = lambda x: x.astype("float32")  # noqa: E731
        return te.compute((40, 24), lambda i, j: te.sum(wide(a(s, t, i)) * wide(b(s, t, j)), axis=[s, t]), "matmul")

    a, _, _ = factors("NN", 12, 40, 1, (5,))
    _, b, _ = factors("NN", 1, 12, 24, (5,), seed=1)
    want = np.einsum("sti,stj->ij", a.astype("f8"), b.astype("f8"))
    func = program(function, ((5, 12, 40), "bfloat16"), ((5, 12, 24), "bfloat16"))
    np.testing.assert_array_equal(results(func, a, b), want)


@pytest.mark.parametrize("row", [18, 20, 17])
def test_a_factor_that_is_part_of_wider_rows(row: int) -> None:
    """Whose rows begin where a wide copy may not."""

    def function(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 16), "k")
        wide = lambda x: x.astype("float32")  # noqa: E731
        return te.compute((40, 24), lambda i, j: te.sum(wide(a(i, k)) * wide(b(k, j)), axis=k), "matmul")

    a, b, _ = factors("NN", 40, row, 24)
    func = program(function, ((40, row), "bfloat16"), ((row, 24), "bfloat16"))
    want = a[:, :16].astype("f8") @ b[:16].astype("f8")
    np.testing.assert_array_equal(results(func, a, b), want)


def test_stages_that_follow_are_done_on_the_tile() -> None:
    """A bias, a residual and a cast: one launch."""

    def follow(x: Any, at: Any, bias: te.Tensor, residual: te.Tensor) -> Any:
        return x * 0.5 + bias(at[1]).astype("float32") + residual(*at)

    more = (((70,), "bfloat16"), ((50, 70), "float32"))
    func = product("NN", 50, 40, 70, out="bfloat16", follow=follow, more=more)
    a, b, want = factors("NN", 50, 40, 70)
    rng = np.random.default_rng(2)
    bias = rng.standard_normal(70).astype(DTYPES["bfloat16"])
    residual = rng.standard_normal((50, 70)).astype("float32")
    made = want.astype("float32") * np.float32(0.5) + bias.astype("float32") + residual
    compiled = emulator.compile(scheduled(func, "tensor-core"), GPU)
    assert compiled.text.count('extern "C" __global__ void __launch_bounds__(128)') == 2  # declared and defined
    got = compiled.every_order(a, b, bias, residual)[-1]
    np.testing.assert_array_equal(got.view("uint16"), made.astype(DTYPES["bfloat16"]).view("uint16"))


def test_a_producer_in_the_same_program() -> None:
    """What a map stage makes in bfloat16 is read from memory as any other factor."""

    def function(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        made = te.compute((40, 48), lambda i, j: te.exp(a(i, j)).astype("bfloat16"), "made")
        k = te.reduce_axis((0, 48), "k")
        wide = lambda x: x.astype("float32")  # noqa: E731
        return te.compute((40, 24), lambda i, j: te.sum(wide(made(i, k)) * wide(b(k, j)), axis=k), "matmul")

    a = np.zeros((40, 48), "float32")  # exp of it is 1
    _, b, _ = factors("NN", 1, 48, 24)
    func = program(function, ((40, 48), "float32"), ((48, 24), "bfloat16"))
    want = np.broadcast_to(b.astype("f8").sum(0), (40, 24))
    np.testing.assert_array_equal(results(func, a, b), want)


def bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Forward error bound of A B, element by element: docs/tensor-core-error.md, "Matrix products"."""
    k = a.shape[-1]
    steps, pieces = -(-k // mma_tiling.TILE_K) * 2, -(-k // mma_tiling.slice_k(k))
    return (17 * steps + pieces) * UNIT * (np.abs(a.astype("f8")) @ np.abs(b.astype("f8")))


@pytest.mark.parametrize(("k", "dtype"), [(40, "bfloat16"), (1000, "bfloat16"), (2600, "bfloat16"), (300, "float16")])
def test_sums_are_float32(k: int, dtype: str) -> None:
    a, b, want = factors("NN", 17, k, 9, dtype=dtype, whole=False)
    got = results(product("NN", 17, k, 9, dtype=dtype), a, b)
    assert (np.abs(got - want) <= bound(a, b)).all()


@pytest.mark.parametrize("k", [96, 1300])
def test_bits_do_not_depend_on_what_stands_beside(k: int) -> None:
    """Neither on the other rows, as when microbatches are stacked, nor on the tile that they make best, nor on whether
    the pieces of a sum are blocks of their own."""
    a, b, _ = factors("NN", 300, k, 40, whole=False)
    run = lambda rows: results(product("NN", rows, k, 40), a[:rows], b)  # noqa: E731
    few, many = run(5), run(300)
    assert few.tobytes() == many[:5].tobytes()
    stacked = results(product("NN", 5, k, 40, (2,)), np.stack([a[:5], a[5:10]]), np.stack([b, b]))
    assert stacked.tobytes() == many[:10].tobytes()


@pytest.mark.parametrize("apart", [False, True])
def test_pieces_of_a_sum_are_the_same_in_one_block_and_in_several(cut_as: Any, apart: bool) -> None:
    a, b, _ = factors("TN", 40, 1300, 24, whole=False)
    chosen = results(product("TN", 40, 1300, 24), a, b)
    cut_as(mma_tiling.TILES[3], apart)
    func = scheduled(product("TN", 40, 1300, 24), "tensor-core")
    compiled = emulator.compile(func, GPU)
    assert compiled.text.count("__global__") == (4 if apart else 2)  # each launch is declared and defined
    assert compiled.run(a, b)[-1].tobytes() == chosen.tobytes()


def test_short_products_and_float32_are_other_nests() -> None:
    for func in (product("NN", 64, 8, 64), product("NN", 64, 64, 64, dtype="float32")):
        assert "mma" not in emulator.compile(scheduled(func), GPU).text


def test_a_level_without_matrix_units() -> None:
    from schedules import TARGETS, first

    done = first(product("NN", 64, 64, 64).with_attr("global_symbol", "main"), TARGETS["cuda-sm_75"])
    assert done.rule not in ("", "tensor-core") and not done.failures
