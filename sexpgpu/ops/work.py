"""What an operator computes: the ``work`` column, from which the cost model takes flops and seconds.

    work=per_element(EXP)                      an elementwise row whose element takes as long as 40 flops
    work=attention_work(qk_products=1, ...)    what the scores of attention take
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attrs import frozen

from .types import TensorType

# Flops at the peak rate that take as long as one element of an operator. Rounded, from the kernels' times that
# docs/performance.md tells of: most of these are long chains, integer work, or divisions. A wrong one misplaces an
# operator's time in `sexpgpu explain --cost`, and may choose another microbatch stacking; no result changes.
ADD = 2  # as any other operator: an addition takes the place of a multiplication and an addition
DIVIDE = 10  # also a square root
LOOK_UP = 15  # of an element at a computed or far place; of a running sum or maximum
NORMALIZE = 30
EXP = 40  # also a logarithm
SIGMOID = 60  # one exponential and one division; also a sine
SOFTMAX = 60
SCATTER = 60
GELU = 70
PHILOX = 90  # a 32-bit word of a draw
POW = 150
# Multiplications that beginning and ending the sum of a product costs: short ones reach less of the peak rate.
ENDS = 8


@frozen
class Work:
    """The work of one value.

    flops:    multiplications and additions as they are counted: 2 m n k of a product, 1 an element of other
              arithmetic, 0 where elements are only moved
    products: flops at the peak rate that take as long as the value's matrix products
    other:    flops at the peak rate that take as long as the rest
    depth:    the summed dimension of a product, which matrix units take if it is deep enough
    """

    flops: int
    products: float = 0
    other: float = 0
    depth: float = 0


NONE = Work(0)
Column = Callable[..., Work]  # (the result's type, *the arguments' types, **attrs) -> Work


def nothing(out: TensorType, *xs: TensorType, **attrs: Any) -> Work:
    """The column of rows whose result is written into what reads it, or shares its argument's memory."""
    return NONE


def per_element(time: float = ADD) -> Column:
    """Each element of the result takes ``time``."""
    return lambda out, *xs, **attrs: Work(out.size, other=time * out.size)


def per_read(time: float = ADD) -> Column:
    """Each element of the result or of the largest argument takes ``time``, whichever has more."""
    return lambda out, *xs, **attrs: Work(out.size, other=time * max(out.size, *(x.size for x in xs)))


def moving(time: float = ADD) -> Column:
    """Each element of the result takes ``time``, and is not computed."""
    return lambda out, *xs, **attrs: Work(0, other=time * out.size)


def matrix_product(out: TensorType, x: TensorType, y: TensorType, ta: bool, tb: bool) -> Work:
    """The column of matmul: out [.. m n] of x [.. m k], or [.. k m] where it is read transposed."""
    k = x.shape[-2 if ta else -1]
    return Work(2 * out.size * k, products=2 * out.size * (k + ENDS), depth=k)


def attention_work(qk_products: int, pv_products: int, softmaxes: int, elementwise: int) -> Column:
    """Attention over q [.. m d], k [.. n d] and v [.. n e], the last three float arguments, and its m n scores.

    qk_products: products as deep as a key: 2 m n d flops each
    pv_products: products as deep as a value: 2 m n e flops each
    softmaxes:   softmaxes of the scores, and their gradients
    elementwise: other operators on each score
    """

    def column(out: TensorType, *xs: TensorType, **attrs: Any) -> Work:
        q, k, v = [x for x in xs if x.kind == "float"][-3:]
        scores = q.size // q.shape[-1] * k.shape[-2]
        depth = qk_products * q.shape[-1] + pv_products * v.shape[-1]
        return Work(
            scores * (2 * depth + softmaxes + elementwise),
            products=scores * 2 * (depth + ENDS * (qk_products + pv_products)),
            other=scores * (softmaxes * SOFTMAX + elementwise * ADD),
            depth=math.inf,  # its kernels pad d and e to what matrix units take
        )

    return column
