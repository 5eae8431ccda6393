"""Accumulators of a reduction: slots of partial results, one a lane of the reduction tree.

A sum, product or extremum has a value a slot; sums of products use a fused multiply-add an element. An argmax has the
best key so far and its index. Sums of bfloat16 and float16 are kept in float32. The order in which slots are filled and
combined is the caller's (``reduction.py``, ``gpu/threads/warp_reduce.py``): it decides the bits of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
from tvm import tirx

from .argmax import beats, extreme, is_argmax
from .builder import Expr, Stmt, load, scratch, seq, store
from .context import NestContext
from .inline import ScalarWriter
from .stages import Stage


class Accumulator(Protocol):
    """Slots of partial results."""

    @property
    def buffers(self) -> list[Any]: ...

    def start(self, slot: Expr, first: Expr) -> Stmt:
        """Initializes a slot. ``first``: index of the first element that will be added to it."""
        ...

    def add(self, ctx: NestContext, coords: dict[Any, Expr], slot: Expr) -> Stmt:
        """Adds the element at ``coords`` (axis variable -> index) to a slot."""
        ...

    def combine(self, slot: Expr, other: Expr) -> Stmt:
        """Combines slot ``other`` into ``slot``."""
        ...

    def result(self, slot: Expr) -> Expr:
        """The value of a slot, in the dtype of the stage's buffer."""
        ...


def accumulator(stage: Stage, width: int) -> Accumulator:
    """An accumulator of ``width`` slots. Its buffers are allocated by the caller, around their use."""
    if is_argmax(stage):
        return ArgmaxAccumulator(
            stage, scratch([width], str(stage.value.ty.dtype), "key"), scratch([width], "int32", "index")
        )
    return Partial(stage, scratch([width], partial_type(stage), "acc"))


def partial_type(stage: Stage) -> str:
    """The dtype of partial results: float32 for half precision, else that of the result."""
    # bfloat16 has 8 significant bits: a sum of ones in it would stop at 256.
    dtype = str(stage.buffer.dtype)
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def in_type(value: Expr, dtype: str) -> Expr:
    """``value`` cast to ``dtype``; itself where it has it."""
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def factors(value: Expr, binds: Sequence[Any]) -> tuple[Expr, Expr] | None:
    """Both factors of a float32 or float64 product, else None. ``binds`` resolve a variable that stands for it."""
    product = next((b.value for b in binds if b.var.same_as(value)), value)
    is_product = isinstance(product, tirx.Mul) and str(product.ty.dtype) in ("float32", "float64")
    return (product.a, product.b) if is_product else None


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a b + c, rounded once.

    The operation is named, since bits depend on it: left to itself, LLVM contracts a product and a sum where it sees
    them side by side, and for a short loop that follows from the code around it."""
    return tirx.call_llvm_pure_intrin(str(c.ty.dtype), "llvm.fma", a, b, c)


@attrs.frozen(eq=False)
class Partial:
    """A sum, product or extremum."""

    stage: Stage
    acc: Any

    @property
    def buffers(self) -> list[Any]:
        return [self.acc]

    def start(self, slot: Expr, first: Expr) -> Stmt:
        assert self.stage.reduction is not None
        return store(self.acc, tirx.const(self.stage.reduction.init.value, str(self.acc.dtype)), slot)

    def add(self, ctx: NestContext, coords: dict[Any, Expr], slot: Expr) -> Stmt:
        assert self.stage.reduction is not None
        writer = ScalarWriter(ctx.virtual)
        value = writer.write(in_type(self.stage.value, str(self.acc.dtype)), coords)
        # A summed product is fused in every nest, as in a matmul: so its bits do not depend on the nest that takes it.
        factor_pair = factors(value, writer.binds) if self.stage.reduction.kind == "sum" else None
        before = load(self.acc, slot)
        after = fma(*factor_pair, before) if factor_pair else self.stage.reduction.combine(before, value)
        return seq([*writer.binds, store(self.acc, after, slot)])

    def combine(self, slot: Expr, other: Expr) -> Stmt:
        assert self.stage.reduction is not None
        return store(self.acc, self.stage.reduction.combine(load(self.acc, slot), load(self.acc, other)), slot)

    def result(self, slot: Expr) -> Expr:
        return in_type(load(self.acc, slot), str(self.stage.buffer.dtype))


@attrs.frozen(eq=False)
class ArgmaxAccumulator:
    """The most extreme key and the smallest index that has it.

    A slot sees indices in rising order, so that only a strictly better key replaces its own. Where two slots are
    combined, equal keys keep the smaller index."""

    stage: Stage
    keys: Any
    indices: Any

    @property
    def buffers(self) -> list[Any]:
        return [self.keys, self.indices]

    def start(self, slot: Expr, first: Expr) -> Stmt:
        assert self.stage.reduction is not None
        worst = tirx.const(self.stage.reduction.init.value, str(self.keys.dtype))
        return seq([store(self.keys, worst, slot), store(self.indices, in_type(first, "int32"), slot)])

    def add(self, ctx: NestContext, coords: dict[Any, Expr], slot: Expr) -> Stmt:
        writer = ScalarWriter(ctx.virtual)
        key, best = writer.bind(writer.write(self.stage.value, coords), "key"), load(self.keys, slot)
        index = in_type(coords[self.stage.reduce[0].var], "int32")
        # A Select and no branch, so that all lanes of a vector do the same.
        chosen = tirx.Select(beats(self.stage, key, best), index, load(self.indices, slot))
        return seq([*writer.binds, *self._store(slot, chosen, extreme(self.stage, best, key))])

    def combine(self, slot: Expr, other: Expr) -> Stmt:
        a, b = load(self.keys, slot), load(self.keys, other)
        i, j = load(self.indices, slot), load(self.indices, other)
        # Lanes take elements in turn, so either slot may have met the key first: the smaller index wins.
        equal = tirx.Select(tirx.EQ(a, b), tirx.Min(i, j), i)
        chosen = tirx.Select(beats(self.stage, b, a), j, equal)
        return seq(self._store(slot, chosen, extreme(self.stage, a, b)))

    def _store(self, slot: Expr, index: Expr, key: Expr) -> Sequence[Stmt]:
        """Stores the index first: its expression reads the key that the second store replaces."""
        return [store(self.indices, index, slot), store(self.keys, key, slot)]

    def result(self, slot: Expr) -> Expr:
        return in_type(load(self.indices, slot), str(self.stage.buffer.dtype))


__all__ = ["Accumulator", "accumulator"]
