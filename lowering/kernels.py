"""Tensor programs that Relax lacks, or computes differently from the operator table.

A program is a function (te tensors..., out: TensorType, **attrs) -> te tensor. ``out`` is the type of the value
that is being emitted. Every sum runs in one fixed order, so the bits of a result depend on nothing but its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from sexpgpu.types import DTYPES, TensorType

KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a tensor program under ``name``; a name twice is a programming error."""

    def add(program: Callable[..., Any]) -> Callable[..., Any]:
        if name in KERNELS:
            raise ValueError(f"tensor program {name!r} is declared twice")
        KERNELS[name] = program
        return program

    return add


@kernel("copy")
def copy(x: te.Tensor, out: TensorType) -> te.Tensor:
    """``x`` in new memory."""
    return te.compute(x.shape, lambda *i: x(*i), "copy")
