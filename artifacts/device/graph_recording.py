"""Records the calls of a body while they are captured into CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field

from .interface import Call, Handle

if TYPE_CHECKING:
    from .graph_recording import Recording


class Work(Protocol):
    """The methods of a stream that captures use; ``cuda_runtime.Stream`` has them."""

    def begin(self) -> None: ...
    def end(self) -> tuple[int, int]: ...
    def abandon(self) -> None: ...
    def paced(self, work: Callable[[], Any]) -> Any: ...
    def launch(self, graph: int, number: Number | None = None) -> None: ...
    def wait(self) -> None: ...
    def destroy(self, graph: int) -> None: ...
    def last_error(self) -> int: ...


@define(eq=False)
class Recording:
    """A body that is being captured. The last call's capture stays open until the next one, or the end.

    layout:      of its loop, if it has one
    target:      the list that graphs are added to: ``calls``, or a loop's
    next_result: in a loop, the result of the next call, which is an earlier call and is not captured again
    last_call:   in a loop, the inputs and results of the last call
    """

    stream: Work
    layout: Layout
    calls: list[int | Trips] = field(factory=list)
    graphs: list[int] = field(factory=list)
    nodes: int = 0
    is_open: bool = False
    target: list[Any] = field(init=False)
    next_result: tuple[Handle, ...] | None = None
    last_call: tuple[list[Handle], tuple[Handle, ...]] = ([], ())

    def __attrs_post_init__(self) -> None:
        self.target = self.calls

    def call(self, plain: Call, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        self.close()
        if self.next_result is not None:
            outputs, self.next_result = self.next_result, None
            return outputs
        self.stream.begin()
        self.is_open = True
        outputs = plain(inputs)
        if self.target is not self.calls:
            self.last_call = list(inputs), outputs
        return outputs

    @contextlib.contextmanager
    def loop(self, trips: Trips) -> Iterator[None]:
        """Calls in here are those of ``trips``."""
        self.close()
        self.calls.append(trips)
        self.target = trips.graphs
        yield
        self.close()
        self.target = self.calls

    def take_last(self) -> tuple[list[Handle], tuple[Handle, ...]]:
        """Take ``last_call`` out of the recording, which no longer holds its tensors."""
        last, self.last_call = self.last_call, ([], ())
        return last

    def close(self) -> None:
        """End the capture that is open, if one is."""
        if self.is_open:
            self.is_open = False
            graph, nodes = self.stream.end()
            self.graphs.append(graph)
            self.target.append(graph)
            self.nodes += nodes

    def abandon(self) -> None:
        """Leave nothing of it."""
        if self.is_open:
            self.stream.abandon()
        for graph in self.graphs:
            self.stream.destroy(graph)


Number = tuple[Handle, int]  # an i64 scalar, and what is written into it before a launch


@define(eq=False)
class Trips:
    """Calls in a loop, ``count`` of them, which take ``graphs`` in turn. Each has its number in ``slot``."""

    slot: Handle
    count: int
    graphs: list[int] = field(factory=list)

    def launches(self) -> Iterator[tuple[int, Number | None]]:
        for n in range(self.count):
            yield self.graphs[n % len(self.graphs)], (self.slot, n)


class Missed(Exception):
    """The second call did not write where the first one reads: capture again with the changed ``Layout``."""


@define(eq=False)
class Layout:
    """The memory layout of the state of a loop's two alternating calls, as learned.

    order:       the state's positions among a call's inputs, in the order in which a call allocates their successors
    held_inputs: those that are not freed between the calls
    miss_count:  how often the second call wrote elsewhere. After the first time the order is changed, after the second
                 the missed inputs are held, after the third all of the state is held, so that there is no fourth time
    """

    order: list[int] = field(factory=list)
    held_inputs: set[int] = field(factory=set)
    miss_count: int = 0

    def learn(self, read_at: Mapping[int, int], written_at: Mapping[int, int]) -> None:
        """Raise Missed unless each input that is not held was written where it is read. Both: input -> address."""
        missed = {i for i in self.order if i not in self.held_inputs and written_at[i] != read_at[i]}
        if not missed:
            return
        self.miss_count += 1
        if self.miss_count == 1:
            request_of = {read_at[i]: n for n, i in enumerate(self.order)}  # which request each address answered
            self.order.sort(key=lambda i: request_of.get(written_at[i], len(request_of)))
        else:
            self.held_inputs |= missed if self.miss_count == 2 else set(self.order)
        raise Missed
