"""Kernels of bfloat16: products and attention have the bits of float32 on widened operands, rounded where they end."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx

from lowering.kernels.registry import KERNELS
from sexpgpu.ops.types import TensorType
from tests.schedules.tensor_programs import V3, V4, Built, build, numbers, product, program, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

Shape = tuple[int, ...]
SIZES = [(64, 128, 96), (37, 41, 43), (8, 512, 40), (130, 300, 17), (1, 64, 130), (200, 64, 3), (23, 64, 7)]


def half_product(kind: str, m: int, k: int, n: int, batch: Shape = (), dtype: str = "bfloat16") -> Any:
    """As ``product``, of operands of ``dtype``."""
    left = (*batch, k, m) if kind[0] == "T" else (*batch, m, k)
    right = (*batch, n, k) if kind[1] == "T" else (*batch, k, n)
    made = partial(KERNELS["matmul"], out=TensorType((*batch, m, n), "f32"), ta=kind[0] == "T", tb=kind[1] == "T")
    return program(made, (left, dtype), (right, dtype))


def random_bfloat16(*shape: int, seed: int = 0, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    return numbers(*shape, seed=seed).astype(dtype)


def random_inputs(built: Built, count: int, dtype: Any = ml_dtypes.bfloat16) -> list[np.ndarray]:
    return [random_bfloat16(*shape, seed=n, dtype=dtype) for n, (shape, _) in enumerate(built.params[:count])]


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize("kind", ["NN", "TN", "NT", "TT"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_product_is_that_of_the_widened_operands(kind: str, size: tuple[int, int, int]) -> None:
    built, wide = build(half_product(kind, *size)), build(product(kind, *size))
    assert built.rule == wide.rule
    xs = random_inputs(built, 2)
    assert_same_bits(built.run(*xs)[0], wide.run(*(x.astype("float32") for x in xs))[0])


@pytest.mark.parametrize("kind", ["NN", "TN", "NT"])
@pytest.mark.parametrize("batch", [(9,), (2, 3)], ids=str)
def test_a_batch_of_products(kind: str, batch: Shape) -> None:
    built, wide = build(half_product(kind, 17, 19, 23, batch)), build(product(kind, 17, 19, 23, batch))
    xs = random_inputs(built, 2)
    assert_same_bits(built.run(*xs)[0], wide.run(*(x.astype("float32") for x in xs))[0])


def test_float16_too() -> None:
    built, wide = build(half_product("NN", 64, 128, 96, dtype="float16")), build(product("NN", 64, 128, 96))
    xs = random_inputs(built, 2, "float16")
    assert_same_bits(built.run(*xs)[0], wide.run(*(x.astype("float32") for x in xs))[0])


def test_a_long_sum_is_not_rounded_on_the_way() -> None:
    """In bf16 a sum of ones ends at 256."""
    built = build(half_product("NN", 16, 4096, 32))
    ones = [np.ones(shape, ml_dtypes.bfloat16) for shape, _ in built.params[:2]]
    assert (built.run(*ones)[0] == 4096).all()


def attend(dtype: str, heads: Shape, q: int, k: int, d: int, e: int, causal: bool) -> Any:
    short = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    made = partial(KERNELS["attend"], out=TensorType((*heads, q, e), short), causal=causal)
    return program(made, *((s, dtype) for s in ((*heads, q, d), (*heads, k, d), (*heads, k, e))))


@pytest.mark.parametrize("size", [((2, 4), 32, 32, 32, 32), ((9,), 7, 13, 5, 3), ((8,), 1, 40, 16, 16)], ids=str)
def test_attention_is_one_loop_over_heads_that_rounds_once(size: Any) -> None:
    causal = size[1] == size[2]
    built, wide = (build(attend(dtype, *size, causal)) for dtype in ("bfloat16", "float32"))
    assert built.rule == wide.rule == "attention"
    xs = random_inputs(built, 3)
    want = wide.run(*(x.astype("float32") for x in xs))[0].astype(ml_dtypes.bfloat16)
    assert_same_bits(built.run(*xs)[0], want)


@pytest.mark.parametrize("size", [((2, 4), 32, 32, 16, 12), ((9,), 7, 13, 5, 3)], ids=str)
def test_gradients_of_attention_are_each_rounded_once(size: Any) -> None:
    heads, q, k, d, e = size
    shapes = [(*heads, q, e), (*heads, q, d), (*heads, k, d), (*heads, k, e)]
    made = partial(KERNELS["attend-grad"], causal=q == k)
    built, wide = (build(program(made, *((s, dtype) for s in shapes))) for dtype in ("bfloat16", "float32"))
    assert built.rule == wide.rule == "attention"
    xs = random_inputs(built, 4)
    for got, want in zip(built.run(*xs), wide.run(*(x.astype("float32") for x in xs)), strict=True):
        assert_same_bits(got, want.astype(ml_dtypes.bfloat16))


def chain(size: int) -> Any:
    """((x + y) * x) rounded twice, each a value of bf16."""

    def function(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        total = te.compute((size,), lambda i: x(i) + y(i), "total")
        return te.compute((size,), lambda i: total(i) * x(i), "product")

    return program(function, *[((size,), "bfloat16")] * 2)


PROGRAMS = {
    "product": lambda: half_product("NN", 65, 130, 47),
    "weight gradient": lambda: half_product("TN", 65, 1300, 47),
    "scores": lambda: half_product("NT", 33, 47, 29, (9,)),
    "attention": lambda: attend("bfloat16", (2, 5), 33, 33, 12, 12, True),
    "elementwise": lambda: chain(100_003),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_follow_from_neither_threads_nor_level(name: str) -> None:
    made = set()
    for built in (build(PROGRAMS[name](), V3), build(PROGRAMS[name](), V4, code=V3)):
        xs = random_inputs(built, len(built.params) - 1)
        for count in (1, 2):
            threads(count)
            made.add(built.run(*xs)[0].tobytes())
    threads(1)
    assert len(made) == 1


def test_each_value_of_a_chain_is_rounded() -> None:
    built = build(chain(1003))
    x, y = random_inputs(built, 2)
    assert_same_bits(built.run(x, y)[0], (x + y) * x)


def spread_out(columns: int, value: Any) -> Any:
    """Rows of one number each, that ``value`` makes of the row's own x."""
    return program(lambda x: te.compute((3, columns), lambda i, j: value(x(i)), "rows"), ((3,), "float32"))


SPREADS = {
    "a cast": lambda x: (x / 3).astype("bfloat16"),
    "a constant": lambda x: te.const(0.75, "bfloat16"),
    "a choice": lambda x: te.if_then_else(x > 0, (x * x).astype("bfloat16"), te.const(0.5, "bfloat16")),
    "a select": lambda x: tirx.Select(x > 0, (x * x).astype("bfloat16"), te.const(0.5, "bfloat16")),
    "a sum": lambda x: x.astype("bfloat16") + (x * x).astype("bfloat16"),
}


@pytest.mark.parametrize("level", [V3, V4])
@pytest.mark.parametrize("name", SPREADS)
def test_one_number_fills_a_row(name: str, level: str) -> None:
    """As the gradient of a mean: a store of vectors whose lanes are one number."""
    built, narrow = (build(spread_out(columns, SPREADS[name]), level, code=V3) for columns in (37, 1))
    x = numbers(3)
    got = built.run(x)[0]
    assert_same_bits(got, np.repeat(narrow.run(x)[0], 37, axis=1))
    assert name == "a constant" or len(set(got[:, 0].tolist())) > 1
