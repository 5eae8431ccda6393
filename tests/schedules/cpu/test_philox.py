"""Random words: four from one evaluation, in the order of the elements, joined by the stages that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx

import schedules
from lowering.kernels.registry import philox
from schedules.cpu.plan import make_plan
from sexpgpu.ops.random import bits_ref
from sexpgpu.ops.types import TensorType
from tests.schedules.tensor_programs import V3, V4, build, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

F = "float32"
SEED = np.array([123, 2**32 - 5], "uint32")
SALT = np.array(-77777777777, "int64")
PLACES = (np.array([3], "uint32"), np.array([2**32 - 1], "uint32"))
SHAPES = [(3,), (5, 7), (31,), (32,), (33,), (2, 3, 11), (4, 64), (70, 130)]


def draws(shape: tuple[int, ...], use: Callable[..., Any], *extra: tuple[int, ...], count: int = 1) -> Any:
    """``use(shape, words.., extra inputs..)`` of ``count`` draws; parameters: seed, salt, places, extra inputs, out."""
    seed, salt = te.placeholder((2,), "uint32", "seed"), te.placeholder((), "int64", "salt")
    places = [te.placeholder((1,), "uint32", f"place{n}") for n in range(count)]
    more = [te.placeholder(s, F, f"x{n}") for n, s in enumerate(extra)]
    made = [philox(seed, salt, place, out=TensorType(shape, "u32")) for place in places]
    return te.create_prim_func([seed, salt, *places, *more, use(shape, *made, *more)])


def random_words(shape: tuple[int, ...], n: int = 0) -> np.ndarray:
    return bits_ref(np, SEED, SALT, shape, int(PLACES[n][0]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_words_are_those_of_the_row(shape: tuple[int, ...]) -> None:
    built = build(draws(shape, lambda _, made: made))
    assert built.rule == "philox"
    assert np.array_equal(built.run(SEED, SALT, PLACES[0])[0], random_words(shape))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_a_single_word(shape: tuple[int, ...]) -> None:
    assert np.array_equal(build(draws(shape, lambda _, made: made)).run(SEED, SALT, PLACES[0])[0], random_words(shape))


def unit(w: Any) -> Any:
    return (w >> tirx.const(8, "uint32")).astype(F) * tirx.const(2.0**-24, F)


def masked(shape: Any, w: Any, x: Any) -> Any:
    """Dropout: the words are used where they were made."""
    keep = te.compute(shape, lambda *i: unit(w(*i)) < tirx.const(0.75, F), "keep")
    return te.compute(shape, lambda *i: tirx.Select(keep(*i), x(*i) * tirx.const(2.0, F), tirx.const(0.0, F)), "drop")


def dropout_reference(shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    return np.where(
        (random_words(shape) >> 8).astype(F) * np.float32(2.0**-24) < 0.75, x * np.float32(2), np.float32(0)
    )


def normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(F)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_follows_is_done_on_the_words(shape: tuple[int, ...]) -> None:
    built, x = build(draws(shape, masked, shape)), normal(shape)
    assert built.rule == "philox"
    assert np.array_equal(built.run(SEED, SALT, PLACES[0], x)[0], dropout_reference(shape, x))


def test_an_input_may_be_overwritten() -> None:
    from tvm.runtime import tensor

    shape = (7, 45)
    func = draws(shape, masked, shape).without_attr("tirx.noalias").with_attr("in_place", [[3, 4]])
    x = normal(shape)
    memory = tensor(x)
    build(func).call(tensor(SEED), tensor(SALT), tensor(PLACES[0]), memory, memory)
    assert np.array_equal(memory.numpy(), dropout_reference(shape, x))


def test_two_draws_meet() -> None:
    shape = (33, 5)
    built = build(draws(shape, lambda s, a, b: te.compute(s, lambda *i: a(*i) ^ b(*i), "both"), count=2))
    assert built.rule == "philox"
    assert np.array_equal(built.run(SEED, SALT, *PLACES)[0], random_words(shape) ^ random_words(shape, 1))


def largest(shape: tuple[int, ...], w: Any) -> Any:
    k = te.reduce_axis((0, shape[1]), "k")
    return te.compute(shape[:1], lambda i: te.max(w(i, k), axis=k), "largest")


OTHER = {  # name -> what is made of the words, the same in NumPy
    "turned": (lambda s, w: te.compute(s[::-1], lambda i, j: w(j, i), "turned"), lambda w: w.T),
    "a neighbour": (
        lambda s, w: te.compute(s, lambda i, j: w(i, j) ^ w(i, (j + 1) % s[1]), "near"), lambda w: w ^ np.roll(w, -1, 1)
    ),
    "the largest of a row": (largest, lambda w: w.max(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_words_used_in_another_order_are_kept_first(name: str) -> None:
    shape, (use, want) = (37, 45), OTHER[name]
    assert np.array_equal(build(draws(shape, use)).run(SEED, SALT, PLACES[0])[0], want(random_words(shape)))


def test_a_row_of_factors_beside_the_words() -> None:
    shape, x = (37, 45), normal((45,))
    func = draws(shape, lambda s, w, x: te.compute(s, lambda i, j: unit(w(i, j)) * x(j), "scaled"), (45,))
    # No vector runs over the end of a row.
    assert make_plan(func, schedules.TARGETS[V3]).kinds == ("philox", "elementwise")
    want = (random_words(shape) >> 8).astype(F) * np.float32(2.0**-24) * x
    assert np.array_equal(build(func).run(SEED, SALT, PLACES[0], x)[0], want)


def test_bits_depend_neither_on_threads_nor_on_the_level() -> None:
    shape, seen = (300, 301), set()
    x = normal(shape)
    for target in (V3, V4):
        code = target if runs_here(target) else V3  # blocks of 64 elements in AVX2 instructions
        built = build(draws(shape, masked, shape), target, code)
        for count in (1, 2, 3):
            threads(count)
            seen.add(built.run(SEED, SALT, PLACES[0], x)[0].tobytes())
    threads(1)
    assert seen == {dropout_reference(shape, x).tobytes()}
