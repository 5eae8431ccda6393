"""Attention: products and row stages that agree on their batch axes and rows, as one launch that keeps them in a block.

A block has some rows of one head. Scores, weights and what is between them lie in its shared memory, keys and values
come through it, and no score matrix is written. Every stage is done as it would be alone: sums keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
import tvm
from tvm import tirx

from ...tir.argmax import is_argmax
from ...tir.builder import Expr, Stmt, seq, store, unravel
from ...tir.context import NestContext
from ...tir.contraction import read_contraction
from ...tir.row_group import RowGroup, local_buffers, row_group, row_length
from ...tir.stages import Stage
from ..threads.launch import launch, shared
from .kv_tiled import Stream, plan_stream, stream_launch
from .row_reduction import fold_rows
from .row_stages import Rows, map_rows, product_rows
from .shared_memory import SKEW, THREADS, Memory, Product, as_product, copied, padded, plan_memory

AFAR = 16  # multiplications in the time that an element takes to a block


@attrs.frozen(eq=False)
class Group:
    """Rows of attention: ``rows`` of each of ``batch``, or, not ``tiled``, each row of ``batch`` for itself."""

    found: RowGroup
    products: dict[Any, Product]
    batch: Sequence[int]
    rows: int
    tiled: bool


def heads_nest(ctx: NestContext, stages: Sequence[Stage], folds: bool = True) -> tuple[int, Stmt] | None:
    """How many stages it takes, and the launch; None if no product comes first, or too little is done on its rows: with
    ``folds`` there must be one."""
    group = group_of(ctx, stages, folds)
    if group is None:
        return None
    found, products, heads, rows = group.found, group.products, prod(group.batch), group.rows
    memory = plan_memory(ctx, found, products, heads, rows)
    stream = plan_stream(ctx, found, products, heads, rows) if group.tiled else None
    if stream is not None and (memory is None or _is_better(stream, memory)):
        return len(found.stages), stream_launch(stream, group.batch, rows)
    if memory is None:
        return None
    return len(found.stages), _launch(ctx, found, products, memory, group.batch, rows)


def group_of(ctx: NestContext, stages: Sequence[Stage], folds: bool) -> Group | None:
    """The stages from the first on that are attention's, as ``heads_nest`` takes them."""
    if read_contraction(ctx.program, stages[0]) is None:
        return None
    found = row_group(ctx, stages, lambda stage, lead: _accepts(ctx, stage, lead))
    if found is None or not found.lead or not _fits(ctx, found):
        return None
    products = _products(ctx, found)
    if (folds and all(s.is_elementwise for s in found.stages if s not in products)) or len(products) < 2:
        return None
    tiled = any(len(p.one.batch) < found.lead for p in products.values())
    lead = [a.extent for a in found.stages[0].space[: found.lead]]
    return Group(found, products, lead[:-1], lead[-1], True) if tiled else Group(found, products, lead, 1, False)


def _is_better(stream: Stream, memory: Memory) -> bool:
    """Is it less to make scores several times, for more rows at once? What all rows of a block read comes from afar, as
    long as there are few of them."""
    once = sum(p.n * s.depth for s, p in stream.products.items())
    return stream.price * (1 + AFAR / stream.memory.rows) < once * (1 + AFAR / memory.rows)


def _products(ctx: NestContext, found: RowGroup) -> dict[Any, Product]:
    pairs = [(s, read_contraction(ctx.program, s)) for s in found.stages]
    made = {s: as_product(one, s, found.lead) for s, one in pairs if one is not None}
    return {s: p for s, p in made.items() if p is not None}


def _accepts(ctx: NestContext, stage: Stage, lead: int) -> bool:
    one = read_contraction(ctx.program, stage)
    if one is not None:
        return as_product(one, stage, lead) is not None
    if stage.reduction is not None:
        one_row = len(stage.space) == lead and len(stage.reduce) == 1
        return one_row and not is_argmax(stage) and str(stage.buffer.dtype) == "float32"
    return stage.is_elementwise and not isinstance(stage.value, tirx.Let)


def _fits(ctx: NestContext, found: RowGroup) -> bool:
    """What stays in a block has elements of at most 4 bytes."""
    return all(tvm.DataType(str(b.dtype)).itemsize <= 4 for b in local_buffers(ctx, found))


def _launch(
    ctx: NestContext, found: RowGroup, products: dict[Any, Product], memory: Memory, batch: Sequence[int], whole: int
) -> Stmt:
    lines = {place: b for b, (place, _) in reversed([*memory.lines.items()])}
    made = {p: shared([memory.rows * memory.lines[b][1]], str(b.dtype), b.name) for p, b in lines.items()}
    held = {b: made[place] for b, (place, _) in memory.lines.items()}
    wides = [memory.wide(p.n) for p in products.values()]
    size = max(memory.deep(w) * (w + SKEW) for w in wides)
    tiles = shared([size], "float32", "tile"), shared([size], "float32", "tile")
    left = shared([memory.rows * copied(found, memory.lines, products)], "float32", "left")
    groups = -(-whole // memory.rows)

    def body(place: Expr, thread: Expr) -> Stmt:
        *heads, group = unravel(place, [*batch, groups])
        rows = Rows(ctx, found, memory, held, heads, group * memory.rows, whole, thread, tiles, left)
        parts = [part for s in found.stages for part in _stage(rows, s, products)]
        makes = [tirx.AllocBuffer(b) for b in (*made.values(), *tiles, left)]
        return seq([*makes, *_blank(rows), *parts])

    return launch(prod(batch) * groups, THREADS, body)


def _stage(rows: Rows, stage: Stage, products: dict[Any, Product]) -> list[Stmt]:
    if stage in products:
        return product_rows(rows, stage, products[stage])
    return map_rows(rows, stage) if stage.is_elementwise else fold_rows(rows, stage)


def _blank(rows: Rows) -> list[Stmt]:
    """Zeros behind each row that is not a whole line, for products that take its elements in whole pieces. No stage
    writes there, and what takes them comes after the stage that makes the row, which ends with a barrier."""
    zero, done = tirx.const(0, "float32"), {}
    for buffer, held in rows.held.items():
        mine, line = row_length(buffer, rows.found), rows.line(buffer)
        whole = padded(mine)
        if mine < whole and line > 1 and str(buffer.dtype) == "float32":
            clear = lambda slot, i, b=held, m=mine, n=line: store(b, zero, slot * n + m + i)  # noqa: E731
            done[held] = rows.each(whole - mine, clear)
    return [*done.values()]
