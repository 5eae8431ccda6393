"""``:precision :bf16``: which operators of model code run in bf16, by the table's column ``precision``.

The file's own dtypes do not change, so that a file of one precision is a file of the other. A value that was computed
in bf16 is handed to the file as the f32 that holds it exactly: a cast, behind which the next operator looks.
"""

from __future__ import annotations

from typing import Any

from ..graph.core import Builder, Value
from ..ops import Op
from ..ops.cast import cast_from
from ..ops.create import number_of
from ..ops.type_rules import FLOAT_LIMIT

PRECISIONS = ("f32", "bf16")


def behind(v: Value) -> Value | None:
    """The bf16 value that the f32 value ``v`` is a cast of, or None."""
    x = cast_from(v)
    return x if x is not None and v.type.dtype == "f32" and x.type.dtype == "bf16" else None


def adapts(v: Value) -> bool:
    """Is ``v`` a number everywhere, or a truth value as 0 or 1? Then it takes the dtype of what stands beside it."""
    number, x = number_of(v), cast_from(v)
    if number is not None:
        size = abs(number)
        return size < FLOAT_LIMIT["bf16"] or size == float("inf") or size != size
    return x is not None and x.type.dtype == "bool"


def rounded(b: Builder, v: Value) -> Value:
    """``v``, f32, in bf16."""
    if number_of(v) is not None and adapts(v):
        return b("full", **{**v.attrs, "dtype": "bf16"})
    return behind(v) or b("cast", v.args[0] if adapts(v) else v, dtype="bf16")


def seen(b: Builder, made: Any) -> Any:
    """What an operator made, as the file sees it: bf16 as f32, each value of a tuple."""
    if isinstance(made, tuple):
        return tuple(seen(b, v) for v in made)
    return b("cast", made, dtype="f32") if made.type.dtype == "bf16" else made


def runs_in_bf16(row: Op, wide: list[Value]) -> bool:
    """Does ``row`` run in bf16 on the f32 operands ``wide``? A row of precision "operands" does where none of them was
    computed in f32."""
    if row.precision == "bf16":
        return bool(wide)
    return row.precision == "operands" and any(map(behind, wide)) and all(behind(v) or adapts(v) for v in wide)


def operands(b: Builder, row: Op, values: list[Value]) -> list[Value] | None:
    """What ``row`` is to be applied to in the place of ``values`` if it runs in bf16, else None: also where the file
    itself has chosen another float dtype."""
    wide = [v for v in values if v.type.kind == "float"]
    if any(v.type.dtype != "f32" for v in wide) or not runs_in_bf16(row, wide):
        return None
    return [rounded(b, v) if v.type.dtype == "f32" else v for v in values]


def parameter(b: Builder, master: Value) -> Value:
    """A parameter as model code reads it: rounded to bf16 at each use, so that what its gradient is the sum of is
    added in f32. Equal casts become one when the graph is simplified."""
    return seen(b, rounded(b, master))
