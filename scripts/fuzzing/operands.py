"""A random program in the making: its values, and which of them, or which new input, a further step works on."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from sexpgpu.graph.core import Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.ops.types import TensorType

from .programs import SEED, Input, Step, builder, numbers

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 61, 64, 65, 100, 127, 128, 131)
LONG = (255, 257, 300, 509, 1000, 1021, 2048, 3001, 4099, 8191)
SIZES = (30_000,) * 6 + (150_000,) * 3 + (1_200_000,)  # elements of a value, at most
FAR = 1e4  # a float that is larger is not built on: what follows would be infinities and NaN
FLOATS, INTS = ("f32", "bf16"), ("i32", "i64", "u8", "u32")
Shape = tuple[int, ...]


class Operands:
    """A program in the making. A value is known by its number: below zero an input's, which can be added later."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.limit = self.rng.choice(SIZES)
        self.floats = self.rng.choice((("f32",),) * 2 + (FLOATS,))
        self.inputs: list[tuple[Input, Value]] = []
        self.steps: list[tuple[Step, Value]] = []
        self.feeds = {"seed": SEED}
        self.b = builder()

    def value(self, n: int) -> Value:
        return self.inputs[-n - 1][1] if n < 0 else self.steps[n][1]

    def type(self, n: int) -> TensorType:
        return self.value(n).type

    def numbers(self) -> range:
        return range(-len(self.inputs), len(self.steps))

    def new(self, dtype: str, shape: Shape, kind: str = "") -> int:
        """Another input."""
        kind = kind or (self.rng.choice(("normal", "normal", "whole", "positive")) if dtype in FLOATS else "normal")
        n = len(self.inputs)
        v = self.b.input(f"x{n}", TensorType(shape, dtype))
        self.inputs.append(((dtype, shape, kind), v))
        self.feeds[v.name] = numbers(np.random.default_rng([0, *v.name.encode()]), v.type, kind)
        return -n - 1

    def step(self, op: str, *args: int, **attrs: Any) -> int:
        """Raises TypeFault or ShapeFault, or ValueError where the result is too large, in elements or in size."""
        v = self.b(op, *(self.value(a) for a in args), **attrs)
        if v.type.size > self.limit:
            raise ValueError("too many elements")
        (y,) = evaluate((v,), self.feeds, wide=True)
        if y.dtype.kind == "f" and not (np.abs(y) < FAR).all():
            raise ValueError("too large, or no number")
        self.steps.append(((op, args, attrs), v))
        return len(self.steps) - 1

    def shape(self) -> Shape:
        """Of one to four axes, one of which may be long."""
        rank = self.rng.choice((1, 2, 2, 2, 3, 3, 4))
        dims = [self.rng.choice(EXTENTS[:12] if rank > 2 else EXTENTS) for _ in range(rank)]
        if self.rng.random() < 0.5:
            dims[self.rng.randrange(rank)] = self.rng.choice(LONG if self.rng.random() < 0.6 else EXTENTS)
        ones = self.rng.choice((0, 0, 0, 0.3, 0.8))  # what is of one element, or of one row, is often a case of its own
        dims = [1 if self.rng.random() < ones else d for d in dims]
        while math.prod(dims) > self.limit:
            n = dims.index(max(dims))
            dims[n] = max(1, dims[n] // self.rng.randint(2, 9))
        return tuple(dims)

    def operand(self, *dtypes: str, rank: int = 0) -> int:
        """A value of one of ``dtypes``, rather a late one, or a new input."""
        fits = [n for n in self.numbers() if self.type(n).dtype in dtypes and self.type(n).rank >= rank]
        fits += [n for n in fits if n >= len(self.steps) - 3] * 8
        if fits and self.rng.random() < 0.95:
            return self.rng.choice(fits)
        shape = self.shape()
        return self.new(self.rng.choice([d for d in dtypes if d not in FLOATS or d in self.floats]),
                        (2,) * (rank - len(shape)) + shape)  # fmt: skip

    def like(self, n: int) -> int:
        """A value that broadcasts with ``n``, of its dtype."""
        t = self.type(n)
        fits = [m for m in self.numbers() if self.type(m).dtype == t.dtype and broadcast(self.type(m).shape, t.shape)]
        if self.rng.random() < 0.6:
            return self.rng.choice(fits)
        dims = [1 if self.rng.random() < 0.25 else d for d in t.shape]
        return self.new(t.dtype, tuple(dims[self.rng.choice((0, 0, 0, 1)) :]))

    def indices(self, shape: Shape) -> int:
        return self.new(self.rng.choice(("i32", "i32", "i64", "u8")), shape, "index")

    def axes(self, n: int) -> tuple[int, ...]:
        rank = self.type(n).rank
        return tuple(a for a in range(rank) if self.rng.random() < 0.5) or (self.rng.randrange(rank),)

    def axis(self, n: int) -> int:
        rank = self.type(n).rank
        return rank - 1 if self.rng.random() < 0.4 else self.rng.randrange(rank)

    def operand_and_axis(self, *dtypes: str) -> tuple[int, int]:
        n = self.operand(*dtypes, rank=1)
        return n, self.axis(n)


def broadcast(first: Shape, second: Shape) -> bool:
    """Do two shapes broadcast?"""
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(first), reversed(second), strict=False))
