"""Philox draws to the bit, whole quotients, and one kernel for all equal layers."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_runs import T, compiled, graph, inputs, reference, run_functions, sample

from sexpgpu.graph.core import Builder, Graph
from sexpgpu.ops.types import DTYPES

pytestmark = pytest.mark.build

# Salmon et al., Random123's known answers: counter and key all 0, and all ones
KNOWN = {
    0: (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    0xFFFFFFFF: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
}


def draws(*shapes: tuple[int, ...]) -> Graph:
    b = Builder()
    seed, salt = inputs(b, seed=T("u32", 2), salt=T("i64"))
    outs = {
        f"d{n}": b("philox", seed, salt, shape=s, place=n * 0xFFFF_FFFF // max(1, len(shapes) - 1))
        for n, s in enumerate(shapes)
    }
    return graph("draw", [seed, salt], **outs)


def test_draws_equal_numpy_to_the_bit():
    g = draws(
        (1,), (5,), (), (3, 7), (2, 3, 5), (70_001,), (2, 40_000)
    )  # not of 4, and beyond 2^16 elements and blocks
    made = compiled(g)
    seeds = np.array([[0, 0], [1, 2], [0xFFFFFFFF, 0xFFFFFFFF], [0x80000000, 0x12345678]], "uint32")
    salts = np.array([0, -1, 2**62 + 12345, -(2**63)], "int64")
    calls = [[seed, salt] for seed, salt in zip(seeds, salts, strict=True)]
    for arrays in calls:
        for got, want in zip(run_functions(made, {"draw": arrays})["draw"], reference(g, arrays), strict=True):
            assert got.dtype == np.uint32
            np.testing.assert_array_equal(got, want)


def test_the_reference_gives_the_known_answers():
    got = reference(draws((4,)), [np.zeros(2, "uint32"), np.int64(0)])[0]
    assert tuple(got) == KNOWN[0]


def layers(count: int, name: str = "train") -> Graph:
    """``count`` equal layers over one batch, each with its dropout draw."""
    b = Builder()
    seed, x = inputs(b, seed=T("u32", 2), x=T("f32", 2, 3, 4))
    ins, salt, y = [seed, x], b.const(0, "i64"), x
    for n in range(count):
        w1, c1, w2 = inputs(b, **{f"w{n}": T("f32", 4, 8), f"c{n}": T("f32", 8), f"v{n}": T("f32", 8, 4)})
        ins += [w1, c1, w2]
        h = b("tanh", b("+", b("matmul", b("softmax", y, axis=-1), w1), c1))
        keep = b("<", b("philox", seed, salt, shape=(2, 3, 8), place=n + 1), b.const(3_000_000_000, "u32"))
        y = b("+", y, b("matmul", b("where", keep, h, b.const(0.0, "f32")), w2))
    return graph(name, ins, y=y)


def test_equal_layers_and_phases_share_kernels():
    two = compiled(layers(2))
    made = compiled(layers(4), layers(3, "eval"))
    assert [k.kernel for k in made.kernels] == [k.kernel for k in two.kernels]
    more = [k.calls["train"] - k.calls["eval"] for k in made.kernels]
    assert more == [
        k.calls["eval"] - before.calls["train"] for k, before in zip(made.kernels, two.kernels, strict=True)
    ]
    assert {k.kernel: k.calls["train"] for k in made.kernels if "philox" in k.kernel}.popitem()[1] == 4


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_halves_are_summed_in_f32_and_rounded_once(dtype):
    b = Builder()
    x, w = inputs(b, x=T(dtype, 2, 3, 300), w=T(dtype, 300, 5))
    g = graph("f", [x, w], y=b("matmul", x, w))
    arrays = [sample(v.type, n) for n, v in enumerate(g.inputs)]
    got = run_functions(compiled(g), {"f": arrays})["f"][0].astype("float32")
    exact = np.matmul(*(a.astype("float64") for a in arrays))
    half_unit = {"bf16": 2.0**-9, "f16": 2.0**-12}[dtype]
    # one rounding to the half dtype, and 300 f32 additions below it
    assert np.all(np.abs(got - exact) <= 1.01 * half_unit * 2 * np.abs(exact) + 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_nan_is_found_in_vectors(dtype: str):
    """A statement that TVM cannot vectorize becomes a loop over its lanes, several times slower."""
    from tvm import IRModule, tirx

    from lowering.kernels.elementwise import is_nan

    x, y = (tirx.decl_buffer((8,), kind, name) for kind, name in ((dtype, "x"), ("int32", "y")))
    i = tirx.Var("i", "int32")
    value = tirx.Select(is_nan(tirx.BufferLoad(x, [i])), tirx.const(1, "int32"), tirx.const(0, "int32"))
    body = tirx.For(i, 0, 8, tirx.ForKind.VECTORIZED, tirx.BufferStore(y, value, [i]))
    made = tirx.transform.VectorizeLoop()(IRModule({"main": tirx.PrimFunc([x, y], body)}))
    assert "x[T.Ramp(0, 1, 8)]" in made.script()


def near_multiples(dtype: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Dividends of every size, exact multiples and their neighbours, by divisors of every size, 0 and the ends."""
    least, most, n = np.iinfo(dtype).min, np.iinfo(dtype).max, 1 << 14
    y = rng.integers(least, most, n, "int64", endpoint=True) >> rng.integers(0, np.iinfo(dtype).bits, n)
    x = rng.integers(least, most, n, "int64", endpoint=True)
    x = np.clip(np.where(rng.random(n) < 0.7, x // np.where(y == 0, 1, y) * y + rng.integers(-1, 2, n), x), least, most)
    ends = np.array([(a, b) for a in (least, most, 0) for b in (least, most, 0, 1, -1, 2) if b >= least], "int64").T
    return np.concatenate([ends[0], x]).astype(dtype), np.concatenate([ends[1], y]).astype(dtype)


@pytest.mark.parametrize("dtype", ["i32", "u32", "i8"])
def test_integers_divided_as_floats_are_divided_exactly(dtype: str):
    arrays = near_multiples(DTYPES[dtype].numpy, np.random.default_rng(1))
    b = Builder()
    x, y = inputs(b, x=T(dtype, len(arrays[0])), y=T(dtype, len(arrays[0])))
    g = graph("divide", [x, y], quot=b("quot", x, y), mod=b("mod", x, y), down=b("floordiv", x, y))
    made = run_functions(compiled(g), {"divide": list(arrays)})["divide"]
    for got, want in zip(made, reference(g, list(arrays)), strict=True):
        np.testing.assert_array_equal(got, want)
