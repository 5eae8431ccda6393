"""A product whose depth is cut into blocks: what a task reads of B in one of them stays in the second cache for all of
its rows, and a tile's rows of A in the first for all of its panels.

The sums of a task's rows and columns lie in memory between two blocks; each tile goes on from them. So every sum is
still one chain of multiply-adds in the order of the depth, and has the bits that it would have without blocks.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..tir.builder import Expr, Stmt, i64, load, loop, scratch, seq, store, unravel
from ..tir.context import block, dynamic_loop, parallel_loop, vector_loop
from .matmul_microkernel import Spans, Vectors, each_sum, end_row, in_order, multiply, spans_of, sums_of
from .matmul_packing import pack
from .matmul_tiling import Blocks, Job, fewer, read_b


def deep_nest(job: Job, work: float) -> Stmt:
    """Tasks of some panels and a group of row tiles each. ``work``: nanoseconds of all on one thread."""
    assert job.blocks is not None
    blocks, extents = job.blocks, [job.one.count, -(-job.count // job.blocks.panels), job.groups]
    return parallel_loop(job.ctx, extents[0] * extents[1] * extents[2],
                    lambda p: _task(job, blocks, *unravel(p, extents)), work)  # fmt: skip


def _task(job: Job, blocks: Blocks, b: Expr, columns: Expr, group: Expr) -> Stmt:
    """A group of row tiles against ``blocks.panels`` panels."""
    sums = scratch([job.shares.each * job.tile.mr, blocks.panels * job.tile.panel], job.dtype, "sums")
    first, tile0 = columns * blocks.panels, job.shares.first(group)
    panels = fewer(blocks.panels, job.count, first)
    tiles = job.shares.count(group)
    mine = scratch([blocks.panels, blocks.depth, job.tile.panel], job.dtype, "panels")

    def clear(row: Expr) -> Stmt:
        return seq(vector_loop(blocks.panels * job.tile.panel, job.tile.lanes, lambda c: store(sums, job.zero, row, c)))

    def copy(j: Expr, k0: Expr, deep: int) -> Stmt:
        def put(value: Expr, k: Expr, c: Expr) -> Stmt:
            return store(mine, value, j, k, c)

        return job.by_width(first + j, lambda jo, width: pack(job, b, jo * job.tile.panel, width, put, k0, deep))

    def tile(t: Expr, j: Expr, k0: Expr, deep: int) -> Stmt:
        def one(jo: Expr, width: int) -> Stmt:
            start = jo * job.tile.panel

            def there(k: Expr, c: Expr, p: int) -> tuple[list[Stmt], Expr]:
                if job.packed == "none":
                    return read_b(job, b, k0 + k, start + (c + p))
                return [], load(mine, j, k, c + p)

            return _tile(job, b, (tile0 + t, t), sums, j * job.tile.panel, spans_of(job, width), (k0, deep), there)

        return job.by_width(first + j, one)

    def some(k0: Expr, deep: int) -> Stmt:
        fill = [dynamic_loop(panels, lambda j: copy(j, k0, deep), "panel")] if job.packed != "none" else []
        row = lambda t: dynamic_loop(panels, lambda j: tile(t, j, k0, deep), "panel")  # noqa: E731
        return seq([*fill, dynamic_loop(tiles, row, "tile")])

    full, rest = divmod(job.one.k, blocks.depth)
    done = [loop(full, lambda o: some(o * blocks.depth, blocks.depth), name="block")]
    done += [some(i64(full * blocks.depth), rest)] if rest else []

    rows = _rows_of(job, tiles, tile0)
    ends = dynamic_loop(rows, lambda r: _end(job, b, sums, (tile0 * job.tile.mr, r), first, panels), "row")
    own = [sums, *([mine] if job.packed != "none" else [])]
    return block([loop(job.shares.each * job.tile.mr, clear, name="row"), *done, ends], own)


def _rows_of(job: Job, tiles: Expr, tile0: Expr) -> Expr:
    """The rows of ``tiles`` tiles from ``tile0`` on, of which the last may have fewer than a tile."""
    most, first = job.shares.each * job.tile.mr, tile0 * job.tile.mr
    if job.shares.is_spread:
        return tirx.min(tiles * job.tile.mr, i64(job.one.m) - first)
    return fewer(most, job.one.m, first)


def _end(job: Job, b: Expr, sums: Any, row: tuple[Expr, Expr], first: Expr, panels: Expr) -> Stmt:
    """One row of a task's sums stored. ``row``: the task's first one, and its number from there; ``first``: its first
    panel."""

    def one(j: Expr, jo: Expr, width: int) -> Stmt:
        value = lambda p, lane: load(sums, row[1], j * job.tile.panel + (lane + p))  # noqa: E731
        return end_row(job, b, row[0] + row[1], jo * job.tile.panel, spans_of(job, width), value)

    return dynamic_loop(panels, lambda j: job.by_width(first + j, lambda jo, width: one(j, jo, width)), "panel")


def _tile(job: Job, b: Expr, tile: tuple[Expr, Expr], kept: Any, column: Expr, spans: Spans,
          depth: tuple[Expr, int], b_at: Vectors) -> Stmt:  # fmt: skip
    """A tile goes on for a block of the depth. ``tile``: its number among all, and among those of the task; ``kept``:
    the task's sums; ``column``: its first one among them."""
    sums, (k0, deep), mr = sums_of(job, spans), depth, job.tile.mr
    place = lambda r, p, lane: (tile[1] * mr + r, column + (lane + p))  # noqa: E731
    begin = each_sum(sums, spans, lambda acc, r, p, lane: store(acc, load(kept, *place(r, p, lane)), lane))
    body = in_order(job, deep, lambda k: multiply(job, b, tile[0], sums, spans, k, b_at, k0))
    keep = each_sum(sums, spans, lambda acc, r, p, lane: store(kept, load(acc, lane), *place(r, p, lane)))
    return block([*begin, *body, *keep], [acc for row in sums for acc in row])
