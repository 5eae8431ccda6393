"""te tensors that a program sees at the strides of a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from tvm import te

from sexpgpu.ops.affine_index import Affine
from sexpgpu.ops.strided_views import View


@frozen(eq=False)
class Viewed:
    """A view of the te tensor ``tensor``, as programs read one."""

    tensor: te.Tensor
    view: View

    @property
    def shape(self) -> Any:
        return [te.const(n, "int64") for n in self.view.shape]

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    def __call__(self, *at: Any) -> Any:
        return self.tensor(*(_written(index, at) for index in self.view.index))


def _written(index: Affine, at: Sequence[Any]) -> Any:
    parts = [at[axis] if factor == 1 else at[axis] * factor for axis, factor in index.factors]
    parts += [te.const(index.const, "int64")] if index.const or not parts else []
    return sum(parts[1:], parts[0])
