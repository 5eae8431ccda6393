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
from ..device.interface import Call, Plain
from ..format.manifest import Field, Loader, Manifest, Pass, Port
from .step import Loop

PAGE = 4096  # the runtime's allocator and its workspaces round up to it
BESIDE = 128  # bytes that the C library's allocator and the alignment add to each on a CPU
FEW = 3  # after the second trip, or call of a step, each is like the one before; of two graphs the last is the same
ROUNDS = 3  # of a step and its passes: call by call, captured, and captured anew, since the first pass was new then


@frozen
class Asked:
    """What a call of a phase asks the runtime for, in bytes.

    blocks:  of its intermediates, given back when it returns; its results are beside them
    kernels: of each program it runs, in order: (buffers that it takes once, buffers that each thread takes)
    """

    blocks: tuple[int, ...]
    kernels: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@frozen
class Taken:
    """Bytes that the run takes from the system: ``device`` once, ``thread`` for each thread."""

    device: int
    thread: int


def rehearse(
    manifest: Manifest, asked: Mapping[str, Asked], constants: Sequence[int] = (), graphs: bool | None = None
) -> Taken:
    """What the run of ``manifest`` takes.

    asked:     phase -> what a call of it asks for
    constants: bytes of each of the library's constants, which the runtime copies to the device
    graphs:    on a GPU, whether captures are made; None: on a CPU, where constants are the library's own
    """
    trips = manifest.step.trips
    few = trips and (trips if trips <= FEW else FEW + (trips - FEW) % 2)
    calls, rest = divmod(manifest.run.microbatches, manifest.degree)
    manifest = evolve(
        manifest,
        step=evolve(manifest.step, trips=few),
        run=evolve(manifest.run, microbatches=min(calls, FEW) * manifest.degree + min(rest, FEW)),
    )
    device = _Counting(manifest, asked) if graphs is None else _CountingGpu(manifest, asked, graphs)
    for size in constants if graphs is not None else ():
        device.pool.take(size)
    passes: dict[str, Records] = {p.loader: _Blank.of(manifest.loader(p.loader)) for p in manifest.step.passes}
    loop = Loop(manifest, device, _Blanks(manifest), passes, lambda: None)
    now, last = loop.initial(), []
    for due in _rounds(manifest.step.passes):
        last[:] = [loop.step(now)]  # a session holds what a step reports until the next one is taken
        for one in due:
            loop.evaluate(now, one)
    return Taken(device.pool.taken + device.direct.most + device.own.taken, device.task.taken)


def _rounds(passes: Sequence[Pass]) -> Iterator[list[Pass]]:
    """The passes after each step: first those of every step, then those of the next cadence too, and so on."""
    for every in sorted({1, *(one.every for one in passes)}):
        yield from [[one for one in passes if one.every <= every]] * ROUNDS


Give = Callable[[], None]


@define
class _Pool:
    """The runtime's allocator: blocks by size, kept when they are given back; the last one is the first to be taken
    again. ``beside``: bytes that each takes more; ``free``: their places, by size; ``most``: how many there are."""

    beside: int
    free: dict[int, list[int]] = field(factory=dict)
    most: Counter[int] = field(factory=Counter)
    places: Iterator[int] = field(factory=itertools.count)

    def take(self, size: int) -> tuple[int, Give]:
        """The place of a block; call what is returned to give it back."""
        size = _rounded(size)
        free = self.free.setdefault(size, [])
        if not free:
            self.most[size] += 1
            free.append(next(self.places))
        place = free.pop()
        return place, lambda: free.append(place)

    @property
    def taken(self) -> int:
        return sum((size + self.beside) * count for size, count in self.most.items())


@define
class _Direct:
    """Memory that goes back to the system; ``beside``: bytes that each block takes more."""

    beside: int
    held: int = 0
    most: int = 0

    def take(self, size: int) -> tuple[int, Give]:
        size += self.beside
        self.held += size
        self.most = max(self.most, self.held)

        def give() -> None:
            self.held -= size

        return -1, give


@define
class _Workspaces:
    """One thread's workspaces, as the runtime keeps them: a request takes the smallest free one that it fits in; if
    none is large enough, the largest free one is replaced. ``beside``: bytes that each takes more."""

    beside: int
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
    def taken(self) -> int:
        return sum(size + self.beside for size in self.free)


def _rounded(size: int) -> int:
    return -(-max(size, 1) // PAGE) * PAGE


class _Sized:
    """A tensor without values: ``give`` is called when nothing holds it any more."""

    def __init__(self, shape: tuple[int, ...], dtype: str, take: Callable[[int], tuple[int, Give]]) -> None:
        self.shape, self.dtype, self.nbytes = shape, dtype, math.prod(shape) * safetensors_io.DTYPES[dtype][2]
        self._place, self._give = take(self.nbytes)

    def data_ptr(self) -> int:
        return self._place

    def __del__(self) -> None:
        self._give()


class _Counting(Plain):
    """A device that holds sizes. ``BESIDE``: bytes that the system adds to each block; a GPU's are by the page."""

    BESIDE = BESIDE

    def __init__(self, manifest: Manifest, asked: Mapping[str, Asked]) -> None:
        self._manifest, self._asked = manifest, asked
        self.pool, self.direct = _Pool(self.BESIDE), _Direct(self.BESIDE)
        self.own, self.task = _Workspaces(self.BESIDE), _Workspaces(self.BESIDE)

    def tensor(self, array: np.ndarray) -> _Sized:
        return _Sized(array.shape, safetensors_io.dtype_name(array), self.direct.take)

    def numpy(self, handle: _Sized) -> np.ndarray:
        return _zeros(handle.shape, handle.dtype)

    def zero(self, handles: Sequence[_Sized]) -> None:
        pass

    def phase(self, name: str) -> Call:
        phase, asked = self._manifest.phase(name), self._asked[name]
        assert phase is not None
        pairs = dict(phase.in_place)
        returned = [port for i, port in enumerate(phase.outputs) if i not in pairs]

        def call(inputs: Sequence[Any]) -> tuple[_Sized, ...]:
            blocks = [self.pool.take(size) for size in asked.blocks]
            made = tuple(self._made(port) for port in returned)
            for own, task in asked.kernels:
                self.own.run((*own, *task))  # the calling thread has its part too
                self.task.run(task)
            for _, give in blocks:
                give()
            return made

        return call

    def _made(self, port: Port) -> _Sized:
        return _Sized(port.shape, port.dtype, self.pool.take)


class _CountingGpu(_Counting, Replaying):
    """One that keeps tensors in their places, and makes captures."""

    BESIDE = 0

    def __init__(self, manifest: Manifest, asked: Mapping[str, Asked], graphs: bool) -> None:
        super().__init__(manifest, asked)
        self._replaying(Graphs(_Silent()) if graphs else None)

    def phase(self, name: str) -> Call:
        plain = super().phase(name)
        return self._replayed(name, plain) if self._graphs else plain

    def read(self, handles: Sequence[_Sized]) -> list[np.ndarray]:
        self._together([handle.nbytes for handle in handles])
        return super().read(handles)

    def _empty(self, array: np.ndarray) -> _Sized:
        return self.tensor(array)

    def write(self, handle: _Sized, array: np.ndarray) -> None:
        pass

    def _copy(self, to: _Sized, source: _Sized) -> None:
        pass

    def _fill(self, handles: Sequence[_Sized]) -> tuple[_Sized, ...]:
        return ()


class _Silent:
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


class _Blank(Records):
    """Two batches of a pass."""

    @classmethod
    def of(cls, loader: Loader) -> _Blank:
        return cls(loader, (), np.zeros(1, np.int64), 2 * loader.batch)

    def batch(self, numbers: np.ndarray) -> Batch:
        return _batch(self.loader)


class _Blanks(Training):
    """Batches of the training loaders, without end."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest, {})
        self._batches = {name: _batch(manifest.loader(name)) for name in manifest.training_loaders()}

    def next(self, loader: str, position: int, look: Callable[[], None]) -> Batch:
        return self._batches[loader]

    def left(self, loader: str, position: int) -> int | None:
        return None
