"""Memory that ends where a page begins that may not be touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi

PAGE = mmap.PAGESIZE
APART = 1 << 20  # bytes on both sides that may not be touched
ALIGNED = 64  # what a kernel may take for granted of its tensors
POISON = 0xFF  # NaN in every float type, -1 in every integer


class Guarded:
    """``size`` bytes, those of ``content`` or poison; so is what is left of their first page."""

    def __init__(self, size: int, content: np.ndarray | None) -> None:
        room = -(-max(size, 1) // PAGE) * PAGE
        self.memory = mmap.mmap(-1, room + 2 * APART)
        whole = np.frombuffer(self.memory, "uint8")
        libc = ctypes.CDLL(None)
        for at in (0, APART + room):
            assert not libc.mprotect(ctypes.c_void_p(whole.ctypes.data + at), ctypes.c_size_t(APART), 0)
        end = APART + room
        begin = end - -(-size // ALIGNED) * ALIGNED
        whole[APART:end] = POISON
        self.inside = whole[begin : begin + size]
        self.around = whole[APART:begin], whole[begin + size : end]
        if content is not None:
            self.inside[:] = np.frombuffer(content.tobytes(), "uint8")

    def tensor(self, shape: Sequence[int], dtype: str) -> Any:
        return tvm_ffi.from_dlpack(self.inside, require_alignment=1)._create_view(tuple(shape), dtype)

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        return self.inside.copy().view(dtype).reshape(shape)

    def untouched(self) -> bool:
        return all(bool((part == POISON).all()) for part in self.around)
