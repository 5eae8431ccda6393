"""Products of rows that are looked up in a table: the whole table is multiplied, and rows are looked up in the product.

    (matmul (gather table ids) w)  ->  (gather (matmul table w) ids)

A recurrent model that reads 16 positions of 128 symbols each, of 74, so multiplies 74 rows and not 2048. What is done
to each row alone on the way to the product and after it, a cast or a bias, is done to the table too. A row of a product
follows from that row and the other factor alone, so no bit of the result changes.

A loss is rewritten before its gradient is taken. The gradient then adds what arrives at each row of the table first and
multiplies the sums; other roundings, as many or fewer. Of bf16 and f16 it does not: their sums would be rounded often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve, field, frozen, mutable

from ..ops import OPS
from ..ops.cast import cast_from
from ..ops.create import number_of
from ..ops.reduction import HALVES
from ..ops.types import TensorType
from .core import Graph, Value, content, order

WORTH = 8  # multiply-adds to be saved for each element of the result: it is written and read once more


def looked_up(graph: Graph) -> Graph:
    """The same function, bit by bit."""
    outs = rewritten([v for _, v in graph.outputs])
    return graph.with_outputs(zip((name for name, _ in graph.outputs), outs, strict=True))


def rewritten(outs: Sequence[Value], halves: bool = True) -> list[Value]:
    """``outs`` with the products of looked-up rows made of whole tables, where that is less work. ``halves``: those of
    bf16 and f16 too."""
    values, found = order(outs), _Found()
    for v in values:
        found.look_at(v)
    chosen = {p for p, read in found.read.items() if is_worth(p, read) and (halves or p.type.dtype not in HALVES)}
    new: dict[Value, Value] = {}
    for v in values if chosen else ():
        rows, args = found.rows.get(v), tuple(new[a] for a in v.args)
        if rows is not None and rows.product in chosen:
            new[v] = evolve(v, op="gather", args=(rows.table, new[rows.ids]), attrs={})
        else:
            new[v] = v if args == v.args else evolve(v, args=args)
    return [new.get(v, v) for v in outs]


def is_worth(product: Value, read: int) -> bool:
    """Is the ``product`` of a table less work than that of ``read`` rows of it?"""
    table = product.args[0].type
    return (read - table.shape[0]) * table.shape[1] >= WORTH * read


@frozen
class Rows:
    """``(gather table ids)``. ``product``: the matmul from which ``table`` is made, None before there is one."""

    table: Value
    ids: Value
    product: Value | None = None


@mutable
class _Found:
    """Values that are rows of a table, so far; how many rows are read of each product of a table; what tables are made
    of, by what it is, so that equal tables are one."""

    rows: dict[Value, Rows] = field(factory=dict)
    read: dict[Value, int] = field(factory=dict)
    made: dict[Any, Value] = field(factory=dict)

    def look_at(self, v: Value) -> None:
        """Learns ``v``, whose arguments were looked at. What a ``checkpoint`` body makes stays in it."""
        if v.region:
            return
        if v.op == "gather" and v.args[0].type.rank == 2 and (table := self.shared(v.args[0])):
            self.rows[v] = Rows(table, v.args[1])
        elif (mine := [a for a in v.args if a in self.rows]) and is_by_rows(v, mine):
            self.learn(v, mine[0])

    def learn(self, v: Value, rows: Value) -> None:
        """``v`` is made of ``rows``, row by row, and of what all rows share."""
        of = self.rows[rows]
        args = [of.table if a is rows else self.shared(a) for a in v.args]
        if all(args):
            type = TensorType((of.table.type.shape[0], v.type.shape[-1]), v.type.dtype)
            table = self.one(evolve(v, args=tuple(args), type=type))
            is_product = OPS[v.op].fusion == "product"
            self.rows[v] = Rows(table, of.ids, table if is_product else of.product)
            if is_product:
                self.read[table] = self.read.get(table, 0) + of.ids.type.size

    def shared(self, v: Value) -> Value | None:
        """``v`` if it is an input, a number, or a cast of them: nothing that would be worked out a second time."""
        if not v.op:
            return v
        source = cast_from(v)
        if source is not None and (x := self.shared(source)):
            return self.one(evolve(v, args=(x,), region=0))
        return self.one(v) if number_of(v) is not None else None

    def one(self, v: Value) -> Value:
        return self.made.setdefault(content(v), v)


def is_by_rows(v: Value, mine: Sequence[Value]) -> bool:
    """Is each row of ``v`` made of the same row of the one value ``mine``, and of what all rows share?"""
    if len(mine) > 1:
        return False
    others = [a for a in v.args if a is not mine[0]]
    if OPS[v.op].fusion == "product":
        return v.args[0] is mine[0] and not v.attrs["ta"] and all(a.type.rank == 2 for a in others)
    return OPS[v.op].elementwise and mine[0].type.shape == v.type.shape and all(a.type.rank < 2 for a in others)
