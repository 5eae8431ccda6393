"""Matrix products of every layout and any size, with what is fused onto them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, tirx

import schedules
from lowering import emit, pipeline
from schedules.cpu import matmul_tiling
from schedules.cpu.matmul_cost import MatmulShape, choose_tile
from schedules.tir.rewrite import collect
from sexpgpu.graph.core import Builder, Graph
from sexpgpu.ops.types import TensorType
from tests.schedules.tensor_programs import (
    V3,
    V4,
    assert_close,
    build,
    graph,
    numbers,
    operator,
    product,
    runs_here,
    threads,
)

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here("cpu-x86-64-v3"), reason="this CPU has no AVX2")]

# Multiples of every tile, primes, one row or column, depths from 1 to a weight gradient's.
SIZES = [
    (64, 128, 96), (37, 41, 43), (8, 512, 40), (5, 17, 70), (100, 1, 33),
    (130, 300, 17), (7, 2, 9), (1, 64, 130), (23, 64, 7), (65, 333, 3), (6, 19, 5), (5, 7, 3), (1, 40, 2),
]  # fmt: skip


def in_order(kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product with its depth summed from first to last, each multiply-add rounded once, as the processor's is: a
    product of two float32 is exact in float64, and that its sum with a third is rounded there first changes the result
    in one case of some 2^28."""
    left = (a.swapaxes(-1, -2) if kind[0] == "T" else a).astype("float64")
    right = (b.swapaxes(-1, -2) if kind[1] == "T" else b).astype("float64")
    total = np.zeros((*left.shape[:-1], right.shape[-1]), "float32")
    for k in range(left.shape[-1]):
        total = (left[..., :, k, None] * right[..., None, k, :] + total).astype("float32")
    return total


def loops(func: Any, target: str) -> set[str]:
    """Names of the loops of a scheduled program."""
    done = schedules.first(func.with_attr("global_symbol", "main"), schedules.TARGETS[target])
    assert done.func is not None
    return {str(node.loop_var.name) for node in collect(done.func.body, tirx.For)}


def check(kind: str, m: int, k: int, n: int, batch: tuple[int, ...] = (), target: str = V3) -> str:
    """The bits: nothing but rows, columns and depth enters one, so that a product may be a part of a larger one."""
    built = build(product(kind, m, k, n, batch), target, code=V3)
    a, b = (numbers(*shape, seed=s) for s, (shape, _) in enumerate(built.params[:2]))
    assert built.run(a, b)[0].tobytes() == in_order(kind, a, b).tobytes()
    return built.rule


@pytest.mark.parametrize("kind", ["NN", "TN", "NT", "TT"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_any_layout_and_size_is_summed_in_order(kind: str, size: tuple[int, int, int]) -> None:
    check(kind, *size)


@pytest.mark.parametrize("kind", ["NN", "NT"])
@pytest.mark.parametrize("size", [(23, 64, 7), (65, 333, 3), (5, 30, 70), (130, 50, 17)], ids=str)
def test_so_do_the_schedules_of_sixteen_lanes(kind: str, size: tuple[int, int, int]) -> None:
    check(kind, *size, target=V4)


# Depths that are cut: whole blocks and a shorter last one, one panel and many, rows and columns past the last tile.
DEEP = [(64, 1024, 24), (61, 1093, 41)]


@pytest.mark.parametrize("kind", ["NN", "TN", "NT", "TT"])
@pytest.mark.parametrize("size", DEEP, ids=str)
def test_a_cut_depth_is_summed_in_order(kind: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_tiling, "MIN_BLOCKED_PANEL_BYTES", 1024)
    assert "k_block" in loops(product(kind, *size), V3)
    check(kind, *size)


def test_so_does_one_for_sixteen_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_tiling, "MIN_BLOCKED_PANEL_BYTES", 1024)
    assert "k_block" in loops(product("NN", 61, 1093, 130), V4)
    check("NN", 61, 1093, 130, target=V4)


def test_a_batch_of_deep_products_and_what_follows_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_tiling, "MIN_BLOCKED_PANEL_BYTES", 1024)
    check("TN", 33, 1100, 45, (3,))

    def fused(emit, x, w, b):
        return relax.op.tanh(emit(relax.op.add(emit(relax.op.matmul(x, w)), b)))

    kinds = [((67, 1100), "float32"), ((1100, 130), "float32"), ((130,), "float32")]
    (func,) = graph(fused, *kinds)
    assert "k_block" in loops(func, V3)
    x, w, b = (numbers(*shape, seed=s) for s, (shape, _) in enumerate(kinds))
    assert_close(build(func).run(x, w, b)[0], np.tanh(in_order("NN", x, w) + b))


@pytest.mark.parametrize("sizes", [((1, 700), (700, 1)), ((5, 1, 40), (5, 40, 1)), ((6, 300), (300, 1))], ids=str)
def test_one_row_by_one_column_as_well(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (numbers(*shape, seed=s) for s, shape in enumerate(sizes))
    built = build(operator("matmul", *(("f32", shape) for shape in sizes)))
    assert built.run(a, b)[0].tobytes() == in_order("NN", a, b).tobytes()


@pytest.mark.parametrize("kind", ["NN", "TN", "NT"])
def test_a_batch_of_small_products(kind: str) -> None:
    assert check(kind, 32, 32, 32, (2, 5)) == "matmul"
    assert check(kind, 17, 19, 23, (7,)) == "matmul"
    assert check(kind, 33, 19, 3, (4,)) == "matmul"


def test_a_batch_on_one_side_is_rows() -> None:
    (func,) = graph(lambda emit, x, w: relax.op.matmul(x, w), ((3, 4, 17, 19), "float32"), ((19, 23), "float32"))
    built = build(func)
    x, w = numbers(3, 4, 17, 19), numbers(19, 23, seed=1)
    assert built.rule == "matmul"
    assert_close(built.run(x, w)[0], x.astype("float64") @ w, 19)


@pytest.mark.parametrize("size", [(64, 32, 48), (61, 33, 51)], ids=str)
def test_what_follows_is_done_on_the_tile(size: tuple[int, int, int]) -> None:
    m, k, n = size

    def fused(emit, x, w, b, r):
        y = emit(relax.op.add(emit(relax.op.matmul(x, w)), b))
        return relax.op.add(emit(relax.op.tanh(y)), r)

    kinds = [((m, k), "float32"), ((k, n), "float32"), ((n,), "float32"), ((m, n), "float32")]
    (func,) = graph(fused, *kinds)
    built = build(func)
    x, w, b, r = (numbers(*shape, seed=s) for s, (shape, _) in enumerate(kinds))
    assert built.rule == "matmul"
    assert_close(built.run(x, w, b, r)[0], np.tanh(x.astype("float64") @ w + b) + r, k)


@pytest.mark.parametrize("rows", [15, 16, 17, 24])
def test_no_group_of_rows_lies_past_the_last(rows: int) -> None:
    check("TN", rows, 40, 64)


def test_a_few_columns_or_rows_are_turned_in_registers() -> None:
    for size in (("NN", 200, 64, 3), ("NT", 2, 64, 100), ("NT", 8, 64, 100)):
        assert check(*size) == "matmul"
        assert "Shuffle" in str(schedules.first(product(*size), schedules.TARGETS[V3]).func)
    assert check("NN", 50, 7, 5) == "matmul"
    assert check("NN", 5, 7, 3) == "row-reduction"


def test_what_follows_a_few_columns_is_done_on_their_rows() -> None:
    def fused(emit, x, w, b):
        return relax.op.tanh(emit(relax.op.add(emit(relax.op.matmul(x, w)), b)))

    kinds = [((67, 40), "float32"), ((40, 3), "float32"), ((3,), "float32")]
    (func,) = graph(fused, *kinds)
    built = build(func)
    x, w, b = (numbers(*shape, seed=s) for s, (shape, _) in enumerate(kinds))
    assert built.rule == "matmul"
    assert_close(built.run(x, w, b)[0], np.tanh(x.astype("float64") @ w + b), 40)


def test_half_precision_is_summed_in_float32() -> None:
    import ml_dtypes

    kinds = [((33, 64), "bfloat16"), ((64, 40), "bfloat16")]
    (func,) = graph(lambda emit, x, w: relax.op.matmul(x, w, out_dtype="float32"), *kinds)
    built = build(func)
    x, w = numbers(33, 64).astype(ml_dtypes.bfloat16), numbers(64, 40, seed=1).astype(ml_dtypes.bfloat16)
    assert_close(built.run(x, w)[0], x.astype("float64") @ w.astype("float64"), 64)


@pytest.mark.parametrize("size", [(512, 128, 256), (61, 700, 129), (16, 4096, 48), (70, 5632, 48)], ids=str)
def test_threads_change_no_bit(size: tuple[int, int, int]) -> None:
    built = build(product("TN", *size))
    a, b = (numbers(*shape, seed=s) for s, (shape, _) in enumerate(built.params[:2]))
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(built.run(a, b)[0].tobytes())
    threads(1)
    assert len(set(results)) == 1


def test_the_tile_fits_the_registers() -> None:
    for lanes, registers in ((8, 16), (16, 32), (4, 32)):
        for m, n in ((512, 512), (7, 100), (1, 1000), (300, 3)):
            tile = choose_tile(MatmulShape(m, n, 64), lanes, registers)
            assert tile.mr * tile.nv + tile.nv + 1 <= registers and tile.mr <= m


@pytest.mark.parametrize("size", [(96, 64, 80), (1, 64, 80), (23, 9, 70), (40, 2048, 48)], ids=str)
def test_two_lanes_are_transposed_in_one_shuffle(size: tuple[int, int, int]) -> None:
    """float64 in 128 bits, in the instructions of this machine. Terms are halves of integers: their sums are exact."""
    b = Builder()
    m, k, n = size
    x, y = b.input("x", TensorType((m, k), "f64")), b.input("y", TensorType((n, k), "f64"))
    graph = Graph("main", (x, y), (("z", b("matmul", x, y, tb=True)),))
    (func,) = pipeline.lower(emit.emit([graph])).programs.values()
    built = build(func, "cpu-aarch64", code=V3)
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-8, 8, shape) / 2 for shape in ((m, k), (n, k)))
    assert built.rule == "matmul"
    assert built.run(left, right)[0].tobytes() == (left @ right.T).tobytes()
