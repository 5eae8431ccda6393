"""The text of a pass of attention on matrix units (``head_units``): a warp has 16 rows, of 16 columns at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from tvm import tirx

from ...tir.accumulators import Partial
from ...tir.builder import Expr, Load, Stmt, i64, load, loop, seq, store, unravel
from ...tir.context import block, dynamic_loop
from ...tir.inline import ScalarWriter
from ...tir.let_buffers import bind_in_buffers
from ...tir.point_writer import index_of, point_stores, store_result
from ...tir.rewrite import rewrite
from ...tir.stages import Stage
from ..threads import ptx
from ..threads.async_pipeline import BlockTile, copy_tile_async, write_tile
from ..threads.launch import barrier, registers, unrolled
from ..threads.mma_fragments import MMA_TILE, SharedOperand, Warp, accumulator_coords, clear
from ..threads.warp_reduce import ThreadGroup, tree_reduce, warp_any
from .causal_mask import LATER
from .kv_tiled import Pass

ELEMENTS = 8  # that a thread has of 16 rows by 16 columns, of 2 rows
LANES = 4  # partial results of a row that a thread has, and threads that have some of a row
STAGES = 2  # tiles of columns in shared memory: one that is multiplied, one on its way


@attrs.frozen(eq=False)
class Here:
    """A thread's place in a block, ``first`` the block's first of ``whole`` rows, and its registers: of ``matrices``
    the elements of the columns at hand, of ``numbers`` what its 2 rows have, ``held`` factors of rows."""

    units: Any
    memory: Any
    thread: Expr
    warp: Warp
    heads: Sequence[Expr]
    batch: Expr
    first: Expr
    whole: int
    matrices: Mapping[Any, Any]
    numbers: Mapping[Any, Any]
    held: Mapping[Any, Any]
    halves: Mapping[str, Any]

    @property
    def ctx(self) -> Any:
        return self.units.stream.ctx

    def row(self, half: Expr) -> Expr:
        """The thread's row ``half`` < 2."""
        return self.first + self.warp.row + tirx.floordiv(self.warp.lane, i64(4)) + half * 8

    def places(self, half: Expr) -> list[Expr]:
        """Where it stands; past the last row, that of the last, which is read and not stored again."""
        row = self.row(half)
        return [*self.heads, tirx.Min(row, i64(self.whole - 1)) if self.whole % self.units.rows else row]

    def local(self, stmt: Stmt, half: Expr, element: Expr | None = None) -> Stmt:
        """Accesses of what the thread has in registers."""

        def mine(buffer: Any) -> tuple[Any, Expr] | None:
            if buffer in self.matrices and element is not None:
                return self.matrices[buffer], element
            return (self.numbers[buffer], half) if buffer in self.numbers else None

        def read(node: Any) -> Expr:
            found = mine(node.source)
            return node if found is None else load(*found)

        def put(node: Any) -> Stmt:
            found = mine(node.buffer)
            return node if found is None else store(found[0], node.value, found[1])

        return rewrite(bind_in_buffers(stmt), [(Load, read), (tirx.BufferStore, put)])


def left_copies(here: Here) -> list[Stmt]:
    """The factors of rows into shared memory, and from there into registers where they stay."""
    units = here.units
    copies, loads = [], []
    for stage, operand in units.lefts.items():
        start, layout = i64(units.left_starts[stage]), units.left_layout(stage)
        where = here.batch, here.first, i64(0)
        copies.append(copy_tile_async(here.memory, start, layout, operand, where, here.thread, units.tile(16).threads))
        if stage in here.held:
            bring = lambda k, s=stage: _left(here, s).load((here.held[s], k * 4), here.warp, here.warp.row, k)  # noqa: E731
            loads.append(unrolled(stage.depth // MMA_TILE, bring, "k"))
    return [*copies, ptx.commit_group(), ptx.wait_group(0), barrier(), *loads]


def _left(here: Here, stage: Stage) -> SharedOperand:
    return SharedOperand(here.memory, i64(here.units.left_starts[stage]), here.units.left_layout(stage), True)


def pass_text(here: Here, one: Pass) -> Stmt:
    rights = here.units.rights
    folds = {s: Partial(s, registers([2 + 1 + ELEMENTS], "float32", "acc")) for s in one.sinks if s not in rights}
    sums = {s: registers([rights[s].inner // 2], "float32", "sums") for s in one.sinks if s in rights}
    return _Text(here, one, folds, sums, registers([2], "float32", "factor")).statement()


@attrs.frozen(eq=False)
class _Text:
    """``folds``: partial results of a thread's two rows, what comes from another thread, and what the columns at hand
    bring; ``sums``: of last products; ``factor``: by which both are multiplied, for each of the two rows."""

    here: Here
    one: Pass
    folds: Mapping[Any, Partial]
    sums: Mapping[Any, Any]
    factor: Any

    @property
    def extent(self) -> int:
        return self.here.units.stream.extent

    def statement(self) -> Stmt:
        units, top = self.here.units, self.one.top
        starts = [*(_start(p) for p in self.folds.values()), *map(clear, self.sums.values())]
        starts += [] if top is None else [_start(Partial(top, self.here.numbers[top.buffer]))]

        def group(turn: Expr, g: Expr) -> Stmt:
            start = turn * units.columns + g * MMA_TILE
            parts = seq([self._step(s, turn, g, start) for s in self.one.steps])
            wanted = self._wanted(start)
            return tirx.IfThenElse(tirx.all(*wanted), parts, None) if wanted else parts

        pieces = self._pieces(lambda turn: loop(units.columns // MMA_TILE, lambda g: group(turn, g), name="group"))
        ends = [part for s in self.folds for part in self._end(s)]
        ends += [part for s in self.sums for part in (self._write(s), barrier())]
        return block(
            [*starts, *pieces, *ends], [*(p.acc for p in self.folds.values()), *self.sums.values(), self.factor]
        )

    # -- factors ---------------------------------------------------------------------------------------------------

    def _pieces(self, body: Any) -> list[Stmt]:
        """``body`` for each tile of columns, while the next is on its way."""
        units, here = self.here.units, self.here
        first, end = self._turns()

        def bring(turn: Expr) -> Stmt:
            copies, threads = [], units.tile(16).threads
            for start, right in {start: units.rights[s] for s, start in units.tile_starts(self.one).items()}.items():
                layout, where = right.layout(units.columns), right.place(here.batch, turn * units.columns)
                begin = self._stage(turn) + start
                copies.append(copy_tile_async(here.memory, begin, layout, right.operand, where, here.thread, threads))
            return seq([tirx.IfThenElse(turn < end, seq(copies), None), ptx.commit_group()])

        def turn(n: Expr) -> Stmt:
            now = first + n
            # One barrier: what arrived is seen by all, and all are done with the stage that is filled next.
            return seq([ptx.wait_group(0), barrier(), bring(now + 1), body(now)])

        turns = end - first
        walked = dynamic_loop(turns, turn, "turn") if units.hidden else loop(int(turns.value), turn, name="turn")
        return [bring(first), walked, ptx.wait_group(0), barrier()]

    def _turns(self) -> tuple[Expr, Expr]:
        """The first tile of columns that any row of the block needs, and where they end."""
        here, columns = self.here, self.here.units.columns
        count = i64(-(-self.extent // columns))
        if here.units.hidden == LATER:
            return i64(0), tirx.Min(count, tirx.floordiv(here.first + here.units.rows - 1, i64(columns)) + 1)
        return (tirx.Min(count, tirx.floordiv(here.first, i64(columns))) if here.units.hidden else i64(0)), count

    def _wanted(self, start: Expr) -> list[Expr]:
        """When the warp's rows need the columns from ``start`` on."""
        units, row = self.here.units, self.here.first + self.here.warp.row
        inside = [start < i64(self.extent)] if self.extent % units.columns else []
        if not units.hidden:
            return inside
        return [*inside, start < row + MMA_TILE if units.hidden == LATER else row < start + MMA_TILE]

    def _stage(self, turn: Expr) -> Expr:
        units = self.here.units
        return tirx.floormod(turn, i64(STAGES)) * units.stage_halves + units.left_halves

    def _right(self, stage: Stage, turn: Expr) -> SharedOperand:
        units = self.here.units
        start = self._stage(turn) + units.tile_starts(self.one)[stage]
        return SharedOperand(self.here.memory, start, units.rights[stage].layout(units.columns), False)

    # -- scores and what is made of them ---------------------------------------------------------------------------

    def _step(self, stage: Stage, turn: Expr, g: Expr, start: Expr) -> Stmt:
        if stage in self.sums:
            return self._multiply(stage, turn, g)
        if stage in self.here.units.rights:
            return self._scores(stage, turn, g)
        if stage in self.folds:
            return self._grow(stage, start) if stage is self.one.top else self._add(stage, start)
        return unrolled(ELEMENTS, lambda e: self._mapped(stage, start, e), "e")

    def _scores(self, stage: Stage, turn: Expr, g: Expr) -> Stmt:
        here, sums = self.here, self.here.matrices[stage.buffer]
        a, b, left, right = here.halves["a"], here.halves["b"], _left(here, stage), self._right(stage, turn)

        def step(k: Expr) -> Stmt:
            mine = (here.held[stage], k * 4) if stage in here.held else (a, i64(0))
            brings = [right.load((b, i64(0)), here.warp, g * MMA_TILE, k)]
            brings += [] if stage in here.held else [left.load(mine, here.warp, here.warp.row, k)]
            one = lambda j: ptx.mma((sums, j * 4), mine, (b, j * 2), here.units.dtype)  # noqa: E731
            return seq([*brings, unrolled(2, one, "j")])

        return seq([clear(sums), unrolled(stage.depth // MMA_TILE, step, "k")])

    def _at(self, start: Expr, element: Expr) -> tuple[Expr, Expr, Expr]:
        """Of an element: which of the thread's rows, its column, and which of the row's partial results it is for."""
        j, e = tirx.floordiv(element, i64(4)), tirx.floormod(element, i64(4))
        _, column = accumulator_coords(self.here.warp.lane, e)
        half, lane = tirx.floordiv(e, i64(2)), j * 2 + tirx.floormod(e, i64(2))
        return half, start + j * 8 + column, lane

    def _inside(self, column: Expr, stmt: Stmt, blank: Stmt | None = None) -> Stmt:
        return tirx.IfThenElse(column < i64(self.extent), stmt, blank) if self.extent % MMA_TILE else stmt

    def _mapped(self, stage: Stage, start: Expr, element: Expr) -> Stmt:
        half, column, _ = self._at(start, element)
        places = [*self.here.places(half), column]
        made = point_stores(self.here.ctx, [stage], places, {}, [stage])
        blank = store(self.here.matrices[stage.buffer], tirx.const(0, "float32"), element)
        return self._inside(column, self.here.local(made, half, element), blank)

    # -- folds -----------------------------------------------------------------------------------------------------

    @property
    def _team(self) -> ThreadGroup:
        """The threads that have some of a row."""
        return ThreadGroup(LANES, tirx.floormod(self.here.warp.lane, i64(LANES)))

    def _add(self, stage: Stage, start: Expr) -> Stmt:
        """What the thread's columns of a row bring meets first, as in a tree."""
        fold = self.folds[stage]

        def one(element: Expr) -> Stmt:
            half, column, lane = self._at(start, element)
            slot, point = 3 + half * LANES + lane, ScalarWriter(self.here.ctx.virtual)
            value = point.write(
                stage.value, index_of(stage.space, self.here.places(half)) | index_of(stage.reduce, [column])
            )
            put = bind_in_buffers(seq([*point.binds, store(fold.acc, value, slot)]))
            return self._inside(column, self.here.local(put, half, element), fold.start(slot, i64(0)))

        def row(half: Expr) -> Stmt:
            first = 3 + half * LANES
            met = [fold.combine(first + k, first + (k + n)) for n in (2, 1) for k in range(n)]
            return seq([*met, fold.combine(half, first)])

        return seq([unrolled(ELEMENTS, one, "e"), unrolled(2, row, "half")])

    def _meet(self, stage: Stage, half: Expr) -> list[Stmt]:
        """The partial results of a row, in an order that is always the same; all that have some get the end."""
        fold, made = self.folds[stage], self.here.numbers[stage.buffer]
        return [*tree_reduce(fold, 1, self._team, half, i64(2)), store(made, load(fold.acc, half), half)]

    def _grow(self, stage: Stage, start: Expr) -> Stmt:
        """The largest so far. Where it is larger for any row of the warp, the sums so far of all of them are made less,
        of those where it is not by a factor of 1."""
        acc, now = self.folds[stage].acc, self.here.numbers[stage.buffer]

        def row(half: Expr) -> Stmt:
            keep = store(self.factor, load(now, half), half)
            less = tirx.exp(load(self.factor, half) - load(now, half))
            return seq([keep, *self._meet(stage, half), store(self.factor, less, half)])

        grown = [load(acc, i64(half)) > load(now, i64(half)) for half in range(2)]
        then = seq([unrolled(2, row, "half"), *self._scaled()])
        return seq([self._add(stage, start), tirx.IfThenElse(warp_any(tirx.any(*grown)), then, None)])

    def _scaled(self) -> list[Stmt]:
        """All sums by the factors of their rows."""
        by = lambda acc, i, half: store(acc, load(acc, i) * load(self.factor, half), i)  # noqa: E731
        half = lambda i: tirx.floormod(tirx.floordiv(i, i64(2)), i64(2))  # noqa: E731
        folds = [p.acc for s, p in self.folds.items() if s is not self.one.top]
        parts = [unrolled(2, lambda i, acc=acc: by(acc, i, i), "half") for acc in folds]
        return [*parts, *(unrolled(int(b.shape[0]), lambda i, b=b: by(b, i, half(i)), "i") for b in self.sums.values())]

    def _end(self, stage: Stage) -> list[Stmt]:
        ends = [unrolled(2, lambda half: seq(self._meet(stage, half)), "half"), *self._stored(stage)]
        if stage is not self.one.whole:
            return ends
        part = lambda half: tirx.const(1, "float32") / load(self.here.numbers[stage.buffer], half)  # noqa: E731
        return [*ends, unrolled(2, lambda half: store(self.factor, part(half), half), "half"), *self._scaled()]

    def _stored(self, stage: Stage) -> list[Stmt]:
        """What is needed after the launch, by one thread a row."""
        here = self.here
        if stage.buffer in here.units.stream.memory.lines:
            return []

        def row(half: Expr) -> Stmt:
            point = ScalarWriter(here.ctx.virtual)
            indices = point.indices(stage.indices, index_of(stage.space, [*here.heads, here.row(half)]))
            put = store(stage.buffer, load(here.numbers[stage.buffer], half), *indices)
            inside = tirx.all(tirx.EQ(self._team.lane, i64(0)), here.row(half) < i64(here.whole))
            return tirx.IfThenElse(inside, bind_in_buffers(seq([*point.binds, put])), None)

        return [unrolled(2, row, "half")]

    # -- last products -----------------------------------------------------------------------------------------------

    def _multiply(self, stage: Stage, turn: Expr, g: Expr) -> Stmt:
        """The sums, and the group's columns of the matrix by those of the other factor."""
        here, sums = self.here, self.sums[stage]
        high, low, b = here.halves["a"], here.halves["low"], here.halves["b"]
        right, matrix = self._right(stage, turn), here.matrices[here.units.stream.products[stage].left.source]

        def step(n: Expr) -> Stmt:
            def one(half: Any, j: Expr) -> Stmt:
                return ptx.mma((sums, (n * 2 + j) * 4), (half, i64(0)), (b, j * 2), here.units.dtype)

            parts = [unrolled(2, lambda j, h=h: one(h, j), "j") for h in (high, low)]
            return seq([right.load((b, i64(0)), here.warp, n * MMA_TILE, g), *parts])

        cut = ptx.split((matrix, i64(0)), (high, i64(0)), (low, i64(0)), here.units.dtype)
        return seq([cut, unrolled(here.units.rights[stage].inner // MMA_TILE, step, "n")])

    def _write(self, stage: Stage) -> Stmt:
        """Finished sums, and what is done on them."""
        here, product = self.here, self.here.units.stream.products[stage]
        part = BlockTile(here.units.tile(product.n), here.memory, here.thread, here.warp, here.first, i64(0))

        def element(row: Expr, column: Expr, value: Expr) -> Stmt:
            where = index_of(stage.space[: len(here.heads) + 1], [*here.heads, row])
            where |= index_of(product.columns, unravel(column, [a.extent for a in product.columns]))
            return bind_in_buffers(store_result(here.ctx, stage, where, value, here.units.stream.after[stage]))

        return write_tile(part, self.sums[stage], here.whole, product.n, element)


def _start(fold: Partial) -> Stmt:
    return unrolled(2, lambda half: fold.start(half, i64(0)), "half")
