"""Simulates a run to find the memory of its tensors: the loop runs on a device whose tensors are sizes without values.

The loop decides how long a tensor lives, and the runtime's allocator keeps freed blocks by size. So the loop itself is
run, for a few steps and rounds of every pass, on a device that counts what the runtime would allocate. For a GPU the
device makes captures, with the code that makes a GPU's, and counts what they hold. A pass that first comes late in a
run finds everything before it captured, and so it does here.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen

from ..base import safetensors_io
from ..data.loaders import Batch, Records, Training
from ..device.cuda_graphs import Graphs
from ..device.graph_recording import Number
from ..device.graph_replay import Replaying
from ..device.interface import Call, MovableTensors
from ..format.manifest import Field, Loader, Manifest, Pass, Port
from .step import Loop

PAGE = 4096  # bytes; the runtime's allocator and workspace pool round up to it
BLOCK_OVERHEAD = 128  # bytes that malloc and alignment add to each block on a CPU
# Trips, and calls of a step, that are simulated: from the third on each is like the one before; of two alternating
# graphs the last must be the same one.
MAX_SIMULATED = 3
# Rounds of a step and its passes: call by call, captured, and captured again, since the first pass was new in between.
ROUNDS = 3


@frozen
class CallMemory:
    """What a call of a phase allocates, in bytes.

    blocks:  for its intermediates, freed when it returns; its results are not among them
    kernels: of each program it runs, in order: (buffers allocated once, buffers allocated by each thread)
    """

    blocks: tuple[int, ...]
    kernels: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@frozen
class RunMemory:
    """Bytes that the run allocates from the system: ``device`` once, ``thread`` for each thread."""

    device: int
    thread: int


def simulate(
    manifest: Manifest, call_memory: Mapping[str, CallMemory], constants: Sequence[int] = (), graphs: bool | None = None
) -> RunMemory:
    """The memory of the run of ``manifest``.

    call_memory: phase -> what a call of it allocates
    constants:   bytes of each of the library's constants, which the runtime copies to the device
    graphs:      on a GPU, whether captures are made; None: on a CPU, where constants are part of the library
    """
    trips = manifest.step.trips
    simulated_trips = trips and (trips if trips <= MAX_SIMULATED else MAX_SIMULATED + (trips - MAX_SIMULATED) % 2)
    calls, remainder = divmod(manifest.run.microbatches, manifest.degree)
    manifest = evolve(
        manifest,
        step=evolve(manifest.step, trips=simulated_trips),
        run=evolve(
            manifest.run, microbatches=min(calls, MAX_SIMULATED) * manifest.degree + min(remainder, MAX_SIMULATED)
        ),
    )
    device = _SizeDevice(manifest, call_memory) if graphs is None else _SizeGpu(manifest, call_memory, graphs)
    for size in constants if graphs is not None else ():
        device.pool.allocate(size)
    passes: dict[str, Records] = {p.loader: _BlankRecords.of(manifest.loader(p.loader)) for p in manifest.step.passes}
    loop = Loop(manifest, device, _BlankTraining(manifest), passes, lambda: None)
    state, last = loop.initial(), []
    for due in _rounds(manifest.step.passes):
        last[:] = [loop.step(state)]  # a session holds a step's report until the next step
        for each in due:
            loop.evaluate(state, each)
    return RunMemory(
        device.pool.total_bytes + device.direct.peak + device.own.total_bytes, device.per_thread.total_bytes
    )


def _rounds(passes: Sequence[Pass]) -> Iterator[list[Pass]]:
    """The passes after each step: first those of every step, then those of the next cadence too, and so on."""
    for every in sorted({1, *(each.every for each in passes)}):
        yield from [[each for each in passes if each.every <= every]] * ROUNDS


Release = Callable[[], None]


@define
class _Pool:
    """The runtime's pooled allocator: freed blocks are kept by size, and the last one freed is the first to be reused.

    overhead:   bytes added to each block
    free:       size -> numbers of the free blocks
    max_blocks: size -> blocks allocated
    """

    overhead: int
    free: dict[int, list[int]] = field(factory=dict)
    max_blocks: Counter[int] = field(factory=Counter)
    numbers: Iterator[int] = field(factory=itertools.count)

    def allocate(self, size: int) -> tuple[int, Release]:
        """The number of a block, and the function that frees it."""
        size = _rounded(size)
        free = self.free.setdefault(size, [])
        if not free:
            self.max_blocks[size] += 1
            free.append(next(self.numbers))
        number = free.pop()
        return number, lambda: free.append(number)

    @property
    def total_bytes(self) -> int:
        return sum((size + self.overhead) * count for size, count in self.max_blocks.items())


@define
class _SystemMemory:
    """Memory that is returned to the system when freed; ``overhead``: bytes added to each block."""

    overhead: int
    current: int = 0
    peak: int = 0

    def allocate(self, size: int) -> tuple[int, Release]:
        size += self.overhead
        self.current += size
        self.peak = max(self.peak, self.current)

        def release() -> None:
            self.current -= size

        return -1, release


@define
class _Workspaces:
    """One thread's workspace pool, as in the runtime: a request gets the smallest free block that fits; if none is
    large enough, it replaces the largest free one. ``overhead``: bytes added to each block."""

    overhead: int
    free: list[int] = field(factory=list)

    def run(self, sizes: Sequence[int]) -> None:
        """A program that allocates ``sizes`` and frees them at its end."""
        used = []
        for size in map(_rounded, sizes):
            fits = [n for n in self.free if n >= size]
            if self.free:
                self.free.remove(min(fits) if fits else max(self.free))
            used.append(min(fits) if fits else size)
        self.free += used

    @property
    def total_bytes(self) -> int:
        return sum(size + self.overhead for size in self.free)


def _rounded(size: int) -> int:
    return -(-max(size, 1) // PAGE) * PAGE


class _SizedTensor:
    """A tensor without values; it frees its memory when it is garbage collected."""

    def __init__(self, shape: tuple[int, ...], dtype: str, allocate: Callable[[int], tuple[int, Release]]) -> None:
        self.shape, self.dtype, self.nbytes = shape, dtype, math.prod(shape) * safetensors_io.DTYPES[dtype][2]
        self._address, self._release = allocate(self.nbytes)

    def data_ptr(self) -> int:
        return self._address

    def __del__(self) -> None:
        self._release()


class _SizeDevice(MovableTensors):
    """A device whose tensors are sizes. ``OVERHEAD``: bytes added to each block; none on a GPU."""

    OVERHEAD = BLOCK_OVERHEAD

    def __init__(self, manifest: Manifest, call_memory: Mapping[str, CallMemory]) -> None:
        self._manifest, self._call_memory = manifest, call_memory
        self.pool, self.direct = _Pool(self.OVERHEAD), _SystemMemory(self.OVERHEAD)
        self.own, self.per_thread = _Workspaces(self.OVERHEAD), _Workspaces(self.OVERHEAD)

    def tensor(self, array: np.ndarray) -> _SizedTensor:
        return _SizedTensor(array.shape, safetensors_io.dtype_name(array), self.direct.allocate)

    def numpy(self, handle: _SizedTensor) -> np.ndarray:
        return _zeros(handle.shape, handle.dtype)

    def zero(self, handles: Sequence[_SizedTensor]) -> None:
        pass

    def phase(self, name: str) -> Call:
        phase, call_memory = self._manifest.phase(name), self._call_memory[name]
        assert phase is not None
        pairs = dict(phase.in_place)
        returned = [port for i, port in enumerate(phase.outputs) if i not in pairs]

        def call(inputs: Sequence[Any]) -> tuple[_SizedTensor, ...]:
            blocks = [self.pool.allocate(size) for size in call_memory.blocks]
            outputs = tuple(self._output(port) for port in returned)
            for own, task in call_memory.kernels:
                self.own.run((*own, *task))  # the calling thread runs a part too
                self.per_thread.run(task)
            for _, release in blocks:
                release()
            return outputs

        return call

    def _output(self, port: Port) -> _SizedTensor:
        return _SizedTensor(port.shape, port.dtype, self.pool.allocate)


class _SizeGpu(_SizeDevice, Replaying):
    """A GPU: written tensors keep their addresses, and calls are captured."""

    OVERHEAD = 0

    def __init__(self, manifest: Manifest, call_memory: Mapping[str, CallMemory], graphs: bool) -> None:
        super().__init__(manifest, call_memory)
        self._init_replay(Graphs(_NoStream()) if graphs else None)

    def phase(self, name: str) -> Call:
        plain = super().phase(name)
        return self._capturable(name, plain) if self._graphs else plain

    def read(self, handles: Sequence[_SizedTensor]) -> list[np.ndarray]:
        self._packing([handle.nbytes for handle in handles])
        return super().read(handles)

    def _empty(self, array: np.ndarray) -> _SizedTensor:
        return self.tensor(array)

    def write(self, handle: _SizedTensor, array: np.ndarray) -> None:
        pass

    def _copy(self, to: _SizedTensor, source: _SizedTensor) -> None:
        pass

    def _fill(self, handles: Sequence[_SizedTensor]) -> tuple[_SizedTensor, ...]:
        return ()


class _NoStream:
    """A stream that does nothing (null object)."""

    def begin(self) -> None:
        pass

    def end(self) -> tuple[int, int]:
        return 0, 0

    def abandon(self) -> None:
        pass

    def paced(self, work: Callable[[], Any]) -> Any:
        return work()

    def launch(self, graph: int, number: Number | None = None) -> None:
        pass

    def wait(self) -> None:
        pass

    def destroy(self, graph: int) -> None:
        pass

    def last_error(self) -> int:
        return 0


def _zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros that take no memory: a broadcast scalar."""
    return np.broadcast_to(np.zeros((), safetensors_io.dtype(dtype)), shape)


def _batch(loader: Loader) -> Batch:
    def column(entry: Field) -> np.ndarray:
        return _zeros((loader.batch, *entry.shape), entry.dtype)

    return {entry.name: column(entry) for entry in loader.fields}


class _BlankRecords(Records):
    """Two batches of a pass."""

    @classmethod
    def of(cls, loader: Loader) -> _BlankRecords:
        return cls(loader, (), np.zeros(1, np.int64), 2 * loader.batch)

    def batch(self, numbers: np.ndarray) -> Batch:
        return _batch(self.loader)


class _BlankTraining(Training):
    """Batches of the training loaders, without end."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest, {})
        self._batches = {name: _batch(manifest.loader(name)) for name in manifest.training_loaders()}

    def next(self, loader: str, position: int, look: Callable[[], None]) -> Batch:
        return self._batches[loader]

    def records_left(self, loader: str, position: int) -> int | None:
        return None
