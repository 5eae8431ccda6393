"""Random words by Philox4x32-10 (Salmon et al. 2011), recognized: one counter gives four words, used by four elements.

A draw is an elementwise stage whose value at element e is word e mod 4 of counter e / 4. Evaluated element by
element, each counter would be computed four times. Its nest computes each counter once, puts the four words into the
order of the elements (CPU: shuffles; GPU: shared memory), and does the elementwise stages that follow on these
elements. Words are integers: no order changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx
from tvm.sym import Analyzer

from .access import Access, merged_tail, reads_of, write_of
from .builder import Expr, i64, is_int
from .context import NestContext
from .point_writer import elementwise_group
from .rewrite import rewrite
from .stages import Axis, Stage, substitute, variables

WORDS = 4  # of 32 bits, that a counter gives


@attrs.frozen(eq=False)
class Draw:
    """A draw as expressions of its counter.

    counter: a uint64 variable, the element's number divided by four
    fixed:   (variable, value) pairs that are the same for every counter: the key
    names:   (variable, value) pairs that depend on the counter: the rounds, in order
    words:   the four words, in terms of all these
    """

    counter: Any
    fixed: tuple[tuple[Any, Expr], ...]
    names: tuple[tuple[Any, Expr], ...]
    words: tuple[Expr, ...]


def read_draw(stage: Stage) -> Draw | None:
    """The draw that the stage is, None for a stage of any other form."""
    if not stage.is_elementwise or not isinstance(stage.value, tirx.Let):
        return None
    value, bindings = stage.value, []
    while isinstance(value, tirx.Let):
        bindings.append((value.var, value.value))
        value = value.body
    words = _match_word_select(value, stage.space)
    if words is None:
        return None
    counter = tirx.Var("counter", "uint64")
    rewritten = [(var, _in_terms_of_counter(expr, counter, stage.space)) for var, expr in bindings]
    if any(variables(expr) & {a.var for a in stage.space} for expr in [*words, *(e for _, e in rewritten)]):
        return None
    # The key is split off, so that a nest derives it once, in front of its loop over counters.
    varying, fixed, dependent = {counter}, [], []
    for var, expr in rewritten:
        varies = bool(variables(expr) & varying)
        (dependent if varies else fixed).append((var, expr))
        varying |= {var} if varies else set()
    return Draw(counter, tuple(fixed), tuple(dependent), words)


def _flat_index(space: Sequence[Axis]) -> Expr:
    """The row-major number of the element at the axes' indices."""
    strides = [prod(a.extent for a in space[n + 1 :]) for n in range(len(space))]
    return sum((a.var * i64(s) for a, s in zip(space, strides, strict=True)), i64(0))


def _match_word_select(value: Expr, space: Sequence[Axis]) -> tuple[Expr, ...] | None:
    """The words of ``e % 4 == 0 ? a : e % 4 == 1 ? b : e % 4 == 2 ? c : d``, e the number of the element."""
    words = []
    for n in range(WORDS - 1):
        if not isinstance(value, tirx.Select) or not _tests_remainder(value.condition, n, space):
            return None
        words.append(value.true_value)
        value = value.false_value
    return (*words, value)


def _tests_remainder(test: Expr, n: int, space: Sequence[Axis]) -> bool:
    """Is ``test`` the condition e % 4 == n, e the number of the element?"""
    mod = test.a if isinstance(test, tirx.EQ) and is_int(test.b, n) else None
    if not isinstance(mod, tirx.FloorMod | tirx.Mod) or not is_int(mod.b, WORDS):
        return False
    # Up to simplification: the form of the element's number depends on the axes that the shape has.
    return is_int(Analyzer().simplify(tirx.floormod(mod.a - _flat_index(space), i64(WORDS))), 0)


def _in_terms_of_counter(expr: Expr, counter: Any, space: Sequence[Axis]) -> Expr:
    """``expr`` with the number of the element, shifted right by two, replaced by the counter."""

    def counter_of(node: Any) -> Expr:
        cast = node.a
        if not isinstance(cast, tirx.Cast) or not is_int(node.b, 2) or str(node.ty.dtype) != "uint64":
            return node
        return counter if is_int(Analyzer().simplify(cast.value - _flat_index(space)), 0) else node

    return rewrite(expr, [(tirx.RShift, counter_of)])


def draw_group(ctx: NestContext, stages: Sequence[Stage]) -> list[Stage] | None:
    """The stages of the nest, if ``stages`` begin with a draw, else None.

    The elementwise stages after it are fused if all their accesses are in the order of the elements' numbers, as four
    neighbours come at once; else the draw is alone, and its words go to memory."""
    if read_draw(stages[0]) is None:
        return None
    group = elementwise_group(ctx, stages)
    return group if _is_in_memory_order(ctx, group) else group[:1]


def _is_in_memory_order(ctx: NestContext, stages: Sequence[Stage]) -> bool:
    axes, accesses = stages[0].space, []
    for stage in stages:
        axis_map = {a.var: b.var for a, b in zip(stage.space, axes, strict=True)}
        reads = [] if read_draw(stage) else reads_of(ctx, stage)
        for access in [*reads, write_of(stage)]:
            accesses.append(Access(access.buffer, tuple(substitute(i, axis_map) for i in access.indices)))
    return merged_tail(axes, accesses) == len(axes)
