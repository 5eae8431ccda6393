"""What a program takes for itself, as it is when TVM has joined its buffers."""

from __future__ import annotations

from typing import Any

import pytest
from lowering_runs import no_rule, target

tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
pytest.importorskip("ziglang", reason="needs the extra `build`")

from tvm.script import tirx as TS  # noqa: E402

import schedules  # noqa: E402
from lowering.codegen import objects  # noqa: E402
from lowering.passes.memory_usage import Workspace  # noqa: E402

pytestmark = pytest.mark.build
GPU = schedules.TARGETS["nvidia-h100"].tvm


@TS.prim_func(s_tir=True)
def two_launches(x: TS.Buffer((2048,), "float32"), y: TS.Buffer((2048,), "float32")):
    between = TS.sblock_alloc_buffer((2048,), "float32")
    for _ in TS.thread_binding(1, thread="blockIdx.x"):
        with TS.sblock("whole"):
            held = TS.sblock_alloc_buffer((2048,), "float32", scope="shared")
            for t in TS.thread_binding(1024, thread="threadIdx.x"):
                for v in range(2):
                    with TS.sblock("first"):
                        i = TS.axis.spatial(2048, t * 2 + v)
                        held[i] = x[i] * x[i]
            for t in TS.thread_binding(1024, thread="threadIdx.x"):
                for v in range(2):
                    with TS.sblock("second"):
                        i = TS.axis.spatial(2048, t + v * 1024)
                        between[i] = held[2047 - i]
    for t in TS.thread_binding(1024, thread="threadIdx.x"):
        for v in range(2):
            with TS.sblock("third"):
                i = TS.axis.spatial(2048, t + v * 1024)
                y[i] = between[i] + between[2047 - i]


@TS.prim_func(s_tir=True)
def one_number_between(x: TS.Buffer((32,), "float32"), y: TS.Buffer((32,), "float32")):
    between = TS.alloc_buffer((1,), "float32")
    for _ in TS.thread_binding(1, thread="threadIdx.x"):
        with TS.sblock("first"):
            between[0] = x[0]
    for t in TS.thread_binding(32, thread="threadIdx.x"):
        with TS.sblock("second"):
            y[t] = between[0]


@TS.prim_func(s_tir=True)
def three_launches(x: TS.Buffer((2048,), "float32"), y: TS.Buffer((2048,), "float32")):
    held = TS.alloc_buffer((2048,), "float32")
    again = TS.alloc_buffer((2048,), "float32")
    for t in TS.thread_binding(1024, thread="threadIdx.x"):
        for v in range(2):
            with TS.sblock("first"):
                i = TS.axis.spatial(2048, t * 2 + v)
                held[i] = x[i] * x[i]
    for t in TS.thread_binding(1024, thread="threadIdx.x"):
        for v in range(2):
            with TS.sblock("second"):
                i = TS.axis.spatial(2048, t + v * 1024)
                again[i] = held[i] + held[i]
    for t in TS.thread_binding(1024, thread="threadIdx.x"):
        for v in range(2):
            with TS.sblock("third"):
                i = TS.axis.spatial(2048, t + v * 1024)
                y[i] = again[i] * again[i]


def looped(size: int, lanes: int) -> Any:
    """A CPU's program that goes by vectors through a buffer of ``size`` numbers."""

    @TS.prim_func(s_tir=True)
    def program(x: TS.Buffer((size,), "float32"), y: TS.Buffer((size,), "float32")):
        between = TS.alloc_buffer((size,), "float32")
        for t in range(size // lanes):
            for v in TS.vectorized(lanes):
                with TS.sblock("first"):
                    i = TS.axis.spatial(size, t * lanes + v)
                    between[i] = x[i]
        for t in range(size // lanes):
            for v in TS.vectorized(lanes):
                with TS.sblock("second"):
                    i = TS.axis.spatial(size, size - lanes - t * lanes + v)
                    y[i] = between[i]

    return program


def workspace(program: Any, on: Any = GPU) -> Workspace:
    """Of a program that is scheduled as it is."""
    part = tvm.ir.save_json(tvm.IRModule({"f": program}))
    return objects.compile_part(part, on, no_rule).workspaces["f"]


def test_on_a_gpu_a_workspace_counts_whatever_its_size() -> None:
    """A small one of a CPU is on the stack."""
    assert workspace(one_number_between) == Workspace((4,))
    assert workspace(looped(128, 8), target()) == Workspace()


def test_vectors_count_with_all_their_numbers() -> None:
    """Where a buffer is read and written by vectors alone, TVM makes it one of vectors."""
    assert workspace(looped(1024, 8), target()) == Workspace((4 * 1024,))


def test_what_one_launch_leaves_for_the_next_is_workspace_and_what_threads_share_is_not() -> None:
    assert workspace(two_launches) == Workspace((4 * 2048,))


def test_two_buffers_of_which_one_is_made_in_place_of_the_other_are_one() -> None:
    assert workspace(three_launches) == Workspace((4 * 2048,))
