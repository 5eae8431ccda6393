"""The trips of a generator as two alternating CUDA graphs, however many trips there are (double buffering).

The first graph reads the state where the second one writes it, and writes it where the second one reads it.

The runtime's memory pool decides where a call's results lie: a request gets the last freed block of its size. So the
first call's state is freed before the second call, in the order in which a call allocates the next state's entries:
these are then written there. An entry that is written elsewhere all the same, since a call allocates that size for
other purposes, is held during the second call, which is followed by a copy. The order, and what has to be held, are
learned: if the second call misses, the whole body is captured again. No bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import define

from .graph_recording import Trips
from .interface import Handle

if TYPE_CHECKING:
    from .graph_recording import Recording


@define(eq=False)
class Alternating:
    """Captures a loop. ``carried``: (output, input) of what a call makes for the next one; ``copy``: (to, from) writes
    down a copy of a tensor."""

    recording: Recording
    carried: Sequence[tuple[int, int]]
    copy: Callable[[Handle, Handle], None]

    def numbers(self, slot: Handle, count: int) -> Iterator[Handle]:
        """``slot`` for each call that is captured; whoever asks for the next one has used the last call's results in
        the place of what they were made of. Raises Missed."""
        recording, layout = self.recording, self.recording.layout
        layout.order = layout.order or [i for _, i in sorted(self.carried)]
        with recording.loop(Trips(slot, count)):
            yield slot
            inputs, source = recording.take_last()
            if count == 1:
                return
            addresses = {i: inputs[i].data_ptr() for i in layout.order}
            held_inputs = {i: inputs[i] for i in layout.held_inputs}
            for i in reversed(layout.order):
                inputs[i] = None  # given back, where it is not held
            yield slot
            _, outputs = recording.take_last()
            if count > 2:
                layout.learn(addresses, {i: outputs[o].data_ptr() for o, i in self.carried})
                for o, i in self.carried:
                    if i in held_inputs:
                        self.copy(held_inputs[i], outputs[o])
                if count % 2:  # the last trip is the first call again
                    recording.next_result = source
                    yield slot
