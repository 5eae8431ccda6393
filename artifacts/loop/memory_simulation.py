"""What the tensors of a run take together, found by going through its loop with tensors that are sizes alone.

The loop decides how long a tensor lives, and the runtime keeps what it was given back, by size: so the loop itself is
run, for some steps and rounds of every pass, on a device that counts what the runtime would ask the system for. For a
GPU that is one with captures, made by the code that makes a GPU's: what they hold is counted as it is held. A pass that
first comes late in a run finds all that came before it captured, and so it does here.
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

PAGE = 4096  # the runtime's allocator and its workspaces round up to it
BLOCK_OVERHEAD = 128  # bytes that the C library's allocator and the alignment add to each on a CPU
MAX_SIMULATED = (
    3  # after the second trip, or call of a step, each is like the one before; of two graphs the last is the same
)
ROUNDS = 3  # of a step and its passes: call by call, captured, and captured anew, since the first pass was new then


@frozen
class CallMemory:
    """What a call of a phase asks the runtime for, in bytes.

    blocks:  of its intermediates, given back when it returns; its results are beside them
    kernels: of each program it runs, in order: (buffers that it takes once, buffers that each thread takes)
    """

    blocks: tuple[int, ...]
    kernels: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@frozen
class RunMemory:
    """Bytes that the run takes from the system: ``device`` once, ``thread`` for each thread."""

    device: int
    thread: int


def simulate(
    manifest: Manifest, call_memory: Mapping[str, CallMemory], constants: Sequence[int] = (), graphs: bool | None = None
) -> RunMemory:
    """What the run of ``manifest`` takes.

    call_memory:     phase -> what a call of it asks for
    constants: bytes of each of the library's constants, which the runtime copies to the device
    graphs:    on a GPU, whether captures are made; None: on a CPU, where constants are the library's own
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
        last[:] = [loop.step(state)]  # a session holds what a step reports until the next one is taken
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
    """The runtime's allocator: blocks by size, kept when they are given back; the last one is the first to be taken
    again. ``overhead``: bytes that each takes more; ``free``: their places, by size; ``max_blocks``: how many there
    are."""

    overhead: int
    free: dict[int, list[int]] = field(factory=dict)
    max_blocks: Counter[int] = field(factory=Counter)
    numbers: Iterator[int] = field(factory=itertools.count)

    def allocate(self, size: int) -> tuple[int, Release]:
        """The place of a block; call what is returned to give it back."""
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
    """Memory that goes back to the system; ``overhead``: bytes that each block takes more."""

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
    """One thread's workspaces, as the runtime keeps them: a request takes the smallest free one that it fits in; if
    none is large enough, the largest free one is replaced. ``overhead``: bytes that each takes more."""

    overhead: int
    free: list[int] = field(factory=list)

    def run(self, sizes: Sequence[int]) -> None:
        """What a program does that takes ``sizes``, and gives them back at its end."""
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
    """A tensor without values: ``release`` is called when nothing holds it any more."""

    def __init__(self, shape: tuple[int, ...], dtype: str, allocate: Callable[[int], tuple[int, Release]]) -> None:
        self.shape, self.dtype, self.nbytes = shape, dtype, math.prod(shape) * safetensors_io.DTYPES[dtype][2]
        self._address, self._release = allocate(self.nbytes)

    def data_ptr(self) -> int:
        return self._address

    def __del__(self) -> None:
        self._release()


class _SizeDevice(MovableTensors):
    """A device that holds sizes. ``OVERHEAD``: bytes that the system adds to each block; a GPU's are by the page."""

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
                self.own.run((*own, *task))  # the calling thread has its part too
                self.per_thread.run(task)
            for _, release in blocks:
                release()
            return outputs

        return call

    def _output(self, port: Port) -> _SizedTensor:
        return _SizedTensor(port.shape, port.dtype, self.pool.allocate)


class _SizeGpu(_SizeDevice, Replaying):
    """One that keeps tensors in their places, and makes captures."""

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
    """A stream on which nothing is done."""

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
    """Zeros that take no memory."""
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
