"""Strided views of te tensors, as tensor programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from tvm import te

from sexpgpu.ops.affine_index import Affine
from sexpgpu.ops.strided_views import View


@frozen(eq=False)
class Viewed:
    """A view of the te tensor ``tensor``, with the interface of a te tensor."""

    tensor: te.Tensor
    view: View

    @property
    def shape(self) -> Any:
        return [te.const(n, "int64") for n in self.view.shape]

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    def __call__(self, *index: Any) -> Any:
        return self.tensor(*(_affine_expr(affine, index) for affine in self.view.index))


def _affine_expr(affine: Affine, index: Sequence[Any]) -> Any:
    terms = [index[axis] if factor == 1 else index[axis] * factor for axis, factor in affine.factors]
    terms += [te.const(affine.const, "int64")] if affine.const or not terms else []
    return sum(terms[1:], terms[0])
