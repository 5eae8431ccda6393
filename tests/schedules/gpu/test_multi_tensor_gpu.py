"""Programs of many tensors on a GPU: few launches, with the bits of a CPU."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tvm import te, tirx

import schedules
from lowering.math import elementary
from schedules.gpu.audit.launch_audit import audit
from tests.cuda_on_cpu import emulator
from tests.schedules.tir.test_multi_tensor_cpu import (
    FORMS,
    SHAPES,
    elementwise,
    flags,
    many,
    random_inputs,
    shared,
    step,
    total,
)

from ..tensor_programs import V3, runs_here
from .cpu_and_cuda import GPU, same_bits, scheduled

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]
F = "float32"
LONG = ((300,), (130_001,), (2_100_000,), (8192,), (8193,))  # 1, 16, 257, 1 and 2 pieces


def launches(func: Any) -> int:
    return len(audit(scheduled(func, "multi-tensor")))


@pytest.mark.parametrize("name", FORMS)
def test_every_element_of_every_tensor(name: str) -> None:
    form, inputs = FORMS[name]
    func = many(form, inputs=inputs)
    same_bits(func, *random_inputs(inputs=inputs), rule="multi-tensor")
    assert launches(func) == 2  # two forms; pieces, and what is made of their results


def test_results_of_few_and_of_many_pieces() -> None:
    same_bits(many(total, LONG, 1), *random_inputs(LONG, 1), rule="multi-tensor")


def norm(n: int) -> Any:
    """The root of the sum of squares of ``n`` tensors, and those whole sums beside it."""
    xs = [te.placeholder(shape, F, f"x{k}") for k, shape in enumerate(SHAPES[:n])]
    sums: list[Any] = [total(k, x) for k, x in enumerate(xs)]
    whole: Any = te.compute((), lambda: sum((s() for s in sums[1:]), sums[0]()), "whole")
    root: Any = te.compute((), lambda: tirx.sqrt(whole()), "root")
    return te.create_prim_func([*xs, sums[0], root])


def test_what_is_made_of_the_sums_is_made_in_the_same_launch() -> None:
    func = norm(5)
    same_bits(func, *random_inputs(SHAPES[:5], 1), rule="multi-tensor")
    assert launches(func) == 2


def test_more_tensors_than_a_kernel_has_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, pointers, most in (("elements", 9, 4), ("sums", 5, 3)):  # two tensors a launch; four
        monkeypatch.setattr("schedules.gpu.multi_tensor.MAX_KERNEL_POINTERS", pointers)
        form, inputs = FORMS[name]
        func = many(form, inputs=inputs)
        same_bits(func, *random_inputs(inputs=inputs), rule="multi-tensor")
        assert launches(func) == most


@pytest.mark.parametrize("shapes", [SHAPES, SHAPES[:1]], ids=["many", "one"])
@pytest.mark.parametrize("order", emulator.ORDERS)
def test_an_update_in_place_reads_all_before_it_writes(shapes: Any, order: str) -> None:
    count, xs = len(shapes), random_inputs(shapes, 3)
    apart = emulator.compile(scheduled(many(step, shapes, 3), "multi-tensor" if count > 1 else None), GPU)
    want = apart.run(*xs)[3 * count :]
    compiled = emulator.compile(scheduled(shared(many(step, shapes, 3), count), "multi-tensor"), GPU)
    memory = [emulator.Guarded.make(x.shape, F, x) for x in xs]
    compiled.order[0] = order
    outs = [memory[3 * n + 1 - k] for n in range(count) for k in range(2)]
    compiled.call(*(m.tensor for m in (*memory, *outs)))
    for out, w in zip(outs, want, strict=True):
        assert out.untouched() and out.array.tobytes() == w.tobytes()


def test_truth_values_in_place_are_left_to_another_rule() -> None:
    func = shared(many(flags, SHAPES, 3), len(SHAPES))
    assert schedules.first(func, schedules.TARGETS[GPU]).rule != "multi-tensor"


def test_a_number_is_read_by_all() -> None:
    rate = te.placeholder((), F, "rate")
    xs = [te.placeholder(shape, F, f"x{n}") for n, shape in enumerate(SHAPES)]
    func = te.create_prim_func([rate, *xs, *(scaled(x, rate) for x in xs)])
    same_bits(func, np.asarray(0.3, F), *random_inputs(inputs=1), rule="multi-tensor")
    assert launches(func) == 1


def scaled(x: Any, rate: Any) -> Any:
    return elementwise(x.shape, lambda *i: x(*i) * rate())


def test_functions_are_called_whatever_the_target_writes_out() -> None:
    func = many(lambda n, x: elementwise(x.shape, lambda *i: tirx.pow(x(*i), tirx.const(2.5, F))), SHAPES[:2], 1)
    aimed = attrs.evolve(schedules.TARGETS[GPU], functions=elementary.STEPS)
    done = schedules.first(func.with_attr("global_symbol", "main"), aimed)
    assert done.rule == "multi-tensor" and "llvm" not in done.func.script()
