"""Matmul micro-kernel, as in BLIS: ``mr`` rows by ``nv`` vectors of C in registers, an outer product for each k.

An iteration loads ``nv`` vectors of B and broadcasts ``mr`` elements of A. Accumulators are one-vector buffers, which
LLVM keeps in registers. Each element is a single chain of fused multiply-adds in the order of k, so vector width and
tile change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tir.builder import UNROLLED, Expr, Stmt, i64, load, loop, scratch, seq, store
from ..tir.context import vector
from ..tir.let_buffers import bind_in_buffers
from ..tir.point_writer import store_result
from .matmul_tiling import MatmulPlan, coords_of, read_a, row_index

Spans = list[tuple[int, int, int]]  # a vector of a panel: first column, lanes computed, lanes stored
LoadB = Callable[[Expr, Expr, int], tuple[list[Stmt], Expr]]  # k, lane, first column -> binds, B's element
Accumulators = list[list[Any]]  # a buffer for each row and span

MAX_UNROLLED_FMAS = 48  # vector multiply-adds that the k loop has written out; chosen, not measured


def spans_of(plan: MatmulPlan, width: int) -> Spans:
    """The vectors of a panel of ``width`` columns. A packed panel is padded, and computed in full vectors."""
    lanes = plan.tile.lanes
    stored = [(first, min(lanes, width - first)) for first in range(0, width, lanes)]
    return [(first, lanes if plan.b_packing != "none" else size, size) for first, size in stored]


def accumulators_of(plan: MatmulPlan, spans: Spans) -> Accumulators:
    """Buffers that become registers."""
    return [[scratch([size], plan.dtype, "acc") for _, size, _ in spans] for _ in range(plan.tile.mr)]


def for_each_accumulator(
    accumulators: Accumulators, spans: Spans, body: Callable[[Any, int, int, Expr], Stmt]
) -> list[Stmt]:
    """``body(buffer, row, first column, lane)`` for every accumulator."""
    return [
        vector(size, lambda lane, acc=acc, r=r, first=first: body(acc, r, first, lane))
        for r, row in enumerate(accumulators)
        for acc, (first, size, _) in zip(row, spans, strict=True)
    ]


def k_loop(plan: MatmulPlan, count: int, iteration: Callable[[Expr], Stmt]) -> list[Stmt]:
    """``iteration`` for every k below ``count``, in order, unrolled up to four times."""
    unroll = max(1, min(4, MAX_UNROLLED_FMAS // (plan.tile.mr * plan.tile.nv)))
    full, rest = divmod(count, unroll)
    loops = []
    if full:
        loops.append(loop(full, lambda o: loop(unroll, lambda k: iteration(o * unroll + k), UNROLLED, "k"), name="k"))
    if rest:
        loops.append(loop(rest, lambda k: iteration(k + full * unroll), UNROLLED, "k"))
    return loops


def outer_product(
    plan: MatmulPlan,
    batch: Expr,
    tile: Expr,
    accumulators: Accumulators,
    spans: Spans,
    k: Expr,
    load_b: LoadB,
    first_k: Expr = 0,
) -> Stmt:
    """Iteration ``first_k + k`` of the k loop for the whole tile; ``load_b`` gets ``k``."""
    statements = []
    for r, row in enumerate(accumulators):
        binds, a = _load_a(plan, batch, tile, r, first_k + k)
        statements += binds
        for acc, (first, size, _) in zip(row, spans, strict=True):

            def multiply_add(lane: Expr, acc: Any = acc, first: int = first, a: Expr = a) -> Stmt:
                binds, b = load_b(k, lane, first)
                return seq([*binds, store(acc, load(acc, lane) + a * b, lane)])

            statements.append(vector(size, multiply_add))
    # In buffers, as TVM's simplifier would substitute A's element into each of its nv uses.
    return bind_in_buffers(seq(statements))


def _load_a(plan: MatmulPlan, batch: Expr, tile: Expr, r: int, k: Expr) -> tuple[list[Stmt], Expr]:
    if plan.packed_a is not None:
        return [], load(plan.packed_a, batch, tile, k, i64(r))
    return read_a(plan, batch, row_index(plan, tile * plan.tile.mr, r), k)


def store_row(
    plan: MatmulPlan, batch: Expr, row: Expr, start: Expr, spans: Spans, value: Callable[[int, Expr], Expr]
) -> Stmt:
    """A row of a tile stored, with its epilogue. ``value``: first column of a span, lane -> the sum."""

    def store_element(first: int, lane: Expr) -> Stmt:
        coords = coords_of(plan, batch, row, start + (lane + first))
        return store_result(plan.ctx, plan.product.stage, coords, value(first, lane), plan.epilogue)

    return seq([vector(size, lambda lane, first=first: store_element(first, lane)) for first, _, size in spans])
