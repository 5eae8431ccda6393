"""Moves of elements as views: the element at an index is the one of the source at the view's index."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from sexpgpu.graph.core import Builder, Value, order
from sexpgpu.ops import OPS
from sexpgpu.ops.strided_views import Views, view_of
from sexpgpu.ops.types import TensorType

MOVES = ("transpose", "slice", "reshape")


def moved(b: Builder, x: Value, rng: random.Random) -> Value:
    """A move of ``x``; a reshape joins two axes or splits one."""
    shape, which = x.type.shape, rng.choice(MOVES)
    axis = rng.randrange(len(shape))
    if which == "transpose":
        return b("transpose", x, perm=tuple(rng.sample(range(len(shape)), len(shape))))
    if which == "slice":
        start = rng.randrange(shape[axis])
        return b("slice", x, axis=axis, start=start, stop=rng.randint(start + 1, shape[axis]))
    if rng.random() < 0.3 and axis + 1 < len(shape):
        return b("reshape", x, shape=(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))
    factor = rng.choice([n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0])
    return b("reshape", x, shape=(*shape[:axis], factor, shape[axis] // factor, *shape[axis + 1 :]))


def chain(seed: int) -> tuple[Value, Value]:
    rng, b = random.Random(seed), Builder()
    x = y = b.input("x", TensorType(tuple(rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(3)), "f32"))
    for _ in range(rng.randint(1, 4)):
        y = moved(b, y, rng)
    return x, y


def evaluated(y: Value, x: Value, array: np.ndarray) -> np.ndarray:
    return array if y is x else OPS[y.op].ref(np, evaluated(y.args[0], x, array), **y.attrs)


@pytest.mark.parametrize("part", range(4))
def test_elements_are_those_of_the_source(part: int) -> None:
    views = 0
    for seed in range(100 * part, 100 * part + 100):
        x, y = chain(seed)
        view = view_of(y)
        if view is None:
            continue
        views += 1
        array = np.arange(x.type.size, dtype="f4").reshape(x.type.shape)
        source = evaluated(view.source, x, array).reshape(view.lies)
        for at in itertools.product(*map(range, y.type.shape)):
            index = tuple(i.const + sum(factor * at[axis] for axis, factor in i.factors) for i in view.index)
            assert source[index] == evaluated(y, x, array)[at], (seed, at)
        last = view.index[-1]
        assert (last.const, last.factors) == (0, ((len(y.type.shape) - 1, 1),))
        assert view.lies[-1] == y.type.shape[-1]
    assert views > 15


def heads(b: Builder, shape: tuple[int, ...]) -> tuple[list[Value], Value, Value]:
    """Attention of heads that are parts of one product's columns: its q, k and v, its result, and that joined again."""
    joined = b.input("joined", TensorType((*shape[:2], 3 * shape[2] * shape[3]), "f32"))
    width = shape[2] * shape[3]
    parts = [b("slice", joined, axis=2, start=n * width, stop=(n + 1) * width) for n in range(3)]
    q, k, v = (b("transpose", b("reshape", x, shape=shape), perm=(0, 2, 1, 3)) for x in parts)
    y = b("attend", q, k, v, causal=True)
    return [q, k, v], y, b("transpose", y, perm=(0, 2, 1, 3))


def test_heads_are_read_and_written_where_they_lie() -> None:
    b = Builder()
    given, y, out = heads(b, (2, 5, 4, 8))
    square = b("square", out)
    views = Views.of(order([square]), {square})
    assert [views.reads[y, n].lies for n in range(3)] == [(2, 5, 12, 8)] * 3
    assert views.written == {y: out} and views.unmade >= set(given)


def test_what_is_needed_elsewhere_is_made() -> None:
    """A key that is an output, and a result that two values read."""
    b = Builder()
    (q, k, v), y, out = heads(b, (2, 5, 4, 8))
    twice = b("+", out, b("square", b("transpose", y, perm=(0, 2, 1, 3))))
    views = Views.of(order([twice, k]), {twice, k})
    assert k not in views.unmade and q in views.unmade and views.written == {}
