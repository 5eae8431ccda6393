"""The calls of a body while they are captured into CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field

from .interface import Call, Handle

if TYPE_CHECKING:
    from .graph_recording import Recording


class Work(Protocol):
    """What captures ask of a stream: ``cudart.Stream`` is one."""

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

    layout: of its loop, if it has one
    to:     the list that graphs are added to: ``calls``, or a loop's
    again:  in a loop, what the next call returns, as it is an earlier one's and is not captured again
    last:   in a loop, the tensors that the last call was given, and what it made
    """

    stream: Work
    layout: Layout
    calls: list[int | Trips] = field(factory=list)
    graphs: list[int] = field(factory=list)
    nodes: int = 0
    is_open: bool = False
    to: list[Any] = field(init=False)
    again: tuple[Handle, ...] | None = None
    last: tuple[list[Handle], tuple[Handle, ...]] = ([], ())

    def __attrs_post_init__(self) -> None:
        self.to = self.calls

    def call(self, plain: Call, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        self.close()
        if self.again is not None:
            made, self.again = self.again, None
            return made
        self.stream.begin()
        self.is_open = True
        made = plain(inputs)
        if self.to is not self.calls:
            self.last = list(inputs), made
        return made

    @contextlib.contextmanager
    def loop(self, trips: Trips) -> Iterator[None]:
        """Calls in here are those of ``trips``."""
        self.close()
        self.calls.append(trips)
        self.to = trips.graphs
        yield
        self.close()
        self.to = self.calls

    def taken(self) -> tuple[list[Handle], tuple[Handle, ...]]:
        """``last``, held by nobody else from now on."""
        last, self.last = self.last, ([], ())
        return last

    def close(self) -> None:
        """End the capture that is open, if one is."""
        if self.is_open:
            self.is_open = False
            graph, nodes = self.stream.end()
            self.graphs.append(graph)
            self.to.append(graph)
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
    """The second call did not write where the first one reads: to be captured again, as ``Layout`` now says."""


@define(eq=False)
class Layout:
    """Where the state of a loop's two calls lies, as it was learned.

    order:  places of it among a call's inputs, in the order in which a call asks for what it makes in their place
    held:   those of them that are not given back between the calls
    missed: how often the second call wrote elsewhere: after the first time the order is another, after the second what
            missed is held, after the third all of it is, so that there is no fourth time
    """

    order: list[int] = field(factory=list)
    held: set[int] = field(factory=set)
    missed: int = 0

    def learn(self, lay: Mapping[int, int], lies: Mapping[int, int]) -> None:
        """Missed, unless all lies where it lay that is not held. Both: input -> address."""
        missed = {i for i in self.order if i not in self.held and lies[i] != lay[i]}
        if not missed:
            return
        self.missed += 1
        if self.missed == 1:
            asked = {lay[i]: n for n, i in enumerate(self.order)}  # which request each address answered
            self.order.sort(key=lambda i: asked.get(lies[i], len(asked)))
        else:
            self.held |= missed if self.missed == 2 else set(self.order)
        raise Missed
