"""Staging of copies between host arrays and a GPU in page-locked (pinned) memory.

For pageable memory CUDA only promises that a copy *might* be finished when the call returns, and its driver waits for
all work of the stream before it stages such a copy itself. Here each copy is staged in page-locked memory, which the
GPU
accesses directly: a copy to the GPU is asynchronous from then on, and one from it is waited for.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import numpy as np
from attrs import define, field

CHUNK = 4 * 2**20  # bytes of a piece of page-locked memory: a copy of as many takes some 0.2 ms
CHUNKS = 2  # the GPU copies one while the host fills, or empties, the other
ALIGNMENT = 16  # bytes, of each copy within a chunk


class Work(Protocol):
    """The methods of a stream that staging uses; ``cuda_runtime.Stream`` has them."""

    def page_locked(self, nbytes: int) -> int: ...
    def event(self) -> int: ...
    def record(self, event: int) -> None: ...
    def wait_for(self, event: int) -> None: ...
    def to_device(self, to: int, source: int, nbytes: int) -> None: ...
    def to_host(self, to: int, source: int, nbytes: int) -> None: ...


@define
class Chunk:
    """``size`` bytes at ``address``, of which ``used`` belong to queued copies. Once it ``is_full``, ``event`` is the
    end of these."""

    address: int
    event: int
    size: int
    used: int = 0
    is_full: bool = False


@define
class Staging:
    """A ring of chunks. A chunk is reused when its last copy is finished."""

    stream: Work
    chunks: list[Chunk] = field(factory=list)

    def _chunk_for(self, nbytes: int) -> Chunk:
        """The current chunk if ``nbytes`` fit into it, else the next one, empty."""
        if not self.chunks:
            self.chunks = [Chunk(self.stream.page_locked(CHUNK), self.stream.event(), CHUNK) for _ in range(CHUNKS)]
        chunk = self.chunks[0]
        if chunk.used + nbytes <= chunk.size:
            return chunk
        self.stream.record(chunk.event)
        chunk.is_full = True
        self.chunks = [*self.chunks[1:], chunk]
        chunk = self.chunks[0]
        if chunk.is_full:
            self.stream.wait_for(chunk.event)
        chunk.used, chunk.is_full = 0, False
        return chunk

    def _allocate(self, nbytes: int) -> int:
        """The address of ``nbytes`` bytes that no copy uses any more."""
        chunk = self._chunk_for(nbytes)
        address = chunk.address + chunk.used
        chunk.used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return address

    def write(self, to: int, array: np.ndarray) -> None:
        """Copy ``array``, which is contiguous, to the GPU's address ``to``. It may be changed at once."""
        for at in range(0, array.nbytes, CHUNK):
            size = min(CHUNK, array.nbytes - at)
            address = self._allocate(size)
            ctypes.memmove(address, array.ctypes.data + at, size)
            self.stream.to_device(to + at, address, size)

    def read(self, source: int, out: np.ndarray) -> None:
        """Fill ``out``, which is contiguous, with what lies at the GPU's address ``source`` when all is done that was
        asked for before."""
        in_flight: list[tuple[int, int, int, int]] = []  # of each copy: to, from, bytes, what to wait for
        for at in range(0, out.nbytes, CHUNK):
            size = min(CHUNK, out.nbytes - at)
            address = self._allocate(size)
            event = self.chunks[0].event
            self.stream.to_host(address, source + at, size)
            self.stream.record(event)
            in_flight.append((out.ctypes.data + at, address, size, event))
            if len(in_flight) == CHUNKS:
                self._finish_read(*in_flight.pop(0))
        for copy in in_flight:
            self._finish_read(*copy)

    def _finish_read(self, to: int, address: int, size: int, event: int) -> None:
        self.stream.wait_for(event)
        ctypes.memmove(to, address, size)
