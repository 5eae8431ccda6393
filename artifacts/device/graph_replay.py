"""The part of a device that makes captures replayable: tensors that the loop writes have slots with fixed addresses.

A GPU is one such device (cuda.py), its simulation another (memory_simulation.py), so that the plan equals the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from .cuda_graphs import Graphs
from .interface import Body, Call, Env, Handle, Look, MovableTensors, Outputs
from .paired_graphs import Alternating
from .pinned_staging import ALIGNMENT, CHUNK

TRIP = ("trip", "")  # the key of the number of a trip


class Replaying(MovableTensors):
    """``_graphs``: the captures; None: none are made. A subclass makes, writes, copies and fills tensors."""

    _graphs: Graphs | None
    _slots: dict[Hashable, Handle]
    _packed: tuple[int, Handle]  # the packing buffer of ``read``: its bytes, and it

    def _empty(self, array: np.ndarray) -> Handle:
        raise NotImplementedError

    def _copy(self, to: Handle, source: Handle) -> None:
        raise NotImplementedError

    def _fill(self, handles: Sequence[Handle]) -> tuple[Handle, ...]:
        raise NotImplementedError

    def _init_replay(self, graphs: Graphs | None) -> None:
        self._graphs, self._slots, self._packed = graphs, {}, (0, None)

    def _capturable(self, name: str, plain: Call) -> Call:
        """``plain``, a phase's function, as calls that may be captured."""
        graphs = self._graphs
        assert graphs is not None
        return lambda inputs: graphs.call(name, plain, inputs)

    def _slot(self, key: Hashable, array: np.ndarray) -> Handle:
        """The tensor of a key, shape and dtype."""
        key = key, array.shape, array.dtype
        if key not in self._slots:
            self._slots[key] = self._empty(array)
        return self._slots[key]

    def _packing(self, sizes: Sequence[int]) -> tuple[list[int], Handle]:
        """The offsets of tensors of ``sizes`` bytes that are packed to be read, and the packing buffer; None instead of
        it where reading one by one is better."""
        starts = list(itertools.accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
        if len(sizes) < 2 or starts[-1] > CHUNK:
            return starts, None
        if self._packed[0] < starts[-1]:
            self._packed = starts[-1], self._empty(np.empty(starts[-1], np.uint8))
        return starts, self._packed[1]

    def place(self, key: Hashable, array: np.ndarray) -> Handle:
        """The same tensor each time, overwritten: allocating on a GPU takes longer than a phase."""
        slot = self._slot(key, array)
        self.write(slot, array)
        return slot

    def keep(self, old: Handle, new: Handle) -> Handle:
        if self._graphs is None or new is old:
            return new
        self._copy(old, new)
        return old

    def zero(self, handles: Sequence[Handle]) -> None:
        if self._graphs is None or not handles:
            self._fill(handles)
            return
        fill = self._capturable("zero", self._fill)

        def body() -> Outputs:
            fill(handles)
            return {}

        inputs = {("zero", str(n)): handle for n, handle in enumerate(handles)}
        self._graphs.repeat(("zero",), inputs, lambda: None, body)

    def trip_numbers(self, count: int, carried: Sequence[tuple[int, int]]) -> Iterator[Handle]:
        recording = self._graphs.recording if self._graphs else None
        if recording is not None:
            slot = self._slot(TRIP, np.array(0, np.int64))
            return Alternating(recording, carried, self._copy).numbers(slot, count)
        return (self.place(TRIP, np.array(n, np.int64)) for n in range(count))

    def repeat(self, key: Hashable, env: Env, look: Look, body: Body) -> Outputs:
        return self._graphs.repeat(key, env, look, body) if self._graphs else body()
