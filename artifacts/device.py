"""What the loop needs of a device, and the rows that serve it: NumPy callables, or a compiled library on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from . import tensors
from .manifest import Manifest

Handle = Any  # a tensor on the device; only the device looks inside
Call = Callable[[Sequence[Handle]], tuple[Handle, ...]]


class Device(Protocol):
    """Tensors are contiguous; ``tensor`` copies, so that the array given may be reused at once."""

    def tensor(self, array: np.ndarray) -> Handle:
        """A tensor with the values of ``array``."""
        ...

    def numpy(self, handle: Handle) -> np.ndarray:
        """The values of a tensor: valid until the tensor is written or dropped."""
        ...

    def zero(self, handle: Handle) -> None:
        """Fill a tensor with zeros."""
        ...

    def phase(self, name: str) -> Call:
        """The phase's function: all inputs in order -> the outputs that are not in an in-place pair, in order."""
        ...


class HostDevice:
    """Phases as Python functions over NumPy arrays: ``functions[phase](*arrays)`` returns all outputs in order.

    The function need not write in place: what the manifest pairs in place is copied into the input's memory here.
    """

    def __init__(self, manifest: Manifest, functions: Mapping[str, Callable[..., Sequence[np.ndarray]]]) -> None:
        self._manifest, self._functions = manifest, functions

    def tensor(self, array: np.ndarray) -> np.ndarray:
        out = tensors.aligned(array.shape, tensors.dtype_name(array))
        out[...] = array
        return out

    def numpy(self, handle: np.ndarray) -> np.ndarray:
        return handle

    def zero(self, handle: np.ndarray) -> None:
        handle[...] = 0

    def phase(self, name: str) -> Call:
        phase = self._manifest.phase(name)
        assert phase is not None
        pairs, function = dict(phase.in_place), self._functions[name]

        def call(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
            outputs = function(*inputs)
            returned = []
            for i, (value, port) in enumerate(zip(outputs, phase.outputs, strict=True)):
                value = np.asarray(value, tensors.dtype(port.dtype)).reshape(port.shape)
                if i in pairs:
                    inputs[pairs[i]][...] = value
                else:
                    returned.append(self.tensor(value))
            return tuple(returned)

        return call
