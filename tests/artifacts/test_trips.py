"""Trips as two graphs, on a GPU of NumPy arrays: memory comes from a pool, what is captured reads and writes the arrays
of then, and whatever lies in memory that was given back is overwritten. Every byte must be that of a run without
graphs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from attrs import define, field

from artifacts import run
from artifacts.base import safetensors_io
from artifacts.device.cuda_graphs import Graphs
from artifacts.device.graph_recording import Layout, Missed
from artifacts.device.graph_replay import Replaying
from artifacts.device.interface import Call
from artifacts.format import manifest as m
from tests.artifacts import toy
from tests.artifacts.support import contents, metrics

# ---- the run: a state of three entries of one size and one of another, made in another order than it is given


def entry(name: str, wide: int = toy.W) -> m.Port:
    return toy.port("state", name, (toy.B, wide), toy.i32)


STATE = [entry("a"), entry("b"), entry("c"), entry("d", 2000)]
PHASES = {
    "generate.init": toy.phase("generate.init", [toy.x, toy.ctx("step")], STATE),
    "generate.step": toy.phase("generate.step", [toy.w, *STATE, toy.trip], [STATE[n] for n in (3, 1, 2, 0)]),
    "generate.finish": toy.phase("generate.finish", [*STATE, toy.t], [toy.sample]),
}


def begin(x: np.ndarray, step: np.ndarray) -> tuple[Any, ...]:
    return x, x + step, 2 * x, np.full((toy.B, 2000), x.sum())


def next_state(w: np.ndarray, a: Any, b: Any, c: Any, d: Any, trip: np.ndarray) -> tuple[Any, ...]:
    made = (d + trip) % 1009, (b + 3 * c + d[:, :1]) % 101, (5 * c + a) % 97, (3 * a + b + trip + (w[0] > 0.5)) % 89
    return tuple(array.astype(np.int32) for array in made)


def finish(a: Any, b: Any, c: Any, d: Any, t: np.ndarray) -> tuple[Any, ...]:
    return ((a + 2 * b + 3 * c + d[:, -1:]).astype(np.float32) / 97 + t,)


FUNCTIONS = toy.FUNCTIONS | {"generate.init": begin, "generate.step": next_state, "generate.finish": finish}


def manifest(trips: int) -> m.Manifest:
    made = toy.manifest()
    return attrs.evolve(
        made,
        step=attrs.evolve(made.step, trips=trips),
        phases=tuple(PHASES.get(p.name, p) for p in made.phases),
    )


# ---- the GPU

Pick = Callable[[int], int | None]


@define(eq=False)
class Pool:
    """Buffers by size. ``pick`` chooses among those that were given back, the last one last, or none of them."""

    pick: Pick
    free: dict[int, list[np.ndarray]] = field(factory=dict)
    made: int = 0

    def take(self, nbytes: int) -> np.ndarray:
        free = self.free.setdefault(nbytes, [])
        at = self.pick(len(free))
        if at is not None:
            return free.pop(at)
        self.made += 1
        return np.full(nbytes, 0x5A, np.uint8)

    def give(self, buffer: np.ndarray) -> None:
        self.free[buffer.nbytes].append(buffer)

    def spoil(self) -> None:
        """Other work has used what is free."""
        for buffer in (b for free in self.free.values() for b in free):
            buffer[...] = 0x7F


def last(count: int) -> int | None:
    """As the runtime's allocator: what was given back last."""
    return count - 1 if count else None


class Tensor:
    def __init__(self, pool: Pool, shape: tuple[int, ...], name: str) -> None:
        self.pool, self.buffer = pool, pool.take(max(1, int(np.prod(shape))) * safetensors_io.DTYPES[name][2])
        self.array = self.buffer.view(safetensors_io.dtype(name)).reshape(shape)

    def data_ptr(self) -> int:
        return self.buffer.ctypes.data

    def __del__(self) -> None:
        self.pool.give(self.buffer)


@define(eq=False)
class Stream:
    pool: Pool
    captured: list[Callable[[], None]] | None = None
    alive: dict[int, list[Callable[[], None]]] = field(factory=dict)
    begun: int = 0
    copies: int = 0

    def do(self, work: Callable[[], None]) -> None:
        work() if self.captured is None else self.captured.append(work)

    def begin(self) -> None:
        assert self.captured is None
        self.captured, self.begun = [], self.begun + 1

    def end(self) -> tuple[int, int]:
        assert self.captured is not None
        self.alive[self.begun], self.captured = self.captured, None
        return self.begun, len(self.alive[self.begun])

    def abandon(self) -> None:
        self.captured = None

    def paced(self, work: Callable[[], Any]) -> Any:
        return work()

    def launch(self, graph: int, number: tuple[Any, int] | None = None) -> None:
        if number is not None:
            number[0].array[...] = number[1]
        for work in self.alive[graph]:
            work()

    def wait(self) -> None:
        assert self.captured is None

    def destroy(self, graph: int) -> None:
        del self.alive[graph]

    def last_error(self) -> int:
        return 0


class Gpu(Replaying):
    """``blocks``: bytes of what each call takes for itself, writes over, and gives back."""

    def __init__(self, made: m.Manifest, pick: Pick, blocks: Sequence[int], graphs: bool) -> None:
        self.manifest, self.pool, self.blocks = made, Pool(pick), blocks
        self.stream = Stream(self.pool)
        self._init_replay(Graphs(self.stream) if graphs else None)

    def tensor(self, array: np.ndarray) -> Tensor:
        out = self._empty(array)
        out.array[...] = array
        return out

    def numpy(self, handle: Tensor) -> np.ndarray:
        return handle.array.copy()

    def _empty(self, array: np.ndarray) -> Tensor:
        return Tensor(self.pool, array.shape, safetensors_io.dtype_name(array))

    def write(self, handle: Tensor, array: np.ndarray) -> None:
        assert self.stream.captured is None
        handle.array[...] = array

    def _copy(self, to: Tensor, source: Tensor) -> None:
        self.stream.copies += self.stream.captured is not None
        a, b = to.array, source.array
        self.stream.do(lambda: np.copyto(a, b))

    def _fill(self, handles: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for array in (handle.array for handle in handles):
            self.stream.do(lambda array=array: array.fill(0))
        return ()

    def phase(self, name: str) -> Call:
        phase, function = self.manifest.phase(name), FUNCTIONS[name]
        assert phase is not None
        pairs = dict(phase.in_place)

        def call(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            blocks = [Tensor(self.pool, (size,), "u8") for size in self.blocks]
            ports = [(o, p) for o, p in enumerate(phase.outputs) if o not in pairs]
            returned = {o: Tensor(self.pool, p.shape, p.dtype) for o, p in ports}
            given, spoiled = [x.array for x in inputs], [block.array for block in blocks]
            into = [(inputs[pairs[o]] if o in pairs else returned[o]).array for o in range(len(phase.outputs))]

            def work() -> None:
                for array in spoiled:
                    array.fill(0x3C)
                for array, value in zip(into, function(*[g.copy() for g in given]), strict=True):
                    array[...] = value

            self.stream.do(work)
            return tuple(returned.values())

        return self._capturable(name, call) if self._graphs else call

    def repeat(self, *args: Any) -> Any:
        self.pool.spoil()
        return super().repeat(*args)


def run_trips(folder: Path, name: str, made: m.Manifest, **how: Any) -> tuple[dict[str, str], Gpu]:
    artifact, devices = toy.write(folder, made), []

    def device(opened: Any, threads: int | None) -> Gpu:
        devices.append(Gpu(opened.manifest, **how))
        return devices[-1]

    out = folder / name
    assert run.main([artifact, "--out", str(out), "--data", str(folder), "-q"], device=device) == 0
    return contents(out, toy.STEPS) | {"log": str(metrics(out))}, devices[-1]


def scattered(seed: int) -> Pick:
    draws = random.Random(seed)
    return lambda count: draws.choice([None, *range(count)])


ROW, ROW_D = 4 * toy.B * toy.W, 4 * toy.B * 2000  # bytes of an entry of the state
POOLS: dict[str, tuple[Callable[[], Pick], tuple[int, ...]]] = {
    "as the runtime's": (lambda: last, (10_000, 20_000)),
    "a block of a state's size": (lambda: last, (ROW, 10_000)),
    "blocks of all sizes": (lambda: last, (ROW, ROW, ROW_D, ROW)),
    **{f"scattered {seed}": (lambda seed=seed: scattered(seed), (ROW, ROW_D)) for seed in range(3)},
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("trips", [1, 2, 3, 4, 12])
def test_two_graphs_whatever_the_pool_and_the_bits_of_none(trips: int, pool: str, tmp_path: Path) -> None:
    pick, blocks = POOLS[pool]
    want, _ = run_trips(tmp_path, "plain", manifest(trips), pick=last, blocks=(), graphs=False)
    got, gpu = run_trips(tmp_path, "graphs", manifest(trips), pick=pick(), blocks=blocks, graphs=True)
    assert got == want
    assert gpu._graphs is not None
    # generate.init, the trips, generate.finish, train; the pass writes, too.
    assert {key: graphs for key, (graphs, _) in gpu._graphs.captured.items()} == {
        ("zero",): 1, ("update",): 1, ("train", 1): 3 + min(trips, 2), ("eval", "held"): 3 + min(trips, 2),
    }  # fmt: skip
    assert len(gpu.stream.alive) <= 2 + 2 * 5


def test_where_a_call_takes_no_memory_of_its_states_sizes_nothing_is_copied(tmp_path: Path) -> None:
    """The order in which the step makes its entries is learned."""
    _, gpu = run_trips(tmp_path, "graphs", manifest(40), pick=last, blocks=(10_000,), graphs=True)
    assert gpu._graphs is not None
    for key in (("train", 1), ("eval", "held")):
        assert gpu._graphs.layouts[key].held_inputs == set() and gpu._graphs.layouts[key].miss_count <= 1
    assert gpu.stream.copies == 0


def test_only_what_is_in_the_way_is_copied(tmp_path: Path) -> None:
    _, gpu = run_trips(tmp_path, "graphs", manifest(40), pick=last, blocks=(ROW,), graphs=True)
    assert gpu._graphs is not None
    d = 4  # its place among the step's inputs: w, a, b, c, d
    assert gpu._graphs.layouts["train", 1].held_inputs and d not in gpu._graphs.layouts["train", 1].held_inputs


def test_memory_does_not_grow_with_the_trips(tmp_path: Path) -> None:
    few, many = (
        run_trips(tmp_path, str(trips), manifest(trips), pick=last, blocks=(ROW, 10_000), graphs=True)[1].pool.made
        for trips in (4, 400)
    )
    assert few == many


def test_a_layout_is_learned_in_three_misses() -> None:
    layout = Layout(order=[1, 2, 3])
    lay = {1: 10, 2: 20, 3: 30}
    layout.learn(lay, lay)
    with pytest.raises(Missed):
        layout.learn(lay, {1: 20, 2: 10, 3: 30})  # what lay at 10 was asked for first, by what is made for input 2
    assert layout.order == [2, 1, 3] and layout.held_inputs == set()
    with pytest.raises(Missed):
        layout.learn(lay, {1: 10, 2: 77, 3: 30})
    assert layout.held_inputs == {2}
    layout.learn(lay, {1: 10, 2: 99, 3: 30})
    with pytest.raises(Missed):
        layout.learn(lay, {1: 88, 2: 99, 3: 30})
    assert layout.held_inputs == {1, 2, 3}
    layout.learn(lay, {1: 88, 2: 99, 3: 66})
