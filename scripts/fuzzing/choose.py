"""Random programs out of the operator table."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from sexpgpu.graph.core import Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.ops.types import ShapeFault, TensorType, TypeFault

from .programs import SEED, Input, Program, Step, builder, numbers, words

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 61, 64, 65, 100, 127, 128, 131)
LONG = (255, 257, 300, 509, 1000, 1021, 2048, 3001, 4099, 8191)
SIZES = (30_000,) * 6 + (150_000,) * 3 + (1_200_000,)  # elements of a value, at most
FAR = 1e4  # a float that is larger is not built on: what follows would be infinities and NaN
FLOATS, INTS = ("f32", "bf16"), ("i32", "i64", "u8", "u32")
Shape = tuple[int, ...]

UNARY = words("""
neg abs sign exp log log1p expm1 sqrt rsqrt square sin cos tanh sigmoid erf floor ceil round relu gelu silu
softplus stop-gradient gelu silu sigmoid tanh
""")
OF_POSITIVE = ("log", "sqrt", "rsqrt", "log1p")
PAIRS = words("+ - * / min max pow mod floordiv + - *")
WHOLE_PAIRS = words("+ - * min max mod quot floordiv bit-and bit-or bit-xor shift-left shift-right")
TESTS = words("= /= < <= > >=")
REDUCTIONS = words("sum mean reduce-max reduce-min logsumexp variance prod sum mean")


class Chooser:
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

    # -- what to work on -----------------------------------------------------------------------------------------------

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

    def some(self, *dtypes: str, rank: int = 0) -> int:
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
        fits = [m for m in self.numbers() if self.type(m).dtype == t.dtype and _meet(self.type(m).shape, t.shape)]
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

    def some_axis(self, *dtypes: str) -> tuple[int, int]:
        n = self.some(*dtypes, rank=1)
        return n, self.axis(n)

    # -- kinds of steps ------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        x, op = self.some(*FLOATS), self.rng.choice(UNARY)
        if op in OF_POSITIVE:
            x = self.step(self.rng.choice(("abs", "exp", "softplus", "square")), x)
        self.step(op, x)

    def pair(self) -> None:
        x, op = self.some(*FLOATS), self.rng.choice(PAIRS)
        args = [x, self.like(x)] if self.rng.random() < 0.7 else [self.like(x), x]
        if op in ("/", "mod", "floordiv"):
            args[1] = self.step(
                "+", self.step("abs", args[1]), self.step("full", shape=(), value=0.5, dtype=self.type(x).dtype)
            )
        if op == "pow":
            args[0] = self.step("softplus", args[0])
        self.step(op, *args)

    def scaled(self) -> None:
        x = self.some(*FLOATS)
        value = self.rng.choice((0.5, 2.0, -1.0, 0.1, 3.0, 0.0))
        self.step(self.rng.choice("+-*"), x, self.step("full", shape=(), value=value, dtype=self.type(x).dtype))

    def whole(self) -> None:
        x = self.some(*INTS)
        if self.rng.random() < 0.2:
            self.step(self.rng.choice(("neg", "abs", "sign", "square")), x)
        else:
            self.step(self.rng.choice(WHOLE_PAIRS), x, self.like(x))

    def test(self) -> None:
        x = self.some(*FLOATS, *INTS)
        self.step(self.rng.choice(TESTS), x, self.like(x))

    def truth(self) -> None:
        x, op = self.some("bool"), self.rng.choice(("and", "or", "not"))
        self.step(op, x, *([] if op == "not" else [self.like(x)]))

    def chosen(self) -> None:
        """where, its condition made of a comparison or given."""
        x = self.some(*FLOATS, *INTS)
        condition = self.step("<", x, self.like(x)) if self.rng.random() < 0.5 else self.new("bool", self.type(x).shape)
        self.step("where", condition, x, self.like(x))

    def cast(self) -> None:
        self.step("cast", self.some(*FLOATS, *INTS, "bool"), dtype=self.rng.choice((*self.floats, *self.floats, *INTS)))

    def reduction(self) -> None:
        x, op = self.some(*FLOATS, *INTS, rank=1), self.rng.choice(REDUCTIONS)
        self.step(op, x, axes=self.axes(x), keepdims=self.rng.random() < 0.5)

    def extreme(self) -> None:
        x, axis = self.some_axis(*FLOATS, *INTS)
        self.step(self.rng.choice(("argmax", "argmin")), x, axis=axis, keepdims=self.rng.random() < 0.3)

    def any_of(self) -> None:
        x = self.some("bool", rank=1)
        self.step(self.rng.choice(("any", "all")), x, axes=self.axes(x))

    def running(self) -> None:
        x, axis = self.some_axis(*FLOATS, *INTS)
        self.step("cumsum", x, axis=axis, reverse=self.rng.random() < 0.4)

    def along_rows(self) -> None:
        x, axis = self.some_axis(*FLOATS)
        op = self.rng.choice(("softmax", "log-softmax", "normalize", "rms-normalize"))
        attrs = {"axis": axis} if "softmax" in op else {"axes": self.axes(x), "eps": self.rng.choice((1e-5, 1e-3))}
        self.step(op, x, **attrs)

    def entropy(self) -> None:
        x = self.some(*FLOATS, rank=1)
        self.step("cross-entropy", x, self.indices(self.type(x).shape[:-1]))

    def product(self) -> None:
        x = self.some(*FLOATS, rank=2)
        t, ta, tb = self.type(x), self.rng.random() < 0.3, self.rng.random() < 0.3
        depth, n = t.shape[-2 if ta else -1], self.rng.choice(EXTENTS)
        batch = self.rng.choice(((), t.shape[:-2], tuple(1 if self.rng.random() < 0.3 else d for d in t.shape[:-2])))
        y = self.new(t.dtype, (*batch, n, depth) if tb else (*batch, depth, n))
        if self.rng.random() < 0.25:  # the other way round
            x, y, ta, tb = y, x, not tb, not ta
        self.step("matmul", x, y, ta=ta, tb=tb)

    def rounded_product(self) -> None:
        """As models make them under ``:precision :bf16``: of float32 rounded to bf16, maybe handed on as float32."""
        x = self.some("f32", rank=2)
        lead, depth = self.type(x).shape[:-2], self.type(x).shape[-1]
        y = x if self.type(x).shape[-2] == depth else self.new("f32", (*lead, depth, self.rng.choice(EXTENTS)))
        made = self.step("matmul", *(self.step("cast", v, dtype="bf16") for v in (x, y)), ta=False, tb=False)
        if self.rng.random() < 0.5:
            self.step("cast", made, dtype="f32")

    def attention(self) -> None:
        q = self.some(*FLOATS, rank=2)
        t, causal = self.type(q), self.rng.random() < 0.4
        keys = t.shape[-2] if causal else self.rng.choice(EXTENTS)
        lead, depth = t.shape[:-2], t.shape[-1]
        k = q if causal and self.rng.random() < 0.3 else self.new(t.dtype, (*lead, keys, depth))
        v = self.new(t.dtype, (*lead, keys, self.rng.choice((depth, *EXTENTS[:10]))))
        mask = [self.new("bool", (t.shape[-2], keys))] if self.rng.random() < 0.3 else []
        self.step("attention", q, k, v, *mask, causal=causal)

    def moved(self) -> None:
        x = self.some(*FLOATS, *FLOATS, *INTS, "bool", rank=1)
        shape, axis = self.type(x).shape, self.axis(x)
        op = self.rng.choice(
            ("reshape", "transpose", "transpose", "expand-dims", "flip", "roll", "repeat", "slice", "pad", "broadcast")
        )
        start = self.rng.randrange(shape[axis])
        attrs: dict[str, Any] = {
            "reshape": {"shape": self.regrouped(shape)},
            "transpose": {"perm": tuple(self.rng.sample(range(len(shape)), len(shape)))},
            "expand-dims": {"axis": self.rng.randrange(len(shape) + 1)},
            "flip": {"axes": self.axes(x)},
            "roll": {"shift": start, "axis": axis},
            "repeat": {"times": self.rng.choice((1, 2, 3)), "axis": axis},
            "slice": {"axis": axis, "from": start, "to": self.rng.randint(start + 1, shape[axis])},
            "pad": {"widths": tuple(self.rng.choice(((0, 0), (1, 2), (3, 0), (0, 5))) for _ in shape)},
            "broadcast": {"shape": (self.rng.choice((1, 2, 3)), *shape)},
        }[op]
        self.step(op, x, **attrs)

    def regrouped(self, shape: Shape) -> Shape:
        """Two neighbouring axes joined, or one cut."""
        n = self.rng.randrange(len(shape))
        if n + 1 < len(shape) and self.rng.random() < 0.5:
            return (*shape[:n], shape[n] * shape[n + 1], *shape[n + 2 :])
        parts = [d for d in range(1, min(shape[n], 64) + 1) if shape[n] % d == 0]
        d = self.rng.choice(parts)
        return (*shape[:n], d, shape[n] // d, *shape[n + 1 :])

    def joined(self) -> None:
        x, axis = self.some_axis(*FLOATS, *INTS, "bool")
        t = self.type(x)
        others = []
        for _ in range(self.rng.choice((1, 2))):
            shape = (*t.shape[:axis], self.rng.choice(EXTENTS[:9]), *t.shape[axis + 1 :])
            others.append(x if self.rng.random() < 0.5 else self.new(t.dtype, shape))
        self.step("concat", *self.rng.sample([x, *others], len(others) + 1), axis=axis)

    def looked_up(self) -> None:
        x, axis = self.some_axis(*FLOATS, *INTS)
        shape = self.type(x).shape
        if self.rng.random() < 0.5:
            self.step("gather", x, self.indices(self.rng.choice(((), (5,), (3, 4), (33,), (257,)))))
        else:
            self.step(
                "take-along",
                x,
                self.indices((*shape[:axis], self.rng.choice(EXTENTS[:9]), *shape[axis + 1 :])),
                axis=axis,
            )

    def scattered(self) -> None:
        x = self.some(*FLOATS, *INTS, rank=1)
        t, count = self.type(x), self.rng.choice(((), (5,), (3, 4), (70,), (300,)))
        updates = self.new(t.dtype, (*count, *t.shape[1:]))
        self.step("scatter-add", x, self.indices(count), updates)

    def written(self) -> None:
        x, axis = self.some_axis(*FLOATS, *INTS)
        shape = self.type(x).shape
        part = tuple(self.rng.randint(1, n) for n in shape)
        at = [self.indices(())] if self.rng.random() < 0.6 else []
        starts = tuple(self.rng.randint(0, n - m) for n, m in zip(shape, part, strict=True))
        self.step("update-slice", x, self.new(self.type(x).dtype, part), *at, starts=starts, axis=axis)

    def made(self) -> None:
        """Out of nothing, or of a matrix: a triangle, one-hot rows, random numbers."""
        op = self.rng.choice(("iota", "one-hot", "tril", "triu", "random-uniform", "random-normal", "random-bits"))
        if op in ("tril", "triu"):
            self.step(op, self.some(*FLOATS, rank=2), diagonal=self.rng.choice((-1, 0, 1)))
        elif op == "one-hot":
            self.step(op, self.some(*INTS), depth=self.rng.choice(EXTENTS[:12]), dtype="f32")
        else:
            shape = self.type(self.some("f32", rank=1)).shape
            self.step(
                op, shape=shape, **({"axis": self.rng.randrange(len(shape)), "dtype": "i32"} if op == "iota" else {})
            )

    def dropped(self) -> None:
        self.step("dropout", self.some("f32"), rate=self.rng.choice((0.1, 0.5)))


KINDS = (
    *("unary",) * 5, *("pair",) * 5, *("scaled",) * 2, "whole", "whole", "test", "truth", *("chosen",) * 2, "cast",
    *("reduction",) * 5, "extreme", "any_of", "running", *("along_rows",) * 3, "entropy", *("product",) * 4,
    "rounded_product", "rounded_product",
    *("attention",) * 2, *("moved",) * 6, *("joined",) * 2, *("looked_up",) * 2, "scattered", "written", "made",
    "dropped",
)  # fmt: skip


def program(seed: int) -> Program:
    """The program of ``seed``: 1 to 12 steps and what they need, one to three results, maybe gradients."""
    c = Chooser(seed)
    c.new("f32", c.shape())
    wanted, tries = c.rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 12)), 0
    while len(c.steps) < wanted and tries < 200:
        tries += 1
        kept = len(c.inputs), len(c.steps)
        try:
            getattr(c, c.rng.choice(KINDS))()
        except (TypeFault, ShapeFault, ValueError):
            del c.inputs[kept[0] :], c.steps[kept[1] :]
    return _finished(c)


def _finished(c: Chooser) -> Program:
    count = len(c.inputs)
    number = {n: -n - 1 if n < 0 else n + count for n in c.numbers()}
    steps = tuple((op, tuple(number[a] for a in args), attrs) for (op, args, attrs), _ in c.steps)
    used = {a for _, args, _ in steps for a in args}
    ends = [n for n in range(count, count + len(steps)) if n not in used]
    rest = [n for n in range(count, count + len(steps)) if n in used and c.rng.random() < 0.15]
    inputs = tuple(given for given, _ in c.inputs)
    floats = [n for n, (dtype, _, _) in enumerate(inputs) if dtype in FLOATS]
    gradients = tuple(n for n in floats if c.rng.random() < 0.6) if c.rng.random() < 0.6 else ()
    in_place = tuple(n for n in floats if c.rng.random() < 0.5) if c.rng.random() < 0.3 else ()
    even = c.rng.random() < 0.3
    return Program(inputs, steps, tuple(sorted((*ends, *rest))), gradients, in_place, even)


def _meet(one: Shape, other: Shape) -> bool:
    """Do two shapes broadcast?"""
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(other), strict=False))
