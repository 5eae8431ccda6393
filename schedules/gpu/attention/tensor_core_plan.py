"""Attention of halves (bfloat16, float16) on matrix units: the passes of ``head_streams``, all products ``mma.sync``.

A warp has 16 rows of scores. They are made 16 columns at a time in registers, where maps and folds are done on them;
what a last product sums over goes from there into the matrix unit as two halves, high and low, so that nothing that
is float32 is rounded to a half. Factors come through shared memory, some columns' ahead.

The order of every sum follows from the columns and the depth alone: neither rows of a block nor columns of a tile
change a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import attrs
from tvm import tirx
from tvm_ffi import structural_equal

from ...tir.access import reads_of
from ...tir.builder import Expr, Stmt, i64, seq, unravel
from ...tir.context import NestContext
from ...tir.contraction import half_load
from ...tir.stages import Stage
from ..threads.half_operands import HalfOperand
from ..threads.launch import launch, registers, shared
from ..threads.mma_fragments import Layout, warp_of
from ..threads.mma_tiling import MAX_SHARED_HALVES, MmaTile
from .causal_mask import LATER, hidden_columns
from .kv_tiled import Pass, Stream, read_stream
from .online_softmax import in_one_pass, softmax_of
from .resident import group_of
from .shared_memory import BLOCKS
from .tensor_core import STAGES, Here, left_copies, pass_text

ROWS = 16  # of a warp
WARPS = (4, 2, 1)  # of a block
COLUMNS = (64, 32, 16)  # of scores whose factors come to shared memory at once
HELD = 96  # registers of a thread in which sums and factors of rows may stay throughout


@attrs.frozen(eq=False)
class Right:
    """A factor that comes by columns of scores, ``inner`` elements each: of a product that makes scores, or
    (``turned``) of one that sums over them."""

    operand: HalfOperand
    turned: bool
    inner: int

    def layout(self, columns: int) -> Layout:
        return Layout(self.inner, True, columns) if self.turned else Layout(columns, False, self.inner)

    def place(self, batch: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """Batch, line and depth of the tile that begins at ``column``."""
        return (batch, i64(0), column) if self.turned else (batch, column, i64(0))

    def is_same(self, other: Right) -> bool:
        """Are both the same elements of one tensor?"""
        return self.inner == other.inner and structural_equal(self._element(), other._element())

    def _element(self) -> Expr:
        line, depth = (_INNER, _COLUMN) if self.turned else (_COLUMN, _INNER)
        return self.operand.element(_BATCH, line, depth)


_BATCH, _COLUMN, _INNER = (tirx.Var(name, "int64") for name in ("batch", "column", "inner"))


@attrs.frozen(eq=False)
class Units:
    """How a stream is done: ``lefts``, the factors of rows of the products that make scores; ``rights``, of all
    products. ``hidden``: the columns that count for nothing, LATER or EARLIER than the row's number, or none. ``warps``
    of a block, ``columns`` of a tile."""

    stream: Stream
    lefts: Mapping[Any, HalfOperand]
    rights: Mapping[Any, Right]
    hidden: str
    warps: int = 1
    columns: int = COLUMNS[-1]

    @property
    def dtype(self) -> str:
        return next(iter(self.lefts.values())).dtype

    @property
    def rows(self) -> int:
        return ROWS * self.warps

    def tile(self, columns: int) -> MmaTile:
        """A block's rows of a product of so many columns."""
        return MmaTile(self.rows, columns, self.warps, 1)

    def left_layout(self, stage: Stage) -> Layout:
        return Layout(self.rows, False, stage.depth)

    @property
    def left_starts(self) -> dict[Any, int]:
        """Where the factors of rows lie in shared memory."""
        starts, end = {}, 0
        for stage in self.lefts:
            starts[stage], end = end, end + self.rows * stage.depth
        return starts

    @property
    def left_halves(self) -> int:
        return sum(self.rows * s.depth for s in self.lefts)

    def tile_starts(self, one: Pass) -> dict[Any, int]:
        """Where in a stage the tile of each product of a pass lies: products of the same elements have one."""
        starts, end = {}, 0
        for stage in (s for s in one.steps if s in self.rights):
            right = self.rights[stage]
            same = next((at for s, at in starts.items() if right.is_same(self.rights[s])), None)
            starts[stage] = end if same is None else same
            end += self.columns * right.inner if same is None else 0
        return starts

    @property
    def stage_halves(self) -> int:
        ends = [
            at + self.columns * self.rights[s].inner
            for p in self.stream.passes
            for s, at in self.tile_starts(p).items()
        ]
        return max(ends)

    @property
    def last(self) -> list[Any]:
        """The products that sum over scores."""
        return [s for s in self.rights if s not in self.lefts]

    @property
    def halves(self) -> int:
        """Shared memory of a block. Finished sums go where factors were."""
        ends = max(self.rows * (self.rights[s].inner + 8) * 2 for s in self.last)
        return max(self.left_halves + STAGES * self.stage_halves, ends)

    @property
    def holds_lefts(self) -> bool:
        """Do the factors of rows stay in registers? Else they are loaded from shared memory for each use."""
        sums = sum(self.rights[s].inner // 2 for s in self.last)
        return sums + sum(s.depth // 4 for s in self.lefts) <= HELD


def unit_nest(ctx: NestContext, stages: Sequence[Stage], folds: bool = True) -> tuple[int, Stmt] | None:
    """As ``heads.heads_nest``, which takes what this does not: all factors halves of one dtype as they lie in memory,
    their depths and the columns of last products multiples of 16, at least 16 rows and columns. Of float16 the weights
    alone are known to be no larger than it may be: its gradients are not taken."""
    group = group_of(ctx, stages, folds)
    stream = read_stream(ctx, group.found, group.products) if group is not None and group.tiled else None
    if group is None or stream is None or min(group.rows, stream.extent) < ROWS:
        return None
    read = _read(stream)
    units = None if read is None else _sized(read, prod(group.batch), group.rows)
    return None if units is None else (len(group.found.stages), _launch(units, group.batch, group.rows))


def _read(stream: Stream) -> Units | None:
    lefts, rights = {}, {}
    for stage, product in stream.products.items():
        last = stage not in stream.chain
        right = _operand(stream, stage, product.right, product.columns)
        if right is None or right.mn_major != last:
            return None
        rights[stage] = Right(right, last, product.n if last else stage.depth)
        if not last:
            left = _operand(stream, stage, product.left, stage.space[stream.found.lead - 1 : stream.found.lead])
            if left is None or left.mn_major:
                return None
            lefts[stage] = left
    reads = [half.dtype for half in (*lefts.values(), *(r.operand for r in rights.values()))]
    whole = all(right.inner % 16 == 0 for right in rights.values())
    if not whole or len({*reads}) > 1 or not _is_plain(stream) or not _has_room(stream, reads[0]):
        return None
    return Units(in_one_pass(stream), lefts, rights, hidden_columns(stream))


def _operand(stream: Stream, stage: Stage, value: Expr, lines: Any) -> HalfOperand | None:
    read = half_load(value)
    made = {b for s in stream.found.stages for b in s.writes} | {*stream.ctx.virtual.stages}
    if read is None or read.source in made:
        return None
    return HalfOperand(read, stream.products[stage].one.batch, tuple(lines), stage.reduce)


def _is_plain(stream: Stream) -> bool:
    """Is all that stays in a block float32, do last products end the last pass, and maps on them read no fold?"""
    *first, _ = stream.passes
    if any(s in stream.products for p in first for s in p.sinks):
        return False
    folds = {s.buffer for p in stream.passes for s in p.sinks if s not in stream.products}
    after = [m for maps in stream.after.values() for m in maps]
    if any(r.buffer in folds for m in after for r in reads_of(stream.ctx, m)):
        return False
    held = [*(s.buffer for s in stream.chain), *folds]
    return bool(stream.after) and all(str(b.dtype) == "float32" for b in held)


def _has_room(stream: Stream, dtype: str) -> bool:
    """Can a half of ``dtype`` be as large as what last products sum over? bfloat16 can; float16 where these are
    shares."""
    lefts = {stream.products[s].left.source for s in stream.after}
    return dtype == "bfloat16" or all(softmax_of(stream, s) for s in stream.chain if s.buffer in lefts)


def _sized(units: Units, heads: int, rows: int) -> Units | None:
    """The most warps that leave enough blocks, and the most columns that then fit."""
    for warps in WARPS:
        count = ROWS * warps
        if warps > 1 and (count >= 2 * rows or heads * -(-rows // count) < BLOCKS):
            continue
        for columns in COLUMNS:
            made = attrs.evolve(units, warps=warps, columns=columns)
            if made.halves <= MAX_SHARED_HALVES:
                return made
    return None


def _launch(units: Units, batch: Sequence[int], whole: int) -> Stmt:
    groups, tile, stream = -(-whole // units.rows), units.tile(16), units.stream
    memory = shared([units.halves], "uint16", "tile")
    lines = {place: b for b, (place, _) in reversed([*stream.memory.lines.items()])}
    made = {place: registers([8], "float32", b.name) for place, b in lines.items()}
    matrices = {s.buffer: made[stream.memory.lines[s.buffer][0]] for p in stream.passes for s in p.chain}
    folds = [s for p in stream.passes for s in p.sinks if s not in stream.products]
    numbers = {s.buffer: registers([2], "float32", s.buffer.name) for s in folds}
    held = {s: registers([s.depth // 4], "uint32", "left") for s in units.lefts if units.holds_lefts}
    halves = {name: registers([4], "uint32", name) for name in ("a", "b", "low")}

    def body(place: Expr, thread: Expr) -> Stmt:
        *heads, group = unravel(place, [*batch, groups])
        group = i64(groups - 1) - group if units.hidden == LATER else group  # those that take longest begin first
        number = tirx.floordiv(place, i64(groups)) if groups > 1 else place
        here = Here(
            units, memory, thread, warp_of(tile, thread), heads, number, group * units.rows, whole, matrices, numbers,
            held, halves,
        )  # fmt: skip
        own = [*dict.fromkeys(matrices.values()), *numbers.values(), *held.values(), *halves.values()]
        makes = [tirx.AllocBuffer(b) for b in (memory, *own)]
        return seq([*makes, *left_copies(here), *(pass_text(here, one) for one in stream.passes)])

    return launch(prod(batch) * groups, tile.threads, body)
