"""The text of a pass of attention on matrix units (``head_units``): a warp has 16 rows, of 16 columns at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from tvm import tirx

from ..cpu.accumulators import Partial
from ..cpu.emit import Expr, Load, Stmt, i64, load, loop, seq, store, unravel
from ..cpu.inline import Point
from ..cpu.maps import at, finish, point_stores
from ..cpu.names import in_buffers
from ..cpu.nests import block, dynamic_loop
from ..cpu.stages import Stage
from ..cpu.tree import rewrite
from . import ptx
from .fragments import MATRIX, Factor, Warp, clear, place
from .head_hidden import LATER
from .head_streams import Pass
from .launch import barrier, registers, unrolled
from .pipeline import Part, copy_tile, write
from .warps import Team, halve

ELEMENTS = 8  # that a thread has of 16 rows by 16 columns, of 2 rows
LANES = 4  # partial results of a row that a thread has, and threads that have some of a row


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

        return rewrite(in_buffers(stmt), [(Load, read), (tirx.BufferStore, put)])


def left_copies(here: Here) -> list[Stmt]:
    """The factors of rows into shared memory, and from there into registers where they stay."""
    units = here.units
    copies, loads = [], []
    for stage, operand in units.lefts.items():
        start, layout = i64(units.left_starts[stage]), units.left_layout(stage)
        where = here.batch, here.first, i64(0)
        copies.append(copy_tile(here.memory, start, layout, operand, where, here.thread, units.tile(16).threads))
        if stage in here.held:
            bring = lambda k, s=stage: _left(here, s).load((here.held[s], k * 4), here.warp, here.warp.row, k)  # noqa: E731
            loads.append(unrolled(stage.depth // MATRIX, bring, "k"))
    return [*copies, ptx.commit(), ptx.wait(0), barrier(), *loads]


def _left(here: Here, stage: Stage) -> Factor:
    return Factor(here.memory, i64(here.units.left_starts[stage]), here.units.left_layout(stage), True)


def pass_text(here: Here, one: Pass) -> Stmt:
    return _Text(here, one).statement()


@attrs.frozen(eq=False)
class _Text:
    here: Here
    one: Pass

    @property
    def extent(self) -> int:
        return self.here.units.stream.extent

    def statement(self) -> Stmt:
        units = self.here.units
        folds = {s: self._lanes(s) for s in self.one.sinks if s not in units.rights}
        sums = {s: registers([units.rights[s].inner // 2], "float32", "sums") for s in self.one.sinks if s not in folds}
        starts = [*(self._start(s, acc) for s, acc in folds.items()), *map(clear, sums.values())]

        def group(turn: Expr, g: Expr) -> Stmt:
            start = turn * units.columns + g * MATRIX
            parts = [self._make(s, turn, g, start) for s in self.one.chain]
            parts += [self._add(s, acc, start) for s, acc in folds.items()]
            parts += [self._multiply(s, sums[s], turn, g) for s in sums]
            wanted = self._wanted(start)
            return tirx.IfThenElse(tirx.all(*wanted), seq(parts), None) if wanted else seq(parts)

        pieces = self._pieces(lambda turn: loop(units.columns // MATRIX, lambda g: group(turn, g), name="group"))
        ends = [part for s, acc in folds.items() for part in self._end(s, acc)]
        ends += [part for s, mine in sums.items() for part in (self._write(s, mine), barrier())]
        return block([*starts, *pieces, *ends], [*folds.values(), *sums.values()])

    # -- factors ---------------------------------------------------------------------------------------------------

    def _pieces(self, body: Any) -> list[Stmt]:
        """``body`` for each tile of columns, while the next is on its way."""
        units, here = self.here.units, self.here
        first, end = self._turns()

        def bring(turn: Expr) -> Stmt:
            copies, size = [], 0
            for right in units.tiles(self.one):
                layout, where = right.layout(units.columns), right.place(here.batch, turn * units.columns)
                start, threads = self._stage(turn) + size, units.tile(16).threads
                copies.append(copy_tile(here.memory, start, layout, right.operand, where, here.thread, threads))
                size += units.columns * right.inner
            return seq([tirx.IfThenElse(turn < end, seq(copies), None), ptx.commit()])

        def turn(n: Expr) -> Stmt:
            now = first + n
            # One barrier: what arrived is seen by all, and all are done with the stage that is filled next.
            return seq([ptx.wait(0), barrier(), bring(now + 1), body(now)])

        turns = end - first
        walked = dynamic_loop(turns, turn, "turn") if units.hidden else loop(int(turns.value), turn, name="turn")
        return [bring(first), walked, ptx.wait(0), barrier()]

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
        return [*inside, start < row + MATRIX if units.hidden == LATER else row < start + MATRIX]

    def _stage(self, turn: Expr) -> Expr:
        units = self.here.units
        return tirx.floormod(turn, i64(2)) * units.stage_halves + units.left_halves

    def _right(self, stage: Stage, turn: Expr) -> Factor:
        units = self.here.units
        start = self._stage(turn) + units.tile_starts(self.one)[stage]
        return Factor(self.here.memory, start, units.rights[stage].layout(units.columns), False)

    # -- scores and what is made of them ---------------------------------------------------------------------------

    def _make(self, stage: Stage, turn: Expr, g: Expr, start: Expr) -> Stmt:
        if stage in self.here.units.rights:
            return self._scores(stage, turn, g)
        return unrolled(ELEMENTS, lambda e: self._mapped(stage, start, e), "e")

    def _scores(self, stage: Stage, turn: Expr, g: Expr) -> Stmt:
        here, sums = self.here, self.here.matrices[stage.buffer]
        a, b, left, right = here.halves["a"], here.halves["b"], _left(here, stage), self._right(stage, turn)

        def step(k: Expr) -> Stmt:
            mine = (here.held[stage], k * 4) if stage in here.held else (a, i64(0))
            brings = [right.load((b, i64(0)), here.warp, g * MATRIX, k)]
            brings += [] if stage in here.held else [left.load(mine, here.warp, here.warp.row, k)]
            one = lambda j: ptx.multiply((sums, j * 4), mine, (b, j * 2), here.units.dtype)  # noqa: E731
            return seq([*brings, unrolled(2, one, "j")])

        return seq([clear(sums), unrolled(stage.depth // MATRIX, step, "k")])

    def _at(self, start: Expr, element: Expr) -> tuple[Expr, Expr, Expr]:
        """Of an element: which of the thread's rows, its column, and which of the row's partial results it is for."""
        j, e = tirx.floordiv(element, i64(4)), tirx.floormod(element, i64(4))
        _, column = place(self.here.warp.lane, e)
        half, lane = tirx.floordiv(e, i64(2)), j * 2 + tirx.floormod(e, i64(2))
        return half, start + j * 8 + column, lane

    def _inside(self, column: Expr, stmt: Stmt, blank: Stmt | None = None) -> Stmt:
        return tirx.IfThenElse(column < i64(self.extent), stmt, blank) if self.extent % MATRIX else stmt

    def _mapped(self, stage: Stage, start: Expr, element: Expr) -> Stmt:
        half, column, _ = self._at(start, element)
        places = [*self.here.places(half), column]
        made = point_stores(self.here.ctx, [stage], places, {}, [stage])
        blank = store(self.here.matrices[stage.buffer], tirx.const(0, "float32"), element)
        return self._inside(column, self.here.local(made, half, element), blank)

    # -- folds -----------------------------------------------------------------------------------------------------

    def _lanes(self, stage: Stage) -> Any:
        """Partial results of a thread's two rows, and one place for what comes from another thread."""
        return registers([2 * LANES + 1], "float32", "acc")

    def _start(self, stage: Stage, acc: Any) -> Stmt:
        return unrolled(2 * LANES, lambda p: Partial(stage, acc).start(p, i64(0)), "p")

    def _add(self, stage: Stage, acc: Any, start: Expr) -> Stmt:
        def one(element: Expr) -> Stmt:
            half, column, lane = self._at(start, element)
            where = at(stage.space, self.here.places(half)) | at(stage.reduce, [column])
            added = Partial(stage, acc).add(self.here.ctx, where, half * LANES + lane)
            return self._inside(column, self.here.local(added, half, element))

        return unrolled(ELEMENTS, one, "e")

    def _end(self, stage: Stage, acc: Any) -> list[Stmt]:
        """The partial results of a row meet in an order that is always the same, and all that have some get the end."""
        here, all_lanes, other = self.here, Partial(stage, acc), i64(2 * LANES)
        team = Team(LANES, tirx.floormod(here.warp.lane, i64(LANES)))

        def row(half: Expr) -> Stmt:
            own = half * LANES
            made = store(here.numbers[stage.buffer], load(acc, own), half)
            return seq([*halve(all_lanes, LANES, team, own, other), made])

        return [unrolled(2, row, "half"), *self._stored(stage, team)]

    def _stored(self, stage: Stage, team: Team) -> list[Stmt]:
        """What is needed after the launch, by one thread a row."""
        here = self.here
        if stage.buffer in here.units.stream.memory.lines:
            return []

        def row(half: Expr) -> Stmt:
            point = Point(here.ctx.virtual)
            indices = point.indices(stage.indices, at(stage.space, [*here.heads, here.row(half)]))
            put = store(stage.buffer, load(here.numbers[stage.buffer], half), *indices)
            inside = tirx.all(tirx.EQ(team.lane, i64(0)), here.row(half) < i64(here.whole))
            return tirx.IfThenElse(inside, in_buffers(seq([*point.binds, put])), None)

        return [unrolled(2, row, "half")]

    # -- last products -----------------------------------------------------------------------------------------------

    def _multiply(self, stage: Stage, sums: Any, turn: Expr, g: Expr) -> Stmt:
        """``sums`` and the group's columns of the matrix by those of the other factor."""
        here = self.here
        high, low, b = here.halves["a"], here.halves["low"], here.halves["b"]
        right, matrix = self._right(stage, turn), here.matrices[here.units.stream.products[stage].left.source]

        def step(n: Expr) -> Stmt:
            def one(half: Any, j: Expr) -> Stmt:
                return ptx.multiply((sums, (n * 2 + j) * 4), (half, i64(0)), (b, j * 2), here.units.dtype)

            parts = [unrolled(2, lambda j, h=h: one(h, j), "j") for h in (high, low)]
            return seq([right.load((b, i64(0)), here.warp, n * MATRIX, g), *parts])

        cut = ptx.split((matrix, i64(0)), (high, i64(0)), (low, i64(0)), here.units.dtype)
        return seq([cut, unrolled(here.units.rights[stage].inner // MATRIX, step, "n")])

    def _write(self, stage: Stage, sums: Any) -> Stmt:
        """Finished sums, and what is done on them."""
        here, product = self.here, self.here.units.stream.products[stage]
        part = Part(here.units.tile(product.n), here.memory, here.thread, here.warp, here.first, i64(0))

        def element(row: Expr, column: Expr, value: Expr) -> Stmt:
            where = at(stage.space[: len(here.heads) + 1], [*here.heads, row])
            where |= at(product.columns, unravel(column, [a.extent for a in product.columns]))
            return in_buffers(finish(here.ctx, stage, where, value, here.units.stream.after[stage]))

        return write(part, sums, here.whole, product.n, element)
