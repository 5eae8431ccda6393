"""What the audit reads off a launch, on launches whose figures are known."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")

from tvm import tirx

from schedules.gpu.audit.launch_audit import audit
from schedules.gpu.threads.launch import launch, launch_per_point, shared
from schedules.tir.builder import i64, load, loop, seq, store

N = 1 << 20


def buffers(*shapes: tuple[tuple[int, ...], str]) -> list[Any]:
    return [tirx.decl_buffer([i64(e) for e in shape], dtype, f"p{n}") for n, (shape, dtype) in enumerate(shapes)]


def the_launch(params: list[Any], body: Any) -> Any:
    (found,) = audit(tirx.PrimFunc(params, body))
    return found


def test_side_by_side_threads_are_without_fault() -> None:
    a, b = buffers(((N,), "float32"), ((N,), "float32"))
    found = the_launch([a, b], launch_per_point(N, lambda f: store(b, load(a, f) * 2.0 + 1.0, f)))
    assert (found.blocks, found.threads, found.serial) == (N // 256, 256, 1)
    assert (found.bytes, found.flops, found.results, found.work) == (8 * N, 2 * N, N, 2 * N)
    assert [o.stride for o in found.operands] == [1, 1] and not found.faults


def test_a_thread_a_row_is_a_fault() -> None:
    a, b = buffers(((4096, 512), "float32"), ((4096,), "float32"))
    row = lambda r: loop(512, lambda k: store(b, load(b, r) + load(a, r, k), r), name="k")  # noqa: E731
    found = the_launch([a, b], launch_per_point(4096, row))
    assert found.serial == 512 and found.blocks == 16
    assert found.faults == (
        "p0: neighbouring threads are 512 elements apart",
        "16 blocks for 4096 results of 6291456 elements",
    )


def test_a_row_shared_out_to_a_warp_is_none_though_rows_are_narrower() -> None:
    a, b = buffers(((65536, 20), "float32"), ((65536, 20), "float32"))

    def body(block: Any, thread: Any) -> Any:
        row, lane = block * 16 + thread // 16, thread % 16

        def turn(k: Any) -> Any:
            inside = lane + k * 16 < 20
            return tirx.IfThenElse(inside, store(b, load(a, row, lane + k * 16), row, lane + k * 16), None)

        return loop(2, turn)

    found = the_launch([a, b], launch(4096, 256, body))
    assert [o.stride for o in found.operands] == [1, 1] and not found.faults


def test_an_order_of_threads_that_data_decides_is_not_judged() -> None:
    a, where, b = buffers(((N,), "float32"), ((N,), "int32"), ((N,), "float32"))
    found = the_launch([a, where, b], launch_per_point(N, lambda f: store(b, load(a, load(where, f)), f)))
    assert {o.name: o.stride for o in found.operands} == {"p0": None, "p1": 1, "p2": 1}


def test_rows_that_data_decides_are_judged_inside() -> None:
    a, where, b = buffers(((1000, 64), "float32"), ((N // 64,), "int32"), ((N // 64, 64), "float32"))
    taken = launch_per_point(N, lambda f: store(b, load(a, load(where, f // 64), f % 64), f // 64, f % 64))
    turned = launch_per_point(N, lambda f: store(b, load(a, f % 1000, load(where, f % 64)), f // 64, f % 64))
    assert [o.stride for o in the_launch([a, where, b], taken).operands] == [1, 1, 0]
    assert the_launch([a, where, b], turned).operands[1].stride is None


def test_shared_memory_and_what_few_threads_do() -> None:
    a, b = buffers(((128, 256), "float32"), ((128,), "float32"))
    held = shared([256], "float32", "held")

    def body(block: Any, thread: Any) -> Any:
        last = store(b, load(held, i64(0)), (block + thread * 2) % 128)
        return seq([tirx.AllocBuffer(held), store(held, load(a, block, thread), thread),
                    tirx.IfThenElse(thread < 1, last, None)])  # fmt: skip

    found = the_launch([a, b], launch(128, 256, body))
    assert found.shared == 1024 and found.results == 128
    assert {o.name: (o.bytes, o.stride) for o in found.operands} == {"p0": (128 * 1024, 1), "p1": (512, 0)}


def test_a_vector_is_one_step() -> None:
    a, b = buffers(((N,), "float32"), ((N,), "float32"))
    four = lambda f: loop(4, lambda v: store(b, load(a, f * 4 + v), f * 4 + v), tirx.ForKind.VECTORIZED)  # noqa: E731
    assert not the_launch([a, b], launch_per_point(N // 4, four)).faults
    one = lambda f: loop(4, lambda v: store(b, load(a, f * 4 + v), f * 4 + v))  # noqa: E731
    assert len(the_launch([a, b], launch_per_point(N // 4, one)).faults) == 2


def test_small_launches_are_let_pass() -> None:
    a, b = buffers(((1024, 128), "float32"), ((1024, 128), "float32"))
    turned = launch_per_point(1 << 17, lambda f: store(b, load(a, f % 1024, f // 1024), f % 1024, f // 1024))
    assert not the_launch([a, b], turned).faults
