"""Maps of a GPU: transposes through shared memory, draws, many points. The CPU's bits, in any order of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import relax, te, tirx

from lowering.kernels.registry import philox
from schedules.gpu import elementwise
from sexpgpu.ops.types import TensorType
from tests.cuda_on_cpu import emulator

from ..tensor_programs import V3, graph, numbers, operator, program, reference, runs_here
from .cpu_and_cuda import GPU, same_bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

R = relax.op
NUMPY = {"f32": "float32", "f64": "float64", "bool": "bool", "i8": "int8"}


def through_tiles(func: Any) -> bool:
    return "__shared__" in emulator.compile(scheduled(func), GPU).text


# Both sides of a tile, ragged; many matrices, and the turned axis first of three; another width, and one byte.
TURNS = [
    ((70, 45), (1, 0), "f32"),
    ((3, 33, 40), (0, 2, 1), "f64"),
    ((20, 3, 35), (2, 1, 0), "bool"),
    ((2, 17, 3, 32), (0, 3, 2, 1), "i8"),
]


@pytest.mark.parametrize(("shape", "perm", "dtype"), TURNS, ids=str)
def test_transposes_go_through_tiles(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str) -> None:
    x = (numbers(*shape) * 9).astype(NUMPY[dtype])
    func = operator("transpose", (dtype, shape), perm=perm)
    (got,) = same_bits(func, x, rule="elementwise")
    np.testing.assert_array_equal(got, reference("transpose", x, perm=perm))
    assert through_tiles(func)


def test_a_turned_tensor_meets_others_in_a_tile() -> None:
    """One is read turned, one as the result lies, one along each axis alone; and a value of bfloat16 is turned."""
    a, b, down, across = numbers(40, 50), numbers(50, 40, seed=1), numbers(50, 1, seed=2), numbers(1, 40, seed=3)

    def build(e: Any, a: Any, b: Any, down: Any, across: Any) -> Any:
        turned = e(R.permute_dims(e(R.astype(a, "bfloat16")), [1, 0]))
        return R.add(e(R.multiply(e(R.exp(e(R.astype(turned, "float32")))), e(R.add(b, down)))), across)

    shapes = [(x.shape, "float32") for x in (a, b, down, across)]
    for func in graph(build, *shapes):
        same_bits(func, *(x for x, _ in zip((a, b, down, across), func.params, strict=False)))


@pytest.mark.parametrize("first", [True, False], ids=["turned first", "turned last"])
def test_what_is_read_in_two_ways_stays_out_of_tiles(first: bool) -> None:
    x = numbers(40, 40)
    element = lambda x, i, j: x[j, i] - x[i, j] * 2.0 if first else x[i, j] - x[j, i] * 2.0  # noqa: E731
    func = program(lambda x: te.compute((40, 40), lambda i, j: element(x, i, j)), ((40, 40), "float32"))
    same_bits(func, x)
    assert not through_tiles(func)


def test_what_is_read_under_a_condition_stays_out_of_tiles() -> None:
    """Outside of the condition there may be nothing to bring in."""
    x = numbers(20, 40)

    def padded(x: Any) -> Any:
        inside = lambda i, j: tirx.if_then_else(j < 20, x[tirx.min(j, 19), i], tirx.const(0.0, "float32"))  # noqa: E731
        return te.compute((40, 36), inside)

    func = program(padded, ((20, 40), "float32"))
    same_bits(func, x)
    assert not through_tiles(func)


@pytest.mark.parametrize("points", [2048, 2049, 5000])
def test_a_thread_takes_several_points_of_many(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "MIN_POINTS_UNROLLED", 2048)
    a, b = numbers(points), numbers(points, seed=1)
    func = program(lambda a, b: te.compute((points,), lambda i: a[i] * b[i] + a[i]), *(((points,), "float32"),) * 2)
    same_bits(func, a, b)
    assert "u < 4" in emulator.compile(scheduled(func), GPU).text


def test_more_elements_than_32_bits_count_are_counted_in_64() -> None:
    points = 2**31 + 4096
    func = program(lambda a: te.compute((points,), lambda i: a[i] * 2.0), ((points,), "float32"))
    text = emulator.compile(scheduled(func), GPU).text
    assert "int64_t)blockIdx.x" in text and "(int)blockIdx.x" not in text


SEED, SALT = np.array([123, 2**32 - 5], "uint32"), np.array(-77777777777, "int64")
PLACE = np.array([3], "uint32")


def drawn(shape: tuple[int, ...]) -> Any:
    """The program of uniform draws added to a tensor."""
    seed, salt = te.placeholder((2,), "uint32", "seed"), te.placeholder((), "int64", "salt")
    place, x = te.placeholder((1,), "uint32", "place"), te.placeholder(shape, "float32", "x")
    words = philox(seed, salt, place, out=TensorType(shape, "u32"))

    def noisy(*i: Any) -> Any:
        unit = (words(*i) >> tirx.const(8, "uint32")).astype("float32") * tirx.const(2.0**-24, "float32")
        return x(*i) + unit

    return te.create_prim_func([seed, salt, place, x, te.compute(shape, noisy, "noisy")])


@pytest.mark.parametrize("shape", [(3,), (5, 7), (1025,), (2, 3, 11), (40, 130)], ids=str)
def test_draws_evaluate_a_counter_once_and_join_what_follows(shape: tuple[int, ...]) -> None:
    func = drawn(shape)
    same_bits(func, SEED, SALT, PLACE, numbers(*shape), rule="philox")
    text = emulator.compile(scheduled(func), GPU).text
    assert text.count("3528531795") == 10  # a multiplier of each round: one evaluation
