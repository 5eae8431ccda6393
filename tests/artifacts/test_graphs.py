"""When captures are made, replayed and dropped, on a stream that only writes down what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from attrs import define, field

from artifacts import run
from artifacts.base import errors
from artifacts.base.errors import RunError
from artifacts.device import cuda_runtime
from artifacts.device.cuda_graphs import Graphs
from artifacts.device.interface import HostDevice
from artifacts.format.manifest import Manifest
from artifacts.signals import Stopped
from tests.artifacts import toy
from tests.artifacts.support import contents, metrics

KEY = ("train", 1)


@define
class Stream:
    """done: what ran, in order; alive: graphs that exist; begun: captures; error: the last one"""

    done: list[str] = field(factory=list)
    alive: dict[int, list[str]] = field(factory=dict)
    captured: list[str] | None = None
    under_way: set[int] = field(factory=set)
    begun: int = 0
    made: int = 0
    error: int = 0

    def begin(self) -> None:
        assert self.captured is None
        self.captured = []
        self.begun += 1

    def end(self) -> tuple[int, int]:
        assert self.captured is not None
        self.made += 1
        self.alive[self.made], self.captured = self.captured, None
        return self.made, 2 * len(self.alive[self.made])

    def abandon(self) -> None:
        self.captured = None

    def paced(self, work: Callable[[], Any]) -> Any:
        assert self.captured is None
        return work()

    def launch(self, graph: int, number: Any = None) -> None:
        self.done += self.alive[graph]
        self.under_way.add(graph)

    def wait(self) -> None:
        assert self.captured is None
        self.under_way.clear()

    def destroy(self, graph: int) -> None:
        assert graph not in self.under_way
        del self.alive[graph]

    def last_error(self) -> int:
        error, self.error = self.error, 0
        return error

    def kernel(self, name: str) -> None:
        (self.done if self.captured is None else self.captured).append(name)


@define
class Rig:
    """A body of the phases ``names`` on the tensors of ``env``; ``fail``: what the last one raises while captured."""

    names: tuple[str, ...] = ("step", "train")
    stream: Stream = field(factory=Stream)
    env: dict[tuple[str, str], Any] = field(factory=lambda: {("param", "w"): object()})
    fail: Exception | None = None
    looks: int = 0
    stop_at: int = -1
    graphs: Graphs = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.graphs = Graphs(self.stream)  # type: ignore[arg-type]

    def look(self) -> None:
        self.looks += 1
        if self.looks == self.stop_at:
            raise Stopped(15)

    def plain(self, name: str) -> Callable[..., tuple[object, ...]]:
        def call(inputs: object) -> tuple[object, ...]:
            if self.fail is not None and name == self.names[-1] and self.stream.captured is not None:
                raise self.fail
            self.stream.kernel(name)
            return (name,)

        return call

    def body(self) -> dict[tuple[str, str], Any]:
        made: tuple[object, ...] = ()
        for name in self.names:
            self.look()
            made = self.graphs.call(name, self.plain(name), [])
        return {("metric", "loss"): made[0]}

    def go(self, key: Any = KEY) -> dict[tuple[str, str], Any]:
        return self.graphs.repeat(key, self.env, self.look, self.body)


def test_call_by_call_then_captured_then_replayed() -> None:
    rig = Rig()
    made = [rig.go() for _ in range(4)]
    assert rig.stream.done == ["step", "train"] * 4 and rig.stream.made == len(rig.stream.alive) == 2
    assert made[1] is made[2] is made[3] and rig.looks == 2 + (2 + 2) + 2 + 2
    assert rig.graphs.lines() == ["train: 2 graphs of 4 launches"]


def test_other_tensors_are_captured_anew_and_the_old_graphs_given_back() -> None:
    rig = Rig()
    rig.go(), rig.go()
    rig.env = {**rig.env, ("param", "w"): object()}
    rig.go(), rig.go()
    assert rig.stream.done == ["step", "train"] * 4 and rig.stream.made == 4 and set(rig.stream.alive) == {3, 4}


def test_keys_have_their_own_captures() -> None:
    rig = Rig()
    for key in (KEY, ("train", 2), KEY, ("train", 2)):
        rig.go(key)
    assert rig.stream.made == len(rig.stream.alive) == 4
    assert rig.graphs.lines() == ["train: 2 graphs of 4 launches", "train 2: 2 graphs of 4 launches"]


def test_a_phase_that_never_ran_has_all_captures_made_anew() -> None:
    """It may move a workspace, or the pool may give its memory back: addresses that captures have in them."""
    rig = Rig()
    rig.go(), rig.go()
    rig.graphs.call("eval", rig.plain("eval"), [])
    assert not rig.stream.alive
    rig.graphs.call("eval", rig.plain("eval"), [])
    rig.go()
    assert rig.stream.made == 4 and rig.stream.done[-2:] == ["step", "train"]
    rig.graphs.call("eval", rig.plain("eval"), [])
    rig.go()
    assert rig.stream.made == 4


@pytest.mark.parametrize("while_capturing", [False, True])
def test_memory_that_ran_out_and_was_found_after_all(while_capturing: bool) -> None:
    rig = Rig()
    rig.go("other"), rig.go("other")
    assert set(rig.stream.alive) == {1, 2}
    if while_capturing:
        rig.go()
        rig.stream.error = 2  # cudaErrorMemoryAllocation
        rig.go()
        assert set(rig.stream.alive) == {3, 4} and rig.stream.done == ["step", "train"] * 4
    else:
        rig.stream.error = 2
        rig.graphs.call("step", rig.plain("step"), [])
        assert not rig.stream.alive
    rig.stream.error = 700
    rig.graphs.call("step", rig.plain("step"), [])
    assert while_capturing == bool(rig.stream.alive)  # any other error is for whoever asked


def test_what_cannot_be_captured_is_done_call_by_call_and_said() -> None:
    rig = Rig(fail=RunError(errors.DEVICE_CALL, "phase train failed: no"))
    for _ in range(4):
        rig.go()
    assert rig.stream.done == ["step", "train"] * 4 and not rig.stream.alive and rig.stream.captured is None
    assert rig.stream.begun == 2  # and never tried again
    assert rig.graphs.lines() == ["train: not captured, phase train failed: no"]


@pytest.mark.parametrize("error", [RunError(errors.DEVICE_LOST, "gone"), MemoryError()])
def test_what_is_no_fault_of_the_capture_is_passed_on(error: Exception) -> None:
    rig = Rig(fail=error)
    rig.go()
    with pytest.raises(type(error)):
        rig.go()
    assert not rig.stream.alive and rig.stream.captured is None and rig.graphs.recording is None


@pytest.mark.parametrize("at, done", [(3, 2), (4, 2), (5, 2), (6, 3), (7, 4), (8, 5)])
def test_a_stop_is_looked_for_before_each_call(at: int, done: int) -> None:
    """While captured nothing is done; then each graph is one call."""
    rig = Rig(stop_at=at)
    rig.go()
    with pytest.raises(Stopped):
        while True:
            rig.go()
    assert len(rig.stream.done) == done and rig.graphs.recording is None
    rig.go()
    assert rig.stream.done[-2:] == ["step", "train"]


class Library:
    """CUDA's runtime, which answers every call and writes down those that pace a stream."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.made = 0
        self.flags: list[int] = []  # of events

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name in ("cudaEventCreateWithFlags", "cudaStreamCreateWithFlags"):
                self.made += 1
                arguments[0]._obj.value = self.made
            if name.startswith("cudaEventCreate"):
                self.flags += arguments[1:]
            if name.startswith("cudaEvent") or name == "cudaGraphLaunch":
                self.said.append((name.removeprefix("cuda"), *arguments))
            return 0

        call.argtypes = call.restype = None  # type: ignore[attr-defined]
        return call


def test_the_host_is_never_more_than_two_calls_ahead() -> None:
    library = Library()
    stream = cuda_runtime.Stream(library, 0)  # type: ignore[arg-type]
    assert set(library.flags) == {1 | 2}  # cudaEventBlockingSync, cudaEventDisableTiming: the host sleeps meanwhile
    library.said.clear()
    for graph in range(10, 14):
        stream.launch(graph)
    said = [(name, *(a for a in rest if a != stream.handle)) for name, *rest in library.said]
    first, second = (event for name, event in said[1:4:2] if name == "EventRecord")
    assert first != second and said == [
        ("GraphLaunch", 10), ("EventRecord", first), ("GraphLaunch", 11), ("EventRecord", second),
        ("EventSynchronize", first), ("GraphLaunch", 12), ("EventRecord", first),
        ("EventSynchronize", second), ("GraphLaunch", 13), ("EventRecord", second),
    ]  # fmt: skip


class Replaying(HostDevice):
    """What a GPU with captures does, in NumPy: tensors have their places, and what is repeated is done again with the
    very arrays of the second time."""

    def __init__(self, manifest: Manifest, functions: Any) -> None:
        super().__init__(manifest, functions)
        self.slots: dict[Any, np.ndarray] = {}
        self.seen: set[Any] = set()
        self.tapes: dict[Any, tuple[dict[Any, Any], list[Any], Any]] = {}
        self.recorded: list[Any] = []
        self.calls: list[Any] | None = None

    def place(self, key: Hashable, array: np.ndarray) -> np.ndarray:
        slot = self.slots.setdefault((key, array.shape, array.dtype), self.tensor(array))
        slot[...] = array
        return slot

    def keep(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        old[...] = new
        return old

    def phase(self, name: str) -> Any:
        call = super().phase(name)

        def noting(inputs: Any) -> Any:
            made = call(inputs)
            if self.calls is not None:
                self.calls.append((call, list(inputs), made))
            return made

        return noting

    def repeat(self, key: Any, env: Any, look: Any, body: Any) -> Any:
        given, calls, made = self.tapes.get(key, ({}, [], None))
        if made is not None and all(env.get(k) is handle for k, handle in given.items()):
            for call, inputs, outputs in calls:
                look()
                for array, value in zip(outputs, call(inputs), strict=True):
                    array[...] = value
            return made
        if key not in self.seen:
            self.seen.add(key)
            return body()
        self.recorded.append(key)
        given, self.calls = dict(env), []
        try:
            made = body()
            self.tapes[key] = given, self.calls, made
        finally:
            self.calls = None
        return made


def without_in_place(made: Manifest) -> Manifest:
    """``made`` with phases that write nothing in place."""
    return attrs.evolve(made, phases=tuple(attrs.evolve(p, in_place=()) for p in made.phases))


@pytest.mark.parametrize("change", [lambda m: m, without_in_place, lambda m: toy.stacked(with_microbatches(m, 5), 2)])
def test_the_loop_gives_what_it_repeats_the_same_tensors(
    tmp_path: Path, change: Callable[[Manifest], Manifest]
) -> None:
    """And so each key is captured once, and every byte is that of a run without captures."""
    artifact = toy.write(tmp_path, change(toy.manifest()))
    devices: list[Replaying] = []

    def replaying(opened: Any, threads: int | None) -> Replaying:
        plain = toy.device(opened, threads)
        devices.append(Replaying(opened.manifest, plain._functions))
        return devices[-1]

    def go(name: str, device: Any, *more: str) -> dict[str, str]:
        out = tmp_path / name
        assert run.main([artifact, "--out", str(out), "--data", str(tmp_path), "-q", *more], device=device) == 0
        return contents(out, metrics(out)[-1]["step"]) | {"log": str(metrics(out))}

    plain = go("plain", toy.device)
    assert go("replayed", replaying) == plain
    assert len(devices[-1].recorded) == len(set(devices[-1].recorded)) >= 3
    go("resumed", replaying, "--steps", "3")
    assert go("resumed", replaying, "--resume") == plain


def with_microbatches(made: Manifest, microbatches: int) -> Manifest:
    return attrs.evolve(made, run=attrs.evolve(made.run, microbatches=microbatches))
