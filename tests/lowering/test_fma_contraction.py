"""Which products are added in one step: those that a program says, on every target, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import te, tirx

from tests.cuda_on_cpu import emulator
from tests.schedules.gpu.cpu_and_cuda import GPU, bits, scheduled
from tests.schedules.tensor_programs import V3, build, numbers, program, runs_here

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

N = 4099
A, B, C = (numbers(N, seed=n) for n in range(3))


def fused_multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c, rounded once: the product of two f32 is exact in f64, and the sum's double rounding shows in no value
    here."""
    return (a.astype("float64") * b + c).astype("float32")


FORMS = {
    "a b + c": (lambda a, b, c: a * b + c, fused_multiply_add(A, B, C)),
    "c + a b": (lambda a, b, c: c + a * b, fused_multiply_add(A, B, C)),
    "c - a b": (lambda a, b, c: c - a * b, fused_multiply_add(-A, B, C)),
    "a b - c": (lambda a, b, c: a * b - c, fused_multiply_add(A, B, -C)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_product_that_is_added_rounds_once(form: str) -> None:
    make, want = FORMS[form]
    func = program(lambda *xs: te.compute((N,), lambda i: make(*(x[i] for x in xs))), *(((N,), "float32"),) * 3)
    np.testing.assert_array_equal(build(func).run(A, B, C)[0], want)
    np.testing.assert_array_equal(emulator.compile(scheduled(func), GPU).run(A, B, C)[-1], want)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_product_of_its_own_rounds_before_it_is_added(sign: int) -> None:
    """Also where a compiler sees the sum that it goes into."""

    def sum(a: te.Tensor, b: te.Tensor, c: te.Tensor) -> te.Tensor:
        product = te.compute((N,), lambda i: a[i] * b[i])
        return te.compute((N,), lambda i: c[i] + product[i] if sign > 0 else c[i] - product[i])

    func = program(sum, *(((N,), "float32"),) * 3)
    want = C + sign * (A * B)
    np.testing.assert_array_equal(build(func).run(A, B, C)[0], want)
    np.testing.assert_array_equal(emulator.compile(scheduled(func), GPU).run(A, B, C)[-1], want)


def test_numbers_of_f64_keep_all_their_digits() -> None:
    x = np.random.default_rng(0).uniform(1, 2, N)
    least, third = 1.234567890123456789e-300, 1 / 3

    def element(x: te.Tensor, i: Any) -> Any:
        return tirx.Select(x[i] < 1.5, x[i] * tirx.const(third, "float64"), tirx.const(least, "float64"))

    func = program(lambda x: te.compute((N,), lambda i: element(x, i)), ((N,), "float64"))
    (want,) = build(func).run(x)
    np.testing.assert_array_equal(bits(want), bits(np.where(x < 1.5, x * third, least)))
    np.testing.assert_array_equal(bits(emulator.compile(scheduled(func), GPU).run(x)[-1]), bits(want))
