"""What the tensors of a run take together, by its rehearsal."""

from __future__ import annotations

import attrs
import pytest

from artifacts.format import manifest as m
from artifacts.loop.memory_simulation import BLOCK_OVERHEAD, PAGE, CallMemory, simulate
from tests.artifacts import toy

NOTHING = CallMemory((), ())


def taken(manifest: m.Manifest, graphs: bool | None = None, **asked: CallMemory) -> int:
    """Bytes of the rehearsed run; ``asked``: phase, with _ for its dot, -> what a call asks for beside its results."""
    calls = {p.name: asked.get(p.name.replace(".", "_"), NOTHING) for p in manifest.phases}
    return simulate(manifest, calls, graphs=graphs).device


def captured(manifest: m.Manifest, **asked: CallMemory) -> int:
    """The same on a GPU whose calls are captured."""
    return taken(manifest, True, **asked)


def cost(asked: CallMemory, phase: str = "train") -> int:
    """By how much the run takes more when ``phase`` asks for ``asked``."""
    return taken(toy.manifest(), None, **{phase: asked}) - taken(toy.manifest())


def test_blocks_are_kept_by_size_and_used_again_by_other_phases() -> None:
    assert cost(CallMemory((40_000,), ())) == 40_960 + BLOCK_OVERHEAD
    one = CallMemory((40_000, 40_000), ())
    assert cost(one) == 2 * (40_960 + BLOCK_OVERHEAD)
    both = taken(toy.manifest(), train=one, generate_step=CallMemory((40_960, 8 * PAGE), ())) - taken(toy.manifest())
    assert both == 2 * (40_960 + BLOCK_OVERHEAD) + 8 * PAGE + BLOCK_OVERHEAD  # the step's first block is one of train's


def test_results_that_live_are_beside_the_blocks_of_their_size() -> None:
    wide = widened("state")
    states = (taken(wide) - taken(toy.manifest())) / (4 * 10**6)
    assert 1.99 < states < 2.01  # that of a trip, and of the trip before
    again = taken(wide, generate_step=CallMemory((4 * 10**6,), ())) - taken(wide)
    assert again > 4 * 10**6  # a block of its own, as none is free


def widened(*kinds: str, role: str = "", count: int = 10**6) -> m.Manifest:
    """The toy with ``count`` numbers in each port of these kinds, of one phase or of all."""

    def of(port: m.Port) -> m.Port:
        return attrs.evolve(port, shape=(count,)) if port.kind in kinds else port

    def wide(phase: m.Phase) -> m.Phase:
        if role not in ("", phase.role):
            return phase
        return attrs.evolve(phase, inputs=tuple(map(of, phase.inputs)), outputs=tuple(map(of, phase.outputs)))

    return attrs.evolve(toy.manifest(), phases=tuple(map(wide, toy.PHASES)))


def wider(kinds: tuple[str, ...], graphs: bool | None, **asked: CallMemory) -> float:
    """How many tensors of a million numbers a run of ``widened(*kinds)`` has more than the toy; pages are no matter."""
    return round((taken(widened(*kinds), graphs, **asked) - taken(toy.manifest(), graphs)) / (4 * 10**6), 1)


def test_captures_hold_what_they_return_and_neither_inits_results_nor_those_in_place() -> None:
    for kinds, count in ((("param", "optimizer"), 3), (("gradient",), 1), (("generated",), 1), (("state",), 2)):
        assert wider(kinds, True) == wider(kinds, False) == wider(kinds, None) == count
    # Of two metrics of a step, two of the pass and two of the update: each is held by its capture.
    assert wider(("metric",), True) == 6 and wider(("metric",), False) == 4


def test_a_state_that_trips_cannot_write_in_turn_is_there_once_more() -> None:
    block = {"generate_step": CallMemory((4 * 10**6,), ())}
    assert wider(("state",), False, **block) == 3 and wider(("state",), True, **block) == 4


def test_a_step_s_diagnostics_stay_until_the_next_one_has_its_own_and_a_pass_s_go_with_it() -> None:
    """A session keeps the numbers of a pass alone. The tensors of a batch stay until those of the next are there."""
    assert wider(("diagnostic",), None) == wider(("diagnostic",), False) == 1 + 2


def test_what_is_read_together_is_put_together_on_a_gpu() -> None:
    """Two metrics and a counter, each from a multiple of 16 bytes on; up to a thousand numbers are a page anyway."""
    for graphs, more in ((True, 2 * (4000 - 16)), (False, 2 * (4000 - 16)), (None, 0)):
        assert taken(widened("metric", count=1000), graphs) - taken(toy.manifest(), graphs) == more


def single_microbatch(manifest: m.Manifest, every: int) -> m.Manifest:
    """One microbatch, whose gradients nothing sums, and the pass after each ``every`` steps."""
    inputs = tuple(port for port in manifest.phase("train").inputs if port.kind != "gradient")
    phases = (attrs.evolve(p, inputs=inputs, in_place=()) if p.name == "train" else p for p in manifest.phases)
    passes = tuple(attrs.evolve(one, every=every) for one in manifest.step.passes)
    step, run = attrs.evolve(manifest.step, passes=passes), attrs.evolve(manifest.run, microbatches=1)
    return attrs.evolve(manifest, phases=tuple(phases), step=step, run=run)


def test_a_pass_that_first_comes_late_finds_the_step_captured() -> None:
    """What its generator makes, call by call, is beside the gradients that the step's capture holds."""
    wide = widened("state", "gradient")
    for every, graphs, count in ((3, True, 3), (2, True, 3), (1, True, 2), (3, False, 2), (3, None, 2)):
        more = taken(single_microbatch(wide, every), graphs) - taken(single_microbatch(toy.manifest(), every), graphs)
        assert round(more / (4 * 10**6), 1) == count, (every, graphs)


def test_constants_are_on_the_gpu_and_in_a_cpus_library() -> None:
    calls = {p.name: NOTHING for p in toy.PHASES}
    for graphs, more in ((True, 4 * PAGE), (False, 4 * PAGE), (None, 0)):
        found = simulate(toy.manifest(), calls, (8, 8, PAGE + 1), graphs).device
        assert found - simulate(toy.manifest(), calls, (), graphs).device == more


def test_workspaces_are_those_of_the_hungriest_kernel_and_of_each_thread() -> None:
    kernels = (((30 * PAGE,), (2 * PAGE,)), ((20 * PAGE, 10 * PAGE), ()), ((), (3 * PAGE,)))
    found = simulate(toy.manifest(), {p.name: CallMemory((), kernels) for p in toy.PHASES})
    assert found.thread == 3 * PAGE + BLOCK_OVERHEAD
    # the calling thread: 30 and 2 pages; then 20 in the 30, and 10 where the 2 were; then 3 in the 10
    assert found.device - taken(toy.manifest()) == (30 + 10) * PAGE + 2 * BLOCK_OVERHEAD


def test_many_trips_and_batches_are_rehearsed_at_once() -> None:
    long = toy.manifest()
    long = attrs.evolve(long, step=attrs.evolve(long.step, trips=2**31 - 1))
    assert taken(long) == taken(toy.manifest())
    assert captured(long) == captured(toy.manifest())


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_many_microbatches_are_rehearsed_at_once(degree: int) -> None:
    """Those that a step has more of ask for nothing more, whatever the rest that is taken one by one."""

    def of(microbatches: int) -> int:
        made = toy.manifest(microbatches=microbatches)
        return taken(made if degree == 1 else toy.stacked(made, degree))

    assert of(2**31 - 1) == of(5 * degree - 1) and of(2**31 - degree) == of(6 * degree)
