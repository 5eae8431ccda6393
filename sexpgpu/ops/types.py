"""Tensor types: a dtype and a static shape."""

from __future__ import annotations

import math
from collections.abc import Iterable

from attrs import frozen


class TypeFault(ValueError):
    """Dtypes do not fit; the message is the user's (E-TYPE)."""


class ShapeFault(ValueError):
    """Shapes do not fit; the message is the user's (E-SHAPE)."""


@frozen
class DType:
    """``bits`` a stored element takes (a bool takes 8); ``kind`` is float, int, uint or bool."""

    name: str
    numpy: str
    bits: int
    kind: str


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f32", "float32", 32, "float"),
        DType("bf16", "bfloat16", 16, "float"),
        DType("f16", "float16", 16, "float"),
        DType("f64", "float64", 64, "float"),
        DType("i8", "int8", 8, "int"),
        DType("u8", "uint8", 8, "uint"),
        DType("i32", "int32", 32, "int"),
        DType("u32", "uint32", 32, "uint"),
        DType("i64", "int64", 64, "int"),
        DType("bool", "bool", 8, "bool"),
    )
}

MAX_RANK = 8
MAX_DIM = 2**31 - 1
MAX_ELEMENTS = 2**40 - 1


@frozen
class TensorType:
    """``shape`` in elements, outermost axis first; ``dtype`` is a key of DTYPES."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{listed(self.shape)}"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes when stored densely."""
        return self.size * DTYPES[self.dtype].bits // 8

    @property
    def kind(self) -> str:
        return DTYPES[self.dtype].kind


def listed(numbers: Iterable[int]) -> str:
    """A shape, or a list of axes, as messages show it: ``[2 3]``."""
    return f"[{' '.join(map(str, numbers))}]"


def check_shape(shape: Iterable[int]) -> tuple[int, ...]:
    """``shape`` as a tuple, if a tensor may have it; ShapeFault otherwise."""
    shape = tuple(shape)
    if len(shape) > MAX_RANK:
        raise ShapeFault(f"{listed(shape)} has rank {len(shape)}; the limit is {MAX_RANK}")
    for n in shape:
        if not 1 <= n <= MAX_DIM:
            raise ShapeFault(f"{listed(shape)} has the dimension {n}; a dimension is 1 to {MAX_DIM}")
    if math.prod(shape) > MAX_ELEMENTS:
        raise ShapeFault(f"{listed(shape)} has {math.prod(shape)} elements; the limit is {MAX_ELEMENTS}")
    return shape


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape all ``shapes`` broadcast to, as in NumPy; ShapeFault when there is none."""
    if len(set(shapes)) == 1:  # most of all
        return shapes[0]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    out = []
    for axis, sizes in enumerate(zip(*padded, strict=True)):
        wide = sorted({n for n in sizes if n != 1})
        if len(wide) > 1:
            shown = " and ".join(map(listed, shapes))
            raise ShapeFault(f"{shown} do not broadcast: axis {axis - rank} has sizes {' and '.join(map(str, wide))}")
        out.append(wide[0] if wide else 1)
    return tuple(out)


def axis_of(axis: int, rank: int) -> int:
    """``axis`` counted from 0; ShapeFault when a tensor of ``rank`` has no such axis."""
    if not -rank <= axis < rank:
        raise ShapeFault(f"axis {axis} is out of range for rank {rank}")
    return axis % rank
