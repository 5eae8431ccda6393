"""The memory plan of the graphs: what the run holds, what each phase adds, and how the report says it."""

from __future__ import annotations

import pytest
from attrs import frozen

from sexpgpu.graph.core import Builder, Graph
from sexpgpu.language.diagnostics import UserError
from sexpgpu.ops.types import TensorType
from sexpgpu.planning.memory_plan import (
    Memory,
    check_limit,
    check_room,
    estimate,
    lines,
    live_bytes,
    parse_size,
    room_of,
    size,
    unit,
)
from tests.support import plan_of

GENERATE = """(defgenerate :trips 2
  :init (lambda (batch ctx) (list :x (field batch :x)))
  :step (lambda (state trip ctx) (list :x (+ (getf state :x) (cast trip :f32))))
  :finish (lambda (state ctx) (list :wide (broadcast (expand-dims (getf state :x) 2) [4 3 1000]))))"""
USE = "(defprepare (batch ctx) (list :x (mean (field batch :wide) :axes [2]) :y (field batch :y)))"


def test_what_the_run_holds_is_counted_once() -> None:
    plan = plan_of(optimizer="(defoptimizer (adam :lr 0.1))")
    memory = estimate(plan)
    numbers = 4 * (3 * 2 + 2)  # the weights and biases of linear, in bytes
    assert (memory.parameters, memory.optimizer, memory.gradients) == (numbers, 2 * numbers, numbers)
    assert memory.total == 4 * numbers + max(memory.phases.values())
    assert memory.phases["train"] >= 4 * (4 * 3 + 4 + 4 * 2)  # x, y and the logits
    assert memory.phases["update"] < 400  # its results replace what the run holds
    assert memory.generation is None and memory.phases["init"] < 400


def test_the_generator_s_largest_phase_is_told_with_its_batch_and_state() -> None:
    memory = estimate(plan_of(generate=GENERATE, prepare=USE))
    assert memory.phases["generate.init"] == 4 * 4 * 3 * 2  # x, and the state that is a copy of it
    assert memory.generation == memory.phases["generate.finish"] >= 4 * 4 * 3 * 1001
    assert memory.phases["train"] >= 4 * 4 * 3 * 1000
    assert memory.largest in ("generate.finish", "train")


def test_what_a_trip_leaves_as_it_was_is_counted_once() -> None:
    changed, same = "(+ (getf state :x) (cast trip :f32))", "(getf state :x)"
    assert GENERATE.count(changed) == 1
    of = [estimate(plan_of(generate=GENERATE.replace(changed, x), prepare=USE)).phases for x in (changed, same)]
    assert of[0]["generate.step"] >= 4 * 4 * 3 * 2 + 8 and of[1]["generate.step"] == 4 * 4 * 3  # of x alone


def test_the_limit() -> None:
    memory = Memory(1, 2, 1, {"train": 3 * 2**20, "generate.step": 5 * 2**20}, 9 * 2**20)
    check_limit(memory, None, "run.sx")
    check_limit(memory, 9 * 2**20, "run.sx")
    with pytest.raises(UserError) as fault:
        check_limit(memory, 9 * 2**20 - 2**18, "run.sx", total=10 * 2**20)
    assert fault.value.code.exit == 3
    assert fault.value.line() == (
        "error[E-MEM-001]: run.sx: the run takes 10.0 MiB of memory, --memory-limit is 8.8 MiB; its largest phase is "
        "generate.step with 5.0 MiB (a smaller :batch with more :microbatches takes less)"
    )


@frozen
class Card:
    memory: int
    level: str = "cuda-sm_80"


@frozen
class To:
    name: str
    gpu: Card | None = None


def test_the_cards_of_targets_are_limits() -> None:
    memory = Memory(1, 2, 1, {"train": 3 * 2**20}, 9 * 2**20)
    targets = [To("cpu-x86-64-v3"), To("nvidia-l4", Card(8 * 2**20)), To("cuda-sm_90", Card(0))]
    check_room(memory, [targets[0], targets[2]], None, "run.sx", {"cuda-sm_80": 2**60})
    check_room(memory, targets, None, "run.sx", {"": 2**60, "cuda-sm_80": 8 * 2**20})
    with pytest.raises(UserError) as fault:
        check_room(memory, targets, None, "run.sx", {"": 0, "cuda-sm_80": 12 * 2**20})
    assert fault.value.line().startswith(
        "error[E-MEM-001]: run.sx: the run takes 12.0 MiB of memory, nvidia-l4 has 8.0 MiB; its largest phase is train"
    )
    with pytest.raises(UserError, match="nvidia-l4 has"):
        check_room(memory, targets, 2**40, "run.sx")
    with pytest.raises(UserError, match="--memory-limit is"):
        check_room(memory, targets, 2**20, "run.sx")
    assert room_of(targets, None) == 8 * 2**20 and room_of(targets, 2**20) == 2**20
    assert room_of(targets[:1], None) is None


@pytest.mark.parametrize("text, n", [("4GiB", 4 * 2**30), ("1.5KiB", 1536), ("12B", 12)])
def test_a_size_is_read(text: str, n: int) -> None:
    assert parse_size(text) == n


@pytest.mark.parametrize("text", ["4", "4G", "4GB", "GiB", "-1GiB", "1e3MiB", "4 GiB", "", "\u0664GiB"])
def test_what_is_no_size_is_not(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_values_that_one_kernel_makes_for_itself_take_nothing() -> None:
    b = Builder()
    x = b.input("x", TensorType((10, 10), "f32"))
    y = b("exp", b("+", b("*", x, x), x))
    z = b("matmul", b("reshape", y, shape=(5, 20)), b("reshape", y, shape=(20, 5)), ta=False, tb=False)
    assert live_bytes(Graph("f", (x,), (("z", z),))) == 4 * (100 + 25)  # y, in two views, and z
    assert live_bytes(Graph("f", (x,), (("y", y), ("z", z)))) == 4 * (100 + 25)
    w = b("matmul", z, z, ta=False, tb=False)
    assert live_bytes(Graph("f", (x,), (("w", w),))) == 4 * (100 + 25)  # y is gone when w is made


@pytest.mark.parametrize("generation, last", [(int(0.4 * 2**30), ", generation 0.4 GiB"), (None, "")])
def test_the_line_is_in_one_unit_and_at_most_100_columns(generation: int | None, last: str) -> None:
    phases = {"train": 3 * 2**30, **({"generate.init": 5, "generate.step": generation} if generation else {})}
    memory = Memory(2**30, 2**31, 2**30, phases, 7 * 2**30)
    first, second = lines(memory)
    assert first == "memory       parameters 1.0 GiB, optimizer 2.0 GiB, gradients 1.0 GiB,"
    assert second == f"             train 3.0 GiB{last}; 7.0 GiB in all"
    assert max(map(len, lines(Memory(2**40, 2**41, 2**42, {"train": 2**49, "generate.init": 2**48}, 2**50)))) <= 100


@pytest.mark.parametrize(
    "n, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 - 1, "1024.0 KiB"), (2**60, "1048576.0 TiB")]
)
def test_sizes(n: int, text: str) -> None:
    assert size(n) == text and unit(n) == text.split()[1]
