"""argmax and argmin: one walk with the key and its index side by side, for any shape, axis and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import schedules
from schedules.cpu.plan import make_plan
from tests.schedules.tensor_programs import V3, V4, build, operator, reference, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

SHAPES = [
    ((40, 33), -1), ((40, 33), 0), ((7, 16), 1), ((5, 300), 1), ((300, 5), 0), ((3, 50, 70), 1), ((3, 50, 70), 0),
    ((513,), 0), ((1,), 0), ((64, 1), 1), ((4, 1, 9), 2), ((2, 3), 1), ((2, 70_000), 1),
]  # fmt: skip


def with_edges(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Few distinct values, so that every row has equal ones; floats with both zeros, infinities and, rarely, NaNs of
    both signs."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(dtype)
    if np.dtype(dtype).kind != "f":
        return x
    x[x == 0] *= rng.choice([-1, 1], shape).astype(dtype)[x == 0]
    few = rng.random(shape)
    x[few < 0.1], x[few > 0.9] = -np.inf, np.inf
    x[few < 0.01], x[few > 0.99] = -np.nan, np.nan
    return x


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_the_first_extreme_of_any_axis(name: str, case: tuple[Any, int]) -> None:
    shape, axis = case
    built = build(operator(name, ("f32", shape), axis=axis))
    for seed in range(3):
        x = with_edges(shape, "float32", seed)
        np.testing.assert_array_equal(built.run(x)[0], reference(name, x, axis=axis))


@pytest.mark.parametrize("dtype", ["f64", "i32", "i64", "u8", "i8", "u32", "f16", "bf16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_dtype(dtype: str, axis: int) -> None:
    import ml_dtypes

    numpy = {"f64": "float64", "f16": "float16", "bf16": ml_dtypes.bfloat16, "u8": "uint8", "i8": "int8"}
    kind = numpy.get(dtype, {"i": "int", "u": "uint"}.get(dtype[0], "") + dtype[1:])
    whole = dtype[0] in "iu"
    x = with_edges((37, 45), "float32" if not whole else "int32", 1).astype(kind)
    built = build(operator("argmax", (dtype, x.shape), axis=axis))
    np.testing.assert_array_equal(built.run(x)[0], reference("argmax", x, axis=axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_of_the_least_integer_has_its_first_element(axis: int) -> None:
    """Its key is the start of the fold: no element beats it."""
    x = np.full((40, 40), -(2**31), "int32")
    x[3, 17] = 5
    got = build(operator("argmax", ("i32", x.shape), axis=axis)).run(x)[0]
    np.testing.assert_array_equal(got, reference("argmax", x, axis=axis))
    x[:] = 2**31 - 1
    assert (build(operator("argmin", ("i32", x.shape), axis=axis)).run(x)[0] == 0).all()


@pytest.mark.parametrize("target", [V3, V4, "cpu-aarch64"])
@pytest.mark.parametrize(("shape", "axis"), [((64, 50), 1), ((64, 50), 0)], ids=str)
def test_key_and_index_are_one_stage(target: str, shape: tuple[int, int], axis: int) -> None:
    plan = make_plan(operator("argmax", ("f32", shape), axis=axis), schedules.TARGETS[target])
    real = [s for s in plan.ctx.program.stages if s.buffer not in plan.ctx.virtual.stages]
    assert [s.reduction.kind for s in real if s.reduction is not None] == ["first-max"] and len(real) == 1


def test_threads() -> None:
    built, x = build(operator("argmax", ("f32", (600, 333)), axis=1)), with_edges((600, 333), "float32")
    results = set()
    for count in (1, 2):
        threads(count)
        results.add(built.run(x)[0].tobytes())
    threads(1)
    assert results == {reference("argmax", x, axis=1).tobytes()}
