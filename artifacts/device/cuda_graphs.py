"""CUDA graphs: the calls that the loop repeats are captured once and then replayed.

A captured call contains the addresses of its tensors. Its inputs keep their addresses: batches, numbers and parameters
have fixed slots (``Replaying.place`` and ``keep``), and a capture serves only calls on the very tensors it was made
with. Its results are held as long as the capture exists. Intermediates are the runtime's: after the capture they go
back to its memory pool, and each replay writes into them. That is sound because nothing taken from the pool after a
capture is in use during a replay, and because the pool returns nothing to the system, except when it is out of memory
or takes a larger
workspace, in a phase that has not run before: then all captures are made again.

The trips of a generator take two graphs, however many trips there are: ``paired_graphs.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

from ..base.errors import DEVICE_CALL, DEVICE_FULL, RunError
from .graph_recording import Layout, Missed, Number, Recording, Trips, Work
from .interface import Body, Call, Env, Handle, Look, Outputs

MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation


@frozen(eq=False)
class Tape:
    """The calls of a body as graphs.

    inputs:  its tensors
    outputs: its results
    calls:   in order, each a graph or a loop
    graphs:  all graphs of these
    nodes:   kernel launches in them
    """

    inputs: dict[tuple[str, str], Handle]
    outputs: Outputs
    calls: tuple[int | Trips, ...]
    graphs: tuple[int, ...]
    nodes: int

    def fits(self, env: Env) -> bool:
        return all(env.get(key) is handle for key, handle in self.inputs.items())

    def launches(self) -> Iterator[tuple[int, Number | None]]:
        """(graph, what number to write before it) of each call."""
        for call in self.calls:
            if isinstance(call, Trips):
                yield from call.launches()
            else:
                yield call, None


@define(eq=False)
class Graphs:
    """Captures, by the key of the body that is repeated.

    phases_run: phases that have run
    bodies_run: keys of bodies that have run call by call
    failures:   keys of bodies that cannot be captured -> the reason
    captured:   keys of captured bodies -> (graphs, launches in them)
    layouts:    keys of bodies -> the memory layout of their loops, as learned
    """

    stream: Work
    phases_run: set[str] = field(factory=set)
    bodies_run: set[Hashable] = field(factory=set)
    failures: dict[Hashable, str] = field(factory=dict)
    captured: dict[Hashable, tuple[int, int]] = field(factory=dict)
    layouts: dict[Hashable, Layout] = field(factory=dict)
    tapes: dict[Hashable, Tape] = field(factory=dict)
    recording: Recording | None = None

    def call(self, name: str, plain: Call, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """A phase's call: executed, or recorded during ``_record``."""
        if self.recording is not None:
            return self.recording.call(plain, inputs)
        if name not in self.phases_run:
            self.phases_run.add(name)
            self.forget()
        outputs = self.stream.paced(lambda: plain(inputs))
        self._check_pool()
        return outputs

    def _check_pool(self) -> None:
        """Drop all captures if the pool returned memory to the system and retried: their addresses may be reused."""
        if self.tapes and self.stream.last_error() == MEMORY_ALLOCATION:
            self.forget()

    def repeat(self, key: Hashable, env: Env, look: Look, body: Body) -> Outputs:
        """``Device.repeat``: the first time the calls are executed, the second time they are captured."""
        tape = self.tapes.get(key)
        if tape is None or not tape.fits(env):
            if key not in self.bodies_run or key in self.failures:
                self.bodies_run.add(key)
                return body()
            tape = self._record(key, dict(env), body)
            if tape is None:
                return body()
        for graph, number in tape.launches():
            look()
            if number is None:
                self.stream.launch(graph)
            else:
                self.stream.launch(graph, number)
        return tape.outputs

    def _record(self, key: Hashable, tensors: dict[tuple[str, str], Handle], body: Body) -> Tape | None:
        """The tape of ``body``, recorded without executing it; None if it cannot be captured."""
        self._drop(key)
        while True:
            with contextlib.suppress(Missed):
                return self._captured(key, tensors, body)

    def _captured(self, key: Hashable, tensors: dict[tuple[str, str], Handle], body: Body) -> Tape | None:
        self.recording = recording = Recording(self.stream, self.layouts.setdefault(key, Layout()))
        try:
            returned = body()
            recording.close()
        except BaseException as error:
            recording.abandon()
            if not isinstance(error, RunError) or error.code not in (DEVICE_CALL, DEVICE_FULL):
                raise  # to be captured again, or a signal, or a device that is no more
            self.failures[key] = error.what
            self.forget()
            return None
        finally:
            self.recording = None
        self._check_pool()
        tape = Tape(tensors, returned, tuple(recording.calls), tuple(recording.graphs), recording.nodes)
        self.tapes[key], self.captured[key] = tape, (len(tape.graphs), tape.nodes)
        return tape

    def forget(self) -> None:
        """Drop all captures: the next time of each is captured anew."""
        for key in list(self.tapes):
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        tape = self.tapes.pop(key, None)
        if tape is not None:
            self.stream.wait()  # the last launches may be under way
            for graph in tape.graphs:
                self.stream.destroy(graph)

    def lines(self) -> list[str]:
        """What was captured and what could not be, as text."""
        captured = [
            f"{_key_text(key)}: {count} graphs of {nodes} launches" for key, (count, nodes) in self.captured.items()
        ]
        return captured + [f"{_key_text(key)}: not captured, {reason}" for key, reason in self.failures.items()]


def _key_text(key: Any) -> str:
    return " ".join(str(part) for part in key if part not in ("", 1)) if isinstance(key, tuple) else str(key)
