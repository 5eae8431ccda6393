"""Programs that were written as loops for a CPU and say which they are: what their rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import s_tir, tirx

from ..tir.builder import Expr, Stmt, seq
from ..tir.rewrite import collect
from .threads.launch import for_device


@attrs.frozen(eq=False)
class Known:
    """``name``: which program; ``said``: what its block says; ``ins`` and ``out``: its tensors."""

    name: str
    said: dict[str, Any]
    ins: tuple[Any, ...]
    out: Any


def known(func: Any) -> Known | None:
    """None for a program that does not say what it is, or holds more than that."""
    leaves = [b for b in collect(func.body, s_tir.SBlock) if not collect(b.body, s_tir.SBlock)]
    if len(leaves) != 1 or "by_hand" not in leaves[0].annotations:
        return None
    said = {str(k): v for k, v in leaves[0].annotations.items()}
    *ins, out = func.params
    return Known(str(said["by_hand"]), said, tuple(ins), out)


def sizes(buffer: Any) -> list[int]:
    """The shape, which is static."""
    return [int(n) for n in buffer.shape]


def function(func: Any, launches: Sequence[Stmt], between: Sequence[Any] = ()) -> Any:
    """``func`` as ``launches`` in order; ``between``: memory that they hand on."""
    body = seq([*(tirx.AllocBuffer(b) for b in between), *map(for_device, launches)])
    return tirx.PrimFunc(list(func.params), body).with_attrs({str(k): v for k, v in func.attrs.items()})


def wrapped_sum(x: Expr, y: Expr) -> Expr:
    """x + y; signed integers are added without a sign, as C++ leaves their overflow open."""
    dtype = str(x.ty.dtype)
    if dtype not in ("int32", "int64"):
        return x + y
    total: Any = tirx.reinterpret("u" + dtype, x)
    return tirx.reinterpret(dtype, total + tirx.reinterpret("u" + dtype, y))
