"""f32 functions: the CUDA text of their steps has the bits of the CPU's code."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import te

from lowering.math import cuda_text, elementary
from tests.cuda_on_cpu import emulator

from ..tensor_programs import V3, build, numbers, operator, program, runs_here
from .cpu_and_cuda import GPU, bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 3.0, -3.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38,
     1.1754944e-38, 3.4028235e38, -3.4028235e38,
     88.72283, 88.72284, -87.33654, -87.33655, 0.92, 2.0**30, 10.0, 20.0, 1e30],
    "float32",
)  # fmt: skip
COUNT = 1 << 19
# Both signs, every exponent, the low bits as they come; then random bits.
SWEEP = (np.arange(COUNT) * (2**32 // COUNT) + np.arange(COUNT) % 8191).astype("uint32")
BITS = np.random.default_rng(0).integers(0, 2**32, COUNT, dtype="uint32")
NAMES = [*elementary.RULES, "sqrt", "rsqrt", "floor", "ceil", "round", "log1p", "expm1", "abs", "sign"]


def arguments(name: str) -> list[np.ndarray]:
    x = np.concatenate([SPECIAL, SWEEP.view("float32"), BITS.view("float32")])
    if name != "pow":
        return [x]
    near = np.random.default_rng(1).uniform(-4, 4, len(x)).astype("float32")
    every = [np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))]
    return [np.concatenate([every[0], x, np.abs(near)]), np.concatenate([every[1], np.roll(x, 7), np.roll(near, 7)])]


@pytest.mark.parametrize("name", NAMES)
def test_functions_have_the_bits_of_the_cpu(name: str) -> None:
    xs = arguments(name)
    func = operator(name, *(("f32", x.shape) for x in xs))
    (want,) = build(func).run(*xs)
    compiled = emulator.compile(scheduled(func, "elementwise"), GPU)
    got = compiled.run(*xs)[-1]
    np.testing.assert_array_equal(bits(got), bits(want))
    if name in elementary.RULES:
        assert f"f32_{name}(" in compiled.text


def test_a_sum_of_a_product_rounds_once_where_the_cpu_does() -> None:
    shape = (4096,)
    func = program(lambda a, b, c: te.compute(shape, lambda i: a[i] * b[i] + c[i]), *(((shape, "float32"),) * 3))
    xs = [numbers(*shape, seed=n) for n in range(3)]
    (want,) = build(func).run(*xs)
    compiled = emulator.compile(scheduled(func), GPU)
    np.testing.assert_array_equal(bits(compiled.run(*xs)[-1]), bits(want))
    assert "fmaf(" in compiled.text


def test_no_function_of_cuda_but_those_with_one_answer() -> None:
    """Steps call fused products, extremes, rounding and casts of bits: exact by IEEE."""
    exact = {"fmaf", "fma", "fmaxf", "fmax", "fminf", "fmin", "nearbyint", "nearbyintf"}
    casts = set(cuda_text.REINTERPRET.values())
    for name, function in elementary.RULES.items():
        text = cuda_text.source(name, function, 2 if name == "pow" else 1)
        called = set(re.findall(r"\b([a-z_]\w*)\(", text)) - {f"f32_{name}"}
        assert called <= exact | casts, called
