"""The registry of tensor programs that Relax lacks, or computes differently from the operator table; matmul and Philox.

A program is a function (te tensors..., out: TensorType, **attrs) -> te tensor. ``out`` is the type of the value that is
being emitted. A multi-output program returns a list of tensors and takes no ``out``. Every sum runs in one fixed order,
so the bits of a result depend on nothing but its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from sexpgpu.ops import random
from sexpgpu.ops.types import DTYPES, TensorType

KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a tensor program under ``name``; ValueError if the name is taken."""

    def add(program: Callable[..., Any]) -> Callable[..., Any]:
        if name in KERNELS:
            raise ValueError(f"tensor program {name!r} is declared twice")
        KERNELS[name] = program
        return program

    return add


def dims(out: TensorType) -> tuple[Any, ...]:
    """The shape with 64-bit sizes, as in TVM's own programs: fusion fails on mixed widths."""
    return tuple(tirx.const(n, "int64") for n in out.shape)


@kernel("copy")
def copy(x: te.Tensor, out: TensorType) -> Any:
    """``x`` in new memory."""
    return te.compute(x.shape, lambda *i: x(*i), "copy")


@kernel("matmul")
def matmul(a: te.Tensor, b: te.Tensor, out: TensorType, ta: bool = False, tb: bool = False) -> Any:
    """[.., m, k] x [.., k, n] -> [.., m, n] with leading axes broadcast; ``ta`` reads a as [.., k, m], ``tb`` b as
    [.., n, k]. Products and sums are in ``out``'s dtype, k ascending."""
    acc = DTYPES[out.dtype].numpy
    k = te.reduce_axis((0, a.shape[-2] if ta else a.shape[-1]), "k")

    def product(*index: Any) -> Any:
        *batch_index, i, j = index
        a_element = a(*_broadcast_batch(a, batch_index), *((k, i) if ta else (i, k)))
        b_element = b(*_broadcast_batch(b, batch_index), *((j, k) if tb else (k, j)))
        return te.sum(a_element.astype(acc) * b_element.astype(acc), axis=k)

    return te.compute(dims(out), product, "matmul", attrs={"in_order": True})


def _broadcast_batch(x: te.Tensor, batch_index: list[Any]) -> list[Any]:
    """The batch index into ``x``, which may have fewer batch axes than the result, or axes of size 1."""
    own_rank = len(x.shape) - 2
    aligned = batch_index[len(batch_index) - own_rank :]
    return [tirx.const(0, "int64") if int(n) == 1 else i for n, i in zip(x.shape, aligned, strict=False)]



@kernel("philox")
def philox(seed: te.Tensor, salt: te.Tensor, place: te.Tensor, out: TensorType) -> Any:
    """Philox4x32-10 (Salmon et al., SC 2011): element e of the flat result is word e % 4 of the block of counter
    (e // 4, place, salt's low word, salt's high word) under the key ``seed``.

    seed: u32[2], salt: i64[], place: u32[1]. The place is data so that all draws of one shape share one kernel.
    """
    strides = [math.prod(out.shape[n + 1 :]) for n in range(out.rank)]

    def word(*index: Any) -> Any:
        flat = sum((i * n for i, n in zip(index, strides, strict=True)), tirx.const(0, "int64"))
        block, names = _philox_block(flat.astype("uint64") >> _u64(2), seed, salt().astype("uint64"), place(0))
        word_index: Any = flat % 4
        y = block[3]
        for n in (2, 1, 0):
            y = tirx.Select(word_index == n, block[n], y)
        for name, value in reversed(names):
            y = tirx.Let(name, value, y)
        return y

    return te.compute(dims(out), word, "philox")


def _philox_block(index: Any, seed: te.Tensor, salt: Any, place: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """The four words of one counter, and the let variables that they use, each with its value. A round uses every word
    of the previous round twice, so that the expression would grow as 2^rounds without variables.

    A word is the low half of a 64-bit integer, and its high half is arbitrary: a CPU's vector multiply of 32 x 32 bits
    reads the low halves of 64-bit lanes and writes 64-bit products."""
    names: list[tuple[Any, Any]] = []

    def name(value: Any) -> Any:
        names.append((tirx.Var(f"x{len(names)}", value.ty), value))
        return names[-1][0]

    c = [name(x) for x in (index, place.astype("uint64"), salt, salt >> _u64(32))]
    for n in range(random.ROUNDS):
        # n * weyl is added to the key at once: repeated additions are what TVM's simplifier cannot fold
        k = [name(seed(i).astype("uint64") + _u64(n * w & random.MASK)) for i, w in enumerate(random.WEYL)]
        p, q = (name((c[i] & _u64(random.MASK)) * _u64(m)) for i, m in zip((0, 2), random.MULTIPLIERS, strict=True))
        c = [name(x) for x in ((q >> _u64(32)) ^ c[1] ^ k[0], q, (p >> _u64(32)) ^ c[3] ^ k[1], p)]
    return [name(_low_32(x)) for x in c], names


def _u64(number: int) -> Any:
    return tirx.const(number, "uint64")


def _low_32(x: Any) -> Any:
    """The low 32 bits. They are masked before the cast: TVM's simplifier fails on a u32 cast of a value that it knows
    to be larger."""
    return (x & _u64(random.MASK)).astype("uint32")
