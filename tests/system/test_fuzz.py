"""scripts/fuzz: that it finds what is broken on purpose, and makes small programs of what it finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from tvm import te, tirx

import schedules
from schedules.cpu import elementwise
from schedules.tir.rewrite import rewrite
from scripts.fuzzing import bounds, choose, oracle, shrink, trial
from scripts.fuzzing.child import Child
from scripts.fuzzing.programs import Program
from tests.schedules import tensor_programs
from tests.schedules.tensor_programs import V3, V4, runs_here

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/fuzz"

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# Rows of 5, that a vector does not hold; a sum; a map whose values are kept.
SMALL = Program(
    inputs=(("f32", (3, 5), "normal"), ("f32", (3, 5), "whole")),
    steps=(("exp", (0,), {}), ("*", (2, 1), {}), ("sum", (3,), {"axes": (1,), "keepdims": False})),
    outputs=(3, 4),
    gradients=(0,),
)


def finding_kind(program: Program = SMALL) -> str:
    finding, counts = trial.trial(program, gpu=False, told=lambda what: None)
    assert finding is not None or counts["sure"] == counts["elements"] > 0
    return "" if finding is None else finding.kind


def change_nodes(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], kind: Any, *targets: str) -> None:
    """From here on each scheduled program for ``targets`` has its nodes of ``kind`` changed."""
    first = schedules.first

    def worse(func: Any, target: Any) -> Any:
        done = first(func, target)
        if target.name not in targets:
            return done
        return attrs.evolve(done, func=done.func.with_body(rewrite(done.func.body, [(kind, change)])))

    monkeypatch.setattr(schedules, "first", worse)


def further(store: Any) -> Any:
    """A store one element further."""
    index = store.indices[-1]
    by = tirx.IntImm("int64", 1)
    if isinstance(index, tirx.Ramp):
        index = tirx.Ramp(index.base + by, index.stride, index.lanes)
    return tirx.BufferStore(store.buffer, store.value, [*store.indices[:-1], index + by])


def larger(product: Any) -> Any:
    """Products of floats a little larger than they are."""
    is_float = str(product.ty) == "float32"
    return tirx.Mul(product, tirx.FloatImm("float32", 1.0001)) if is_float else product


def test_nothing_is_found_where_nothing_is_broken() -> None:
    assert finding_kind() == ""


def test_a_schedule_that_writes_outside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    change_nodes(monkeypatch, further, tirx.BufferStore, V3, V4)
    assert finding_kind() == "memory"


def test_a_schedule_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    change_nodes(monkeypatch, larger, tirx.Mul, V3, V4)
    assert finding_kind() == "numbers"


def test_a_level_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    change_nodes(monkeypatch, larger, tirx.Mul, V4)
    assert finding_kind() == "bits"


def test_a_program_that_no_rule_takes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "first", lambda func, target: schedules.Scheduled(None, "", ("rows: it broke",)))
    assert finding_kind() == "no rule"


def test_a_compiler_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.pipeline, "lower", lambda *given: 1 / 0)
    assert finding_kind() == "fault"


def dies(pipe: Any, gpu: bool) -> None:
    """A child in whose kernel something goes wrong."""
    pipe.recv()
    pipe.send(("at", "a kernel"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_a_finding_and_not_the_end() -> None:
    child = Child(gpu=False, work=dies)
    assert child.trial(SMALL) == (("crash", "SIGKILL: a kernel"), {})
    assert child.process is None  # so that the next one starts another


def test_sums_of_small_whole_numbers_must_be_exact() -> None:
    whole = Program((("f32", (40, 7), "whole"),), (("matmul", (0, 0), {"ta": False, "tb": True}),), (1,))
    graph = whole.graph()
    (want,) = oracle.expected(graph, whole.feeds(graph, 0))
    assert want.bound.max() == oracle.SMALLEST and not want.wrong(want.value).any()
    assert want.wrong(want.value + 1e-5).all()


def test_a_bound_is_some_units_in_the_last_place() -> None:
    graph = SMALL.graph()
    for want in oracle.expected(graph, SMALL.feeds(graph, 0)):
        size = abs(want.value).max()
        assert 2.0**-24 * size < want.bound.max() < 2.0**-14 * size


def test_a_seed_makes_one_program_and_seeds_make_different_ones() -> None:
    made = [str(choose.program(n)) for n in (1, 2, 3, 1)]
    assert made[0] == made[3] and len(set(made)) == 3


def test_what_fails_is_made_small() -> None:
    """Of a program that fails because of a tanh over an axis of more than 4, that is left."""
    steps = (*SMALL.steps, ("tanh", (3,), {}), ("concat", (5, 0), {"axis": 0}), ("neg", (6,), {}))
    large = attrs.evolve(SMALL, steps=steps, outputs=(4, 5, 7))

    def fails(p: Program) -> bool:
        return any(op == "tanh" for op, _, _ in p.steps) and any(d > 4 for _, shape, _ in p.inputs for d in shape)

    small = shrink.shrunk(large, fails, 60)
    assert [op for op, _, _ in small.steps] == ["tanh"] and small.gradients == ()
    assert [shape for _, shape, _ in small.inputs] == [(1, 5)]


def test_a_finding_is_printed_as_a_program_that_can_be_pasted() -> None:
    assert eval(str(SMALL), {"Program": Program}) == SMALL


def test_the_script_runs_one_seed() -> None:
    command = [sys.executable, str(SCRIPT), "--only", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.startswith("1 programs, "), done.stdout + done.stderr
    assert done.stdout.endswith("- 0 found\n")


def test_a_store_outside_of_a_buffer_of_the_kernel_s_own_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of 7 that TVM leaves one row of, where all of them are reckoned to lie one behind the other."""
    flatten = elementwise.flatten_divided_indices
    monkeypatch.setattr(
        elementwise, "flatten_divided_indices", lambda stmt, analyzer, _: flatten(stmt, analyzer, lambda buffer: True)
    )

    def function(x: Any) -> Any:
        first = te.compute(x.shape, lambda *at: te.sigmoid(x(*at)), "first")
        second = te.compute(x.shape, lambda *at: first(*at) * (first(*at) - x(*at)), "second")
        return te.compute(x.shape, lambda *at: second(*at) * second(*at) + first(*at), "third")

    with bounds.checked():
        built = tensor_programs.build(tensor_programs.program(function, ((31, 7), "float32")))
    with pytest.raises(RuntimeError, match=bounds.OUTSIDE):
        built.run(tensor_programs.numbers(31, 7))


def test_lanes_that_are_no_ramp_are_looked_at_one_by_one() -> None:
    assert finding_kind(Program((("f32", (2, 5, 2), "positive"),), (("/", (0, 0), {}),), (1,), gradients=(0,))) == ""


def test_the_mean_of_a_product_of_rounded_factors_has_a_gradient() -> None:
    """One number everywhere, rounded to bf16: it is stored as a vector of equal lanes."""
    step = ("cast", (0,), {"dtype": "bf16"})
    product = ("matmul", (1, 1), {"ta": False, "tb": False})
    assert finding_kind(Program((("f32", (24, 24), "normal"),), (step, product), (2,), gradients=(0,), even=True)) == ""
