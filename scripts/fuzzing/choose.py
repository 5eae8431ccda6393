"""Random programs out of the operator table."""

from __future__ import annotations

from typing import Any

from sexpgpu.ops.types import ShapeFault, TypeFault

from .operands import EXTENTS, FLOATS, INTS, Operands, Shape
from .programs import Program, words

UNARY = words("""
neg abs sign exp log log1p expm1 sqrt rsqrt square sin cos tanh sigmoid erf floor ceil round relu gelu silu
softplus stop-gradient gelu silu sigmoid tanh
""")
OF_POSITIVE = ("log", "sqrt", "rsqrt", "log1p")
PAIRS = words("+ - * / min max pow mod floordiv + - *")
WHOLE_PAIRS = words("+ - * min max mod quot floordiv bit-and bit-or bit-xor shift-left shift-right")
TESTS = words("= /= < <= > >=")
REDUCTIONS = words("sum mean reduce-max reduce-min logsumexp variance prod sum mean")


class Chooser(Operands):
    """Kinds of steps: a method adds one or more steps of its kind, or raises as ``step`` does."""

    def unary(self) -> None:
        x, op = self.operand(*FLOATS), self.rng.choice(UNARY)
        if op in OF_POSITIVE:
            x = self.step(self.rng.choice(("abs", "exp", "softplus", "square")), x)
        self.step(op, x)

    def pair(self) -> None:
        x, op = self.operand(*FLOATS), self.rng.choice(PAIRS)
        args = [x, self.like(x)] if self.rng.random() < 0.7 else [self.like(x), x]
        if op in ("/", "mod", "floordiv"):
            args[1] = self.step(
                "+", self.step("abs", args[1]), self.step("full", shape=(), value=0.5, dtype=self.type(x).dtype)
            )
        if op == "pow":
            args[0] = self.step("softplus", args[0])
        self.step(op, *args)

    def scaled(self) -> None:
        x = self.operand(*FLOATS)
        value = self.rng.choice((0.5, 2.0, -1.0, 0.1, 3.0, 0.0))
        self.step(self.rng.choice("+-*"), x, self.step("full", shape=(), value=value, dtype=self.type(x).dtype))

    def whole(self) -> None:
        x = self.operand(*INTS)
        if self.rng.random() < 0.2:
            self.step(self.rng.choice(("neg", "abs", "sign", "square")), x)
        else:
            self.step(self.rng.choice(WHOLE_PAIRS), x, self.like(x))

    def test(self) -> None:
        x = self.operand(*FLOATS, *INTS)
        self.step(self.rng.choice(TESTS), x, self.like(x))

    def truth(self) -> None:
        x, op = self.operand("bool"), self.rng.choice(("and", "or", "not"))
        self.step(op, x, *([] if op == "not" else [self.like(x)]))

    def chosen(self) -> None:
        """where, its condition made of a comparison or given."""
        x = self.operand(*FLOATS, *INTS)
        condition = self.step("<", x, self.like(x)) if self.rng.random() < 0.5 else self.new("bool", self.type(x).shape)
        self.step("where", condition, x, self.like(x))

    def cast(self) -> None:
        self.step(
            "cast", self.operand(*FLOATS, *INTS, "bool"), dtype=self.rng.choice((*self.floats, *self.floats, *INTS))
        )

    def reduction(self) -> None:
        x, op = self.operand(*FLOATS, *INTS, rank=1), self.rng.choice(REDUCTIONS)
        self.step(op, x, axes=self.axes(x), keepdims=self.rng.random() < 0.5)

    def extreme(self) -> None:
        x, axis = self.operand_and_axis(*FLOATS, *INTS)
        self.step(self.rng.choice(("argmax", "argmin")), x, axis=axis, keepdims=self.rng.random() < 0.3)

    def any_of(self) -> None:
        x = self.operand("bool", rank=1)
        self.step(self.rng.choice(("any", "all")), x, axes=self.axes(x))

    def running(self) -> None:
        x, axis = self.operand_and_axis(*FLOATS, *INTS)
        self.step("cumsum", x, axis=axis, reverse=self.rng.random() < 0.4)

    def along_rows(self) -> None:
        x, axis = self.operand_and_axis(*FLOATS)
        op = self.rng.choice(("softmax", "log-softmax", "normalize", "rms-normalize"))
        attrs = {"axis": axis} if "softmax" in op else {"axes": self.axes(x), "eps": self.rng.choice((1e-5, 1e-3))}
        self.step(op, x, **attrs)

    def entropy(self) -> None:
        x = self.operand(*FLOATS, rank=1)
        self.step("cross-entropy", x, self.indices(self.type(x).shape[:-1]))

    def product(self) -> None:
        x = self.operand(*FLOATS, rank=2)
        t, ta, tb = self.type(x), self.rng.random() < 0.3, self.rng.random() < 0.3
        depth, n = t.shape[-2 if ta else -1], self.rng.choice(EXTENTS)
        batch = self.rng.choice(((), t.shape[:-2], tuple(1 if self.rng.random() < 0.3 else d for d in t.shape[:-2])))
        y = self.new(t.dtype, (*batch, n, depth) if tb else (*batch, depth, n))
        if self.rng.random() < 0.25:  # the other way round
            x, y, ta, tb = y, x, not tb, not ta
        self.step("matmul", x, y, ta=ta, tb=tb)

    def rounded_product(self) -> None:
        """As models make them under ``:precision :bf16``: of float32 rounded to bf16, maybe handed on as float32."""
        x = self.operand("f32", rank=2)
        lead, depth = self.type(x).shape[:-2], self.type(x).shape[-1]
        y = x if self.type(x).shape[-2] == depth else self.new("f32", (*lead, depth, self.rng.choice(EXTENTS)))
        made = self.step("matmul", *(self.step("cast", v, dtype="bf16") for v in (x, y)), ta=False, tb=False)
        if self.rng.random() < 0.5:
            self.step("cast", made, dtype="f32")

    def attention(self) -> None:
        q = self.operand(*FLOATS, rank=2)
        t, causal = self.type(q), self.rng.random() < 0.4
        keys = t.shape[-2] if causal else self.rng.choice(EXTENTS)
        lead, depth = t.shape[:-2], t.shape[-1]
        k = q if causal and self.rng.random() < 0.3 else self.new(t.dtype, (*lead, keys, depth))
        v = self.new(t.dtype, (*lead, keys, self.rng.choice((depth, *EXTENTS[:10]))))
        mask = [self.new("bool", (t.shape[-2], keys))] if self.rng.random() < 0.3 else []
        self.step("attention", q, k, v, *mask, causal=causal)

    def moved(self) -> None:
        x = self.operand(*FLOATS, *FLOATS, *INTS, "bool", rank=1)
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
        x, axis = self.operand_and_axis(*FLOATS, *INTS, "bool")
        t = self.type(x)
        others = []
        for _ in range(self.rng.choice((1, 2))):
            shape = (*t.shape[:axis], self.rng.choice(EXTENTS[:9]), *t.shape[axis + 1 :])
            others.append(x if self.rng.random() < 0.5 else self.new(t.dtype, shape))
        self.step("concat", *self.rng.sample([x, *others], len(others) + 1), axis=axis)

    def looked_up(self) -> None:
        x, axis = self.operand_and_axis(*FLOATS, *INTS)
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
        x = self.operand(*FLOATS, *INTS, rank=1)
        t, count = self.type(x), self.rng.choice(((), (5,), (3, 4), (70,), (300,)))
        updates = self.new(t.dtype, (*count, *t.shape[1:]))
        self.step("scatter-add", x, self.indices(count), updates)

    def written(self) -> None:
        x, axis = self.operand_and_axis(*FLOATS, *INTS)
        shape = self.type(x).shape
        part = tuple(self.rng.randint(1, n) for n in shape)
        at = [self.indices(())] if self.rng.random() < 0.6 else []
        starts = tuple(self.rng.randint(0, n - m) for n, m in zip(shape, part, strict=True))
        self.step("update-slice", x, self.new(self.type(x).dtype, part), *at, starts=starts, axis=axis)

    def made(self) -> None:
        """Out of nothing, or of a matrix: a triangle, one-hot rows, random numbers."""
        op = self.rng.choice(("iota", "one-hot", "tril", "triu", "random-uniform", "random-normal", "random-bits"))
        if op in ("tril", "triu"):
            self.step(op, self.operand(*FLOATS, rank=2), diagonal=self.rng.choice((-1, 0, 1)))
        elif op == "one-hot":
            self.step(op, self.operand(*INTS), depth=self.rng.choice(EXTENTS[:12]), dtype="f32")
        else:
            shape = self.type(self.operand("f32", rank=1)).shape
            self.step(
                op, shape=shape, **({"axis": self.rng.randrange(len(shape)), "dtype": "i32"} if op == "iota" else {})
            )

    def dropped(self) -> None:
        self.step("dropout", self.operand("f32"), rate=self.rng.choice((0.1, 0.5)))


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
