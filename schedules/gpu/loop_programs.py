"""Programs written as explicit loops (cumsum, scatter) that name themselves: what the rules for them share.

The lowering writes them as one block with an annotation ``by_hand`` that names the program. A GPU rule reads the name
and the tensors and writes kernels of its own, instead of running the CPU's loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from tvm import tirx

from ..tir.builder import Expr, Stmt, seq
from ..tir.rewrite import leaf_blocks
from .threads.launch import for_device


@attrs.frozen(eq=False)
class LoopProgram:
    """``name``: the program; ``attributes``: the annotations of its block; ``inputs`` and ``output``: its tensors."""

    name: str
    attributes: dict[str, Any]
    inputs: tuple[Any, ...]
    output: Any


def read_loop_program(func: Any) -> LoopProgram | None:
    """None for a program without the annotation, or with several blocks."""
    leaves = leaf_blocks(func)
    if len(leaves) != 1 or "by_hand" not in leaves[0].annotations:
        return None
    attributes = {str(k): v for k, v in leaves[0].annotations.items()}
    *inputs, output = func.params
    return LoopProgram(str(attributes["by_hand"]), attributes, tuple(inputs), output)


def static_shape(buffer: Any) -> list[int]:
    """The shape, which is static."""
    return [int(n) for n in buffer.shape]


def function(func: Any, launches: Sequence[Stmt], intermediates: Sequence[Any] = ()) -> Any:
    """``func`` as ``launches`` in order; ``intermediates``: buffers in global memory between them."""
    body = seq([*(tirx.AllocBuffer(b) for b in intermediates), *map(for_device, launches)])
    return tirx.PrimFunc(list(func.params), body).with_attrs({str(k): v for k, v in func.attrs.items()})


def wrapped_sum(x: Expr, y: Expr) -> Expr:
    """x + y that wraps: signed integers are added as unsigned ones, since signed overflow is undefined in C++."""
    dtype = str(x.ty.dtype)
    if dtype not in ("int32", "int64"):
        return x + y
    total: Any = tirx.reinterpret("u" + dtype, x)
    return tirx.reinterpret(dtype, total + tirx.reinterpret("u" + dtype, y))
