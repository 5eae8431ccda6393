"""What the launches of the main rules ask of memory (tests/cuda_on_cpu/counts.h): of global memory the sectors that
their bytes fill, of shared memory one turn of the banks a request, but where a bound says more."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import relax

from lowering.kernels.registry import KERNELS
from schedules.gpu.attention import resident, shared_memory
from schedules.gpu.matmul import simt, simt_tiling, tensor_core
from schedules.gpu.threads import mma_tiling
from schedules.gpu.threads.mma_tiling import MmaTiling
from tests.cuda_on_cpu import emulator, traffic
from tests.schedules.cpu.test_attention_cpu import attend

from ..tensor_programs import graph, numbers, operator, product, program
from . import half_precision
from .cpu_and_cuda import GPU, scheduled
from .reductions import reduction
from .test_elementwise import PLACE, SALT, SEED, drawn

pytestmark = pytest.mark.build

R, F = relax.op, "float32"


def traffic_of(func: Any, *arrays: np.ndarray, rule: str, target: str = GPU) -> list[traffic.Total]:
    """By launch."""
    compiled = emulator.compile(scheduled(func, rule, target), target, mode="counted")
    compiled.run(*arrays)
    found = traffic.counted(emulator.core(), [compiled.text])
    assert found and all(total.moved() for total in found)
    return found


def check(found: list[traffic.Total], shared: float = 1.0, sectors: float = 1.0) -> None:
    for total in found:
        assert total.ratio(False) <= sectors and total.ratio(True) <= shared, traffic.table([total], 9)


# Where a thread has few columns, threads lay out their sums for others to store two to a bank, once a product: of a
# depth of two pieces of tiles, a fortieth of all.
PRODUCTS = [(0, "NT"), (1, "TT"), (2, "TN"), (3, "NT"), (5, "NN"), (8, "NT"), (11, "NT"), (12, "NT"), (13, "NT")]


@pytest.mark.parametrize(("number", "kind"), PRODUCTS, ids=str)
def test_products(number: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = simt_tiling.TILES[number]
    monkeypatch.setattr(simt, "choose_tile", lambda *_: tile)
    m, k, n = 2 * tile.bm, 2 * tile.bk, 2 * tile.bn
    check(traffic_of(product(kind, m, k, n), *_factors(kind, m, k, n), rule="matmul"), 1.04)


def test_halves_that_are_widened_as_they_are_loaded() -> None:
    """One at a time, a sector a line: two of sixteen neighbours meet in a bank."""
    arrays = half_precision.factors("NT", 64, 64, 64)[:2]
    check(traffic_of(half_precision.product("NT", 64, 64, 64), *arrays, rule="matmul", target="cuda-sm_75"), 1.2)


def _factors(kind: str, m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = ((k, m) if kind[0] == "T" else (m, k)), ((n, k) if kind[1] == "T" else (k, n))
    return numbers(*a), numbers(*b, seed=1)


@pytest.mark.parametrize("number", [0, 3, 5])
@pytest.mark.parametrize("kind", ["NT", "TN"])
def test_products_on_matrix_units(kind: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = mma_tiling.TILES[number]
    monkeypatch.setattr(tensor_core, "choose_tiling", lambda m, n, k, count: MmaTiling(m, n, k, count, tile, False))
    m, k, n = 2 * tile.rows, 128, 2 * tile.columns
    narrow = tile.warp_columns < 32  # then a warp takes sums of two rows at a time
    check(
        traffic_of(
            half_precision.product(kind, m, k, n), *half_precision.factors(kind, m, k, n)[:2], rule="tensor-core"
        ),
        1.07 if narrow else 1.0,
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_transposes(dtype: str) -> None:
    x = numbers(3, 64, 96).astype({"f32": "float32", "bf16": half_precision.DTYPES["bfloat16"]}[dtype])
    check(traffic_of(operator("transpose", (dtype, x.shape), perm=(0, 2, 1)), x, rule="elementwise"))


def test_maps() -> None:
    func = operator("*", ("f32", (64, 80)), ("f32", (64, 80)))
    check(traffic_of(func, numbers(64, 80), numbers(64, 80), rule="elementwise"))


def test_draws() -> None:
    """Of 200 words a block has fewer than whole warps read."""
    for shape in ((64, 80), (200,)):
        check(traffic_of(drawn(shape), SEED, SALT, PLACE, numbers(*shape), rule="philox"))


@pytest.mark.parametrize("shape", [(64, 64), (40, 256), (600, 32)], ids=str)
def test_rows(shape: tuple[int, ...]) -> None:
    (func,) = graph(lambda emit, x: R.nn.softmax(x, -1), (shape, F))
    check(traffic_of(func, numbers(*shape), rule="row-reduction"))


@pytest.mark.parametrize("shape", [(300, 64), (40, 96)], ids=["read ahead", "a thread a column"])
def test_columns(shape: tuple[int, ...]) -> None:
    check(traffic_of(reduction("sum", shape, (0,)), numbers(*shape), rule="column-reduction"))


# Keys, and turns of the banks: lines of whole banks, of 20 elements (16 lanes of two neighbours meet), of 12 (a fold by
# a thread a row: four of 32 meet), of 64 lanes. Zeros behind lines are written once, two to a bank.
KEYS = [(64, 1.0), (20, 1.02), (12, 1.04), (300, 1.02)]


@pytest.mark.parametrize(("keys", "shared"), KEYS, ids=str)
def test_attention(keys: int, shared: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MIN_BLOCKS", 1)
    func = attend((2,), 64, keys, 32, 32, causal=False)
    check(traffic_of(func, *_given(func), rule="attention"), shared)


def test_attention_some_columns_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, by queries and by keys: then the mask lies turned, and a warp reads eight bytes of four lines."""
    monkeypatch.setattr(resident, "plan_memory", lambda *_: None)
    monkeypatch.setattr(shared_memory, "MIN_BLOCKS", 1)
    made = partial(KERNELS["attend-grad"], causal=False)
    shapes = [(2, 1, 128, 32), (2, 1, 128, 32), (2, 1, 96, 32), (2, 1, 96, 32)]
    func = program(made, *((s, F) for s in shapes), ((2, 1, 128, 96), "bool"))
    mask = np.ones((2, 1, 128, 96), bool)  # else threads part, and are not counted together
    check(traffic_of(func, *_given(func, 4), mask, rule="attention"), sectors=1.5)


def _given(func: Any, count: int = 3) -> list[np.ndarray]:
    return [numbers(*map(int, p.shape), seed=s) for s, p in enumerate(list(func.params)[:count])]
